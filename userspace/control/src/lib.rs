// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the emulated fabric and those who operate it tell each other.
//!
//! The emulator listens on a socket, [`SOCKET`] in its directory. A connection carries one [`Command`], a line of words, and one
//! [`Answer`], a line of JSON.

mod answer;
mod ask;
mod command;
mod fault;

pub use answer::{Answer, NodeStats, Objects};
pub use ask::{ask, AskError};
pub use command::{Command, MAX_LINE};
pub use fault::{Fault, UnknownFault};

/// Name of the socket in the emulator's directory.
pub const SOCKET: &str = "control.sock";
