// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::drain::Drain;
use crate::emulator::Emulator;
use crate::measure::{Measure, Selftest};
use crate::memory::Memory;
use crate::ping::Ping;
use crate::poll::Poll;
use crate::pool::Pool;
use crate::stats::By;
use crate::top::Top;

/// How metrics get to Prometheus.
const EXPORT: &str = "For the textfile collector of node_exporter, which wants whole files:\n  \
    cd /var/lib/prometheus/node-exporter\n  \
    nupactl export >nupa.prom.new && mv nupa.prom.new nupa.prom\n\n\
    It exits with 0 whatever the metrics say: nupa_up is 0 if the driver is not loaded. Only if it cannot find out, it exits with 4.";

/// What it costs that a thread polls.
const POLLED: &str = "Such a thread takes time and power of its processor also while nothing moves, and slows down the other hyperthread of the core.\n\
    It ends when the driver is unbound; the parameter poll_cpu of nupa_fabric has one start with the driver.";

/// Who serves.
const SERVED: &str = "To have a node serve from boot on: systemctl enable --now nupactl-serve";

/// Shows and operates a host's fabric controllers, and shows the nodes that they reach.
///
/// Nodes have the names that /etc/nupa/nodes.conf gives them: a line each, with the id and the name.
///
/// Exit codes: 0 all is well; 1 a controller does not run, its link is down, a node does not answer or is not served, a pair of nodes failed or
/// was flagged, versions do not fit together, memory holds no pool that can be used, or something is wrong with one, or a controller that is
/// drained has users left; 2 wrong arguments; 3 no driver, no controller, or no emulator; 4 it could not be done or found out.
#[derive(Debug, Parser)]
#[command(name = "nupactl", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// Print JSON in place of a table; `nupactl schema` describes it
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the controllers of this host, their state, and their interfaces
    Status,
    /// Show the links of this host's controllers: state, speed, last change, traffic
    Link,
    /// Show the nodes that are up, as the controllers of this host see them
    Peers,
    /// Show the fabric as seen from here: controllers, links and nodes
    Topo(Topo),
    /// Show the counters of this host's controllers
    Stats(Stats),
    /// Show the queue pairs of this host's RDMA devices: state, process, remote node, sizes
    Qp,
    /// Show the memory regions of this host's RDMA devices: bytes, process
    Mr,
    /// Show completion queues of this host's RDMA devices, and the queues of its interfaces
    Queues,
    /// Measure round trips to another node's interface through the fabric
    Ping(Ping),
    /// Measure round trips to a program on another node, where `nupactl serve` runs
    #[command(after_help = SERVED)]
    Lat(Measure),
    /// Measure the bandwidth to another node and from it, where `nupactl serve` runs
    #[command(after_help = SERVED)]
    Bw(Measure),
    /// Measure between all nodes of the fabric, and say which pairs stand out from the others; `nupactl serve` runs on each
    #[command(after_help = SERVED)]
    Selftest(Selftest),
    /// Let other nodes measure to this one, at port 6872 (TCP) of the fabric interfaces' link-local addresses; takes no rights
    #[command(after_help = SERVED)]
    Serve,
    /// Show links, nodes and queues again and again: q quits, arrows scroll, and n, s, p and a sort
    Top(Top),
    /// Show who is there, and with --follow what happens from now on
    Events(Events),
    /// Take a controller out of service: processes get no new queue pairs; wait until they have none
    Drain(Drain),
    /// Show which processor a thread polls a pool on without a pause, have one do so, or end that
    #[command(after_help = POLLED)]
    Poll(Poll),
    /// Show, create, attach and remove memory devices: files in /dev/nupa that programs map, of memory of a pool that nodes share
    #[command(subcommand)]
    Memory(Memory),
    /// Show, make, discard, check, attach and detach memory that hosts share
    #[command(subcommand)]
    Pool(Pool),
    /// Show the nodes of the emulated fabric, unplug their links, and make their controllers misbehave, for development; asks nupa-switch,
    /// not the kernel
    Emulator(Emulator),
    /// Print metrics as OpenMetrics text, for Prometheus
    #[command(after_help = EXPORT)]
    Export,
    /// Show the versions of all parts on this host, and what does not fit together
    Version,
    /// Write what there is to know of this host to an archive, for those who help; more of it as root
    Dump {
        /// The archive, which must not be there yet; nupa-HOST-TIME.tar.gz if it is not said
        file: Option<PathBuf>,
    },
    /// Print the JSON schema of what the verbs print with --json
    Schema,
    /// Write man pages and shell completions to a directory, for packages
    #[command(hide = true)]
    Generate {
        /// A directory, which is made if it is not there
        directory: PathBuf,
    },
}

/// How to show the fabric.
#[derive(Debug, Args)]
pub(crate) struct Topo {
    /// Print it for Graphviz: nupactl topo --dot | dot -Tsvg
    #[arg(long, conflicts_with = "json")]
    pub(crate) dot: bool,
}

/// Which counters to show, and how often.
#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// Show them again every so many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub(crate) watch: Option<u32>,

    /// Show by how much they have changed since they were shown last, or in one second
    #[arg(long)]
    pub(crate) delta: bool,

    /// Stop after having shown them so many times; without --watch a second apart
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: Option<u32>,

    /// Show those that are zero, too
    #[arg(long)]
    pub(crate) all: bool,

    /// Show what went through the RDMA queue pairs that there are, by the node at their other end or by process
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with_all = ["all", "histogram"])]
    pub(crate) by: Option<By>,

    /// Show how long RDMA requests took, of which one of 64 is measured
    #[arg(long, conflicts_with = "all")]
    pub(crate) histogram: bool,
}

/// For how long to show what happens.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Go on until interrupted
    #[arg(long)]
    pub(crate) follow: bool,
}

impl Cli {
    /// What is wrong with arguments that do not go together, beyond what clap knows.
    pub(crate) fn conflict(&self) -> Option<&'static str> {
        match &self.verb {
            Verb::Top(_) if self.json => Some(
                "top is for people, and prints no JSON: `stats --watch --delta`, `peers`, `qp` and `queues` do",
            ),
            Verb::Serve if self.json => Some("serve prints no JSON"),
            Verb::Memory(Memory::Handle { .. }) if self.json => {
                Some("memory handle prints no JSON: `memory list` does")
            }
            _ => None,
        }
    }

    /// Whether it prints a table of what is there.
    pub(crate) fn is_table(&self) -> bool {
        match &self.verb {
            Verb::Events(events) => !events.follow,
            Verb::Topo(topo) => !topo.dot,
            Verb::Serve | Verb::Top(_) => false,
            _ => true,
        }
    }
}
