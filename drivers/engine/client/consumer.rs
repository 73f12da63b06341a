// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What completion and event rings have in common: phase, consumer index and arming.

use super::{Doorbell, QueueMemory};
use crate::hal::SlotWord;
use nupa_proto::{
    cqe::{phase, CQE_PHASE},
    doorbell::{arm_sequence, arm_word},
};

/// Entries taken before the device is told; it is also told when the ring is found empty or armed.
pub(super) const BATCH: u32 = 16;

/// A ring whose owner consumes: `ENTRY` bytes each, handed over by the 32-bit word at their end.
#[derive(Debug)]
pub(super) struct Consumer<M, D, const ENTRY: usize> {
    memory: M,
    doorbell: D,
    log_entries: u32,
    /// Entries taken before the device is told.
    batch: u32,
    index: u32,
    published: u32,
    sequence: u32,
}

/// log2 of the entries of a ring, and how many are taken before the device is told.
fn sizes(log_entries: u8) -> (u32, u32) {
    let log_entries = u32::from(log_entries.min(31));
    (log_entries, BATCH.min(1 << log_entries >> 2))
}

impl<M: QueueMemory, D: Doorbell, const ENTRY: usize> Consumer<M, D, ENTRY> {
    pub(super) fn new(memory: M, doorbell: D, log_entries: u8) -> Self {
        let (log_entries, batch) = sizes(log_entries);
        Self {
            memory,
            doorbell,
            log_entries,
            batch,
            index: 0,
            published: 0,
            sequence: 0,
        }
    }

    /// Goes on at the start of another ring, whose consumer index is 0.
    pub(super) fn replace(&mut self, memory: M, log_entries: u8) {
        self.memory = memory;
        (self.index, self.published) = (0, 0);
        (self.log_entries, self.batch) = sizes(log_entries);
    }

    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    #[inline]
    fn offset(&self, index: u32) -> usize {
        let mask = (1u32 << self.log_entries).wrapping_sub(1);
        ((index & mask) as usize).wrapping_mul(ENTRY)
    }

    /// Whether the next entry is there.
    #[inline]
    pub(super) fn ready(&self) -> bool {
        self.is_there(self.index)
    }

    #[inline]
    fn is_there(&self, index: u32) -> bool {
        self.is_there_at(index, self.offset(index))
    }

    #[inline]
    fn is_there_at(&self, index: u32, offset: usize) -> bool {
        let valid = self
            .memory
            .load_acquire(offset.wrapping_add(ENTRY).wrapping_sub(4));
        valid & CQE_PHASE == phase(index, self.log_entries)
    }

    /// Offsets of the entries that are there and not taken.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        let ahead = 0..1u32 << self.log_entries;
        ahead
            .map(|ahead| self.index.wrapping_add(ahead))
            .take_while(|&index| self.is_there(index))
            .map(|index| self.offset(index))
    }

    /// Copies the next entry to `entry` and takes it; false if there is none.
    #[inline]
    pub(super) fn take(&mut self, entry: &mut [u8]) -> bool {
        let offset = self.offset(self.index);
        if !self.is_there_at(self.index, offset) {
            self.publish();
            return false;
        }
        self.memory.read(offset, entry);
        self.index = self.index.wrapping_add(1);
        if self.index.wrapping_sub(self.published) >= self.batch {
            self.publish();
        }
        true
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        if self.published != self.index {
            self.published = self.index;
            self.doorbell.store(SlotWord::Index, self.index);
        }
    }

    pub(super) fn arm(&mut self, solicited_only: bool) -> bool {
        self.publish();
        self.sequence = arm_sequence(self.sequence.wrapping_add(1));
        self.doorbell
            .store(SlotWord::Arm, arm_word(self.sequence, solicited_only));
        self.doorbell.fence();
        self.ready()
    }
}
