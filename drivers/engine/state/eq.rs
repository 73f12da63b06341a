// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Event queues.

use crate::{
    hal::{AccessError, Memory, Platform, SlotWord},
    state::ring::Ring,
};
use nupa_proto::{
    cqe::phase,
    doorbell::arm_sequence,
    eqe::{Eqe, EQE_VALID_OFFSET},
};
use zerocopy::IntoBytes;

/// Why an event was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotWritten {
    /// The consumer is behind by all entries.
    Full,
    /// The ring is out of reach.
    Unreachable,
}

impl From<AccessError> for NotWritten {
    fn from(AccessError: AccessError) -> Self {
        Self::Unreachable
    }
}

/// An event queue.
#[derive(Debug)]
pub(crate) struct EventQueue<P> {
    pub(crate) ring: Ring<P>,
    pub(crate) page: u32,
    pub(crate) slot: u16,
    pub(crate) vector: u16,
    /// Completion queues that report here.
    pub(crate) users: u32,
    pub(crate) index: u32,
    /// Consumer index as last seen.
    pub(crate) consumed: u32,
    /// Arm sequence of the last interrupt.
    pub(crate) fired: u32,
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> EventQueue<P> {
    /// Writes an event and raises the vector if the queue is armed; tells whether it was.
    pub(crate) fn post(
        &mut self,
        platform: &impl Platform,
        event: &Eqe,
    ) -> Result<bool, NotWritten> {
        if !self.has_room(platform) {
            return Err(NotWritten::Full);
        }
        let addr = self.ring.addr(self.index).ok_or(AccessError)?;
        let memory = platform.memory();
        let body = event.as_bytes().get(..EQE_VALID_OFFSET).unwrap_or_default();
        memory.write(addr, body)?;
        let valid = phase(self.index, self.ring.log_entries());
        memory.store_release(addr.wrapping_add(EQE_VALID_OFFSET as u64), valid)?;
        self.index = self.index.wrapping_add(1);
        platform.fence();
        let armed = arm_sequence(platform.load(self.page, self.slot, SlotWord::Arm));
        if armed == self.fired {
            return Ok(false);
        }
        self.fired = armed;
        platform.raise(self.vector);
        Ok(true)
    }

    /// Whether one more event would be written.
    pub(crate) fn has_room(&mut self, platform: &impl Platform) -> bool {
        if self.index.wrapping_sub(self.consumed) >= self.ring.entries() {
            self.consumed = platform.load(self.page, self.slot, SlotWord::Index);
        }
        self.index.wrapping_sub(self.consumed) < self.ring.entries()
    }
}
