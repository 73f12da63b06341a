// SPDX-License-Identifier: GPL-2.0 OR MIT

//! SENDs and WRITEs that go from process to process, past the engines: see `Documentation/process-rings.md`.

mod connection;
mod direct;
mod member;
#[cfg(all(test, debug_assertions))]
mod ordering;
mod outgoing;
mod receiver;
mod request;
mod ring;
mod sender;
mod sent;
mod state;
mod unconfirmed;

pub(crate) use connection::{Connection, Maker};
pub(crate) use direct::{Keeper, MappedRegion};
pub(super) use member::{Bypasses, Step};
pub(super) use receiver::Receiver;
pub(super) use request::{Body, Kind, Message};
use ring::Moved;
pub(crate) use ring::{Owner, Ring, RingSource, SharedSource};
pub(super) use sender::{Position, Sender};
pub(super) use sent::Sent;
pub(super) use state::BypassState;
pub(super) use unconfirmed::Put;

/// Messages that a queue pair has received through the engine when its process makes a ring: those that are used only.
pub(super) const BEFORE_RING: u32 = 16;
