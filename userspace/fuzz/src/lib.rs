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
mod control;
mod decode;
mod hostile;
mod moving;
mod pair;
mod pool;
mod storm;
mod udata;
mod verbs;
mod vfio;

pub use actions::{Action, FAULTS};
pub use control::control;
pub use moving::moving;
pub use nupa_net_host_tests::frames;
pub use pair::pair;
pub use pool::pool;
pub use storm::storm;
pub use udata::udata;
pub use verbs::KINDS;
pub use vfio::vfio;

/// What fuzzes: its name, and what takes the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets; each has a program in `fuzz_targets`.
pub const TARGETS: [Target; 9] = [
    ("admin", admin),
    ("control", control),
    ("frames", frames),
    ("moving", moving),
    ("pair", pair),
    ("pool", pool),
    ("udata", udata),
    ("vfio", vfio),
    ("wqe", wqe),
];

/// Lets a guest post what the bytes say: descriptors, receive entries, doorbells, memory.
pub fn wqe(bytes: &[u8]) {
    storm(&decode::actions(bytes, decode::work));
}

/// Lets a guest give the admin commands and make the register accesses that the bytes say, with some work between.
pub fn admin(bytes: &[u8]) {
    storm(&decode::actions(bytes, decode::administration));
}
