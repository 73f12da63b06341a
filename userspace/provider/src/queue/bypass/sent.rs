// SPDX-License-Identifier: GPL-2.0 OR MIT

//! SENDs and WRITEs that went into a ring and whose completions were not polled.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use nupa_proto::cqe::CqeOpcode;
use nupa_proto::process_ring::{RECEIVED, TAKEN};

use super::connection::random;
use super::{Message, Ring};
use crate::ffi::{fence, yield_now};
use crate::queue::done::{is_ahead, Done};

/// It is a WRITE.
const WRITE: u8 = 1 << 0;
/// Its completion is asked for.
const SIGNALED: u8 = 1 << 1;

/// It was copied, so it is complete.
const COPIED: u8 = 1 << 2;
/// It is a READ that was copied.
const READ: u8 = 1 << 3;

/// Lines of a ring, which indices of lines that were passed since are told apart by, with more than enough to spare.
const FAR: u32 = 1 << 30;

/// A SEND whose completion is asked for or that comes behind a WRITE, or a WRITE.
#[derive(Debug, Default)]
struct Slot {
    wr_id: AtomicU64,
    /// Number of the message, or line behind the WRITE.
    at: AtomicU32,
    /// Index of the send queue behind the last request before it that went to the engine and whose completion is asked for.
    behind: AtomicU32,
    /// Bytes of a READ.
    len: AtomicU32,
    /// `WRITE`, `SIGNALED`, `COPIED`, `READ`.
    flags: AtomicU8,
}

/// A queue of them. Whoever posts, under the lock of the send queue, adds to it; whoever polls, under that of the completion queue, takes.
#[derive(Debug)]
pub(crate) struct Sent {
    slots: Box<[Slot]>,
    /// Free-running: next to be added, next to be taken.
    added: AtomicU32,
    taken: AtomicU32,
    /// As of the last look at the receiver: how many of the oldest it was about, and the number of the message that was to be received next. For who polls.
    seen: AtomicU32,
    received: AtomicU32,
    /// Programs may wait for events of the completion queue.
    watched: bool,
    /// One does: what its completion is asked for of goes to the engine, which makes the event.
    armed: AtomicBool,
    /// Such a request is on its way into the ring.
    adding: AtomicBool,
    /// The engine is to take what is in the ring: who polled could not say so, because the send queue was locked.
    owes_drain: AtomicBool,
    /// A batch of requests is being posted, by whichever thread: that may poll meanwhile.
    in_batch: AtomicBool,
    /// The last request with a completion that has the engine take entries: the line up to which, and the index of the send queue behind it above that.
    drained: AtomicU64,
    /// There was any, since the last WRITE was added.
    is_drained: AtomicBool,
    /// What the requests that have the engine take entries are known by. Random: neither the program nor the peer knows it.
    drain_id: Option<u64>,
    /// The ring, once there is one.
    ring: OnceLock<Arc<Ring>>,
    /// How far the engine is with the send queue.
    done: Arc<Done>,
}

/// The oldest of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First {
    pub(crate) wr_id: u64,
    at: u32,
    behind: u32,
    /// Bytes of a READ.
    pub(super) len: u32,
    flags: u8,
}

impl First {
    /// Whether it is a WRITE in the ring.
    #[inline]
    pub(super) fn is_write(&self) -> bool {
        self.flags & (WRITE | COPIED) == WRITE
    }

    /// What it is.
    #[inline]
    pub(super) fn opcode(&self) -> CqeOpcode {
        match self.flags & (WRITE | READ) {
            0 => CqeOpcode::Send,
            READ => CqeOpcode::Read,
            _ => CqeOpcode::Write,
        }
    }

    /// Whether its completion is asked for.
    #[inline]
    pub(super) fn is_signaled(&self) -> bool {
        self.flags & SIGNALED != 0
    }

    /// Index of the send queue that none of what follows it in the ring lies before.
    #[inline]
    pub(super) fn behind(&self) -> u32 {
        self.behind
    }
}

