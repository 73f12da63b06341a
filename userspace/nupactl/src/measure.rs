// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Latency and bandwidth to other nodes, between programs: `nupactl serve` runs on the other one.

mod bandwidth;
mod fault;
mod judge;
mod lack;
mod latency;
mod messages;
mod probe;
mod rdma;
mod selftest;
mod serve;
mod wire;

use std::io::Write;
use std::net::SocketAddrV6;
use std::time::Duration;

use anyhow::{ensure, Context};
use clap::Args;

use crate::facts::{Controller, Host};
use crate::reach::Way;
use crate::view;

pub(crate) use bandwidth::Bandwidth;
pub(crate) use fault::Failed;
pub(crate) use latency::Latency;
pub(crate) use selftest::{Fabric, Selftest};

use fault::Fault;
use probe::{Amount, Plan};
use wire::{MAX_COUNT, MAX_SIZE, MAX_TIME, MIN_SIZE, PORT};

/// What is measured over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// A TCP connection.
    Tcp,
    /// A connected queue pair.
    Rdma,
}

impl Transport {
    /// What the JSON says.
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

/// What to measure with.
#[derive(Debug, Args)]
pub(crate) struct Measure {
    /// A node's id, or its name in /etc/nupa/nodes.conf
    #[arg(value_name = "NODE")]
    node: String,

    /// Measure RDMA in place of TCP, by a connected queue pair: SEND for lat, WRITE for bw; takes libibverbs on both nodes
    #[arg(long)]
    rdma: bool,

    /// Bytes of each message; 64 for lat and 65536 for bw if it is not said
    #[arg(short, long, value_name = "BYTES",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SIZE)))]
    size: Option<u32>,

    /// Measure for so many seconds, in each direction; 2 if neither this nor COUNT is said
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,

    /// Measure so many round trips, or messages in each direction, in 60 seconds at most
    #[arg(short = 'n', long, value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_COUNT)))]
    count: Option<u32>,
}

impl Measure {
    fn transport(&self) -> Transport {
        match self.rdma {
            true => Transport::Rdma,
            false => Transport::Tcp,
        }
    }

    fn plan(&self, size: u32) -> Plan {
        let time = match (self.duration, self.count) {
            (Some(time), _) => time,
            (None, Some(_)) => MAX_TIME,
            (None, None) => Duration::from_secs(2),
        };
        Plan {
            size: self.size.unwrap_or(size),
            count: self.count.unwrap_or(MAX_COUNT),
            time,
        }
    }
}

/// Seconds that a measurement may take.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = crate::ping::seconds(text)?;
    if time > MAX_TIME {
        return Err(format!("more than {} seconds", MAX_TIME.as_secs()));
    }
    Ok(time)
}

/// Serves those who measure.
pub(crate) fn serve(host: &mut Host, out: &mut impl Write) -> anyhow::Result<()> {
    serve::run(host, out)
}

/// Prints round trips to a node.
pub(crate) fn latency(
    host: &Host,
    controllers: &[Controller],
    args: &Measure,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let way = Way::find(host, controllers, &args.node)?;
    let plan = args.plan(64);
    let transport = args.transport();
    begin(&way, transport, &plan, json, out)?;
    let times = match transport {
        Transport::Tcp => probe::round_trips(way.port(PORT), &plan),
        Transport::Rdma => rdma::round_trips(way.port(PORT), &plan),
    };
    let times = times.map_err(|fault| Failed::with(fault, &way.text()))?;
    let latency = Latency::new(way, transport, plan.size, times).context("nothing was measured")?;
    let text = match json {
        true => view::json(&latency)?,
        false => latency.text(),
    };
    writeln!(out, "{text}")?;
    Ok(())
}

/// What measures one direction.
type Direction = fn(SocketAddrV6, &Plan) -> Result<Amount, Fault>;

/// Prints the bandwidth to a node and from it.
pub(crate) fn bandwidth(
    host: &Host,
    controllers: &[Controller],
    args: &Measure,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let plan = args.plan(65536);
    ensure!(
        plan.size >= MIN_SIZE,
        "messages of {} bytes are too short: they have {MIN_SIZE} at least, because each has a number",
        plan.size
    );
    let way = Way::find(host, controllers, &args.node)?;
    let transport = args.transport();
    begin(&way, transport, &plan, json, out)?;
    let failed = |fault| Failed::with(fault, &way.text());
    let (send, receive): (Direction, Direction) = match transport {
        Transport::Tcp => (probe::send, probe::receive),
        Transport::Rdma => (rdma::send, rdma::receive),
    };
    let sent = send(way.port(PORT), &plan).map_err(failed)?;
    if !json {
        writeln!(out, "to the node:   {}", bandwidth::text(&sent))?;
        out.flush()?;
    }
    let received = receive(way.port(PORT), &plan).map_err(failed)?;
    let text = match json {
        true => view::json(&Bandwidth::new(way, transport, plan.size, sent, received))?,
        false => format!("from the node: {}", bandwidth::text(&received)),
    };
    writeln!(out, "{text}")?;
    Ok(())
}

/// Says what is measured now.
fn begin(
    way: &Way,
    transport: Transport,
    plan: &Plan,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if !json {
        writeln!(
            out,
            "node {}, {} on {}, {}, messages of {} bytes",
            way.text(),
            way.address,
            way.netdev,
            transport.name().to_uppercase(),
            plan.size
        )?;
        out.flush()?;
    }
    Ok(())
}

/// Measures between all nodes, and says whether all is well.
pub(crate) fn selftest(
    host: &Host,
    controllers: &[Controller],
    args: &Selftest,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    selftest::show(host, controllers, args, json, out)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn parse(arguments: &str) -> Result<Verb, clap::Error> {
        let words = ["nupactl"].into_iter().chain(arguments.split(' '));
        Cli::try_parse_from(words).map(|cli| cli.verb)
    }

    #[test]
    fn what_ends_a_measurement_has_defaults_and_limits() {
        for (arguments, count, seconds) in [
            ("lat 2", MAX_COUNT, 2),
            ("lat -n 5 2", 5, 60),
            ("bw -d 3 2", MAX_COUNT, 3),
            ("bw -n 5 -d 3 2", 5, 3),
        ] {
            let (Ok(Verb::Lat(args)) | Ok(Verb::Bw(args))) = parse(arguments) else {
                panic!("{arguments}");
            };
            let plan = args.plan(64);
            let time = Duration::from_secs(seconds);
            assert_eq!((plan.count, plan.time, plan.size), (count, time, 64));
        }
        for wrong in [
            "lat",
            "lat -s 0 1",
            "bw -s 2000000 1",
            "lat -d 61 1",
            "lat -n 0 1",
            "selftest --factor 1",
            "serve all",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
