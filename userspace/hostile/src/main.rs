// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Does to others, as a user of a node, as a member of a pool, or as the driver of a controller, what no honest one does.
//!
//! `nupa-hostile process` starts processes that go past libibverbs and the provider: random bytes, and lies of the right form, in every
//! word that a process can write. `nupa-hostile peer` does the same to a pool, as a host of it could. A seed says what is done; what comes of it
//! also depends on the threads' and processes' time.

mod bytes;
mod commands;
mod create;
mod descriptor;
mod draw;
mod driver;
#[expect(
    unsafe_code,
    reason = "maps memory, and makes a system call that no safe crate has"
)]
mod ffi;
mod objects;
mod peer;
mod pool;
mod process;
mod rings;
mod shared;
mod tally;
mod target;
mod uverbs;
mod worker;
mod world;

use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::worker::Work;

/// Does to others, as a user of a node, as a member of a pool, or as the driver of a controller, what no honest one does.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Writes random bytes and lies into everything that a process can write, from several threads of processes that end or are
    /// killed. Prints the seed, and in the end one line of JSON: what was done, how it ended, and what became of the processes.
    Process {
        #[command(flatten)]
        common: Common,
        /// Seconds to go on for
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        seconds: u64,
        /// What to begin with; another one each time if not said
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Writes random bytes and lies to the memory of a pool, as a hostile member of it, and in the place of others. What is
    /// between the victims, and theirs alone, is spared. Prints the seed, and in the end one line of JSON: what was written, and what the victims made of it.
    Peer(peer::Peer),
    /// Takes the place of a VM at a controller of the emulated switch, and does what no driver does: random bytes and lies in queues, doorbells,
    /// commands and registers. Prints the seed, and in the end one line of JSON: what was done, and how it ended.
    Driver(driver::Driver),
    /// One of the processes of `process`.
    #[command(hide = true)]
    Worker {
        #[command(flatten)]
        common: Common,
        #[arg(long)]
        milliseconds: u64,
        #[arg(long)]
        seed: u64,
    },
}

#[derive(Debug, Args)]
struct Common {
    /// RDMA device
    #[arg(long, default_value = "nupa_rdma0")]
    device: String,
    /// Threads of each process
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=12))]
    threads: u16,
    /// GID of another node, to connect to whatever is there; may be repeated
    #[arg(long, value_parser = gid)]
    peer: Vec<[u8; 16]>,
}

impl Common {
    fn work(self, seed: u64, lasts: Duration) -> Work {
        Work {
            device: self.device,
            peers: self.peer,
            seed,
            threads: self.threads.into(),
            lasts,
        }
    }
}

/// A GID on the command line.
fn gid(text: &str) -> Result<[u8; 16], String> {
    uverbs::parse_gid(text).ok_or_else(|| "not a GID such as ::ffff:10.77.0.2".to_owned())
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().what {
        What::Process {
            common,
            seconds,
            seed,
        } => {
            let seed = seed.unwrap_or_else(|| fastrand::u64(..));
            process::run(&common.work(seed, Duration::ZERO), seconds)
        }
        What::Peer(peer) => peer.run(),
        What::Driver(driver) => driver.run(),
        What::Worker {
            common,
            milliseconds,
            seed,
        } => worker::run(&common.work(seed, Duration::from_millis(milliseconds))),
    }
}