impl Sent {
    /// Room for `requests` of them, or more.
    pub(crate) fn new(requests: u32, done: Arc<Done>, watched: bool) -> Self {
        let slots = requests.max(1).next_power_of_two();
        Self {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            added: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            received: AtomicU32::new(0),
            watched,
            armed: AtomicBool::new(false),
            adding: AtomicBool::new(false),
            owes_drain: AtomicBool::new(false),
            in_batch: AtomicBool::new(false),
            drained: AtomicU64::new(0),
            is_drained: AtomicBool::new(false),
            drain_id: random(),
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

    /// Whether there is room for one more, behind so many that are not [added](Sent::publish) yet. For who posts.
    #[inline]
    pub(super) fn has_room(&self, ahead: u32) -> bool {
        let added = self.added.load(Ordering::Relaxed).wrapping_add(ahead);
        let taken = self.taken.load(Ordering::Acquire);
        (added.wrapping_sub(taken) as usize) < self.slots.len()
    }

    /// Whether programs may wait for events of the completion queue.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.watched
    }

    /// Whether some may be added, since nobody waits for an event. If so, nobody begins to wait before [`Sent::end`]. For who posts.
    #[inline]
    pub(super) fn begin(&self) -> bool {
        if self.watched {
            self.adding.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        let may = !self.armed.load(Ordering::Acquire);
        if !may {
            self.end();
        }
        may
    }

    /// Whether somebody who is about to wait for an event waits for [`Sent::end`].
    #[cfg(all(test, debug_assertions))]
    pub(super) fn is_begun(&self) -> bool {
        self.adding.load(Ordering::Relaxed)
    }

    /// What [`Sent::begin`] was for has been added.
    #[inline]
    pub(super) fn end(&self) {
        if self.watched {
            self.adding.store(false, Ordering::Release);
        }
    }

    /// As [`Sent::begin`], if what is to be added is `signaled`, until what this returns is dropped. If it is to be `noted` there is room for it. `None` if it may not
    /// be added.
    #[inline(always)]
    pub(super) fn begin_if(&self, noted: bool, signaled: bool) -> Option<Option<Adding<'_>>> {
        if noted && !self.has_room(0) {
            return None;
        }
        match signaled {
            true => self.begin().then_some(Some(Adding(self))),
            false => Some(None),
        }
    }

    /// Whether somebody waits for an event from now on; those that were on their way then are here. For who polls.
    pub(super) fn set_armed(&self, armed: bool) {
        self.armed.store(armed, Ordering::Release);
        if armed {
            fence(Ordering::SeqCst);
            // Another thread is in the middle of `Sender::send`, or of the SENDs of a list. Meanwhile it takes no lock but that of the regions, whose holders do
            // not wait for this.
            while self.adding.load(Ordering::Acquire) {
                yield_now();
            }
        }
    }

    /// Notes a SEND, behind so many others that are not added yet. [`Sent::publish`] adds it. For who posts.
    #[inline]
    pub(super) fn put(&self, ahead: u32, wr_id: u64, message: u32, behind: u32, signaled: bool) {
        let flags = if signaled { SIGNALED } else { 0 };
        self.put_any(ahead, wr_id, message, behind, 0, flags);
    }

    /// Adds so many that were noted. For who posts.
    #[inline]
    pub(super) fn publish(&self, count: u32) {
        let added = self.added.load(Ordering::Relaxed);
        self.added
            .store(added.wrapping_add(count), Ordering::Release);
    }

    /// Adds a WRITE, whose entry ends before a line. For who posts.
    #[inline]
    pub(super) fn add_write(&self, wr_id: u64, end: u32, behind: u32, signaled: bool) {
        let flags = WRITE | if signaled { SIGNALED } else { 0 };
        // All that the engine was handed is complete.
        self.is_drained.store(false, Ordering::Release);
        self.add_any(wr_id, end, behind, 0, flags);
    }

    /// Adds a WRITE or READ that was copied, whose completion is asked for. For who posts.
    #[inline]
    pub(super) fn add_copied(&self, message: &Message, len: usize, behind: u32) {
        let kind = if message.is_read() { READ } else { WRITE };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.add_any(message.wr_id, 0, behind, len, kind | COPIED | SIGNALED);
    }

    #[inline]
    fn add_any(&self, wr_id: u64, at: u32, behind: u32, len: u32, flags: u8) {
        self.put_any(0, wr_id, at, behind, len, flags);
        self.publish(1);
    }

    #[inline]
    fn put_any(&self, ahead: u32, wr_id: u64, at: u32, behind: u32, len: u32, flags: u8) {
        let added = self.added.load(Ordering::Relaxed);
        if let Some(slot) = self.slot(added.wrapping_add(ahead)) {
            slot.wr_id.store(wr_id, Ordering::Relaxed);
            slot.at.store(at, Ordering::Relaxed);
            slot.behind.store(behind, Ordering::Relaxed);
            slot.len.store(len, Ordering::Relaxed);
            slot.flags.store(flags, Ordering::Relaxed);
        }
    }

    /// The oldest one. For who polls.
    #[inline]
    pub(crate) fn first(&self) -> Option<First> {
        let taken = self.taken.load(Ordering::Relaxed);
        if taken == self.added.load(Ordering::Acquire) {
            return None;
        }
        self.first_of(taken)
    }

    /// The one of an index.
    #[inline]
    fn first_of(&self, index: u32) -> Option<First> {
        let slot = self.slot(index)?;
        Some(First {
            wr_id: slot.wr_id.load(Ordering::Relaxed),
            at: slot.at.load(Ordering::Relaxed),
            behind: slot.behind.load(Ordering::Relaxed),
            len: slot.len.load(Ordering::Relaxed),
            flags: slot.flags.load(Ordering::Relaxed),
        })
    }

    /// Takes it. For who polls.
    #[inline]
    pub(crate) fn take(&self) {
        let taken = self.taken.load(Ordering::Relaxed);
        self.taken.store(taken.wrapping_add(1), Ordering::Release);
        let seen = self.seen.load(Ordering::Relaxed);
        self.seen.store(seen.saturating_sub(1), Ordering::Relaxed);
    }

    /// Whether all requests before it are complete.
    #[inline]
    pub(crate) fn is_due(&self, first: &First) -> bool {
        !self.done.is_before(first.behind)
    }

    /// Whether its receiver, or the receiver's engine, has taken it. For who polls.
    #[inline]
    pub(crate) fn is_received(&self, first: &First) -> bool {
        match self
            .ring
            .get()
            .filter(|_| first.flags & (WRITE | COPIED) == 0)
        {
            Some(ring) => self.was_received(first) || self.look(first, ring),
            None => self.is_taken(first),
        }
    }

    /// The same of a WRITE, or of what was copied.
    #[inline]
    fn is_taken(&self, write: &First) -> bool {
        let Some(ring) = self.ring.get().filter(|_| write.is_write()) else {
            return true;
        };
        // What the engine has said counts, whatever the receiver says now.
        !is_ahead(write.at, ring.load(TAKEN)) || self.drain_of(write.at) == Some(true)
    }

    /// Whether the last look at the receiver says that it has received a SEND. To look again costs the receiver time: it writes to what is read.
    #[inline]
    fn was_received(&self, first: &First) -> bool {
        self.seen.load(Ordering::Relaxed) != 0
            && is_ahead(self.received.load(Ordering::Relaxed), first.at)
    }

    /// Looks how far the receiver is, and whether it has received the oldest SEND.
    #[inline]
    fn look(&self, first: &First, ring: &Ring) -> bool {
        let (taken, added) = (
            self.taken.load(Ordering::Relaxed),
            self.added.load(Ordering::Acquire),
        );
        let received = ring.load(RECEIVED);
        self.received.store(received, Ordering::Relaxed);
        // Numbers of those that are added later may be too far ahead to be compared with this one.
        self.seen
            .store(added.wrapping_sub(taken), Ordering::Relaxed);
        is_ahead(received, first.at)
    }

    /// All of them, the oldest first. Where others take or add some meanwhile, these may be there or not.
    fn all(&self) -> impl Iterator<Item = First> + '_ {
        let (taken, added) = (
            self.taken.load(Ordering::Acquire),
            self.added.load(Ordering::Acquire),
        );
        let count = added.wrapping_sub(taken);
        (0..count).filter_map(move |ahead| self.first_of(taken.wrapping_add(ahead)))
    }

