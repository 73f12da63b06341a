// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Lists threaded through objects of one kind: queues that wait for their turn, for time to pass or for something to happen.

use crate::{hal::Table, state::table::Objects};
use core::{marker::PhantomData, num::NonZeroU32};

/// An object's place in a [`List`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Links {
    listed: bool,
    previous: Neighbor,
    next: Neighbor,
}

/// Number of an object, or none, in four bytes: an object has several places, and is on the stack while it is made. No object has the last number of all.
#[derive(Clone, Copy, Debug, Default)]
struct Neighbor(Option<NonZeroU32>);

impl Neighbor {
    fn new(number: Option<u32>) -> Self {
        Self(number.and_then(|number| NonZeroU32::new(number.wrapping_add(1))))
    }

    fn get(self) -> Option<u32> {
        self.0.map(|behind| behind.get().wrapping_sub(1))
    }
}

impl Links {
    /// Whether the object is in a list.
    #[inline]
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }
}

/// An object that can be in one list of a kind, which `Tag` names.
pub(crate) trait Linked<Tag> {
    fn place_in_list(&mut self) -> &mut Links;
}

/// A list of object numbers, in the order in which they came.
#[derive(Debug)]
pub(crate) struct List<Tag> {
    /// The ends, if there are any objects in it. Not optional because of the space that a node takes on the stack while it is made.
    first: u32,
    last: u32,
    len: u32,
    _tag: PhantomData<Tag>,
}

impl<Tag> Default for List<Tag> {
    fn default() -> Self {
        Self {
            first: 0,
            last: 0,
            len: 0,
            _tag: PhantomData,
        }
    }
}

impl<Tag> List<Tag> {
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        (self.len != 0).then_some(self.first)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Objects in it.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Appends an object, unless it is in a list of this kind.
    pub(crate) fn push<T: Linked<Tag>, L: Table<T>, M: Table<u64>>(
        &mut self,
        objects: &mut Objects<T, L, M>,
        number: u32,
    ) {
        let last = (self.len != 0).then_some(self.last);
        let Some(links) = objects.get_mut(number).map(T::place_in_list) else {
            return;
        };
        if links.listed {
            return;
        }
        *links = Links {
            listed: true,
            previous: Neighbor::new(last),
            next: Neighbor::default(),
        };
        match last.and_then(|last| objects.get_mut(last)) {
            Some(object) => object.place_in_list().next = Neighbor::new(Some(number)),
            None => self.first = number,
        }
        self.last = number;
        self.len = self.len.saturating_add(1);
    }

    /// Takes the first object out.
    pub(crate) fn pop<T: Linked<Tag>, L: Table<T>, M: Table<u64>>(
        &mut self,
        objects: &mut Objects<T, L, M>,
    ) -> Option<u32> {
        let first = self.first()?;
        self.remove(objects, first);
        Some(first)
    }

    /// Makes the first object the last one; returns it.
    pub(crate) fn rotate<T: Linked<Tag>, L: Table<T>, M: Table<u64>>(
        &mut self,
        objects: &mut Objects<T, L, M>,
    ) -> Option<u32> {
        let first = self.pop(objects)?;
        self.push(objects, first);
        Some(first)
    }

    /// Takes an object out. It is in this list, or in none of its kind.
    pub(crate) fn remove<T: Linked<Tag>, L: Table<T>, M: Table<u64>>(
        &mut self,
        objects: &mut Objects<T, L, M>,
        number: u32,
    ) {
        let Some(links) = objects.get_mut(number).map(T::place_in_list) else {
            return;
        };
        let Links {
            listed,
            previous,
            next,
        } = core::mem::take(links);
        if !listed {
            return;
        }
        match previous
            .get()
            .and_then(|previous| objects.get_mut(previous))
        {
            Some(object) => object.place_in_list().next = next,
            None => self.first = next.get().unwrap_or(0),
        }
        match next.get().and_then(|next| objects.get_mut(next)) {
            Some(object) => object.place_in_list().previous = previous,
            None => self.last = previous.get().unwrap_or(0),
        }
        self.len = self.len.saturating_sub(1);
    }
}
