// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Round trips to another node, from its kernel: ICMPv6 to the link-local address that follows from the node's MAC address.

mod echo;

use std::io::Write;
use std::net::Ipv6Addr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::{Controller, Host};
use crate::reach::Way;
use crate::view;

use echo::Echo;

/// Whom to ask, and how often.
#[derive(Debug, Args)]
pub(crate) struct Ping {
    /// A node's id, or its name in /etc/nupa/nodes.conf
    #[arg(value_name = "NODE")]
    node: String,

    /// Ask so many times
    #[arg(short, long, value_name = "COUNT", default_value = "4",
        value_parser = clap::value_parser!(u16).range(1..))]
    count: u16,

    /// Ask every so many seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,

    /// Wait so many seconds for an answer
    #[arg(short = 'W', long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    timeout: Duration,
}

/// What came of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Pinged {
    /// Id of the node.
    node: u16,
    /// Its name in /etc/nupa/nodes.conf.
    name: Option<String>,
    /// Its address.
    address: Ipv6Addr,
    /// The interface here.
    netdev: String,
    /// Requests that were sent.
    sent: u16,
    /// Microseconds from each request to its answer; null where none came in time.
    round_trips: Vec<Option<f64>>,
}

/// Prints round trips. False if the node is down or there was no answer.
pub(crate) fn show(
    host: &Host,
    controllers: &[Controller],
    args: &Ping,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let way = Way::find(host, controllers, &args.node)?;
    let echo = Echo::open(&way.port(0))?;
    if !json {
        writeln!(
            out,
            "node {}, {} on {}",
            way.text(),
            way.address,
            way.netdev
        )?;
    }
    let round_trips = ask(&echo, args, json, out)?;
    let pinged = Pinged {
        node: way.node,
        name: way.name,
        address: way.address,
        netdev: way.netdev,
        sent: args.count,
        round_trips,
    };
    let answered = pinged.round_trips.iter().flatten().count();
    let text = match json {
        true => view::json(&pinged)?,
        false => pinged.summary(),
    };
    writeln!(out, "{text}")?;
    Ok(answered > 0)
}

/// Asks as often as is wanted, and says what came.
fn ask(
    echo: &Echo,
    args: &Ping,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<Vec<Option<f64>>> {
    let mut round_trips = Vec::new();
    for number in 1..=args.count {
        let begin = Instant::now();
        let took = echo.ask(number, args.timeout)?;
        let took = took.map(|took| took.as_secs_f64() * 1e6);
        round_trips.push(took);
        if !json {
            match took {
                Some(took) => writeln!(out, "{number}: {}", time(took))?,
                None => writeln!(out, "{number}: no answer")?,
            }
            out.flush()?;
        }
        if number != args.count {
            sleep(args.interval.saturating_sub(begin.elapsed()));
        }
    }
    Ok(round_trips)
}

impl Pinged {
    /// What came of it, in a line.
    fn summary(&self) -> String {
        let times: Vec<_> = self.round_trips.iter().flatten().copied().collect();
        if times.is_empty() {
            return format!(
                "{} sent, no answer: the interface of node {} may be down, be without IPv6, or have another link-local address than {}",
                self.sent, self.node, self.address
            );
        }
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        let most = times.iter().copied().fold(0.0, f64::max);
        let sum: f64 = times.iter().sum();
        let mean = sum / times.len() as f64;
        format!(
            "{} sent, {} answered; least {}, mean {}, most {}",
            self.sent,
            times.len(),
            time(least),
            time(mean),
            time(most)
        )
    }
}

/// Microseconds, for people.
pub(crate) fn time(micros: f64) -> String {
    if micros < 1000.0 {
        format!("{micros:.0} us")
    } else {
        format!("{:.2} ms", micros / 1000.0)
    }
}

/// Seconds, of which there may be parts.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    // NaN is in no range.
    if !(0.001..=3600.0).contains(&seconds) {
        return Err("not from 0.001 to 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_limits() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for wrong in ["", "x", "0", "-1", "NaN", "inf", "1e9"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_summary_says_least_mean_and_most() {
        let mut pinged = Pinged {
            node: 2,
            name: None,
            address: crate::reach::link_local(2),
            netdev: "nupanet0".to_owned(),
            sent: 3,
            round_trips: vec![Some(100.0), None, Some(2000.0)],
        };
        let expected = "3 sent, 2 answered; least 100 us, mean 1.05 ms, most 2.00 ms";
        assert_eq!(pinged.summary(), expected);
        pinged.round_trips = vec![None; 3];
        assert!(pinged.summary().starts_with("3 sent, no answer: "));
    }
}
