// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Many hosts of a pool, each a process, of which each sends to each other while some are killed and started again. All bytes are compared.
//!
//! `NUPA_MESH_NODES=16 NUPA_MESH_SECONDS=3` says how many and for how long, `NUPA_SEED` what is sent and who is killed when, but not how
//! the processes' turns fall. To see what a run has done: `cargo test -p nupa-poolnode --test mesh -- --nocapture`.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

mod board;
mod cluster;
mod connection;
mod fabric;
mod host;
mod memory;
mod node;
mod options;
mod plan;
mod requester;
mod responder;

use std::backtrace::Backtrace;
use std::env;
use std::fs::File;
use std::{panic, process};

use guestmem::MmapRegion;
use rustix::process::{getppid, set_parent_process_death_signal, Signal};

use crate::board::Board;
use crate::cluster::{pool_len, Cluster, NODE};
use crate::host::Host;
use crate::options::Options;

/// Memory of the process that started this one.
fn shared(path: &str, len: usize) -> MmapRegion {
    let file = File::options().read(true).write(true).open(path).unwrap();
    MmapRegion::of_memory(file.into(), len).unwrap()
}

/// The process of a node.
fn run_node(options: &Options, arguments: &str) {
    // What is wrong ends the process at once. If it left the pool first, others would find that wrong as well.
    panic::set_hook(Box::new(|info| {
        eprintln!("{info}\n{}", Backtrace::capture());
        process::exit(1);
    }));
    // It ends with the one that started it, which may be killed.
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let mut arguments = arguments.split(' ');
    let mut argument = || arguments.next().unwrap();
    let (id, pool, board) = (argument().parse().unwrap(), argument(), argument());
    let parent = format!("/proc/{}/", getppid().unwrap().as_raw_nonzero());
    assert!(pool.starts_with(&parent), "the first process has ended");
    let pool = shared(pool, pool_len(options.nodes));
    let board = shared(board, Board::len(options.nodes));
    let board = Board::new(board, options.nodes);
    node::run(&Host::join(options, id, pool, board));
}

/// Starts the processes, which call this as well.
fn run(test: &'static str, inboxes: bool) {
    let options = Options::of_environment(inboxes);
    if let Ok(arguments) = env::var(NODE) {
        return run_node(&options, &arguments);
    }
    println!("{}", Cluster::new(options, test).run());
}

#[test]
fn nodes_that_are_killed_cost_the_others_nothing() {
    run("nodes_that_are_killed_cost_the_others_nothing", false);
}

#[test]
fn nodes_with_inboxes_that_are_killed_cost_the_others_nothing() {
    run(
        "nodes_with_inboxes_that_are_killed_cost_the_others_nothing",
        true,
    );
}
