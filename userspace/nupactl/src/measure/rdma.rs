// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measurements by RDMA: a connected queue pair on each side.
//!
//! The two sides meet as for TCP, by a [`Request`] and the head of an answer. Then each sends its [`End`], connects its queue pair to that of the
//! other, and sends a report of whether that worked. After that:
//!
//! - [`Kind::RdmaEcho`]: each message is a SEND, and the server sends it back. The client ends the connection when it has enough.
//! - [`Kind::RdmaSink`]: the client writes messages to the window that the server's end names, and reports how many these were. The server compares
//!   the last of them, and reports how many bytes came.
//! - [`Kind::RdmaSource`]: the server writes to the client's window, and reports how many messages these were, and in how many nanoseconds.
//!
//! Only for the last two has a peer a key for memory here, and that memory has nothing else in it.

mod client;
mod device;
mod end;
mod link;
mod server;
mod window;

pub(super) use client::{receive, round_trips, send};
pub(super) use server::serve;

#[cfg(doc)]
use {
    super::wire::{Kind, Request},
    end::End,
};
