// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events that an object has yet to tell of.

use nupa_proto::eqe::EventType;

/// Kinds of events that an object has yet to tell of, a bit each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeferredEvents(u32);

impl DeferredEvents {
    pub(crate) fn add(&mut self, event: EventType) {
        self.0 |= 1 << event.to_wire();
    }

    /// All of them, of which there are none any more.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = EventType> {
        let deferred = core::mem::take(&mut self.0);
        let all = EventType::ALL.iter().copied();
        all.filter(move |event| deferred & (1 << event.to_wire()) != 0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}
