// SPDX-License-Identifier: GPL-2.0 OR MIT

//! SENDs that went into a ring and whose completions were not polled.

use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nupa_proto::process_ring::RECEIVED;

use super::Ring;
use crate::queue::done::{is_ahead, Done};

/// A SEND whose completion is asked for.
#[derive(Debug, Default)]
struct Slot {
    wr_id: AtomicU64,
    /// Number of the message.
    message: AtomicU32,
    /// Index of the send queue behind the last request before it that went to the engine and whose completion is asked for.
    behind: AtomicU32,
}

/// A queue of them. Whoever posts, under the lock of the send queue, adds to it; whoever polls, under that of the completion queue, takes.
#[derive(Debug)]
pub(crate) struct Sent {
    slots: Box<[Slot]>,
    /// Free-running: next to be added, next to be taken.
    added: AtomicU32,
    taken: AtomicU32,
    /// Programs may wait for events of the completion queue.
    watched: bool,
    /// One does: a SEND whose completion is asked for goes to the engine, which makes the event.
    armed: AtomicBool,
    /// Such a SEND is on its way into the ring.
    adding: AtomicBool,
    /// The ring, once there is one.
    ring: OnceLock<Arc<Ring>>,
    /// How far the engine is with the send queue.
    done: Arc<Done>,
}

/// The oldest of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First {
    pub(crate) wr_id: u64,
    message: u32,
    behind: u32,
}

impl Sent {
    /// Room for `requests` of them, or more.
    pub(crate) fn new(requests: u32, done: Arc<Done>, watched: bool) -> Self {
        let slots = requests.max(1).next_power_of_two();
        Self {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            added: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            watched,
            armed: AtomicBool::new(false),
            adding: AtomicBool::new(false),
            ring: OnceLock::new(),
            done,
        }
    }

    /// The same for a queue pair that has gone to the reset state.
    pub(super) fn another(&self) -> Self {
        Self::new(
            u32::try_from(self.slots.len()).unwrap_or(1),
            Arc::clone(&self.done),
            self.watched,
        )
    }

    /// The slot of an index.
    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot> {
        let mask = self.slots.len().wrapping_sub(1);
        self.slots.get(index as usize & mask)
    }

    /// Whether there is room for one more. For who posts.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        let added = self.added.load(Ordering::Relaxed);
        let taken = self.taken.load(Ordering::Acquire);
        (added.wrapping_sub(taken) as usize) < self.slots.len()
    }

    /// Whether one may be added, since nobody waits for an event. If so, nobody begins to wait before what this returns is dropped. For who posts.
    #[inline]
    pub(super) fn begin(&self) -> Option<Adding<'_>> {
        if self.watched {
            self.adding.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        let adding = Adding(self);
        (!self.armed.load(Ordering::Acquire)).then_some(adding)
    }

    /// Whether somebody waits for an event from now on; those that were on their way then are here. For who polls.
    pub(super) fn set_armed(&self, armed: bool) {
        self.armed.store(armed, Ordering::Release);
        if armed {
            fence(Ordering::SeqCst);
            // Another thread is between two instructions of `Sender::send`, which calls nobody meanwhile.
            while self.adding.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
    }

    /// Adds one. For who posts.
    #[inline]
    pub(super) fn add(&self, wr_id: u64, message: u32, behind: u32) {
        let added = self.added.load(Ordering::Relaxed);
        if let Some(slot) = self.slot(added) {
            slot.wr_id.store(wr_id, Ordering::Relaxed);
            slot.message.store(message, Ordering::Relaxed);
            slot.behind.store(behind, Ordering::Relaxed);
            self.added.store(added.wrapping_add(1), Ordering::Release);
        }
    }

    /// The oldest one. For who polls.
    #[inline]
    pub(crate) fn first(&self) -> Option<First> {
        let taken = self.taken.load(Ordering::Relaxed);
        if taken == self.added.load(Ordering::Acquire) {
            return None;
        }
        let slot = self.slot(taken)?;
        Some(First {
            wr_id: slot.wr_id.load(Ordering::Relaxed),
            message: slot.message.load(Ordering::Relaxed),
            behind: slot.behind.load(Ordering::Relaxed),
        })
    }

    /// Takes it. For who polls.
    #[inline]
    pub(crate) fn take(&self) {
        let taken = self.taken.load(Ordering::Relaxed);
        self.taken.store(taken.wrapping_add(1), Ordering::Release);
    }

    /// Whether all requests before it are complete.
    #[inline]
    pub(crate) fn is_due(&self, first: &First) -> bool {
        !self.done.is_before(first.behind)
    }

    /// Whether its receiver has taken it.
    #[inline]
    pub(crate) fn is_received(&self, first: &First) -> bool {
        let Some(ring) = self.ring.get() else {
            return true;
        };
        is_ahead(ring.load(RECEIVED), first.message)
    }

    /// Whether it was posted before a request of the engine's that completes at this index of the send queue.
    pub(crate) fn is_before(first: &First, index: u32) -> bool {
        is_ahead(index, first.behind)
    }

    /// How far the engine is with the send queue.
    #[inline]
    pub(super) fn done(&self) -> &Done {
        &self.done
    }

    /// Where the receiver says how far it is.
    pub(super) fn set_ring(&self, ring: Arc<Ring>) {
        let _ = self.ring.set(ring);
    }
}

/// A SEND is on its way into the ring, and to [`Sent::add`].
#[derive(Debug)]
pub(super) struct Adding<'a>(&'a Sent);

impl Drop for Adding<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.watched {
            self.0.adding.store(false, Ordering::Release);
        }
    }
}
