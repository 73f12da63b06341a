// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Numbered objects of one kind.

use crate::storage::Table;

/// Numbered objects of one kind: a [`Table`] with a first number and a limit.
#[derive(Debug)]
pub(crate) struct Objects<T, L> {
    table: L,
    first: u32,
    limit: u32,
    _object: core::marker::PhantomData<T>,
}

/// Why an object was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl<T, L: Table<T>> Objects<T, L> {
    /// Objects get numbers from `first` to below `first + limit`.
    pub(crate) fn new(first: u32, limit: u32) -> Self {
        Self {
            table: L::default(),
            first,
            limit,
            _object: core::marker::PhantomData,
        }
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

    /// Adds the object that `make` builds from its number: the lowest free one. May allocate.
    pub(crate) fn insert(&mut self, make: impl FnOnce(u32) -> T) -> Result<u32, Full> {
        let slots = self.table.slots();
        let free = slots
            .iter()
            .position(Option::is_none)
            .unwrap_or(slots.len());
        if free >= self.limit as usize {
            return Err(Full);
        }
        if free == slots.len() {
            // Doubling keeps the copies that a growing table makes rare.
            let len = free.saturating_mul(2).clamp(8, self.limit.max(1) as usize);
            self.table.grow(len).map_err(|_| Full)?;
        }
        let number = self
            .first
            .saturating_add(u32::try_from(free).map_err(|_| Full)?);
        let slot = self.table.slots_mut().get_mut(free).ok_or(Full)?;
        *slot = Some(make(number));
        Ok(number)
    }

    /// Takes an object out.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let slot = self.slot(number);
        self.table.slots_mut().get_mut(slot)?.take()
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
