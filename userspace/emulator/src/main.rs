// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `nupa-switch`: the emulated fabric.
//!
//! One process is the switch and the controllers of all nodes; each controller is offered
//! to a VMM as a PCI function, over vfio-user on a socket of its own. Guests come and go
//! at any time. One thread does everything: a guest's kick is a message on its socket, and
//! the engine runs right there, so that data has moved when the guest's store completes.

mod cli;
mod control;
mod function;
mod holdoff;
mod logging;
mod pacing;
mod poller;
mod port;
mod priority;
mod signals;
mod switch;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Args;
use crate::switch::Switch;

fn main() -> ExitCode {
    let args = Args::parse();
    logging::init(args.log_level, args.log_format);
    match Switch::new(&args).and_then(Switch::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nupa-switch: {error:#}");
            ExitCode::FAILURE
        }
    }
}
