// SPDX-License-Identifier: GPL-2.0
//! The function as software, for hosts that share a pool of memory instead of having a controller.
//!
//! It is the same function as the controller's: registers, admin commands, engine. It runs in softirq context, and in the
//! time of programs that post or wait, or else in a thread of its own; the engines of hosts that share a pool work together through rings in it
//! (`Documentation/pool.md`).

mod copies;
mod copy_plan;
mod copy_workers;
mod dax;
mod faults;
mod function;
mod heartbeat;
mod host;
mod instance;
mod ivshmem;
mod joined;
mod kicks;
mod lock;
mod memory;
mod node;
mod poll_interval;
mod poll_state;
mod poller;
mod program_polls;
mod sharing;
mod storage;
mod window;

pub(crate) use self::{dax::DaxDriver, ivshmem::IvshmemDriver};
