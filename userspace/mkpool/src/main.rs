// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Formats the memory of one device, which has to be named, as a pool (`Documentation/pool.md`), after it has shown what is there
//! and asked. Drivers never do.

use std::process::ExitCode;

use clap::Parser;
use nupa_mkpool::{Discard, Format};

/// Formats the memory of a device as a pool that hosts share.
#[derive(Debug, Parser)]
#[command(name = "nupa-mkpool", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    format: Format,

    /// Only show what is there
    #[arg(long, conflicts_with_all = ["yes", "if_blank"])]
    show: bool,

    /// Make memory that holds a pool hold none
    #[arg(long, conflicts_with_all = ["show", "if_blank", "nodes", "inboxes", "non_coherent"])]
    discard: bool,

    /// With --discard: also a pool of another version or size, of which nobody can tell whether hosts use it
    #[arg(long, requires = "discard")]
    force: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nupa-mkpool: {}: {error:#}", args.format.device);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    if args.show {
        let contents = nupa_mkpool::look(&args.format.device)?;
        println!("{}: {contents}", args.format.device);
        return Ok(());
    }
    if args.discard {
        return nupa_mkpool::discard(&Discard {
            device: args.format.device.clone(),
            yes: args.format.yes,
            force: args.force,
        });
    }
    nupa_mkpool::format(&args.format)
}
