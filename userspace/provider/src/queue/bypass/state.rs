// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a queue pair may do with its rings: known to whoever posts, polls or changes it, without a lock.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// It was not told to send yet, or any more.
const IDLE: u8 = 0;
/// It sends.
const READY: u8 = 1;
/// It has failed, or was told to: until it is reset nothing goes into a ring, and no ring is opened.
const STOPPED: u8 = 2;
/// It is on its way to the SQD state: what is in the ring is taken, and nothing goes there.
const DRAINING: u8 = 3;

/// Whether a queue pair sends and receives by way of rings.
#[derive(Debug, Default)]
pub(crate) struct BypassState {
    now: AtomicU8,
    /// Its peer may write to memory.
    remote_write: AtomicBool,
}

impl BypassState {
    /// Whether messages may go into a ring.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.now.load(Ordering::Acquire) == READY
    }

    /// Whether nothing goes into a ring any more.
    #[inline]
    pub(super) fn is_stopped(&self) -> bool {
        self.now.load(Ordering::Acquire) == STOPPED
    }

    /// Nothing goes into a ring from now on.
    pub(crate) fn stop(&self) {
        self.now.store(STOPPED, Ordering::Release);
    }

    /// The queue pair is to go to the SQD state. False if it does not send.
    pub(crate) fn begin_drain(&self) -> bool {
        self.change(READY, DRAINING) || self.now.load(Ordering::Acquire) == DRAINING
    }

    /// It was not to, and goes on as before, unless something else has become of it meanwhile.
    pub(crate) fn end_drain(&self) {
        self.change(DRAINING, READY);
    }

    fn change(&self, from: u8, to: u8) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let changed = self.now.compare_exchange(from, to, order.0, order.1);
        changed.is_ok()
    }

    /// Whether the queue pair sends, unless it has stopped.
    pub(crate) fn set_ready(&self, ready: bool) {
        let next = if ready { READY } else { IDLE };
        let change = |now| (now != STOPPED).then_some(next);
        let _ = self
            .now
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    /// It was reset.
    pub(crate) fn reset(&self) {
        self.now.store(IDLE, Ordering::Release);
    }

    /// Whether its peer may write to memory.
    #[inline]
    pub(super) fn allows_writes(&self) -> bool {
        self.remote_write.load(Ordering::Acquire)
    }

    /// Says whether its peer may write to memory.
    pub(crate) fn allow_writes(&self, allow: bool) {
        self.remote_write.store(allow, Ordering::Release);
    }
}
