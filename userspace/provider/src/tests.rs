// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The provider against the device model in one process: its own entry points, rings and doorbell pages in the memory of
//! a test guest, and admin commands in place of the kernel.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

mod bypass;
mod called;
mod completions;
mod datagrams;
#[cfg(target_arch = "x86_64")]
mod instructions;
mod interface;
mod limits;
mod lost;
mod node;
mod operations;
mod piecemeal;
mod pool_host;
mod rings;
mod shared;
mod timestamps;

use nupa_testguest as common;
