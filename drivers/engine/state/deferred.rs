// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events of an object that wait for room in an event queue.

use crate::state::list::{Linked, Links};
use nupa_proto::eqe::EventType;

/// Marks lists of objects with deferred events.
#[derive(Debug)]
pub(crate) enum Deferred {}

/// Deferred events of an object, one bit per type, and its place in the list of objects that have some.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeferredEvents {
    kinds: u32,
    links: Links,
}

impl DeferredEvents {
    pub(crate) fn add(&mut self, event: EventType) {
        self.kinds |= 1 << event.to_wire();
    }

    /// All of them, of which there are none any more.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = EventType> {
        let kinds = core::mem::take(&mut self.kinds);
        let all = EventType::ALL.iter().copied();
        all.filter(move |event| kinds & (1 << event.to_wire()) != 0)
    }

    pub(crate) fn place_in_list(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// An object that events are about.
pub(crate) trait HasEvents: Linked<Deferred> {
    fn deferred(&mut self) -> &mut DeferredEvents;
}
