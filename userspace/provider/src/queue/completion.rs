// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues.

use std::sync::Arc;

use nupa_engine::rings::CompletionRing;
use nupa_proto::cqe::{Cqe, CqeOpcode};
use nupa_proto::status::WcStatus;

use super::done::Done;
use super::members::Members;
use super::wall::{Moment, WallClock};
use super::{RecvQueue, SendQueue};
use crate::ffi::{Lock, Pages, Slot};

/// Completion code bit of everything that used a receive entry.
const RECEIVE: u8 = 0x80;

/// Consumer of a completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ring: CompletionRing<Pages, Slot>,
    slot: Slot,
    members: Members<Member>,
    current: Cqe,
    wall: WallClock,
}

/// A queue pair whose completions come here.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Where they say how far the send queue is.
    pub(crate) send: Arc<Done>,
    /// The same for the receive queue, or the shared one.
    pub(crate) recv: Arc<Done>,
    /// The send queue, if its completions come here.
    pub(crate) sends: Option<Arc<Lock<SendQueue>>>,
    /// The receive queue, if it is the queue pair's own and its completions come here.
    pub(crate) recvs: Option<Arc<Lock<RecvQueue>>>,
}

impl CompletionQueue {
    /// An empty queue over `1 << log_entries` zeroed entries.
    pub(crate) fn new(memory: Pages, slot: Slot, log_entries: u8) -> Self {
        Self {
            ring: CompletionRing::new(memory, slot.clone(), log_entries),
            slot,
            members: Members::default(),
            current: Cqe::default(),
            wall: WallClock::default(),
        }
    }

    /// Shows the next completion and takes it; false if there is none. [`CompletionQueue::publish`] has to follow the
    /// last one.
    ///
    /// Those of queue pairs that are no more are skipped.
    #[inline(always)]
    pub(crate) fn take(&mut self, mut see: impl FnMut(&Cqe)) -> bool {
        let members = &self.members;
        loop {
            let known = self.ring.poll_with(|cqe| {
                let member = members.get(cqe.qpn.get());
                if let Some(member) = member {
                    see(cqe);
                    member.account(cqe);
                }
                member.is_some()
            });
            match known {
                Some(true) => return true,
                Some(false) => {}
                None => return false,
            }
        }
    }

    /// Whether the device is gone: then [`CompletionQueue::take_lost`] is to be asked where there is nothing to take.
    #[inline(always)]
    pub(crate) fn is_lost(&self) -> bool {
        !self.slot.is_live()
    }

    /// As [`CompletionQueue::take`] after the device went: when all that it wrote is taken, what is left of the requests
    /// is shown as flushed, those of each queue in order. Entries of shared receive queues are no queue pair's and stay.
    #[cold]
    pub(crate) fn take_lost(&mut self, mut see: impl FnMut(&Cqe)) -> bool {
        // It may have written between the last look and its end.
        if self.take(&mut see) {
            return true;
        }
        let mut members = self.members.iter();
        let flushed = members.find_map(|(qpn, member)| member.flush(qpn));
        flushed.inspect(see).is_some()
    }

    /// Makes the next completion the current one, of whichever kind.
    #[inline]
    pub(crate) fn advance(&mut self) -> bool {
        let mut current = self.current;
        let last = current.timestamp();
        // What the device did not complete has no timestamp, and a queue's timestamps never go back.
        let taken = self.take(|cqe| current = *cqe)
            || self.is_lost()
                && self.take_lost(|cqe| current = cqe.stamped(cqe.timestamp().max(last)));
        self.current = current;
        taken
    }

    /// The completion that [`CompletionQueue::advance`] took.
    #[inline]
    pub(crate) fn current(&self) -> &Cqe {
        &self.current
    }

    /// The time of day of that completion, in nanoseconds since 1970, if the queue has timestamps, which are of a clock of
    /// so many kHz. `look` looks at both clocks.
    pub(crate) fn wall_ns(&mut self, khz: u32, look: impl FnOnce() -> Option<Moment>) -> u64 {
        self.wall.at(self.current.timestamp(), khz, look)
    }

    /// Goes on in a new ring, which the controller has moved to, with what was not taken.
    pub(crate) fn resize(&mut self, memory: Pages, log_entries: u8) {
        self.ring.resize(memory, log_entries);
    }

    /// Tells the controller what was taken, so that it never takes the queue for fuller than the program does.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        self.ring.publish();
    }

    /// Asks for an event when the next completion comes in.
    pub(crate) fn arm(&mut self, solicited_only: bool) {
        // What is there already makes no event, and programs know: they poll once more after arming.
        self.ring.arm(solicited_only);
    }

    /// Accepts completions of a queue pair from now on.
    pub(crate) fn join(&mut self, qpn: u32, member: Member) {
        self.members.insert(qpn, member);
    }

    /// Forgets a queue pair that was destroyed, and its completions: its number may be given to another.
    pub(crate) fn leave(&mut self, qpn: u32) {
        self.forget(qpn);
        self.members.remove(qpn);
    }

    /// Forgets the completions of a queue pair that went to the reset state. The shared entries that they used are free
    /// all the same.
    pub(crate) fn forget(&mut self, qpn: u32) {
        let member = self.members.get(qpn);
        self.ring.disown(qpn, |cqe| {
            if let Some(member) = member {
                member.account(cqe);
            }
        });
    }
}

impl Member {
    /// The completion of the oldest request that the device has not processed, if there is one. A queue that is locked is
    /// passed over: a batch may be under way on it, by the very thread that polls.
    fn flush(&self, qpn: u32) -> Option<Cqe> {
        let sends = self.sends.as_ref().and_then(|queue| queue.try_lock());
        let recvs = || self.recvs.as_ref().and_then(|queue| queue.try_lock());
        let (opcode, wr_id) = sends
            .and_then(|mut queue| Some((CqeOpcode::Send, queue.give_up()?)))
            .or_else(|| Some((CqeOpcode::Recv, recvs()?.give_up()?)))?;
        Some(Cqe {
            wr_id: wr_id.into(),
            qpn: qpn.into(),
            opcode: opcode.to_wire(),
            status: WcStatus::WrFlush.to_wire(),
            ..Cqe::default()
        })
    }

    /// Notes how far the controller has come.
    #[inline(always)]
    fn account(&self, cqe: &Cqe) {
        let index = cqe.queue_index.get();
        if cqe.opcode & RECEIVE == 0 {
            self.send.set(index);
        } else {
            self.recv.advance(index);
        }
    }
}
