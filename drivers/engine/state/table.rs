// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Numbered objects of one kind.

use crate::hal::{Storage, Table};

/// Numbered objects of one kind: a [`Table`] with a first number and a limit.
#[derive(Debug)]
pub(crate) struct Objects<T, L, M> {
    table: L,
    first: u32,
    limit: u32,
    /// So many of the first numbers are not for [`Objects::insert`].
    reserved: usize,
    /// Slot that is tried first for the next object, with [`Objects::in_turn`].
    next: Option<u32>,
    full: FullGroups<M>,
    _object: core::marker::PhantomData<T>,
}

/// Objects of one kind in the containers of a node's host.
pub(crate) type TableOf<S, T> = Objects<T, <S as Storage>::Table<T>, <S as Storage>::Table<u64>>;

/// Why an object was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl<T, L: Table<T>, M: Table<u64>> Objects<T, L, M> {
    /// Objects get numbers from `first` to below `first + limit`.
    #[inline]
    pub(crate) fn new(first: u32, limit: u32) -> Self {
        Self::with_reserved(first, limit, 0)
    }

    /// As [`Objects::new`], where the first `reserved` of the numbers are only given by [`Objects::insert_reserved`].
    #[inline(never)]
    pub(crate) fn with_reserved(first: u32, limit: u32, reserved: usize) -> Self {
        Self {
            table: L::default(),
            first,
            limit,
            reserved,
            next: None,
            full: FullGroups::new(limit),
            _object: core::marker::PhantomData,
        }
    }

    /// Gives numbers in turn instead of the lowest free one, so that the number of an object that is gone is not given
    /// again before [`TURN`] others were.
    pub(crate) fn in_turn(mut self) -> Self {
        self.next = Some(0);
        self
    }

    #[inline(always)]
    fn slot(&self, number: u32) -> usize {
        number.wrapping_sub(self.first) as usize
    }

    /// The object of this number.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.table.slots().get(self.slot(number))?.as_ref()
    }

    /// The object of this number.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let slot = self.slot(number);
        self.table.slots_mut().get_mut(slot)?.as_mut()
    }

    /// The lowest free slot; at or beyond the limit if there is none.
    fn lowest_free(&self) -> Result<usize, Full> {
        let group = self.full.first_open().ok_or(Full)?;
        let range = self.full.slots_of(group);
        let start = range.start.max(self.reserved);
        let slots = self.table.slots();
        let known = slots.get(start..range.end.min(slots.len()));
        Ok(known
            .and_then(|known| known.iter().position(Option::is_none))
            .map_or(slots.len().max(start), |at| start.saturating_add(at)))
    }

    /// The free slot whose turn it is, if numbers are given in turn and one is near.
    fn free_in_turn(&self) -> Option<usize> {
        let end = TURN.min(self.limit as usize);
        let next = self.reserved.max(self.next? as usize);
        let turn = (next..end).chain(self.reserved..end);
        let slots = self.table.slots();
        let mut near = turn.take(TURN_PROBES);
        near.find(|at| slots.get(*at).is_none_or(Option::is_none))
    }

    /// Adds the object that `make` builds from its number: the lowest free one, or one in turn ([`Objects::in_turn`]).
    /// May allocate.
    pub(crate) fn insert(&mut self, make: impl FnOnce(u32) -> T) -> Result<u32, Full> {
        let free = self.make_room()?;
        let number = self.number(free)?;
        *self.table.slots_mut().get_mut(free).ok_or(Full)? = Some(make(number));
        self.count(free);
        Ok(number)
    }

    /// As [`Objects::insert`], from where the object is: large ones are not moved over the stack.
    pub(crate) fn insert_from(&mut self, object: &mut Option<T>) -> Result<u32, Full> {
        debug_assert!(object.is_some(), "there is nothing to add");
        let free = self.make_room()?;
        let number = self.number(free)?;
        self.exchange(free, object)?;
        self.count(free);
        Ok(number)
    }

    fn number(&self, slot: usize) -> Result<u32, Full> {
        let slot = u32::try_from(slot).map_err(|_| Full)?;
        Ok(self.first.saturating_add(slot))
    }

    /// A free slot.
    fn make_room(&mut self) -> Result<usize, Full> {
        let free = match self.free_in_turn() {
            Some(free) => free,
            None => self.lowest_free()?,
        };
        if free >= self.limit as usize {
            return Err(Full);
        }
        self.full.prepare()?;
        if free >= self.table.slots().len() {
            // Doubling keeps the copies that a growing table makes rare.
            let len = free.saturating_mul(2).clamp(8, self.limit.max(8) as usize);
            self.table.grow(len).map_err(|_| Full)?;
        }
        Ok(free)
    }

    /// Takes note of the object that was put into a free slot.
    fn count(&mut self, slot: usize) {
        let range = self.full.slots_of(self.full.group_of(slot));
        let slots = self.table.slots();
        let group = slots.get(range.start.max(self.reserved)..range.end);
        if group.is_some_and(|group| group.iter().all(Option::is_some)) {
            self.full.close(self.full.group_of(slot));
        }
        if let Some(next) = &mut self.next {
            *next = (slot as u32).saturating_add(1);
        }
    }

    /// Adds an object with one of the reserved numbers, which is free, from where it is. May allocate.
    pub(crate) fn insert_reserved(
        &mut self,
        number: u32,
        object: &mut Option<T>,
    ) -> Result<(), Full> {
        let at = self.slot(number);
        if at >= self.reserved || at >= self.limit as usize {
            return Err(Full);
        }
        if at >= self.table.slots().len() {
            self.table.grow(self.reserved).map_err(|_| Full)?;
        }
        match self.table.slots().get(at) {
            Some(None) => self.exchange(at, object),
            _ => Err(Full),
        }
    }

    /// By itself because of the space that it takes on the stack.
    #[inline(never)]
    fn exchange(&mut self, slot: usize, object: &mut Option<T>) -> Result<(), Full> {
        let slot = self.table.slots_mut().get_mut(slot).ok_or(Full)?;
        core::mem::swap(slot, object);
        Ok(())
    }

    /// Takes an object out.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let slot = self.slot(number);
        let object = self.table.slots_mut().get_mut(slot)?.take()?;
        self.full.open(slot);
        Some(object)
    }

    /// All objects with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let first = self.first;
        let numbered = self.table.slots().iter().enumerate();
        numbered.filter_map(move |(i, slot)| {
            Some((first.saturating_add(u32::try_from(i).ok()?), slot.as_ref()?))
        })
    }

    /// Numbers below this may be in use.
    pub(crate) fn end(&self) -> u32 {
        self.first
            .saturating_add(u32::try_from(self.table.slots().len()).unwrap_or(self.limit))
    }
}

