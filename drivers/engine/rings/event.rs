// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Event rings.

use super::{consumer::Consumer, Doorbell, QueueMemory};
use nupa_proto::eqe::{Eqe, EQE_SIZE};
use zerocopy::transmute;

/// Consumer of an event queue.
#[derive(Debug)]
pub struct EventRing<M, D> {
    ring: Consumer<M, D, EQE_SIZE>,
}

impl<M: QueueMemory, D: Doorbell> EventRing<M, D> {
    /// A ring of `1 << log_entries` zeroed entries in `memory` whose queue was just created; it is not armed.
    ///
    /// Events that find no room come later, so the size decides about delay only.
    pub fn new(memory: M, doorbell: D, log_entries: u8) -> Self {
        Self {
            ring: Consumer::new(memory, doorbell, log_entries),
        }
    }

    /// Takes the next event.
    #[inline]
    pub fn poll(&mut self) -> Option<Eqe> {
        self.ring.take().map(|entry| transmute!(entry))
    }

    /// Asks for one interrupt when the next event comes in.
    ///
    /// Returns whether events are there already: then poll again; the interrupt may or may not come.
    #[inline]
    pub fn arm(&mut self) -> bool {
        self.ring.arm(false)
    }
}
