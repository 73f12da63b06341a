// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use nupa_control::Fault;
use nupa_controller::{DoorbellPlace, MAX_NODES};

/// Most nodes of one process; node id 0 stays free, so that nodeN.sock is node N.
pub(crate) const MOST_NODES: u16 = MAX_NODES - 1;

/// Emulated NUPA fabric: a switch, and one controller per node for QEMU to attach.
///
/// Node N's controller is at DIR/nodeN.sock. Start QEMU with its memory as
/// memory-backend-memfd,share=on and the device
/// '{"driver":"vfio-user-pci","socket":{"path":"DIR/nodeN.sock","type":"unix"}}'.
///
/// DIR/control.sock takes one command line per connection and answers with one line of
/// JSON: "stats", "link N up|down", "fault N WORD". `nupactl emulator` speaks to it.
///
/// Signals: TERM and INT end the switch; USR1 logs the counters of all nodes.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Args {
    /// Directory for the sockets; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,

    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_NODES)))]
    pub(crate) nodes: u16,

    /// Link speed that nodes report, in Mb/s
    #[arg(long, value_name = "MBPS", default_value_t = 256_000)]
    pub(crate) link_speed: u32,

    /// Where doorbells are kept: in the guests' memory, or in a BAR that guests map, which
    /// makes QEMU wait for the answer to each kick
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = Doorbells::Guest)]
    pub(crate) doorbells: Doorbells,

    /// Bytes of memory of its own that each controller offers (for ibv_alloc_dm), whole pages of
    /// 4 KiB; 0 for none
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    pub(crate) device_memory: u64,

    /// When to poll doorbells instead of waiting for kicks: "auto" (where cores are free;
    /// elsewhere now and then while requests come in crowds), "never", or for so many
    /// microseconds after the last work
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) poll: Poll,

    /// Take real-time priority: steadier round trips where other programs keep the cores busy,
    /// less throughput where only guests do
    #[arg(long)]
    pub(crate) realtime: bool,

    // Its help names the words that there are.
    #[arg(long = "fault", value_name = "N=WORD", help = format!(
        "Make node N's controller misbehave from the start, for tests: {}", Fault::words("or")))]
    pub(crate) faults: Vec<NodeFault>,

    /// How much to log
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = LogLevel::Info)]
    pub(crate) log_level: LogLevel,

    /// How to log (to standard error)
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

/// Where doorbells are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Doorbells {
    /// In the guests' memory.
    Guest,
    /// In a BAR.
    Bar,
}

impl From<Doorbells> for DoorbellPlace {
    fn from(doorbells: Doorbells) -> Self {
        match doorbells {
            Doorbells::Guest => Self::Guest,
            Doorbells::Bar => Self::Bar,
        }
    }
}

/// When to poll doorbells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poll {
    /// Where cores are free for it.
    Auto,
    /// Not at all.
    Never,
    /// For this long after the last work.
    For(Duration),
}

impl FromStr for Poll {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "never" => Ok(Self::Never),
            number => match number.parse() {
                Ok(usecs @ 1..=1_000_000) => Ok(Self::For(Duration::from_micros(usecs))),
                _ => Err("expected auto, never, or 1 to 1000000 microseconds".to_owned()),
            },
        }
    }
}

/// A fault of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeFault {
    /// Number of the node.
    pub(crate) node: u16,
    /// What it is to do.
    pub(crate) fault: Fault,
}

impl FromStr for NodeFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, word) = text.split_once('=').ok_or("expected N=WORD")?;
        let node = node
            .parse()
            .map_err(|_| format!("{node:?} is not a node number"))?;
        let fault = word.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { node, fault })
    }
}

/// How much to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Only what makes the switch useless.
    Error,
    /// What someone should look at.
    Warn,
    /// Guests that come and go.
    Info,
    /// Each object that a guest makes.
    Debug,
    /// Each message.
    Trace,
}

/// How to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&["nupa-switch", "--dir", "x"], args].concat())
    }

    #[test]
    fn numbers_are_checked() {
        assert_eq!(parse(&[]).unwrap().nodes, 2);
        let most = MOST_NODES.to_string();
        assert_eq!(parse(&["--nodes", &most]).unwrap().nodes, MOST_NODES);
        for bad in ["0", "66", "-1", "two"] {
            assert!(parse(&["--nodes", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn polling_is_a_word_or_a_time() {
        let poll = |text| parse(&["--poll", text]).map(|args| args.poll).ok();
        assert_eq!(poll("auto"), Some(Poll::Auto));
        assert_eq!(poll("never"), Some(Poll::Never));
        assert_eq!(poll("50"), Some(Poll::For(Duration::from_micros(50))));
        for bad in ["", "0", "soon", "9999999999"] {
            assert_eq!(poll(bad), None, "{bad}");
        }
    }

    #[test]
    fn faults_name_a_node_and_a_word() {
        let args = parse(&["--fault", "1=mute", "--fault", "2=version"]).unwrap();
        let expected = NodeFault {
            node: 2,
            fault: Fault::Version,
        };
        assert_eq!(args.faults.get(1), Some(&expected));
        for bad in ["mute", "x=mute", "1=broken", "1="] {
            assert!(parse(&["--fault", bad]).is_err(), "{bad}");
        }
    }
}
