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
    /// What makes an index a position.
    mask: u32,
    /// Entries taken before the device is told.
    batch: u32,
    index: u32,
    published: u32,
    sequence: u32,
}

/// log2 of the entries of a ring, the mask of positions, and how many are taken before the device is told.
fn sizes(log_entries: u8) -> (u32, u32, u32) {
    let log_entries = u32::from(log_entries.min(31));
    let entries = 1u32 << log_entries;
    (
        log_entries,
        entries.wrapping_sub(1),
        BATCH.min(entries >> 2),
    )
}

impl<M: QueueMemory, D: Doorbell, const ENTRY: usize> Consumer<M, D, ENTRY> {
    pub(super) fn new(memory: M, doorbell: D, log_entries: u8) -> Self {
        let (log_entries, mask, batch) = sizes(log_entries);
        Self {
            memory,
            doorbell,
            log_entries,
            mask,
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
        (self.log_entries, self.mask, self.batch) = sizes(log_entries);
    }

    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    #[inline(always)]
    fn offset(&self, index: u32) -> usize {
        ((index & self.mask) as usize).wrapping_mul(ENTRY)
    }

    /// Whether the next entry is there.
    #[inline]
    pub(super) fn ready(&self) -> bool {
        self.is_there(self.index)
    }

    #[inline]
    fn is_there(&self, index: u32) -> bool {
        let valid = self.offset(index).wrapping_add(ENTRY).wrapping_sub(4);
        self.memory.load_acquire(valid) & CQE_PHASE == self.phase(index)
    }

    /// Phase bit of an entry that is there.
    #[inline(always)]
    fn phase(&self, index: u32) -> u32 {
        phase(index, self.log_entries)
    }

    /// Offsets of the entries that are there and not taken.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        let ahead = 0..1u32 << self.log_entries;
        ahead
            .map(|ahead| self.index.wrapping_add(ahead))
            .take_while(|&index| self.is_there(index))
            .map(|index| self.offset(index))
    }

    /// Takes the next entry, and tells the device in batches.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<[u8; ENTRY]> {
        let entry = self.take_with(|entry| *entry);
        if entry.is_none() || self.index.wrapping_sub(self.published) >= self.batch {
            self.publish();
        }
        entry
    }

    /// Shows the next entry and takes it; [`Consumer::publish`] has to follow the last one.
    #[inline(always)]
    pub(super) fn take_with<R>(&mut self, see: impl FnOnce(&[u8; ENTRY]) -> R) -> Option<R> {
        let seen = self.look_with(see)?;
        self.index = self.index.wrapping_add(1);
        Some(seen)
    }

    /// As [`Consumer::take_with`]; the entry stays if `see` returns false. Returns what that returned.
    #[inline(always)]
    pub(super) fn take_if(&mut self, see: impl FnOnce(&[u8; ENTRY]) -> bool) -> Option<bool> {
        let taken = self.look_with(see)?;
        self.index = self.index.wrapping_add(u32::from(taken));
        Some(taken)
    }

    /// Shows the next entry.
    #[inline(always)]
    pub(super) fn look_with<R>(&mut self, see: impl FnOnce(&[u8; ENTRY]) -> R) -> Option<R> {
        let phase = self.phase(self.index);
        let is_there = |valid| valid & CQE_PHASE == phase;
        self.memory
            .with_entry(self.offset(self.index), is_there, see)
    }

    #[inline(always)]
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
