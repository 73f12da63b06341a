// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shared receive queues with queue pairs that have process rings: their entries are taken by the owner as well as by the engine.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use nupa_engine::hal::SlotWord;
use nupa_engine::rings::Doorbell;
use nupa_proto::process_ring::{ROOM, STATE_EMPTY};
use nupa_proto::wqe::Sge;

use super::bypass::{Ring, SharedSource};
use super::regions::Lookup;
use super::size::MAX_SGE;
use super::RecvQueue;
use crate::ffi::Called;

/// Entries that the process cannot fill, and posts again, before a message waits for the next poll.
const TURNS: u32 = 16;

/// A receive entry as it was posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    pub(super) wr_id: u64,
    count: usize,
    sges: [Sge; MAX_SGE],
}

impl Entry {
    /// Becomes the one that `read` reads: its `wr_id`, and how many scatter/gather entries it has, which are written to where it is told. False if there
    /// is none. In place: it is large, and few have many scatter/gather entries.
    #[inline]
    pub(super) fn become_one(
        &mut self,
        read: impl FnOnce(&mut [Sge; MAX_SGE]) -> Option<(u64, usize)>,
    ) -> bool {
        match read(&mut self.sges) {
            Some((wr_id, count)) => {
                (self.wr_id, self.count) = (wr_id, count);
                true
            }
            None => false,
        }
    }

    /// Its scatter/gather entries.
    #[inline]
    pub(super) fn sges(&self) -> &[Sge] {
        self.sges.get(..self.count).unwrap_or_default()
    }
}

/// A receiver of messages in a ring that there may be no receive entry for.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Its program waits for an event, and a message for an entry.
    waits: AtomicBool,
    source: SharedSource,
}

impl Waiter {
    pub(super) fn new(source: SharedSource) -> Self {
        Self {
            waits: AtomicBool::new(false),
            source,
        }
    }

    /// Whether its program waits for an event, and a message for an entry.
    pub(super) fn set(&self, waits: bool) {
        self.waits.store(waits, Ordering::SeqCst);
    }
}

/// A ring whose messages take entries of the queue.
#[derive(Debug)]
struct Taker {
    ring: Arc<Ring>,
    waiter: Arc<Waiter>,
}

/// What the owner has to know of the entries to take some itself.
#[derive(Debug)]
pub(super) struct Claims {
    /// Of each place in the ring: what was posted there last is taken, by a message that is complete.
    used: Vec<bool>,
    /// Entries that messages took which are not complete, and whose place was used again.
    kept: HashMap<u32, Entry>,
    /// Entries that are to be posted again as soon as there is room.
    unposted: Vec<Entry>,
    lookup: Lookup,
    /// Bytes that each entry has room for that was posted since there is this.
    room: u32,
    /// There are, or were, some that are not of memory of the process.
    foreign: bool,
    takers: Vec<Taker>,
    /// There are none, as the senders know.
    empty: bool,
}

impl Claims {
    fn place(&mut self, index: u32) -> Option<&mut bool> {
        let mask = self.used.len().wrapping_sub(1);
        self.used.get_mut(index as usize & mask)
    }

    /// Notes how much memory an entry has, and if that is not all of the process.
    fn learn(&mut self, sges: &[Sge]) {
        let mut room = 0u32;
        for sge in sges {
            if self.lookup.memory(sge, true).is_none() {
                self.foreign = true;
                return;
            }
            room = room.saturating_add(sge.len.get());
        }
        if room < self.room {
            self.room = room;
            for taker in &self.takers {
                taker.ring.store(ROOM, room);
            }
        }
    }

    /// Tells senders whether there are entries.
    fn set_empty(&mut self, empty: bool) {
        self.empty = empty;
        for taker in &self.takers {
            taker.ring.set_state_bit(STATE_EMPTY, empty);
        }
    }

    /// There are more entries: those who wait for some, and whose programs wait for events, are to have one.
    pub(super) fn tell(&self) {
        for Taker { waiter, .. } in &self.takers {
            if waiter.waits.load(Ordering::Acquire) && waiter.waits.swap(false, Ordering::SeqCst) {
                waiter.source.make_event();
            }
        }
    }
}

impl RecvQueue {
    /// How the engine is made to look at the queue, if not by its doorbell.
    pub(crate) fn set_call(&mut self, call: Option<Called>) {
        self.call = call;
    }

