// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Lists threaded through objects of one kind: queues that wait for time to pass or something to happen.

use crate::{hal::Table, state::table::Objects};

/// An object's place in a [`List`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Links {
    listed: bool,
    previous: Option<u32>,
    next: Option<u32>,
}

/// An object that can be in one list.
pub(crate) trait Linked {
    fn links(&self) -> &Links;
    fn links_mut(&mut self) -> &mut Links;
}

/// A list of object numbers, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct List {
    first: Option<u32>,
    last: Option<u32>,
}

impl List {
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        self.first
    }

    #[inline]
    pub(crate) fn last(&self) -> Option<u32> {
        self.last
    }

    /// The object behind `number`.
    pub(crate) fn next<T: Linked, L: Table<T>, M: Table<u64>>(
        objects: &Objects<T, L, M>,
        number: u32,
    ) -> Option<u32> {
        objects.get(number)?.links().next
    }

    /// Appends an object, unless it is in the list.
    pub(crate) fn push<T: Linked, L: Table<T>, M: Table<u64>>(
        &mut self,
        objects: &mut Objects<T, L, M>,
        number: u32,
    ) {
        let last = self.last;
        let Some(links) = objects.get_mut(number).map(T::links_mut) else {
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
            Some(object) => object.links_mut().next = Some(number),
            None => self.first = Some(number),
        }
        self.last = Some(number);
    }

    /// Takes an object out, if it is in the list.
    pub(crate) fn remove<T: Linked, L: Table<T>, M: Table<u64>>(
        &mut self,
        objects: &mut Objects<T, L, M>,
        number: u32,
    ) {
        let Some(links) = objects.get_mut(number).map(T::links_mut) else {
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
            Some(object) => object.links_mut().next = next,
            None => self.first = next,
        }
        match next.and_then(|next| objects.get_mut(next)) {
            Some(object) => object.links_mut().previous = previous,
            None => self.last = previous,
        }
    }
}
