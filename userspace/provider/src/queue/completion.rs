// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use nupa_engine::client::CompletionRing;
use nupa_proto::cqe::Cqe;

use super::done::Done;
use crate::ffi::{Pages, Slot};

/// Completion code bit of everything that used a receive entry.
const RECEIVE: u8 = 0x80;

/// Consumer of a completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ring: CompletionRing<Pages, Slot>,
    members: HashMap<u32, Member, BuildHasherDefault<QpnHasher>>,
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
            members: HashMap::default(),
            current: Cqe::default(),
        }
    }

    /// Takes the next completion. [`CompletionQueue::publish`] has to follow the last one.
    ///
    /// Those of queue pairs that are no more are skipped.
    #[inline(always)]
    pub(crate) fn poll(&mut self) -> Option<Cqe> {
        loop {
            let cqe = self.ring.poll()?;
            if let Some(member) = self.members.get(&cqe.qpn.get()) {
                member.account(&cqe);
                return Some(cqe);
            }
        }
    }

    /// Takes the next completion and keeps it as the current one (`ibv_next_poll()`); false if there is none.
    #[inline]
    pub(crate) fn advance(&mut self) -> bool {
        match self.poll() {
            Some(cqe) => {
                self.current = cqe;
                true
            }
            None => false,
        }
    }

    /// The completion that [`CompletionQueue::advance`] took.
    #[inline]
    pub(crate) fn current(&self) -> &Cqe {
        &self.current
    }

    /// Tells the controller what was taken, so that it never takes the queue for fuller than the program does.
    #[inline]
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
        self.members.remove(&qpn);
    }

    /// Forgets the completions of a queue pair that went to the reset state. The shared entries that they used are free
    /// all the same.
    pub(crate) fn forget(&mut self, qpn: u32) {
        let member = self.members.get(&qpn);
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
        let done = if cqe.opcode & RECEIVE == 0 {
            &self.send
        } else {
            &self.recv
        };
        done.advance(cqe.queue_index.get());
    }
}

/// Spreads queue pair numbers, which nobody chooses to our harm, by multiplication (Knuth).
#[derive(Debug, Default)]
struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    #[inline(always)]
    fn write_u32(&mut self, value: u32) {
        let mixed = self.0 ^ u64::from(value);
        self.0 = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
