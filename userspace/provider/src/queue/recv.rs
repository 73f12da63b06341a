// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Receive queues and shared receive queues.

use std::sync::Arc;

use nupa_engine::rings::{PostError, RecvRing};
use nupa_proto::wqe::Sge;

use super::done::Done;
use super::size::RecvSize;
use crate::ffi::{Pages, Slot};

/// Producer of receive entries.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    ring: RecvRing<Pages, Slot>,
    done: Arc<Done>,
    max_sge: usize,
}

impl RecvQueue {
    /// An empty queue over zeroed memory of the given size.
    pub(crate) fn new(memory: Pages, slot: Slot, size: RecvSize) -> Self {
        Self {
            ring: RecvRing::new(memory, slot, size.log_entries, size.log_stride),
            done: Arc::default(),
            max_sge: size.max_sge,
        }
    }

    /// Where completions say how far the controller has come.
    pub(crate) fn done(&self) -> &Arc<Done> {
        &self.done
    }

    /// Writes one entry, which [`RecvQueue::ring`] hands over.
    #[inline]
    pub(crate) fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > self.max_sge {
            return Err(PostError::Invalid);
        }
        if self.ring.free() == 0 {
            self.reclaim();
        }
        self.ring.post(wr_id, sges).map(|_| ())
    }

    /// Hands everything posted to the controller.
    #[inline]
    pub(crate) fn ring(&mut self) {
        self.ring.ring();
    }

    /// Gives up the oldest entry that the device has not processed; returns its identification. For devices that are gone.
    pub(crate) fn give_up(&mut self) -> Option<u64> {
        self.reclaim();
        self.ring.give_up()
    }

    fn reclaim(&mut self) {
        // An index that is not within what was posted would be the controller's fault: nothing becomes free then.
        let _ = self.ring.completed(self.done.get());
    }

    /// Forgets everything, as the controller does when the queue pair goes to the reset state.
    pub(crate) fn reset(&mut self) {
        self.ring.reset();
        self.done.reset();
    }
}
