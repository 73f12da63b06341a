// SPDX-License-Identifier: GPL-2.0 OR MIT

//! BAR 2: shared doorbell pages, and where in the BAR an access falls.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use guestmem::MmapRegion;
use nupa_engine::hal::SlotWord;
use nupa_function::Kick;
use nupa_proto::doorbell::{
    device_memory_offset, push_offset, slot_offset, PAGE_SIZE, PAIR_SIZE, PUSH_SLOTS, SLOTS,
    SLOT_SIZE,
};
use nupa_proto::wqe::BLOCK_SIZE;

use crate::error::FabricError;

/// The doorbell pages of one function: one file, laid out as the BAR. Trapped pages are holes in it.
#[derive(Debug)]
pub(crate) struct DoorbellPages {
    region: MmapRegion,
    pages: u32,
}

/// Bytes of the BAR with `pages` pairs and `device_memory` bytes behind them.
pub(crate) fn bar_size(pages: u32, device_memory: u64) -> u64 {
    let pairs = u64::try_from(device_memory_offset(pages)).unwrap_or(u64::MAX);
    pairs.saturating_add(device_memory).next_power_of_two()
}

/// Offset in the function's own memory that an offset in the BAR stands for, if it lies behind the `pages` pairs.
pub(crate) fn device_memory_at(pages: u32, offset: usize) -> Option<usize> {
    offset.checked_sub(device_memory_offset(pages))
}

/// Ranges of the BAR that guests may map.
pub(crate) fn mmap_areas(pages: u32) -> impl Iterator<Item = Range<u64>> {
    let page = |at: usize| u64::try_from(at).unwrap_or(0);
    (0..pages).map(move |pair| {
        let start = page(slot_offset(pair, 0));
        start..start.saturating_add(page(PAGE_SIZE))
    })
}

/// Whether an offset lies in a shared page.
pub(crate) fn is_shared(offset: usize) -> bool {
    offset % PAIR_SIZE < PAGE_SIZE
}

/// The kick that a write of `data` at `offset` of the BAR stands for, if it is one.
pub(crate) fn decode_kick(pages: u32, offset: usize, data: &[u8]) -> Option<Kick> {
    let value = u32::from_le_bytes(<[u8; 4]>::try_from(data).ok()?);
    let page = u32::try_from(offset.checked_div(PAIR_SIZE)?).ok()?;
    let within = (offset % PAIR_SIZE).checked_sub(PAGE_SIZE)?;
    let slot = u16::try_from(within.checked_div(SLOT_SIZE)?).ok()?;
    if page >= pages || slot >= SLOTS {
        return None;
    }
    match within % SLOT_SIZE {
        0 => Some(Kick::Plain(page, slot)),
        4 => Some(Kick::Push(page, slot, value)),
        _ => None,
    }
}

impl DoorbellPages {
    /// Makes `pages` pairs for a node, all zero.
    pub(crate) fn new(node: u16, pages: u32) -> Result<Self, FabricError> {
        let region = MmapRegion::new(
            &format!("nupa-doorbells-{node}"),
            device_memory_offset(pages),
        )?;
        Ok(Self { region, pages })
    }

    /// Number of pairs.
    pub(crate) fn pages(&self) -> u32 {
        self.pages
    }

