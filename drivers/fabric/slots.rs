// SPDX-License-Identifier: GPL-2.0
//! Which doorbell slots are taken.

use nupa_proto::doorbell::{PUSH_SLOTS, SLOTS};

/// Doorbell pages that the kernel uses itself at most; the rest is for user contexts.
pub(crate) const MAX_PAGES: usize = 8;

/// A set of doorbell slots, [`SLOTS`] on each page.
#[derive(Debug)]
pub(crate) struct SlotMap {
    /// One bit per slot that is taken.
    taken: [u128; MAX_PAGES],
    pages: usize,
}

const _: () = assert!(SLOTS as u32 == u128::BITS);

impl SlotMap {
    /// All slots of the first `pages` pages, [`MAX_PAGES`] at most.
    pub(crate) fn new(pages: u32) -> Self {
        let pages = usize::try_from(pages).map_or(MAX_PAGES, |pages| pages.min(MAX_PAGES));
        Self {
            taken: [0; MAX_PAGES],
            pages,
        }
    }

    /// Takes a free slot: (page, slot). Slots with a push slot go to those who want one, as far as there are others.
    pub(crate) fn take(&mut self, push: bool) -> Option<(u32, u16)> {
        let with_push = (1u128 << PUSH_SLOTS) - 1;
        let preferred = if push { with_push } else { !with_push };
        self.take_of(preferred).or_else(|| self.take_of(!preferred))
    }

    fn take_of(&mut self, wanted: u128) -> Option<(u32, u16)> {
        for (page, taken) in (0..).zip(self.taken.iter_mut().take(self.pages)) {
            let free = !*taken & wanted;
            if free != 0 {
                let slot = free.trailing_zeros();
                *taken |= 1 << slot;
                return Some((page, u16::try_from(slot).ok()?));
            }
        }
        None
    }

    /// Takes a free slot of a page, one without a push slot as far as there are any.
    pub(crate) fn take_on(&mut self, page: u32) -> Option<u16> {
        let taken = self
            .taken
            .get_mut(..self.pages)?
            .get_mut(usize::try_from(page).ok()?)?;
        let slot = match !*taken {
            0 => return None,
            // The highest one.
            free => u128::BITS
                .wrapping_sub(1)
                .wrapping_sub(free.leading_zeros()),
        };
        *taken |= 1 << slot;
        u16::try_from(slot).ok()
    }

    /// Gives a slot back.
    pub(crate) fn give(&mut self, page: u32, slot: u16) {
        let Some(taken) = usize::try_from(page)
            .ok()
            .and_then(|page| self.taken.get_mut(page))
        else {
            return;
        };
        *taken &= !1u128.checked_shl(u32::from(slot)).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_slot_once_then_none() {
        let mut map = SlotMap::new(2);
        let taken: HashSet<_> = std::iter::from_fn(|| map.take(false)).collect();
        assert_eq!(taken.len(), 2 * usize::from(SLOTS));
        assert!(taken.iter().all(|&(page, slot)| page < 2 && slot < SLOTS));
        assert_eq!(map.take(true), None);
        map.give(1, 7);
        assert_eq!(map.take(true), Some((1, 7)));
    }

    #[test]
    fn push_slots_are_kept_for_those_who_want_them() {
        let mut map = SlotMap::new(1);
        assert_eq!(map.take(true), Some((0, 0)));
        assert_eq!(map.take(false), Some((0, PUSH_SLOTS)));
        assert_eq!(map.take(true), Some((0, 1)));
    }

    #[test]
    fn second_slot_on_the_same_page() {
        let mut map = SlotMap::new(2);
        assert_eq!(map.take_on(1), Some(SLOTS - 1));
        assert_eq!(map.take_on(1), Some(SLOTS - 2));
        while map.take_on(1).is_some() {}
        assert_eq!(map.take(true), Some((0, 0)));
        assert_eq!(map.take_on(2), None);
    }

    #[test]
    fn nonsense_is_ignored() {
        let mut map = SlotMap::new(u32::MAX);
        map.give(u32::MAX, 3);
        map.give(0, u16::MAX);
        assert_eq!(
            std::iter::from_fn(|| map.take(true)).count(),
            MAX_PAGES * usize::from(SLOTS)
        );
        assert_eq!(SlotMap::new(0).take(true), None);
    }
}
