// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shows a host's fabric controllers, and the nodes that they reach.

mod cli;
mod drain;
mod dump;
mod emulator;
mod events;
mod export;
mod facts;
mod generate;
mod genl;
mod measure;
mod memory;
mod names;
mod netlink;
mod ping;
mod poll;
mod pool;
mod rdma;
mod reach;
mod resources;
mod stats;
mod sysfs;
mod talk;
mod top;
mod versions;
mod view;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use schemars::{schema_for, JsonSchema};

use crate::cli::{Cli, Verb};
use crate::facts::{Controller, Counters, Host, Peer};

/// Exit code where something does not work as it should; 2 is for wrong arguments.
const TROUBLE: u8 = 1;
/// Exit code where there is nothing to look at: no driver, or no controller.
const NOTHING: u8 = 3;
/// Exit code where it could not be found out.
const FAILED: u8 = 4;

/// What the verbs print with `--json`.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it is only described")]
struct Printed {
    status: Vec<Controller>,
    link: Vec<Controller>,
    peers: Vec<Peer>,
    topo: Topology,
    stats: Vec<Counters>,
    stats_by: Vec<stats::Usage>,
    stats_histogram: Vec<stats::Histogram>,
    events: events::Event,
    qp: Vec<resources::QueuePair>,
    mr: Vec<resources::Region>,
    queues: resources::Queues,
    ping: ping::Pinged,
    lat: measure::Latency,
    bw: measure::Bandwidth,
    selftest: Vec<measure::Fabric>,
    drain: drain::Drained,
    poll: Vec<poll::Polled>,
    emulator: Vec<nupa_control::NodeStats>,
    memory_list: Vec<memory::Device>,
    memory_create: memory::Device,
    memory_attach: memory::Device,
    memory_remove: memory::Device,
    pool_show: pool::Contents,
    pool_fsck: pool::Check,
    version: versions::Versions,
}

