// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the memory that nodes share, on the nodes, as programs see it.
//!
//! `poolbench pong` on one node and `poolbench ping` on another send a word to and fro; `poolbench copy`
//! copies blocks to and from the pool. The file is `/dev/daxX.Y`, or `resource2` of an ivshmem device. Each prints
//! one line of JSON. All of them write to the pool, so no driver may use that part of it.

mod copy;
mod pingpong;

use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use guestmem::MmapRegion;

/// Measures the memory that nodes share.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Args {
    /// The pool's memory: /dev/daxX.Y or a PCI device's resourceN
    #[arg(long, value_name = "FILE")]
    file: PathBuf,

    /// Bytes at its front that may be written; a DAX device wants a multiple of 2 MiB
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    size: usize,

    #[command(subcommand)]
    work: Work,
}

#[derive(Debug, Subcommand)]
enum Work {
    /// Copies blocks of private memory to and from all the pool's bytes in turn, and, for comparison, to
    /// other private memory.
    Copy {
        /// Bytes of a block
        #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..))]
        block: u32,
        /// Seconds for each direction
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
        seconds: u32,
    },
    /// Answers each word of `ping`, which may have been started before; prints "ready" first, and ends with it.
    Pong,
    /// Stores a word and waits for the same from `pong`, again and again.
    Ping {
        /// Round trips to measure, after a tenth of that which are not
        #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        count: u32,
    },
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let name = args.file.display();
    let file = File::options().read(true).write(true).open(&args.file);
    let file = file.with_context(|| format!("cannot open {name}"))?;
    let pool = MmapRegion::of_device(file.into(), args.size)
        .with_context(|| format!("cannot map {} bytes of {name}", args.size))?;
    let result = match args.work {
        Work::Copy { block, seconds } => copy::run(&pool, block, seconds)?,
        Work::Pong => return pingpong::answer(&pool),
        Work::Ping { count } => pingpong::ask(&pool, count)?,
    };
    println!("{result}");
    Ok(())
}
