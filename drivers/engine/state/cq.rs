// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Completion queues.

use crate::{
    hal::{AccessError, Memory, Platform, SlotWord},
    state::{
        deferred::{Deferred, DeferredEvents, HasEvents},
        list::{Linked, Links},
        ring::Ring,
        timer::{HasTimer, Timed, Timer},
    },
};
use nupa_proto::{
    cqe::{phase, Cqe, CqeOpcode, CQE_VALID_OFFSET},
    doorbell::{arm_sequence, ARM_SOLICITED},
};
use zerocopy::IntoBytes;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue<P> {
    pub(crate) ring: Ring<P>,
    pub(crate) page: u32,
    pub(crate) slot: u16,
    pub(crate) eqn: u32,
    /// Queue sides (a queue pair has two) that complete here.
    pub(crate) users: u32,
    pub(crate) index: u32,
    /// Consumer index as last seen.
    pub(crate) consumed: u32,
    /// Arm sequence of the last event.
    pub(crate) fired: u32,
    /// The next event is due although there may be no entry: a message is there that the engine has no part in.
    pub(crate) event_due: bool,
    /// A queue pair that completes here has process rings, or had.
    pub(crate) has_rings: bool,
    /// It overflowed or its memory is gone: it takes nothing more.
    pub(crate) dead: bool,
    /// Its owner wants entries overwritten that it has not taken.
    pub(crate) overruns: bool,
    /// Its owner wants to know when entries were written.
    pub(crate) timestamps: bool,
    pub(crate) moderation: Moderation,
    /// Set while an event is held back, or found no room.
    pub(crate) timer: Timer,
    pub(crate) timer_links: Links,
    /// Events that found no room.
    pub(crate) deferred: DeferredEvents,
}

/// Event moderation of a completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moderation {
    pub(crate) usecs: u16,
    pub(crate) max_count: u16,
    /// Entries since the first that an event is held back for.
    pub(crate) pending: u16,
}

/// What is to be done about an event once an entry is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Nothing: not armed, or the wait is on already.
    None,
    /// Raise the event.
    Fire,
    /// Start waiting.
    Wait,
}

impl<P> Linked<Deferred> for CompletionQueue<P> {
    fn place_in_list(&mut self) -> &mut Links {
        self.deferred.place_in_list()
    }
}

impl<P> HasEvents for CompletionQueue<P> {
    fn deferred(&mut self) -> &mut DeferredEvents {
        &mut self.deferred
    }
}

impl<P> Linked<Timed> for CompletionQueue<P> {
    fn place_in_list(&mut self) -> &mut Links {
        &mut self.timer_links
    }
}

impl<P> HasTimer for CompletionQueue<P> {
    fn timer(&self) -> &Timer {
        &self.timer
    }

    fn timer_mut(&mut self) -> &mut Timer {
        &mut self.timer
    }
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> CompletionQueue<P> {
    /// Writes an entry. `urgent`: it counts for a queue that is armed for solicited completions only. Fails if the
    /// ring is full or out of reach.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        platform: &impl Platform,
        entry: &Cqe,
        urgent: bool,
    ) -> Result<Notice, AccessError> {
        if self.dead || !self.has_room(platform) {
            return Err(AccessError);
        }
        let addr = self.ring.addr(self.index).ok_or(AccessError)?;
        let memory = platform.memory();
        let stamped;
        let entry = match self.timestamps && entry.opcode != CqeOpcode::RecvFrame.to_wire() {
            false => entry,
            true => {
                stamped = entry.stamped(platform.now_ns());
                &stamped
            }
        };
        let body = entry.as_bytes().get(..CQE_VALID_OFFSET).unwrap_or_default();
        memory.write(addr, body)?;
        let valid = phase(self.index, self.ring.log_entries());
        memory.store_release(addr.wrapping_add(CQE_VALID_OFFSET as u64), valid)?;
        self.index = self.index.wrapping_add(1);
        platform.fence();
        let notice = self.notice(platform.load(self.page, self.slot, SlotWord::Arm), urgent);
        // The owner may take the entry before the event is made, and counts on it all the same: it may have told senders that it waits no more.
        self.event_due |= self.has_rings && notice == Notice::Fire;
        Ok(notice)
    }

    #[inline(always)]
    fn has_room(&mut self, platform: &impl Platform) -> bool {
        if self.index.wrapping_sub(self.consumed) >= self.ring.entries() {
            self.consumed = platform.load(self.page, self.slot, SlotWord::Index);
        }
        self.index.wrapping_sub(self.consumed) < self.ring.entries() || self.overruns
    }

    #[inline(always)]
    fn notice(&mut self, arm: u32, urgent: bool) -> Notice {
        let armed = arm_sequence(arm) != self.fired;
        if !armed || (arm & ARM_SOLICITED != 0 && !urgent) {
            return Notice::None;
        }
        let moderation = &mut self.moderation;
        if moderation.usecs == 0 || moderation.max_count <= 1 {
            return Notice::Fire;
        }
        moderation.pending = moderation.pending.saturating_add(1);
        match self.timer.at_us() {
            _ if moderation.pending >= moderation.max_count => Notice::Fire,
            None => Notice::Wait,
            Some(_) => Notice::None,
        }
    }

    /// There is a message for its owner that makes no entry. Returns whether the event is to be raised for it: the queue is armed.
    pub(crate) fn expect_event(&mut self, platform: &impl Platform) -> bool {
        let arm = arm_sequence(platform.load(self.page, self.slot, SlotWord::Arm));
        self.event_due = !self.dead && arm != self.fired;
        self.event_due
    }

    /// Ends the wait for an event, whose timer has been stopped. Returns whether it is to be raised now: the queue is armed, and not empty or its
    /// owner has a message elsewhere.
    pub(crate) fn take_event(&mut self, platform: &impl Platform) -> bool {
        self.moderation.pending = 0;
        let arm = arm_sequence(platform.load(self.page, self.slot, SlotWord::Arm));
        self.consumed = platform.load(self.page, self.slot, SlotWord::Index);
        let due = core::mem::take(&mut self.event_due) || self.consumed != self.index;
        if self.dead || arm == self.fired || !due {
            return false;
        }
        self.fired = arm;
        true
    }
}
