// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The emulated fabric. The program `nupa-switch` is [`run`]; what takes bytes from others is public, so that it can be tried without
//! sockets in files.
//!
//! One process is the switch and the controllers of all nodes; each controller is offered
//! to a VMM as a PCI function, over vfio-user on a socket of its own. Guests come and go
//! at any time. One thread does everything: a guest's kick is a message on its socket, and
//! the engine runs right there, so that data has moved when the guest's store completes.

mod cli;
pub mod control;
pub mod function;
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

/// Does what the command line says, until it is told to end.
pub fn run() -> ExitCode {
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
