// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Doorbell pages that a driver keeps in its own memory (`REG_DOORBELL_MEMORY`).

use nupa_engine::hal::{AccessError, SlotWord};
use nupa_proto::{
    doorbell::{host_push_offset, host_slot_offset, PAGE_SIZE, PUSH_SLOTS, SLOTS},
    wqe::BLOCK_SIZE,
};

use crate::host::WordMemory;

/// Where they are. The driver can take that memory away at any time: then words read as zero and stores are lost, as if
/// the page were not there.
#[derive(Clone, Copy, Debug)]
pub struct DoorbellMemory {
    base: u64,
    pages: u32,
}

impl DoorbellMemory {
    /// `pages` pages from `base` on, which have to be aligned and reachable.
    pub(crate) fn new(
        memory: &impl WordMemory,
        base: u64,
        pages: u32,
    ) -> Result<Self, AccessError> {
        let len = usize::try_from(pages).unwrap_or(usize::MAX);
        if base & (PAGE_SIZE as u64).wrapping_sub(1) != 0 {
            return Err(AccessError);
        }
        memory.check(base, len.saturating_mul(PAGE_SIZE))?;
        Ok(Self { base, pages })
    }

    /// Loads a word of a slot with acquire order; 0 if there is none.
    #[inline]
    pub fn load(&self, memory: &impl WordMemory, page: u32, slot: u16, word: SlotWord) -> u32 {
        let at = self.word(page, slot, word);
        at.and_then(|at| memory.load_acquire(at).ok()).unwrap_or(0)
    }

    /// Stores a word of a slot with release order; nothing happens if there is none.
    #[inline]
    pub fn store(
        &self,
        memory: &impl WordMemory,
        page: u32,
        slot: u16,
        word: SlotWord,
        value: u32,
    ) {
        if let Some(at) = self.word(page, slot, word) {
            let _ = memory.store_release(at, value);
        }
    }

    /// Stores a word of a slot if `expected` is there, as a full fence; returns whether it was, `false` if there is no such slot.
    #[inline]
    pub fn compare_exchange(
        &self,
        memory: &impl WordMemory,
        (page, slot, word): (u32, u16, SlotWord),
        expected: u32,
        value: u32,
    ) -> bool {
        let at = self.word(page, slot, word);
        let swapped = at.and_then(|at| memory.compare_exchange(at, expected, value).ok());
        swapped.unwrap_or(false)
    }

    /// Copies a push slot out; `false` if there is none.
    pub fn push_block(
        &self,
        memory: &impl WordMemory,
        page: u32,
        slot: u16,
        block: &mut [u8; BLOCK_SIZE],
    ) -> bool {
        if page >= self.pages || slot >= PUSH_SLOTS {
            return false;
        }
        let at = self.address(host_push_offset(page, slot));
        at.is_some_and(|at| memory.read(at, block).is_ok())
    }

    /// Address of a word of a slot that exists.
    #[inline]
    fn word(&self, page: u32, slot: u16, word: SlotWord) -> Option<u64> {
        if page >= self.pages || slot >= SLOTS {
            return None;
        }
        self.address(host_slot_offset(page, slot).saturating_add(word.offset()))
    }

    #[inline]
    fn address(&self, offset: usize) -> Option<u64> {
        self.base.checked_add(u64::try_from(offset).ok()?)
    }
}
