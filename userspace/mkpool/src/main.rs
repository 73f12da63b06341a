// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Formats the memory of one device, which has to be named, as a pool (`Documentation/pool.md`), after it has shown what is there
//! and asked. Drivers never do.

mod contents;
mod device;
mod memory;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{bail, ensure, Context};
use clap::Parser;
use guestmem::MmapRegion;
use nupa_pool::{FormatOptions, Pool, Refusal, Survey};

use crate::contents::Contents;
use crate::device::Device;
use crate::memory::{HostTime, Memory};

/// Formats the memory of a device as a pool that hosts share.
#[derive(Debug, Parser)]
#[command(name = "nupa-mkpool", version, max_term_width = 100)]
struct Args {
    /// An ivshmem device's address on the PCI bus (0000:00:04.0), or a DAX device (dax0.0), which has to be in devdax mode
    device: String,

    /// Node slots of the pool
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=64))]
    nodes: u16,

    /// The caches of the hosts that will share it are not kept coherent
    #[arg(long)]
    non_coherent: bool,

    /// Do not ask
    #[arg(long)]
    yes: bool,

    /// Format memory whose first MiB and whose first 4 KiB of each MiB behind it read as zeroes, without asking; leave a pool that is there alone; refuse anything else
    #[arg(long, conflicts_with = "yes")]
    if_blank: bool,

    /// Only show what is there
    #[arg(long, conflicts_with_all = ["yes", "if_blank"])]
    show: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nupa-mkpool: {}: {error:#}", args.device);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let device = Device::find(&args.device)?;
    let region = device.map()?;
    let options = FormatOptions {
        max_nodes: args.nodes,
        token: memory::random()?,
    };
    if args.if_blank {
        return format_blank(args, &region, &options);
    }
    let contents = Contents::look(&region);
    println!("{}: {contents}", args.device);
    if args.show {
        return Ok(());
    }
    contents.may_be_lost()?;
    if !args.yes {
        ask(args)?;
    }
    let memory = Memory::new(&region, !args.non_coherent);
    let formatted = contents
        .survey()
        .format(&memory, &HostTime::new(), &options);
    tell(args, formatted)
}

/// Formats memory that nobody has ever put anything in. A pool that is there is as good.
fn format_blank(args: &Args, region: &MmapRegion, options: &FormatOptions) -> anyhow::Result<()> {
    let memory = Memory::new(region, !args.non_coherent);
    let time = HostTime::new();
    if let Ok(pool) = Survey::new(&memory, &time).pool() {
        println!(
            "{}: a pool is there, {:016x}",
            args.device,
            pool.fabric_id()
        );
        return Ok(());
    }
    let blank = |refusal: &Refusal| *refusal == Refusal::Unformatted && contents::is_blank(region);
    match Pool::attach_or_format(&memory, &time, options, blank) {
        Err(Refusal::Unformatted) => bail!(
            "it is not blank, so it is left alone. {}To format it nevertheless: nupa-mkpool {}",
            Contents::look(region),
            args.device
        ),
        found => tell(args, found),
    }
}

fn tell(args: &Args, formatted: Result<Pool, Refusal>) -> anyhow::Result<()> {
    let pool = match formatted {
        Ok(pool) => pool,
        Err(Refusal::Busy) => bail!("somebody else has written to it meanwhile; look again"),
        Err(refusal) => bail!("{refusal}"),
    };
    println!(
        "{}: formatted as pool {:016x} for {} nodes",
        args.device,
        pool.fabric_id(),
        pool.geometry().max_nodes()
    );
    Ok(())
}

/// Asks whether what is there may be lost.
fn ask(args: &Args) -> anyhow::Result<()> {
    ensure!(
        io::stdin().is_terminal(),
        "nothing is formatted without --yes where nobody can be asked"
    );
    print!(
        "Format it as a pool for {} nodes? What it holds is lost. [y/N] ",
        args.nodes
    );
    io::stdout().flush()?;
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "left as it is");
    Ok(())
}
