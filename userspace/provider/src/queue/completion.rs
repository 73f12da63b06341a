// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues.

use std::sync::Arc;

use nupa_engine::client::CompletionRing;
use nupa_proto::cqe::Cqe;

use super::done::Done;
use super::members::Members;
use crate::ffi::{Pages, Slot};

/// Completion code bit of everything that used a receive entry.
const RECEIVE: u8 = 0x80;

/// Consumer of a completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ring: CompletionRing<Pages, Slot>,
    members: Members<Member>,
    current: Cqe,
}

/// A queue pair whose completions come here: where they say how far its rings are.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Send queue.
    pub(crate) send: Arc<Done>,
    /// Receive queue, or the shared one.
    pub(crate) recv: Arc<Done>,
}

impl CompletionQueue {
    /// An empty queue over `1 << log_entries` zeroed entries.
    pub(crate) fn new(memory: Pages, slot: Slot, log_entries: u8) -> Self {
        Self {
            ring: CompletionRing::new(memory, slot, log_entries),
            members: Members::default(),
            current: Cqe::default(),
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

    /// Makes the next completion the current one, as [`CompletionQueue::take`] does.
    #[inline]
    pub(crate) fn advance(&mut self) -> bool {
        let mut current = self.current;
        let taken = self.take(|cqe| current = *cqe);
        self.current = current;
        taken
    }

    /// The completion that [`CompletionQueue::advance`] took.
    #[inline]
    pub(crate) fn current(&self) -> &Cqe {
        &self.current
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
