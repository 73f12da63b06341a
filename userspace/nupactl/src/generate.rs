// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Man pages and completions, from the command line's own description.

use std::fs;
use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;

/// Shells that completions are made for.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Writes a man page for the program and for each verb, and the completions.
pub(crate) fn write(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let mut command = Cli::command();
    command.build();
    pages(&command, directory)?;
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut command, "nupactl", directory)
            .with_context(|| format!("cannot write completions to {}", directory.display()))?;
    }
    Ok(())
}

/// Writes the page of a command, and those of its subcommands.
fn pages(command: &Command, directory: &Path) -> anyhow::Result<()> {
    let manual = clap_mangen::Man::new(command.clone())
        .section("8")
        .manual("NUPA")
        .source("NUPA");
    manual
        .generate_to(directory)
        .with_context(|| format!("cannot write man pages to {}", directory.display()))?;
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    command
        .get_subcommands()
        .filter(shown)
        .try_for_each(|command| pages(command, directory))
}
