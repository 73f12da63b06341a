// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Completion rings.

use super::{consumer::Consumer, Doorbell, QueueMemory};
use core::mem::offset_of;
use nupa_proto::cqe::{Cqe, CQE_SIZE};
use zerocopy::{transmute, transmute_ref, IntoBytes};

/// Consumer of a completion queue.
#[derive(Debug)]
pub struct CompletionRing<M, D> {
    ring: Consumer<M, D, CQE_SIZE>,
}

impl<M: QueueMemory, D: Doorbell> CompletionRing<M, D> {
    /// Entries that the device may still count as taken although they were polled: make the queue so much larger than
    /// the work that can be outstanding.
    pub const SLACK: u32 = super::consumer::BATCH;

    /// A ring of `1 << log_entries` zeroed entries in `memory` whose queue was just created; it is not armed.
    pub fn new(memory: M, doorbell: D, log_entries: u8) -> Self {
        Self {
            ring: Consumer::new(memory, doorbell, log_entries),
        }
    }

    /// Goes on in a new ring, zeroed before the device moved what was not polled there (`ResizeCq`). It is armed if it
    /// was; what was polled must have been published before that.
    pub fn resize(&mut self, memory: M, log_entries: u8) {
        self.ring.replace(memory, log_entries);
    }

    /// Takes the next completion.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        self.ring.take().map(|entry| transmute!(entry))
    }

    /// Shows the next completion and takes it, without telling the device: [`CompletionRing::publish`] has to follow where
    /// polling stops.
    #[inline(always)]
    pub fn poll_with<R>(&mut self, see: impl FnOnce(&Cqe) -> R) -> Option<R> {
        self.ring.take_with(|entry| see(transmute_ref!(entry)))
    }

    /// As [`CompletionRing::poll_with`]; the completion stays if `see` returns false. Returns what that returned.
    #[inline(always)]
    pub fn poll_if(&mut self, see: impl FnOnce(&Cqe) -> bool) -> Option<bool> {
        self.ring.take_if(|entry| see(transmute_ref!(entry)))
    }

    /// Shows the next completion, which stays.
    #[inline]
    pub fn look_with<R>(&mut self, see: impl FnOnce(&Cqe) -> R) -> Option<R> {
        self.ring.look_with(|entry| see(transmute_ref!(entry)))
    }

    /// How many completions are there.
    pub fn waiting(&self) -> usize {
        self.ring.waiting().count()
    }

    /// Tells the device at once what was taken, not only in batches. To be called where polling stops with entries left.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.ring.publish();
    }

    /// Asks for one event when the next completion comes in (`solicited_only`: one of a solicited message or an error).
    ///
    /// Returns whether completions are there already: then poll again; the event may or may not come.
    #[inline]
    pub fn arm(&mut self, solicited_only: bool) -> bool {
        self.ring.arm(solicited_only)
    }

    /// Makes completions of a queue pair that were not polled yet belong to queue pair 0, which is none, and shows each
    /// of them. To be called after the queue pair was destroyed or reset: its number may be given to another one.
    pub fn disown(&mut self, qpn: u32, mut seen: impl FnMut(&Cqe)) {
        let memory = self.ring.memory();
        for offset in self.ring.waiting() {
            let mut entry = Cqe::default();
            memory.read(offset, entry.as_mut_bytes());
            if entry.qpn.get() == qpn {
                memory.write(offset.wrapping_add(offset_of!(Cqe, qpn)), &[0; 4]);
                seen(&entry);
            }
        }
    }
}