    /// The file behind the pages.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.region.file()
    }

    /// Reads shared pages on behalf of a guest that does not map them. `false` if that is not in one.
    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) -> bool {
        self.holds(offset, data.len()) && self.region.read(offset, data).is_ok()
    }

    /// Writes to shared pages on behalf of a guest that does not map them. `false` if that is not in one.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) -> bool {
        if !self.holds(offset, data.len()) {
            return false;
        }
        // A doorbell word must be stored as one.
        match <[u8; 4]>::try_from(data) {
            Ok(word) if offset % 4 == 0 => self
                .region
                .store_u32(offset, u32::from_le_bytes(word))
                .is_ok(),
            _ => self.region.write(offset, data).is_ok(),
        }
    }

    /// Loads a word of a slot; 0 if there is no such slot.
    #[inline]
    pub(crate) fn load(&self, page: u32, slot: u16, word: SlotWord) -> u32 {
        self.word(page, slot, word)
            .and_then(|at| self.region.load_u32(at).ok())
            .map_or(0, u32::from_le)
    }

    /// Stores a word of a slot if `expected` is there, as a full fence; returns whether it was. `false` if there is no such slot.
    pub(crate) fn compare_exchange(
        &self,
        (page, slot, word): (u32, u16, SlotWord),
        expected: u32,
        value: u32,
    ) -> bool {
        let (expected, value) = (expected.to_le(), value.to_le());
        self.word(page, slot, word)
            .and_then(|at| self.region.compare_exchange_u32(at, expected, value).ok())
            == Some(expected)
    }

    /// Stores a word of a slot; nothing happens if there is no such slot.
    #[inline]
    pub(crate) fn store(&self, page: u32, slot: u16, word: SlotWord, value: u32) {
        if let Some(at) = self.word(page, slot, word) {
            let stored = self.region.store_u32(at, value.to_le());
            debug_assert!(stored.is_ok(), "slots lie in the region");
        }
    }

    /// Copies a push slot out; `false` if there is no such slot.
    pub(crate) fn push_block(&self, page: u32, slot: u16, block: &mut [u8; BLOCK_SIZE]) -> bool {
        let there = page < self.pages && slot < PUSH_SLOTS;
        there && self.region.read(push_offset(page, slot), block).is_ok()
    }

    /// Offset of a word of a slot that exists.
    #[inline]
    fn word(&self, page: u32, slot: u16, word: SlotWord) -> Option<usize> {
        (page < self.pages && slot < SLOTS)
            .then(|| slot_offset(page, slot).saturating_add(word.offset()))
    }

    /// Whether the range lies in one shared page that exists.
    fn holds(&self, offset: usize, len: usize) -> bool {
        let page = offset.checked_div(PAIR_SIZE).map(u32::try_from);
        let end = (offset % PAIR_SIZE).saturating_add(len);
        matches!(page, Some(Ok(page)) if page < self.pages) && end <= PAGE_SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nupa_proto::doorbell::kick_offset;

    #[test]
    fn kicks_are_words_in_trapped_pages_of_existing_pairs() {
        let word = 7u32.to_le_bytes();
        let at = kick_offset(1, 3);
        assert_eq!(decode_kick(2, at, &word), Some(Kick::Plain(1, 3)));
        assert_eq!(decode_kick(2, at + 4, &word), Some(Kick::Push(1, 3, 7)));
        assert_eq!(decode_kick(2, at + 8, &word), None);
        assert_eq!(decode_kick(1, at, &word), None);
        assert_eq!(decode_kick(2, at, &word[..2]), None);
        assert_eq!(decode_kick(2, slot_offset(1, 3), &word), None);
        assert_eq!(decode_kick(2, kick_offset(0, SLOTS), &word), None);
    }

    #[test]
    fn shared_pages_alternate_with_trapped_ones() {
        let areas: Vec<_> = mmap_areas(3).collect();
        assert_eq!(areas, [0..4096, 8192..12288, 16384..20480]);
        assert_eq!(bar_size(3, 0), 32768);
        assert_eq!(bar_size(3, 4096), 32768);
        assert_eq!(bar_size(4, 4096), 65536);
        assert_eq!(device_memory_at(3, 24575), None);
        assert_eq!(device_memory_at(3, 24576), Some(0));
        assert!(is_shared(8192 + 4095) && !is_shared(4096));
    }

    #[test]
    fn reads_and_writes_stay_in_shared_pages() {
        let pages = DoorbellPages::new(0, 2).unwrap();
        let mut byte = [0];
        assert!(pages.write(PAIR_SIZE, &[1, 2, 3, 4]));
        assert!(pages.read(PAIR_SIZE + 2, &mut byte) && byte == [3]);
        assert!(!pages.write(PAGE_SIZE, &[1]));
        assert!(!pages.write(PAGE_SIZE - 2, &[1; 4]));
        assert!(!pages.read(2 * PAIR_SIZE, &mut byte));
        assert_eq!(pages.load(1, 0, SlotWord::Index), 0x0403_0201);
        assert_eq!(pages.load(2, 0, SlotWord::Index), 0);
    }
}
