// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Links, nodes and queues of a host, again and again.

mod page;
mod sample;
mod screen;

use std::io::{IsTerminal, Write};
use std::thread::sleep;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::facts::Host;

use page::Page;
use sample::Sample;

/// How to show it.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Print one page as text, as is done where there is no terminal
    #[arg(long)]
    once: bool,

    /// Look every so many seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = crate::ping::seconds)]
    interval: Duration,

    /// Order of the queue pairs; keys change it: n, s, p, a
    #[arg(short, long, value_name = "BY", default_value = "node")]
    sort: Sort,
}

/// What queue pairs are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// The remote node
    Node,
    /// The state
    State,
    /// The process
    Process,
    /// Those that did something since the last look come first
    Activity,
}

/// Shows it until somebody types q, or once.
pub(crate) fn show(host: &mut Host, args: &Top, out: &mut impl Write) -> anyhow::Result<()> {
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if terminal && !args.once {
        return screen::run(host, args);
    }
    let before = Sample::read(host)?;
    sleep(args.interval);
    let now = Sample::read(host)?;
    let page = Page {
        before: before.as_ref(),
        now: now.as_ref(),
        sort: args.sort,
    };
    for line in page.lines() {
        writeln!(out, "{}", line.text)?;
    }
    Ok(())
}
