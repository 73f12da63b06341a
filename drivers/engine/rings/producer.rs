// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What send and receive rings have in common: indices and the doorbell.

use super::{BadIndex, Doorbell};
use crate::hal::SlotWord;
use nupa_proto::doorbell::need_kick;

/// Free-running indices of a ring whose owner produces.
#[derive(Debug)]
pub(super) struct Producer<D> {
    doorbell: D,
    /// How many there are, a power of two.
    entries: u32,
    /// Behind what is written.
    written: u32,
    /// Behind what the doorbell says.
    rung: u32,
    /// Before this the device is done.
    done: u32,
}

impl<D: Doorbell> Producer<D> {
    pub(super) fn new(doorbell: D, log_entries: u8) -> Self {
        Self {
            doorbell,
            entries: 1 << log_entries.min(31),
            written: 0,
            rung: 0,
            done: 0,
        }
    }

    #[inline]
    pub(super) fn free(&self) -> u32 {
        self.entries
            .wrapping_sub(self.written.wrapping_sub(self.done))
    }

    #[inline]
    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    #[inline]
    pub(super) fn written(&self) -> u32 {
        self.written
    }

    #[inline]
    pub(super) fn done(&self) -> u32 {
        self.done
    }

    #[inline]
    pub(super) fn rung(&self) -> u32 {
        self.rung
    }

    /// Position of an entry.
    #[inline]
    pub(super) fn place(&self, index: u32) -> usize {
        (index & self.entries.wrapping_sub(1)) as usize
    }

    /// Position of an entry that was rung and is not done.
    #[inline]
    pub(super) fn outstanding(&self, index: u32) -> Option<usize> {
        let ahead = index.wrapping_sub(self.done);
        (ahead < self.rung.wrapping_sub(self.done)).then_some(self.place(index))
    }

    /// Position in the ring of the entry `ahead` of what is written.
    #[inline]
    pub(super) fn position(&self, ahead: u32) -> usize {
        self.place(self.written.wrapping_add(ahead))
    }

    #[inline]
    pub(super) fn advance(&mut self, count: u32) -> u32 {
        self.written = self.written.wrapping_add(count);
        self.written
    }

    #[inline]
    pub(super) fn rewind(&mut self) {
        self.written = self.rung;
    }

    #[inline]
    pub(super) fn completed(&mut self, index: u32) -> Result<u32, BadIndex> {
        let count = index.wrapping_sub(self.done);
        if count > self.rung.wrapping_sub(self.done) {
            return Err(BadIndex(index));
        }
        self.done = index;
        Ok(count)
    }

    /// Counts what is written as rung, without a word to the device.
    pub(super) fn ring_lost(&mut self) {
        self.rung = self.written;
    }

    /// Position of the oldest entry that was rung and is not done.
    pub(super) fn oldest(&self) -> Option<usize> {
        (self.done != self.rung).then_some(self.place(self.done))
    }

    /// The oldest `count` of those that were rung are done without the device.
    pub(super) fn give_up(&mut self, count: u32) {
        let most = self.rung.wrapping_sub(self.done);
        self.done = self.done.wrapping_add(count.min(most));
    }

    /// Rings the doorbell; if the device asked for it, `kick` is called with the doorbell, the index, and how far that
    /// is behind the last one.
    #[inline(always)]
    pub(super) fn ring(&mut self, kick: impl FnOnce(&D, u32, u32)) -> bool {
        let (old, new) = (self.rung, self.written);
        if old == new {
            return false;
        }
        self.rung = new;
        self.doorbell.store(SlotWord::Index, new);
        self.doorbell.fence();
        let wanted = need_kick(self.doorbell.load(SlotWord::Event), new, old);
        if wanted {
            kick(&self.doorbell, new, new.wrapping_sub(old));
        }
        wanted
    }

    /// Starts over with an empty ring, as the device does when the queue goes to the reset state.
    pub(super) fn reset(&mut self) {
        (self.written, self.rung, self.done) = (0, 0, 0);
    }
}
