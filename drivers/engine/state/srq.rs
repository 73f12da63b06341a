// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Shared receive queues: one ring of entries for many queue pairs (InfiniBand volume 1, 10.2.9).

use crate::state::{
    access::KeyHolder,
    deferred::{Deferred, DeferredEvents, HasEvents},
    list::{Linked, Links, List},
    qp::OfSrq,
    rq::RecvQueue,
    timer::{HasTimer, Timed, Timer},
};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq<P> {
    pub(crate) queue: RecvQueue<P>,
    /// Whose keys the entries use.
    pub(crate) holder: KeyHolder,
    /// Queue pairs that take entries from it.
    pub(crate) users: u32,
    /// An event is raised when fewer entries than this are left; 0: none.
    pub(crate) limit: u32,
    /// Entries that queue pairs keep: they have left the queue, but their messages are not whole.
    pub(crate) kept: u32,
    /// Queue pairs that somebody waits for entries of.
    pub(crate) waiters: List<OfSrq>,
    /// Its owner's producer index was out of bounds: it hands out no more entries.
    pub(crate) dead: bool,
    /// Set while there are waiters, and entries for some of them who were given a turn.
    pub(crate) timer: Timer,
    pub(crate) timer_links: Links,
    /// Events that found no room.
    pub(crate) deferred: DeferredEvents,
}

impl<P> Linked<Timed> for Srq<P> {
    fn place_in_list(&mut self) -> &mut Links {
        &mut self.timer_links
    }
}

impl<P> HasTimer for Srq<P> {
    fn timer(&self) -> &Timer {
        &self.timer
    }

    fn timer_mut(&mut self) -> &mut Timer {
        &mut self.timer
    }
}

impl<P> Linked<Deferred> for Srq<P> {
    fn place_in_list(&mut self) -> &mut Links {
        self.deferred.place_in_list()
    }
}

impl<P> HasEvents for Srq<P> {
    fn deferred(&mut self) -> &mut DeferredEvents {
        &mut self.deferred
    }
}