    /// The owner is to be told once there are fewer entries than this; the engine knows.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        if self.claims.is_some() {
            // Some may have been taken since the engine looked.
            let next = self.slot.load(SlotWord::Arm);
            if self.ring.handed_over().wrapping_sub(next) < limit {
                self.look();
            }
        }
    }

    /// The owner may take entries of this shared queue from now on, and knows exactly which ones others have taken.
    pub(super) fn begin_claims(&mut self, lookup: Lookup) {
        if self.claims.is_some() {
            return;
        }
        self.reclaim();
        let mut claims = Claims {
            used: vec![true; self.ring.entries() as usize],
            kept: HashMap::new(),
            unposted: Vec::new(),
            lookup,
            room: u32::MAX,
            foreign: false,
            takers: Vec::new(),
            empty: false,
        };
        let mut index = self.done.get();
        while index != self.ring.written() {
            if let Some(entry) = self.read(index) {
                claims.learn(entry.sges());
            }
            if let Some(used) = claims.place(index) {
                *used = false;
            }
            index = index.wrapping_add(1);
        }
        self.done.set_exact();
        self.claims = Some(Box::new(claims));
    }

    /// Messages in a ring, which is not open yet, take entries from now on. False if they cannot, because there are or were some that are not of memory
    /// of the process.
    pub(super) fn share(&mut self, ring: &Arc<Ring>, waiter: &Arc<Waiter>) -> bool {
        let Some(claims) = self.claims.as_mut().filter(|claims| !claims.foreign) else {
            return false;
        };
        ring.store(ROOM, claims.room);
        claims.takers.push(Taker {
            ring: Arc::clone(ring),
            waiter: Arc::clone(waiter),
        });
        true
    }

    /// The ring is open: its sender is told if there are no entries.
    pub(super) fn opened(&mut self, ring: &Ring) {
        self.note_left();
        if let Some(claims) = &self.claims {
            ring.set_state_bit(STATE_EMPTY, claims.empty);
        }
    }

    /// No messages of a ring take entries any more. Its queue pair may go once this is done.
    pub(super) fn unshare(&mut self, ring: &Arc<Ring>) {
        if let Some(claims) = &mut self.claims {
            claims
                .takers
                .retain(|taker| !Arc::ptr_eq(&taker.ring, ring));
        }
    }

    fn read(&self, index: u32) -> Option<Entry> {
        let mut entry = Entry::default();
        let found = entry.become_one(|sges| self.ring.read(index, sges));
        found.then_some(entry)
    }

    /// Before an entry is posted: what has its place now may be needed yet.
    pub(super) fn keep_place(&mut self) {
        let index = self.ring.written().wrapping_sub(self.ring.entries());
        let Some(claims) = self.claims.as_mut().filter(|_| self.ring.free() != 0) else {
            return;
        };
        if claims.place(index).is_some_and(|used| !*used) {
            if let Some(entry) = self.read(index) {
                self.keep(index, entry);
            }
        }
    }

    /// Keeps an entry whose place is used again. There are no more than the queue has places, but for those that were given up before the owner took
    /// entries: what is oldest is one of these.
    fn keep(&mut self, index: u32, entry: Entry) {
        let written = self.ring.written();
        let Some(claims) = &mut self.claims else {
            return;
        };
        claims.kept.insert(index, entry);
        if claims.kept.len() > claims.used.len() {
            let oldest = claims
                .kept
                .keys()
                .max_by_key(|&&index| written.wrapping_sub(index));
            if let Some(oldest) = oldest.copied() {
                claims.kept.remove(&oldest);
            }
        }
    }

    /// An entry was posted.
    pub(super) fn note_posted(&mut self, index: u32, sges: &[Sge]) {
        let Some(claims) = &mut self.claims else {
            return;
        };
        if let Some(used) = claims.place(index) {
            *used = false;
        }
        claims.learn(sges);
        if claims.foreign && !claims.empty {
            // Only the engine can fill it, so all that is sent from now on is for the engine.
            claims.set_empty(true);
        }
    }

    /// Whether the process has mapped all the memory of an entry.
    fn can_fill(&mut self, entry: &Entry) -> bool {
        let Some(claims) = self.claims.as_mut().filter(|claims| claims.foreign) else {
            return true;
        };
        let mut sges = entry.sges().iter();
        sges.all(|sge| claims.lookup.memory(sge, true).is_some())
    }

    /// The entry of the next message in a ring: one that the engine has taken for it (`reserved`), or the next one, of those that the process can fill. The
    /// others are posted again. If there is none and the program waits for an event, `waiter` gets one when there is.
    #[inline]
    pub(super) fn seat(
        &mut self,
        reserved: &mut VecDeque<Entry>,
        waiter: Option<&Waiter>,
    ) -> Option<Entry> {
        for _ in 0..TURNS {
            let found = match reserved.pop_front() {
                None => self.claim(),
                found => found,
            };
            let Some(found) = found else {
                break;
            };
            if self.can_fill(&found) {
                return Some(found);
            }
            self.post_again(&found);
            self.hand_over_again();
        }
        if let Some(waiter) = waiter {
            waiter.set(true);
        }
        None
    }

    /// Takes the next entry for a message in a ring.
    #[inline]
    fn claim(&mut self) -> Option<Entry> {
        let entries = self.ring.entries();
        loop {
            let index = self.slot.load(SlotWord::Arm);
            if !self.slot.is_live() {
                // Then that may be 0.
                return None;
            }
            let left = self.ring.handed_over().wrapping_sub(index);
            if left == 0 || left > entries {
                self.note_left();
                return None;
            }
            // The engine may take it first.
            let entry = self.read(index)?;
            let behind = index.wrapping_add(1);
            if self.slot.compare_exchange(SlotWord::Arm, index, behind) {
                self.use_up(index);
                self.note_left();
                if left == self.limit {
                    // Each time: there may be more when the engine looks, and then it makes no event.
                    self.look();
                }
                return Some(entry);
            }
        }
    }

    /// Has senders know if there are no entries, or some again.
    #[inline]
    pub(super) fn note_left(&mut self) {
        let Some(claims) = &mut self.claims else {
            return;
        };
        let left = self.slot.load(SlotWord::Arm) != self.ring.handed_over();
        let empty = !left || claims.foreign;
        if empty != claims.empty {
            claims.set_empty(empty);
        }
    }

    /// Has the engine look at the queue.
    #[cold]
    fn look(&self) {
        match &self.call {
            Some(call) => call.kick(),
            None => self.slot.kick(self.ring.handed_over()),
        }
    }

    /// An entry belongs to a message that is complete, or is about to be.
    fn use_up(&mut self, index: u32) {
        let late = self.is_late(index);
        let Some(claims) = &mut self.claims else {
            return;
        };
        if late {
            claims.kept.remove(&index);
        } else if let Some(used) = claims.place(index) {
            *used = true;
        }
        self.done.add(1);
    }

    /// Whether the place of an entry was used again.
    fn is_late(&self, index: u32) -> bool {
        self.ring.written().wrapping_sub(index) > self.ring.entries()
    }

    /// Takes an entry that the engine has taken for a message in a ring, if nobody has.
    pub(super) fn take_reserved(&mut self, index: u32) -> Option<Entry> {
        let entry = if self.is_late(index) {
            *self.claims.as_ref()?.kept.get(&index)?
        } else {
            let used = *self.claims.as_mut()?.place(index)?;
            self.read(index).filter(|_| !used)?
        };
        self.use_up(index);
        Some(entry)
    }

    /// A completion of the engine's is taken: that of a message whose entry is the last of `buffers` before `behind`. The others are for messages in
    /// a ring; what nobody has taken of them is posted again.
    pub(super) fn finish(&mut self, behind: u32, buffers: u16) {
        if !self.done.is_exact() {
            self.done.advance(behind);
            self.done.add(buffers.into());
            return;
        }
        self.use_up(behind.wrapping_sub(1));
        for ahead in (2..=u32::from(buffers)).rev() {
            if let Some(entry) = self.take_reserved(behind.wrapping_sub(ahead)) {
                self.post_again(&entry);
            }
        }
        if buffers > 1 || self.has_unposted() {
            self.ring_and_call();
        }
        self.note_left();
    }

    /// Posts an entry that was taken for nothing, or as soon as there is room.
    pub(super) fn post_again(&mut self, entry: &Entry) {
        if self.post(entry.wr_id, entry.sges()).is_err() {
            if let Some(claims) = &mut self.claims {
                claims.unposted.push(*entry);
            }
        }
    }

    /// Whether entries are to be posted again as soon as there is room.
    #[inline]
    pub(super) fn has_unposted(&self) -> bool {
        let unposted = |claims: &Claims| !claims.unposted.is_empty();
        self.claims.as_deref().is_some_and(unposted)
    }

    /// Posts those for which there was no room before.
    #[cold]
    pub(super) fn post_unposted(&mut self) {
        let claims = self.claims.as_mut();
        for entry in claims
            .map(|claims| std::mem::take(&mut claims.unposted))
            .unwrap_or_default()
        {
            self.post_again(&entry);
        }
    }

    /// Hands over what was posted again.
    pub(super) fn ring_and_call(&mut self) {
        self.calling(Self::ring);
    }

    /// Hands over what the process cannot fill. It is nothing new for those who wait: else two of them would wake each other for ever.
    fn hand_over_again(&mut self) {
        self.calling(|queue| _ = queue.ring.ring());
    }

    /// Has the engine look at what `ring` hands over.
    fn calling(&mut self, ring: impl FnOnce(&mut Self)) {
        match self.call.clone() {
            Some(call) => call.around(|| ring(self)),
            None => ring(self),
        }
    }
}
