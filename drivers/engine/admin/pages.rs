// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How many page addresses a node stores for its objects: memory keys and rings. They lie in the host's memory, so there is a limit.
//!
//! One admin command is executed at a time. Before it stores some it asks whether it may, and it counts them once the object is there.

use crate::{
    hal::Storage,
    node::Node,
    state::{pages::PageMap, ring::Ring},
};
use nupa_proto::status::AdminStatus;

impl<S: Storage> Node<S> {
    /// Whether objects may store so many page addresses more.
    pub(super) fn check_pages(&self, count: u64) -> Result<(), AdminStatus> {
        let fits = count <= self.pages_left();
        fits.then_some(()).ok_or(AdminStatus::NoResources)
    }

    /// As [`Node::check_pages`], of a memory key: a sixteenth of all is for rings alone, so that those who register much memory leave room for
    /// the queues of others.
    pub(super) fn check_key_pages(&self, count: u64) -> Result<(), AdminStatus> {
        let for_rings = self.limits().max_pages / 16;
        self.check_pages(count.saturating_add(for_rings))
    }

    /// Counts what an object stores from now on.
    pub(super) fn count_pages(&mut self, count: u64) {
        self.stored_pages = self.stored_pages.saturating_add(count);
    }

    /// Takes what an object has stored off the count. Its list is freed once the command is done.
    pub(super) fn retire_pages(&mut self, map: PageMap<S::Pages>) {
        self.stored_pages = self.stored_pages.saturating_sub(map.stored_pages());
        self.resources.retire(map);
    }

    /// As [`Node::retire_pages`], of a ring.
    pub(super) fn retire_ring(&mut self, ring: Ring<S::Pages>) {
        self.retire_pages(ring.into_map());
    }
}
