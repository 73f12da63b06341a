// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device model as drivers see it: guests without VMs, real rings, real doorbell pages.

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

mod bars;
mod commands;
mod connections;
mod device_memory;
mod events;
mod faults;
mod frames;
mod nodes;

use nupa_testguest as common;
