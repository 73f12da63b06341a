// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A node of a pool in a process: the same function, engine and membership as `nupa_fabric` has in a kernel, without one.
//!
//! Nobody is woken: the owner of a [`PoolProcess`] polls, and the driver of its function need not kick meanwhile. So several processes on one machine
//! are hosts that share a pool, and what crosses between them is what crosses between hosts.

mod beat;
mod hal;
mod host;
mod memory;
mod node;

pub use host::RAM_BASE;
pub use node::{JoinError, MappedRegion, PoolProcess};
