// SPDX-License-Identifier: GPL-2.0
//! Host tests of those parts of `nupa_fabric` that are pure logic (`cargo test`); the module itself is built by Kbuild.

#![forbid(unsafe_code)]
#![cfg(test)]

use core::fmt;

mod command;
#[path = "hal/pool/copy_plan.rs"]
mod copy_plan;
#[expect(
    dead_code,
    reason = "some of it is for queues and their handlers, which there are none of here"
)]
mod event;
mod identity;
#[path = "hal/pool/poll_interval.rs"]
mod poll_interval;
#[path = "hal/pool/program_polls.rs"]
mod program_polls;
mod reset_limit;
mod shares;
mod slots;
