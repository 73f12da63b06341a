// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Receive queues and shared receive queues.

use std::sync::Arc;

use nupa_engine::rings::{PostError, RecvRing};
use nupa_proto::process_ring::{POSTED, ROOM};
use nupa_proto::wqe::Sge;

use super::bypass::Ring;
use super::done::Done;
use super::regions::Lookup;
use super::shared::{Claims, Entry};
use super::size::RecvSize;
use crate::ffi::{Called, Pages, Slot};

/// Producer of receive entries.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    pub(super) ring: RecvRing<Pages, Slot>,
    pub(super) slot: Slot,
    pub(super) done: Arc<Done>,
    max_sge: usize,
    /// Where a sender that puts messages into a process ring learns of receive entries.
    credits: Option<Credits>,
    /// Of a shared queue: what it takes to take entries for messages in process rings.
    pub(super) claims: Option<Box<Claims>>,
    /// Of a shared queue: how the engine is made to look at it, and the limit that the owner has set: it is told if fewer are left.
    pub(super) call: Option<Called>,
    pub(super) limit: u32,
}

/// The receive entries that messages in a process ring may take.
#[derive(Debug)]
struct Credits {
    ring: Arc<Ring>,
    lookup: Lookup,
    /// Bytes that all those before `mark` have room for, and all behind it.
    room: (u32, u32),
    mark: u32,
    /// The first and the last entry of those that are the engine's to fill, and are not known to be filled.
    foreign: Option<(u32, u32)>,
}

impl Credits {
    /// An entry is posted. Those that the process cannot fill are the engine's.
    #[inline]
    fn add(&mut self, index: u32, sges: &[Sge]) {
        let mut room = 0u32;
        for sge in sges {
            if self.lookup.memory(sge, true).is_none() {
                let first = self.foreign.map_or(index, |(first, _)| first);
                self.foreign = Some((first, index));
                return;
            }
            room = room.saturating_add(sge.len.get());
        }
        self.room.1 = self.room.1.min(room);
    }

    /// Tells the sender of the entries before `all`.
    #[inline]
    fn publish(&mut self, all: u32, done: &Done) {
        let posted = match self.foreign {
            Some((first, last)) if done.is_before(last.wrapping_add(1)) => first,
            _ => {
                self.foreign = None;
                all
            }
        };
        if !done.is_before(self.mark) {
            self.room = (self.room.1, u32::MAX);
            self.mark = all;
        }
        self.ring.store(ROOM, self.room.0.min(self.room.1));
        self.ring.store(POSTED, posted);
    }
}

impl RecvQueue {
    /// An empty queue over zeroed memory of the given size.
    pub(crate) fn new(memory: Pages, slot: Slot, size: RecvSize) -> Self {
        Self {
            ring: RecvRing::new(memory, slot.clone(), size.log_entries, size.log_stride),
            slot,
            done: Arc::default(),
            max_sge: size.max_sge,
            credits: None,
            claims: None,
            call: None,
            limit: 0,
        }
    }

    /// Whoever sends into a process ring is told of receive entries from now on.
    pub(crate) fn attach(&mut self, ring: Arc<Ring>, lookup: Lookup) {
        self.reclaim();
        let mut credits = Credits {
            ring,
            lookup,
            room: (u32::MAX, u32::MAX),
            mark: self.done.get(),
            foreign: None,
        };
        let posted = self.ring.handed_over();
        let mut index = self.done.get();
        let mut entry = Entry::default();
        while self.entry(index, &mut entry) {
            credits.add(index, entry.sges());
            index = index.wrapping_add(1);
        }
        credits.publish(posted, &self.done);
        self.credits = Some(credits);
    }

    /// Nobody is told of receive entries but the engine.
    pub(crate) fn detach(&mut self) {
        self.credits = None;
    }

    /// Reads an entry that is posted and was not filled, as it was posted. False if it is none.
    #[inline]
    pub(super) fn entry(&self, index: u32, entry: &mut Entry) -> bool {
        entry.become_one(|sges| self.ring.entry(index, sges))
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
        if self.claims.is_some() {
            self.keep_place();
        }
        let index = self.ring.post(wr_id, sges)?.wrapping_sub(1);
        if let Some(credits) = &mut self.credits {
            credits.add(index, sges);
        }
        if self.claims.is_some() {
            self.note_posted(index, sges);
        }
        Ok(())
    }

    /// Hands everything posted to the controller.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if self.has_unposted() {
            self.post_unposted();
        }
        self.ring.ring();
        if let Some(credits) = &mut self.credits {
            credits.publish(self.ring.handed_over(), &self.done);
        }
        self.note_left();
        if let Some(claims) = &self.claims {
            claims.tell();
        }
    }

    /// Gives up the oldest entry that the device has not processed; returns its identification. For devices that are gone.
    pub(crate) fn give_up(&mut self) -> Option<u64> {
        self.reclaim();
        self.ring.give_up()
    }

    pub(super) fn reclaim(&mut self) {
        let done = match self.done.is_exact() {
            true => self.done.count(),
            false => self.done.get(),
        };
        // An index that is not within what was posted would be the controller's fault: nothing becomes free then.
        let _ = self.ring.completed(done);
    }

    /// Forgets everything, as the controller does when the queue pair goes to the reset state.
    pub(crate) fn reset(&mut self) {
        self.credits = None;
        self.ring.reset();
        self.done.reset();
    }
}
