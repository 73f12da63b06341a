// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The function that a driver sees: control registers, admin queue, enable and reset, over the queue engine.
//!
//! One [`Function`] is one node's registers, admin queue and engine state, over the [`host::Host`] that provides memory,
//! doorbells, interrupts and time. A [`Model`] is the functions that one host runs together, and the engine that
//! serves them. The emulated controller runs a whole fabric of them in one process; a kernel whose machine has no
//! controller runs its own one. Both have the same registers, commands and refusals, because both run this.
//!
//! Nothing here allocates but through the engine's containers, panics on what a driver wrote, or needs `unsafe`.

#![cfg_attr(not(MODULE), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod config;
pub mod doorbell_memory;
pub mod host;
pub mod pool;

mod admin;
mod admin_queue;
mod body;
mod function;
mod log_limit;
mod model;
mod query;
mod registers;

pub use self::{
    config::{FunctionConfig, CAPS},
    doorbell_memory::DoorbellMemory,
    function::Function,
    host::{Functions, Host, NodeStatus, Note, WordMemory},
    model::{Executed, FetchedCommand, Kick, Model, PreparedCommand},
};
