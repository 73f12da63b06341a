// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hostile guests and programs, whose bytes are made up at random (`tests/hostile`) or led by what code they reach
//! (`fuzz_targets`, run by `scripts/fuzz`).

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

mod actions;
mod commands;
mod decode;
mod hostile;
mod pool;
mod storm;
mod udata;
mod verbs;

pub use actions::{Action, FAULTS};
pub use pool::pool;
pub use storm::storm;
pub use udata::udata;
pub use verbs::KINDS;

/// Lets a guest post what the bytes say: descriptors, receive entries, doorbells, memory.
pub fn wqe(bytes: &[u8]) {
    storm(&decode::actions(bytes, decode::work));
}

/// Lets a guest give the admin commands and make the register accesses that the bytes say, with some work between.
pub fn admin(bytes: &[u8]) {
    storm(&decode::actions(bytes, decode::administration));
}