/// Numbers that are given in turn. A connection manager refuses a new connection whose queue pair number is still in its timewait state,
/// so a number must come back late; the table grows to as many slots.
const TURN: usize = 4096;
/// Slots probed for a free one in turn, before the lowest free slot is taken.
const TURN_PROBES: usize = 64;

/// Words of the map of full groups.
const WORDS: usize = 64;
/// log2 of the bits of a word.
const LOG_BITS: u32 = u64::BITS.trailing_zeros();
/// Most groups of slots.
const GROUPS: usize = WORDS << LOG_BITS;

/// Which groups of slots have no free one: so a free slot is found without a search of the whole table, however large
/// that is.
#[derive(Debug)]
struct FullGroups<M> {
    /// A bit per group, [`WORDS`] of them, or none as long as there was no object. Not in here, because of the space that a
    /// node takes on the stack while it is made.
    map: M,
    /// Slots of a group.
    size: usize,
}

impl<M: Table<u64>> FullGroups<M> {
    fn new(limit: u32) -> Self {
        Self {
            map: M::default(),
            size: (limit as usize).div_ceil(GROUPS).max(1),
        }
    }

    /// The first group that may have a free slot.
    fn first_open(&self) -> Option<usize> {
        let words = self.map.slots();
        if words.is_empty() {
            return Some(0);
        }
        let word = words.iter().position(|word| *word != Some(u64::MAX))?;
        let bit = words.get(word)?.unwrap_or(0).trailing_ones() as usize;
        Some((word << LOG_BITS) | bit)
    }