    /// Line behind the last WRITE that was not taken, and whether a completion is asked for that waits for any of those.
    pub(in crate::queue) fn last_untaken(&self) -> Option<(u32, bool)> {
        self.all().fold(None, |last: Option<(u32, bool)>, each| {
            let untaken = each.is_write() && !self.is_taken(&each);
            let (line, signaled) = match last {
                None if !untaken => return None,
                None => (each.at, false),
                Some(last) => last,
            };
            let line = if untaken { each.at } else { line };
            Some((line, signaled || each.is_signaled()))
        })
    }

    /// Whether a WRITE has been there for so many lines of the ring that its line can soon no longer be told from a later one. For who posts.
    pub(super) fn is_stale(&self, line: u32) -> bool {
        let oldest = self.all().find(First::is_write);
        oldest.is_some_and(|oldest| line.wrapping_sub(oldest.at) > FAR)
    }

    /// A request with a completion, which ends at this index of the send queue, has the engine take what lies before a line. For who posts.
    pub(super) fn note_drain(&self, line: u32, index: u32) {
        self.drained.store(
            (u64::from(index) << u32::BITS) | u64::from(line),
            Ordering::Relaxed,
        );
        self.is_drained.store(true, Ordering::Release);
    }

    /// The last of those, if there was any since a WRITE was added behind one that is complete: whether it is about all before a line, and whether it is
    /// complete.
    #[inline]
    fn drain_of(&self, line: u32) -> Option<bool> {
        if !self.is_drained.load(Ordering::Acquire) {
            return None;
        }
        let drained = self.drained.load(Ordering::Relaxed);
        let half = |bits: u32| u32::try_from((drained >> bits) & u64::from(u32::MAX));
        let (Ok(drained), Ok(index)) = (half(0), half(u32::BITS)) else {
            return None;
        };
        (!is_ahead(line, drained)).then(|| !self.done.is_before(index))
    }

