// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The receive entries that messages of a ring take.

use std::collections::VecDeque;
use std::sync::Arc;

use nupa_proto::process_ring::POSTED;

use super::super::Ring;
use crate::ffi::Slot;
use crate::queue::shared::{Entry, Waiter};

/// How far ahead of the next message those may be that are in the ring, with a shared receive queue: more than there is room for.
pub(super) const WINDOW: u32 = if cfg!(test) { 1 << 10 } else { 1 << 20 };

/// The receive entries that messages of the ring take.
#[derive(Debug)]
pub(super) enum Entries {
    /// Those of a queue of the connection's own: number by number. The doorbell slot is that of the queue.
    Own(Slot),
    /// Those of a shared one.
    Shared(Shared),
}

/// The receive entries of a shared queue that messages of the ring take.
#[derive(Debug)]
pub(super) struct Shared {
    /// Doorbell slot of the send queue.
    pub(super) slot: Slot,
    pub(super) waiter: Arc<Waiter>,
    /// Messages of the ring that have had an entry.
    pub(super) seated: u32,
    /// Number before which messages may be in the ring, as last stored.
    pub(super) posted: u32,
    /// Entries that the engine has taken for messages in the ring.
    pub(super) reserved: VecDeque<Entry>,
    /// The completion that said so, which is to be shown yet: its `queue_index`.
    pub(super) said_by: Option<u32>,
    /// What `seated` was when the last completion of the engine's was shown.
    pub(super) before: u32,
}

impl Shared {
    /// Messages of the numbers behind `next` may be put into the ring, whether there is an entry for them or not yet.
    #[inline]
    pub(super) fn extend(&mut self, ring: &Ring, next: u32) {
        if self.posted.wrapping_sub(next) < WINDOW / 2 {
            self.posted = next.wrapping_add(WINDOW);
            ring.store(POSTED, self.posted);
        }
    }
}
