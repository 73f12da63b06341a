// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The sign that a node lives, which the others watch.

use crate::{attach::Pool, Window};
use nupa_proto::pool::{Slot, LINE};

/// Shows that a node lives. It is to be called from a timer or thread of its own, so that it goes on while the one that works with the
/// [`Membership`](crate::Membership) is busy.
///
/// It is for one epoch ([`Membership::heartbeat`](crate::Membership::heartbeat) gives the next one's), and does nothing any more
/// when that is over.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    pool: Pool,
    node: u16,
    /// Claim word that the node must have.
    claim: u64,
}

impl Heartbeat {
    pub(crate) fn new(pool: Pool, node: u16, claim: u64) -> Self {
        Self { pool, node, claim }
    }

    /// Moves the heartbeat on, if pool and slot are still those of this epoch; false if they are not, or cannot be read. To be called
    /// each [`HEARTBEAT_US`](nupa_proto::pool::HEARTBEAT_US), from any context that the window can be used in.
    pub fn beat(&self, window: &impl Window) -> bool {
        let there = self.pool.is_there(window) == Ok(true);
        if !there || self.pool.read_claim(window, self.node) != Ok(self.claim) {
            return false;
        }
        if window.is_frozen() {
            return true;
        }
        let slot = self.pool.geometry().slot(self.node);
        let field = |offset: usize| slot.wrapping_add(offset as u64);
        let at = field(core::mem::offset_of!(Slot, heartbeat));
        // Nobody but this host writes it. Two who do so at the same time move it on once.
        let Ok(before) = window.load(at) else {
            return false;
        };
        window.store(at, before.wrapping_add(1));
        window.publish(field(core::mem::offset_of!(Slot, token)), LINE);
        true
    }
}
