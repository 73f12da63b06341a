// SPDX-License-Identifier: GPL-2.0
//! Events of queue pairs that are told later.

use kernel::sync::atomic::{Atomic, Full, Relaxed};
use nk_rdma::Event;

/// Events that a queue pair can have, in the order in which they are told.
const EVENTS: [Event; 5] = [
    Event::CommEstablished,
    Event::SqDrained,
    Event::QpAccess,
    Event::QpFatal,
    Event::LastWqe,
];

/// Those of a queue pair that are to be told, each once.
pub(crate) struct PendingEvents {
    /// One bit each.
    bits: Atomic<u32>,
}

impl PendingEvents {
    pub(crate) fn new() -> Self {
        Self {
            bits: Atomic::new(0),
        }
    }

    /// Adds an event. Any context.
    pub(crate) fn add(&self, event: Event) {
        let Some(bit) = EVENTS.iter().position(|known| *known == event) else {
            return;
        };
        let mut old = self.bits.load(Relaxed);
        while let Err(now) = self.bits.cmpxchg(old, old | 1 << bit, Full) {
            old = now;
        }
    }

    /// Takes all of them out.
    pub(crate) fn take(&self) -> impl Iterator<Item = Event> {
        let bits = self.bits.xchg(0, Full);
        let events = EVENTS.into_iter().enumerate();
        events.filter_map(move |(bit, event)| (bits & 1 << bit != 0).then_some(event))
    }
}
