// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Lists threaded through objects of one kind: queues that wait for their turn, for time to pass or for something to happen.

use crate::{hal::Table, state::table::Objects};
use core::marker::PhantomData;

/// An object's place in a [`List`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Links {
    listed: bool,
    previous: Option<u32>,
    next: Option<u32>,
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
    first: Option<u32>,
    last: Option<u32>,
    len: u32,
    _tag: PhantomData<Tag>,
}

impl<Tag> Default for List<Tag> {
    fn default() -> Self {
        Self {
            first: None,
            last: None,
            len: 0,
            _tag: PhantomData,
        }
    }
}

impl<Tag> List<Tag> {
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        self.first
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
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
        let last = self.last;
        let Some(links) = objects.get_mut(number).map(T::place_in_list) else {
            return;
        };
        if links.listed {
            return;
        }
        *links = Links {
            listed: true,
            previous: last,
            next: None,
        };
        match last.and_then(|last| objects.get_mut(last)) {
            Some(object) => object.place_in_list().next = Some(number),
            None => self.first = Some(number),
        }
        self.last = Some(number);
        self.len = self.len.saturating_add(1);
    }

    /// Takes the first object out.
    pub(crate) fn pop<T: Linked<Tag>, L: Table<T>, M: Table<u64>>(
        &mut self,
        objects: &mut Objects<T, L, M>,
    ) -> Option<u32> {
        let first = self.first?;
        self.remove(objects, first);
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
        match previous.and_then(|previous| objects.get_mut(previous)) {
            Some(object) => object.place_in_list().next = next,
            None => self.first = next,
        }
        match next.and_then(|next| objects.get_mut(next)) {
            Some(object) => object.place_in_list().previous = previous,
            None => self.last = previous,
        }
        self.len = self.len.saturating_sub(1);
    }
}
