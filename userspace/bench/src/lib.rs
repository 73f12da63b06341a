// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two connected nodes on one host, without any virtual machine: what the benchmark `engine` runs on.
//!
//! They are those of [`nupa_testing`]: ring memory, doorbell pages and buffers are shared mappings, and the owner of the queues
//! uses the same rings ([`nupa_engine::rings`]) as a driver. The only thing missing is the trap: a kick is a call.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a benchmark may fail loudly"
)]

mod pair;

pub use pair::{Endpoint, Pair, RECV_BUFFER};
