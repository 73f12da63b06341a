// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The emulated fabric: a switch, and one NUPA controller per node.
//!
//! This is the device model proper: registers and admin queue ([`nupa_function`]) and the queue engine
//! ([`nupa_engine`]) over guest memory ([`guestmem`]), with BARs, doorbell pages and faults. It knows no sockets, no event loop and no VMM; whoever has those
//! drives a [`Fabric`] by reads and writes of BARs, DMA maps and resets, and gives it [`Interrupts`] and a [`Clock`].
//!
//! Everything runs in the thread that calls, and there is no lock. A write that rings a doorbell returns when the
//! engine has done the work.
//!
//! # What a guest can do
//!
//! Everything that a guest controls (register accesses, ring contents, doorbells, addresses, DMA maps) is checked
//! before use; bytes that it could change meanwhile are copied out first. The worst it gets is an error completion, an
//! admin status, or its own function stopped. Complaints are logged with the node's number, a few per second.

mod clock;
mod config;
mod device_memory;
mod doorbells;
mod error;
mod fabric;
mod fault;
mod memory;
mod nodes;
mod platform;
mod random;
mod stats;

pub use clock::{Clock, MonotonicClock};
pub use config::{DoorbellPlace, FabricConfig, MAX_DEVICE_MEMORY, MAX_DOORBELL_PAGES, MAX_NODES};
pub use error::FabricError;
pub use fabric::Fabric;
pub use platform::Interrupts;
