// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two nodes in one process over mapped memory, as the emulated fabric has them, but without
//! any virtual machine: what the engine's benchmarks run on.
//!
//! Ring memory, doorbell pages and buffers are real shared mappings ([`guestmem`]); the owner
//! of the queues uses the same client rings as a driver. The only thing missing is the trap: a
//! kick is a call.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a benchmark may fail loudly"
)]

mod machine;
mod pair;

pub use machine::{Machine, Slot, View, BUFFERS};
pub use pair::{Endpoint, Pair, RECV_BUFFER};
