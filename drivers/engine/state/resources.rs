// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What an admin command needs that takes long to get, and what is left over from one that takes long to give back.
//!
//! Page lists can have millions of entries. They are read before anybody is kept from the node, and freed after.

use crate::{
    hal::{Memory, NoMemory, Storage},
    state::{pages::PageMap, ring::Ring},
};
use nupa_proto::{admin::PageList, status::AdminStatus};
use zerocopy::IntoBytes;

/// A page list as a command names it, and what is said of the range.
#[derive(Clone, Copy)]
struct Range {
    list: PageList,
    start: u64,
    len: u64,
    align: u64,
}

impl Range {
    fn is(&self, other: &Self) -> bool {
        self.list.as_bytes() == other.list.as_bytes()
            && (self.start, self.len, self.align) == (other.start, other.len, other.align)
    }
}

/// A page list that was read, or why it cannot be.
struct Loaded<P> {
    range: Range,
    map: Result<PageMap<P>, AdminStatus>,
}

/// What one admin command needs: [`Resources::prepare_qp`] and the like get it, from any context that may sleep, and without the node.
/// [`Node::swap_resources`](crate::Node::swap_resources) hands it to the node that executes the command; what is missing then, that gets itself. What it
/// hands back afterwards is to be dropped where that may take long.
pub struct Resources<S: Storage> {
    loaded: [Option<Loaded<S::Pages>>; 2],
    pages: Option<S::Pages>,
    retired: [Option<PageMap<S::Pages>>; 2],
    pub(crate) resize: Option<Resize<S::Pages>>,
}

/// A completion queue that is on its way to another ring.
pub(crate) struct Resize<P> {
    pub(crate) cqn: u32,
    pub(crate) ring: Ring<P>,
    /// Index of the first entry that its owner had not taken.
    pub(crate) from: u32,
    /// Entries behind it that are in the other ring.
    pub(crate) copied: u32,
}

impl<S: Storage> Default for Resources<S> {
    fn default() -> Self {
        Self {
            loaded: [None, None],
            pages: None,
            retired: [None, None],
            resize: None,
        }
    }
}

impl<S: Storage> Resources<S> {
    /// Whether the command is done in part: it is to be executed again, with these, once others had their turn.
    pub fn is_in_part(&self) -> bool {
        self.resize.is_some()
    }

    /// Reads a page list, for [`Resources::load`]. Parameters as of [`PageMap::load`].
    pub(crate) fn prepare_list(
        &mut self,
        memory: &impl Memory,
        list: &PageList,
        start: u64,
        len: u64,
        align: u64,
    ) {
        let Some(free) = self.loaded.iter_mut().find(|loaded| loaded.is_none()) else {
            return;
        };
        let list = *list;
        let map = PageMap::load::<S>(memory, &list, start, len, align);
        let range = Range {
            list,
            start,
            len,
            align,
        };
        *free = Some(Loaded { range, map });
    }

    /// Takes a page list that was read, or reads it now.
    pub(crate) fn load(
        &mut self,
        memory: &impl Memory,
        list: &PageList,
        start: u64,
        len: u64,
        align: u64,
    ) -> Result<PageMap<S::Pages>, AdminStatus> {
        let range = Range {
            list: *list,
            start,
            len,
            align,
        };
        for place in &mut self.loaded {
            if place.as_ref().is_some_and(|loaded| loaded.range.is(&range)) {
                if let Some(Loaded { map, .. }) = place.take() {
                    return map;
                }
            }
        }
        PageMap::load::<S>(memory, list, start, len, align)
    }

    /// Makes a list of `count` zeroes, for [`Resources::take_pages`].
    pub(crate) fn prepare_pages(&mut self, count: usize) {
        self.pages = S::pages(count).ok();
    }

    /// Takes such a list, or makes one now.
    pub(crate) fn take_pages(&mut self, count: usize) -> Result<S::Pages, AdminStatus> {
        let pages = self.pages.take();
        match pages.filter(|pages| pages.as_ref().len() == count) {
            Some(pages) => Ok(pages),
            None => S::pages(count).map_err(|NoMemory| AdminStatus::NoResources),
        }
    }

    /// Keeps a page list that is not used any more until the command is done: two at most, as many as a command leaves.
    pub(crate) fn retire(&mut self, map: PageMap<S::Pages>) {
        if let Some(free) = self.retired.iter_mut().find(|place| place.is_none()) {
            *free = Some(map);
        }
    }
}