/// The fabric as seen from here.
#[derive(serde::Serialize, JsonSchema)]
struct Topology {
    /// Controllers of this host.
    controllers: Vec<Controller>,
    /// Nodes that they reach.
    peers: Vec<Peer>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(conflict) = cli.conflict() {
        let error = Cli::command().error(ErrorKind::ArgumentConflict, conflict);
        error.exit();
    }
    match run(&cli) {
        Ok(code) => code,
        Err(error) => {
            // What is printed to a pipe that nobody reads is nobody's loss.
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
            {
                return ExitCode::SUCCESS;
            }
            eprintln!("nupactl: {error:#}");
            ExitCode::from(match () {
                () if error.is::<netlink::NoDriver>() => NOTHING,
                () if error.is::<facts::NoController>() => NOTHING,
                () if error.is::<emulator::NoEmulator>() => NOTHING,
                () if error.is::<reach::NodeDown>() => TROUBLE,
                () if error
                    .downcast_ref::<measure::Failed>()
                    .is_some_and(measure::Failed::is_trouble) =>
                {
                    TROUBLE
                }
                () => FAILED,
            })
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    if let Some(fine) = without_driver(cli, &mut out)? {
        return Ok(ExitCode::from(if fine { 0 } else { TROUBLE }));
    }
    let mut host = Host::open()?;
    let controllers = host.controllers()?;
    let none = controllers.is_empty();
    if none && !cli.json && cli.is_table() {
        writeln!(out, "{}", view::NO_CONTROLLER)?;
        return Ok(ExitCode::from(NOTHING));
    }
    let shown = show(cli, &mut host, controllers, &mut out)?;
    Ok(if none { ExitCode::from(NOTHING) } else { shown })
}

/// Does what a verb says that works without the driver, and whether all is well then. `None` for other verbs.
fn without_driver(cli: &Cli, out: &mut impl Write) -> anyhow::Result<Option<bool>> {
    let fine = match &cli.verb {
        Verb::Schema => {
            writeln!(out, "{}", view::json(&schema_for!(Printed))?)?;
            true
        }
        Verb::Generate { directory } => {
            generate::write(directory)?;
            true
        }
        Verb::Export => {
            writeln!(out, "{}", export::read()?)?;
            true
        }
        Verb::Dump { file } => {
            dump::write(file.as_deref(), out)?;
            true
        }
        Verb::Emulator(emulator) => {
            emulator::run(emulator, cli.json, out)?;
            true
        }
        Verb::Version => versions::show(cli.json, out)?,
        Verb::Pool(pool) => pool::run(pool, cli.json, out)?,
        _ => return Ok(None),
    };
    Ok(Some(fine))
}

/// Does what a verb says that is about controllers.
fn show(
    cli: &Cli,
    host: &mut Host,
    controllers: Vec<Controller>,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let works = controllers
        .iter()
        .all(|controller| controller.trouble.is_none());
    let text = match &cli.verb {
        Verb::Status if cli.json => view::json(&controllers)?,
        Verb::Status => view::status(&controllers),
        Verb::Link if cli.json => view::json(&controllers)?,
        Verb::Link => view::links(&controllers, &host.counters(&controllers)?),
        Verb::Peers if cli.json => view::json(&host.peers()?)?,
        Verb::Peers => view::peers(&controllers, &host.peers()?),
        Verb::Topo(topo) => match (topo.dot, host.peers()?) {
            (true, peers) => view::dot(&controllers, &peers),
            (false, peers) if cli.json => view::json(&Topology { controllers, peers })?,
            (false, peers) => view::topo(&controllers, &peers),
        },
        Verb::Stats(stats) => {
            let any = stats::show(host, stats, cli.json, out)?;
            return Ok(ExitCode::from(if any { 0 } else { TROUBLE }));
        }
        Verb::Events(events) => {
            events::show(host, events.follow, cli.json, out)?;
            return Ok(ExitCode::SUCCESS);
        }
        Verb::Qp | Verb::Mr | Verb::Queues => {
            resources::show(&cli.verb, host, &controllers, cli.json, out)?;
            return Ok(ExitCode::SUCCESS);
        }
        Verb::Ping(args) => {
            let any = ping::show(host, &controllers, args, cli.json, out)?;
            return Ok(ExitCode::from(if any { 0 } else { TROUBLE }));
        }
        Verb::Drain(args) => {
            let drained = drain::run(host, &controllers, args, cli.json, out)?;
            return Ok(ExitCode::from(if drained { 0 } else { TROUBLE }));
        }
        Verb::Poll(args) => {
            let done = poll::run(host, &controllers, args, cli.json, out)?;
            return Ok(ExitCode::from(if done { 0 } else { TROUBLE }));
        }
        Verb::Memory(verb) => {
            memory::run(host, &controllers, verb, cli.json, out)?;
            return Ok(ExitCode::SUCCESS);
        }
        Verb::Lat(args) => {
            measure::latency(host, &controllers, args, cli.json, out)?;
            return Ok(ExitCode::SUCCESS);
        }
        Verb::Bw(args) => {
            measure::bandwidth(host, &controllers, args, cli.json, out)?;
            return Ok(ExitCode::SUCCESS);
        }
        Verb::Selftest(args) => {
            let fine = measure::selftest(host, &controllers, args, cli.json, out)?;
            return Ok(ExitCode::from(if fine { 0 } else { TROUBLE }));
        }
        Verb::Top(args) => {
            top::show(host, args, out)?;
            return Ok(ExitCode::SUCCESS);
        }
        Verb::Serve => {
            measure::serve(host, out)?;
            return Ok(ExitCode::SUCCESS);
        }
        // These were done without the driver.
        Verb::Schema
        | Verb::Generate { .. }
        | Verb::Export
        | Verb::Pool(_)
        | Verb::Emulator(_)
        | Verb::Version
        | Verb::Dump { .. } => String::new(),
    };
    writeln!(out, "{text}")?;
    Ok(ExitCode::from(if works { 0 } else { TROUBLE }))
}