    /// Word of the map, and bit in it, that stand for a group.
    const fn position(group: usize) -> (usize, u64) {
        let (word, bit) = (group >> LOG_BITS, group & ((1 << LOG_BITS) - 1));
        (word, 1 << bit)
    }

    /// Slots of a group; the last one's may lie beyond the limit.
    fn slots_of(&self, group: usize) -> core::ops::Range<usize> {
        let start = group.saturating_mul(self.size);
        start..start.saturating_add(self.size)
    }

    /// Group of a slot.
    fn group_of(&self, slot: usize) -> usize {
        slot.checked_div(self.size).unwrap_or(0)
    }

    /// Makes the map, in which groups can be noted. May allocate.
    fn prepare(&mut self) -> Result<(), Full> {
        if self.map.slots().is_empty() {
            self.map.grow(WORDS).map_err(|_| Full)?;
        }
        Ok(())
    }

    /// Notes that a group has no free slot.
    fn close(&mut self, group: usize) {
        let (word, bit) = Self::position(group);
        if let Some(word) = self.map.slots_mut().get_mut(word) {
            *word = Some(word.unwrap_or(0) | bit);
        }
    }

    /// Notes that a slot is free.
    fn open(&mut self, slot: usize) {
        let (word, bit) = Self::position(self.group_of(slot));
        if let Some(Some(word)) = self.map.slots_mut().get_mut(word) {
            *word &= !bit;
        }
    }
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "a test may fail loudly")]
mod tests {
    extern crate std;

    use super::{FullGroups, Objects, TURN};
    use crate::hal::VecTable;
    use std::vec::Vec;

    /// Adds until nothing more fits, takes some out, and finds just those numbers again, lowest first.
    fn fill_and_refill(limit: u32) {
        let mut objects = Objects::<u32, VecTable<u32>, VecTable<u64>>::new(2, limit);
        for n in 0..limit {
            assert_eq!(objects.insert(|number| number), Ok(n + 2));
        }
        assert!(objects.insert(|number| number).is_err());
        let gone: Vec<u32> = (2..limit + 2).filter(|n| n % 7 == 3).collect();
        for number in gone.iter().rev() {
            assert_eq!(objects.remove(*number), Some(*number));
            assert_eq!(objects.remove(*number), None);
        }
        assert_eq!(objects.iter().count(), limit as usize - gone.len());
        for number in gone {
            assert_eq!(objects.insert(|number| number), Ok(number));
        }
        assert!(objects.insert(|number| number).is_err());
    }

    #[test]
    fn numbers_are_used_up_and_used_again() {
        for limit in [0, 1, 7, 8, 9, 100, 4096, 4097, 10_000] {
            fill_and_refill(limit);
        }
    }

    #[test]
    fn numbers_in_turn_are_given_again_late() {
        let mut objects =
            Objects::<u32, VecTable<u32>, VecTable<u64>>::with_reserved(0, 10_000, 2).in_turn();
        for n in 2..TURN as u32 {
            assert_eq!(objects.insert(|number| number), Ok(n));
            assert_eq!(objects.remove(n), Some(n));
        }
        assert_eq!(objects.insert(|number| number), Ok(2));
        for n in 3..10_000 {
            assert_eq!(objects.insert(|number| number), Ok(n));
        }
        assert!(objects.insert(|number| number).is_err());
        assert_eq!(objects.remove(7000), Some(7000));
        assert_eq!(objects.insert(|number| number), Ok(7000));
    }

    #[test]
    fn groups_cover_the_largest_table() {
        let groups = FullGroups::<VecTable<u64>>::new(1 << 18);
        assert!(groups.size * super::GROUPS >= 1 << 18);
    }
}
