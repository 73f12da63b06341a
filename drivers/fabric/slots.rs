// SPDX-License-Identifier: GPL-2.0
//! Which doorbell pages, and which slots of a page, are taken.

use nupa_proto::doorbell::{PUSH_SLOTS, SLOTS};

/// Slots of one doorbell page, one bit for each that is taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotMap(u128);

const _: () = assert!(SLOTS as u32 == u128::BITS);

/// Slots that have a push slot.
const WITH_PUSH: u128 = (1 << PUSH_SLOTS) - 1;

impl SlotMap {
    /// Takes a free slot. Those with a push slot go to who wants one, as far as there are others.
    pub(crate) fn take(&mut self, push: bool) -> Option<u16> {
        let preferred = if push { WITH_PUSH } else { !WITH_PUSH };
        self.take_of(preferred).or_else(|| self.take_of(!preferred))
    }

    fn take_of(&mut self, wanted: u128) -> Option<u16> {
        let free = !self.0 & wanted;
        if free == 0 {
            return None;
        }
        let slot = free.trailing_zeros();
        self.0 |= 1 << slot;
        u16::try_from(slot).ok()
    }

    /// Gives a slot back.
    pub(crate) fn give(&mut self, slot: u16) {
        self.0 &= !1u128.checked_shl(u32::from(slot)).unwrap_or(0);
    }
}

/// Most doorbell pages that are used: enough for 10,000 queue pairs with a completion queue each.
pub(crate) const MAX_PAGES: u32 = 256;
/// Words of a [`PageMap`].
const WORDS: usize = (MAX_PAGES / u128::BITS) as usize;

/// Doorbell pages of a function, one bit for each that is taken.
#[derive(Debug)]
pub(crate) struct PageMap([u128; WORDS]);

impl PageMap {
    /// The first `pages` pages, [`MAX_PAGES`] at most; all are free.
    pub(crate) fn new(pages: u32) -> Self {
        let mut words = [u128::MAX; WORDS];
        for (word, first) in words.iter_mut().zip((0..).step_by(128)) {
            let there = pages.saturating_sub(first);
            *word = u128::MAX.checked_shl(there).unwrap_or(0);
        }
        Self(words)
    }

    /// Takes a free page.
    pub(crate) fn take(&mut self) -> Option<u32> {
        for (word, first) in self.0.iter_mut().zip((0u32..).step_by(128)) {
            if *word != u128::MAX {
                let bit = word.trailing_ones();
                *word |= 1 << bit;
                return Some(first.wrapping_add(bit));
            }
        }
        None
    }

    /// Gives a page back.
    pub(crate) fn give(&mut self, page: u32) {
        let word = usize::try_from(page / u128::BITS).ok();
        if let Some(word) = word.and_then(|word| self.0.get_mut(word)) {
            *word &= !(1 << (page % u128::BITS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_slot_once_then_none() {
        let mut map = SlotMap::default();
        let taken: HashSet<_> = std::iter::from_fn(|| map.take(false)).collect();
        assert_eq!(taken, (0..SLOTS).collect());
        map.give(7);
        assert_eq!(map.take(true), Some(7));
        map.give(u16::MAX);
        assert_eq!(map.take(true), None);
    }

    #[test]
    fn push_slots_are_kept_for_those_who_want_them() {
        let mut map = SlotMap::default();
        assert_eq!(map.take(true), Some(0));
        assert_eq!(map.take(false), Some(PUSH_SLOTS));
        assert_eq!(map.take(true), Some(1));
    }

    #[test]
    fn every_page_once_then_none() {
        for pages in [0, 1, 127, 128, 129, MAX_PAGES, u32::MAX] {
            let mut map = PageMap::new(pages);
            let taken: Vec<_> = std::iter::from_fn(|| map.take()).collect();
            assert_eq!(taken, (0..pages.min(MAX_PAGES)).collect::<Vec<_>>());
            if let Some(&last) = taken.last() {
                map.give(last);
                assert_eq!(map.take(), Some(last));
            }
            map.give(u32::MAX);
            assert_eq!(map.take(), None);
        }
    }
}
