// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The emulated fabric, by its control socket: its nodes, and what their links and controllers are told to do.

use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, Context};
use clap::{Args, Subcommand, ValueEnum};
use nupa_control::{ask, AskError, Command, Fault, NodeStats, SOCKET};

use crate::view;

/// Where its socket is if it is not said.
const WHERE: &str = "Without --socket it is the socket of the development nodes: control.sock in the directory that the variable NUPA_RUN \
    names, or else in build/run of the checkout that this program is in. `vms/status` says where that is if its path is too long.";

/// Which emulator, and what it is asked or told.
#[derive(Debug, Args)]
#[command(after_help = WHERE)]
pub(crate) struct Emulator {
    /// The control socket of nupa-switch
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,

    #[command(subcommand)]
    verb: Option<Verb>,
}

/// What it is told.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Show its nodes, which is what it does if nothing is said: guests, links, faults
    Show {
        /// Show also those that have no guest
        #[arg(long)]
        all: bool,
    },
    /// Plug a node's cable, or unplug it
    Link {
        /// The node's number at the switch
        node: u16,
        /// What its link is to be
        state: State,
    },
    /// Make a node's controller misbehave until it is told none
    Fault {
        /// The node's number at the switch
        node: u16,
        // Its help names the words that there are.
        #[arg(value_name = "WORD", help = format!("How: {}", Fault::words("or")))]
        fault: Fault,
    },
}

/// What a link is to be.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum State {
    Up,
    Down,
}

/// No emulator listens on the socket.
#[derive(Debug, thiserror::Error)]
#[error(
    "no emulator listens on {0}: vms/pcie/node1.sh starts one; --socket names the control socket of another"
)]
pub(crate) struct NoEmulator(String);

/// Does it, and shows the nodes that it is about.
pub(crate) fn run(args: &Emulator, json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => default_socket(env::var_os("NUPA_RUN"), &env::current_exe()?),
    };
    let tell = |command| ask(&socket, command).map_err(|why| explain(why, &socket));
    let (only, all) = match args.verb {
        None => (None, false),
        Some(Verb::Show { all }) => (None, all),
        Some(Verb::Link { node, state }) => {
            let up = matches!(state, State::Up);
            tell(Command::Link { node, up })?;
            (Some(node), true)
        }
        Some(Verb::Fault { node, fault }) => {
            tell(Command::Fault { node, fault })?;
            (Some(node), true)
        }
    };
    let mut nodes = tell(Command::Stats)?
        .nodes
        .context("the emulator says nothing of its nodes; is it of another version?")?;
    nodes.retain(|node| only.is_none_or(|only| node.node == only));
    let text = match json {
        true => view::json(&nodes)?,
        false => table(&nodes, all),
    };
    writeln!(out, "{text}")?;
    Ok(())
}

/// Where the development nodes' emulator listens. `run`: of the environment; `program`: this one, in build/bin.
fn default_socket(run: Option<OsString>, program: &Path) -> PathBuf {
    let beside = || Some(program.parent()?.parent()?.join("run"));
    let directory = run
        .filter(|run| !run.is_empty())
        .map(PathBuf::from)
        .or_else(beside);
    directory.unwrap_or_default().join(SOCKET)
}

/// What happened, and what to do.
fn explain(why: AskError, socket: &Path) -> anyhow::Error {
    let shown = socket.display();
    match why {
        AskError::NoEmulator => NoEmulator(shown.to_string()).into(),
        AskError::NoRights => {
            anyhow!("{shown}: the emulator is another user's: run this as that user, or as root")
        }
        // Another program may listen there, and say anything.
        AskError::Refused(why) => anyhow!("the emulator refuses: {}", view::printable(&why)),
        why => anyhow!("{shown}: {why}"),
    }
}

/// Nodes as a table: those with a guest, and those that were told something.
fn table(nodes: &[NodeStats], all: bool) -> String {
    let mut table = view::table(&[
        "NODE", "GUEST", "DRIVER", "LINK", "FAULT", "EPOCH", "QP", "MR", "SENT", "RECEIVED",
    ]);
    let shown =
        |node: &&NodeStats| all || node.connected || !node.link || node.fault != Fault::default();
    let mut any = false;
    for node in nodes.iter().filter(shown) {
        any = true;
        let word = |yes, word: &str| if yes { word } else { "-" }.to_owned();
        let sum = |names: [&str; 2]| {
            let values = names.iter().filter_map(|name| node.counters.get(*name));
            view::bytes(values.fold(0, |sum, value| sum.saturating_add(*value)))
        };
        table.add_row([
            node.node.to_string(),
            word(node.connected, "yes"),
            word(node.enabled, "runs"),
            if node.link { "up" } else { "down" }.to_owned(),
            word(node.fault != Fault::default(), node.fault.word()),
            node.epoch.to_string(),
            node.objects.qp.to_string(),
            node.objects.mr.to_string(),
            sum(["tx_bytes", "tx_message_bytes"]),
            sum(["rx_bytes", "rx_message_bytes"]),
        ]);
    }
    match any {
        true => view::trimmed(&table),
        false => format!(
            "the emulator has {} nodes and no guest: vms/pcie/node1.sh starts one",
            nodes.len()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use nupa_control::Objects;

    fn node(node: u16) -> NodeStats {
        NodeStats {
            node,
            connected: node == 1,
            enabled: node == 1,
            link: node != 3,
            epoch: 7,
            fault_code: 0,
            fault: if node == 4 { Fault::Mute } else { Fault::None },
            dma_bytes_mapped: 0,
            dma_bytes_unreachable: 0,
            objects: Objects {
                qp: 5,
                cq: 0,
                eq: 0,
                srq: 0,
                mr: 0,
                pd: 0,
            },
            counters: [("tx_bytes", 1500), ("tx_message_bytes", 1500)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
        }
    }

    #[test]
    fn those_that_something_is_to_be_said_of_are_shown() {
        let nodes = [1, 2, 3, 4].map(node);
        let first = |all| {
            let text = table(&nodes, all);
            let words = text.lines().map(|line| line.split_whitespace().next());
            words.flatten().skip(1).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(first(false), "1 3 4");
        assert_eq!(first(true), "1 2 3 4");
        let text = table(&nodes, false);
        let words = |line: usize| {
            let line = text.lines().nth(line).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(1), "1 yes runs up - 7 5 0 3.0 kB 0 B");
        assert_eq!(words(3), "4 - - up mute 7 5 0 3.0 kB 0 B");
        assert!(table(&nodes[1..2], false).contains("no guest"));
    }

    #[test]
    fn the_socket_is_where_the_nodes_scripts_put_it() {
        let program = Path::new("/nupa/build/bin/nupactl");
        let built = default_socket(None, program);
        assert_eq!(built, Path::new("/nupa/build/run/control.sock"));
        let told = default_socket(Some("/dev/shm/run".into()), program);
        assert_eq!(told, Path::new("/dev/shm/run/control.sock"));
        assert_eq!(default_socket(Some("".into()), program), built);
    }
}
