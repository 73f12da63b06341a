// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `nupa-ivshmem`: what QEMU's `ivshmem-doorbell` devices connect to.
//!
//! Each device gets the same memory, a number of its own, and one eventfd for each interrupt vector of
//! each device, so that a guest's write to its doorbell register interrupts another guest with no process
//! in between. QEMU documents the protocol (`docs/specs/ivshmem-spec.rst`) and has a server, too, but Debian
//! ships none. Guests that run stay connected to each other when this process ends.

mod memory;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use vfio_user::Listener;

use crate::server::Server;

/// Hands shared memory and interrupts to QEMU's ivshmem-doorbell devices.
///
/// Start QEMU with -chardev socket,id=pool,path=SOCKET -device
/// ivshmem-doorbell,chardev=pool,vectors=VECTORS.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Args {
    /// Where devices connect
    #[arg(long, value_name = "SOCKET")]
    socket: PathBuf,

    /// File that is the memory; made if it is not there. A file of /dev/shm is memory indeed
    #[arg(long, value_name = "FILE")]
    memory: PathBuf,

    /// Bytes of memory: a power of two, since it becomes a BAR
    #[arg(long, value_name = "BYTES", value_parser = memory::parse_size)]
    size: u64,

    /// Interrupt vectors of each device
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    vectors: u16,

    /// Most devices that may be connected at a time
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(1..=128))]
    devices: u16,
}

fn run(args: &Args) -> anyhow::Result<()> {
    let memory = memory::open(&args.memory, args.size)
        .with_context(|| format!("cannot share {}", args.memory.display()))?;
    let listener = Listener::bind(&args.socket)?;
    println!("nupa-ivshmem: ready, {} bytes", args.size);
    Server::new(listener, memory, args.vectors, args.devices).run()
}

fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nupa-ivshmem: {error:#}");
            ExitCode::FAILURE
        }
    }
}
