// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What `nupa-mkpool` and `nupactl pool` do with memory that hosts share: show what it holds, check it, format it as a pool, and discard that
//! (`Documentation/pool.md`) after having asked. Drivers never do.

mod contents;
mod device;
mod problems;
mod random;

use std::io::{self, IsTerminal, Write};

use anyhow::{anyhow, bail, ensure, Context};
use clap::Args;
use guestmem::MmapRegion;
use nupa_pool::{AssignOptions, FormatOptions, NotAssigned, Pool, Problem, Refusal, Survey};
use nupa_poolmem::{HostTime, PoolMemory};
use nupa_proto::pool::{AREA_NODES, MAX_NODES};

pub use crate::contents::Contents;
use crate::device::Device;
use crate::random::random;

/// Memory to format, and how.
#[derive(Debug, Args)]
pub struct Format {
    /// An ivshmem device's address on the PCI bus (0000:00:04.0), or a DAX device (dax0.0), which has to be in devdax mode
    pub device: String,

    /// Node slots of the pool. More than 64 need --inboxes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=i64::from(MAX_NODES)))]
    pub nodes: u16,

    /// Version 3 of the format: inboxes that nodes lend to those they talk with, in place of rings for every two nodes
    #[arg(long)]
    pub inboxes: bool,

    /// The caches of the hosts that will share it are not kept coherent
    #[arg(long)]
    pub non_coherent: bool,

    /// Do not ask
    #[arg(long)]
    pub yes: bool,

    /// Format memory whose first MiB and whose first 4 KiB of each MiB behind it read as zeroes, without asking; leave a pool that is there alone; refuse anything else
    #[arg(long, conflicts_with = "yes")]
    pub if_blank: bool,
}

/// A pool to discard.
#[derive(Debug, Args)]
pub struct Discard {
    /// An ivshmem device's address on the PCI bus (0000:00:04.0), or a DAX device (dax0.0), which has to be in devdax mode
    pub device: String,

    /// Do not ask
    #[arg(long)]
    pub yes: bool,

    /// Also a pool of another version or size, of which nobody can tell whether hosts use it
    #[arg(long)]
    pub force: bool,
}

/// Looks at what a device's memory holds, and writes nothing. Takes as long as a node may be silent where there is a pool with nodes.
pub fn look(device: &str) -> anyhow::Result<Contents> {
    let region = Device::find(device)?.map()?;
    Ok(Contents::look(&region))
}

/// Checks the pool that a device's memory holds, and writes nothing: what is wrong, and where. Nodes may be using it meanwhile.
pub fn check(device: &str) -> anyhow::Result<Vec<Problem>> {
    let region = Device::find(device)?.map()?;
    Ok(problems::find(&region))
}

/// Gives a host a node id of the pool that a device's memory holds, before the host joins; it keeps that. `identity`: the host's. Takes as long
/// as a node may be silent where the id is another's.
pub fn assign(device: &str, node: u16, identity: u64, force: bool) -> anyhow::Result<()> {
    let region = Device::find(device)?.map_to_write()?;
    let time = HostTime::new();
    let attach = |coherent| {
        let memory = PoolMemory::new(&*region, coherent);
        Pool::attach(&memory, &time).map(|pool| (pool, memory))
    };
    let found = match attach(true) {
        // For what it was formatted is not the question.
        Err(Refusal::Coherence { .. }) => attach(false),
        found => found,
    };
    let (pool, memory) = found.map_err(explain)?;
    let options = AssignOptions {
        token: random()?,
        identity,
        node,
        force,
    };
    match pool.assign(&memory, &time, &options) {
        Err(why @ NotAssigned::Reserved { .. }) => bail!("{why}. --force takes it nevertheless"),
        done => done.map_err(|why| anyhow!("{why}")),
    }
}

/// Shows what a device's memory holds, asks, and formats it. Nothing is written where somebody uses it, or may.
pub fn format(args: &Format) -> anyhow::Result<()> {
    ensure!(
        args.inboxes || args.nodes <= AREA_NODES,
        "a pool with rings for every two nodes has at most {AREA_NODES}; more nodes need --inboxes"
    );
    let region = Device::find(&args.device)?.map_to_write()?;
    let options = FormatOptions {
        format: match args.inboxes {
            true => nupa_pool::Format::Inboxes,
            false => nupa_pool::Format::Areas,
        },
        ..FormatOptions::new(args.nodes, random()?)
    };
    if args.if_blank {
        return format_blank(args, &region, &options);
    }
    let contents = Contents::look(&region);
    println!("{}: {contents}", args.device);
    contents.may_be_lost()?;
    if !args.yes {
        let nodes = args.nodes;
        let question = format!("Format it as a pool for {nodes} nodes? What it holds is lost.");
        ask("formatted", &question)?;
    }
    let memory = PoolMemory::new(&*region, !args.non_coherent);
    let formatted = contents
        .survey()
        .format(&memory, &HostTime::new(), &options);
    tell(args, formatted)
}

/// Shows what a device's memory holds, asks, and makes it hold no pool. Nothing is written where somebody uses the pool, or may.
pub fn discard(args: &Discard) -> anyhow::Result<()> {
    let region = Device::find(&args.device)?.map_to_write()?;
    let contents = Contents::look(&region);
    println!("{}: {contents}", args.device);
    contents.may_be_discarded(args.force)?;
    if !args.yes {
        ask("discarded", "Discard the pool? All hosts lose it.")?;
    }
    // What is written goes to memory, whether the hosts are coherent or not.
    let memory = PoolMemory::new(&*region, false);
    let token = random()?;
    let discarded = contents.survey().discard(&memory, &HostTime::new(), token);
    discarded.map_err(explain)?;
    println!("{}: holds no pool any more", args.device);
    Ok(())
}

/// Formats memory that nobody has ever put anything in. A pool that is there is as good.
fn format_blank(args: &Format, region: &MmapRegion, options: &FormatOptions) -> anyhow::Result<()> {
    let memory = PoolMemory::new(region, !args.non_coherent);
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
            "it is not blank, so it is left alone. {}To format it nevertheless, leave --if-blank out",
            Contents::look(region)
        ),
        found => tell(args, found),
    }
}

fn tell(args: &Format, formatted: Result<Pool, Refusal>) -> anyhow::Result<()> {
    let pool = formatted.map_err(explain)?;
    println!(
        "{}: formatted as pool {:016x} for {} nodes{}",
        args.device,
        pool.fabric_id(),
        pool.geometry().max_nodes(),
        contents::inboxes(&pool)
    );
    Ok(())
}

/// Why memory was not written to.
fn explain(refusal: Refusal) -> anyhow::Error {
    match refusal {
        Refusal::Busy => anyhow!("somebody else has written to it meanwhile; look again"),
        refusal => anyhow!("{refusal}"),
    }
}

/// Asks whether what is there may be lost. `done`: what would be done with it.
fn ask(done: &str, question: &str) -> anyhow::Result<()> {
    ensure!(
        io::stdin().is_terminal(),
        "nothing is {done} without --yes where nobody can be asked"
    );
    print!("{question} [y/N] ");
    io::stdout().flush()?;
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "left as it is");
    Ok(())
}