    /// Whether such a request is under way, for all before this line.
    pub(in crate::queue) fn is_draining(&self, line: u32) -> bool {
        self.drain_of(line) == Some(false)
    }

    /// Whether it waits for the completion of such a request, whose place in the completion queue is its own.
    #[inline]
    pub(super) fn is_held(&self, first: &First) -> bool {
        first.is_write() && self.is_draining(first.at)
    }

    /// A batch begins. For who posts.
    pub(in crate::queue) fn begin_batch(&self) {
        self.in_batch.store(true, Ordering::SeqCst);
    }

    /// A batch ends. Whether the engine is to be told to take what is in the ring, because who polled could not. For who posts.
    pub(in crate::queue) fn end_batch(&self) -> bool {
        self.in_batch.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.owes_drain.swap(false, Ordering::SeqCst)
    }

    /// Leaves it to the end of a batch to have the engine take what is in the ring. False if there is no batch (any more). For who polls.
    pub(in crate::queue) fn owe_drain(&self) -> bool {
        self.owes_drain.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.in_batch.load(Ordering::SeqCst)
    }

    /// What the requests that have the engine take entries are known by; none if there can be no such.
    #[inline]
    pub(in crate::queue) fn drain_id(&self) -> Option<u64> {
        self.drain_id
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

/// A request is on its way into the ring or to mapped memory, and to [`Sent::add_write`] or [`Sent::add_copied`].
#[derive(Debug)]
pub(super) struct Adding<'a>(&'a Sent);

impl Drop for Adding<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::Pages;
    use crate::queue::bypass::ring::testing::Kept;
    use nupa_proto::process_ring::RING_SIZE;

    /// Takes the SENDs that are received; returns how many.
    fn take(sent: &Sent) -> usize {
        let received = || sent.first().filter(|first| sent.is_received(first));
        std::iter::from_fn(|| received().map(|_| sent.take())).count()
    }

    #[test]
    fn a_look_is_about_what_was_sent_before_it() {
        for start in [0, u32::MAX - 1] {
            let sent = Sent::new(8, Arc::new(Done::default()), false);
            let ring = Ring::new(Pages::anonymous(RING_SIZE).unwrap(), Box::new(Kept));
            let ring = Arc::new(ring);
            sent.set_ring(Arc::clone(&ring));
            let at = |ahead: u32| start.wrapping_add(ahead);
            for ahead in 0..3 {
                sent.put(ahead, 1, at(ahead), 0, true);
            }
            ring.store(RECEIVED, at(2));
            assert_eq!(take(&sent), 0, "nothing was added yet");
            sent.publish(3);
            assert_eq!(take(&sent), 2);
            ring.store(RECEIVED, at(3));
            assert_eq!(take(&sent), 1);
            // As many have gone there since, which nobody asks about, that this one would lie before what was seen.
            sent.put(0, 1, at(4 + (1 << 31)), 0, true);
            sent.publish(1);
            ring.store(RECEIVED, at(4 + (1 << 31)));
            assert_eq!(take(&sent), 0);
            ring.store(RECEIVED, at(5 + (1 << 31)));
            assert_eq!(take(&sent), 1);
        }
    }
}
