// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The receiver of a connection: it takes messages out of the ring, in the order of their numbers.

use std::mem::size_of;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use nupa_engine::hal::SlotWord;
use nupa_engine::rings::Doorbell;
use nupa_proto::cqe::{Cqe, CqeOpcode, CQE_IMM, CQE_SOLICITED};
use nupa_proto::process_ring::{
    lines_for, stamp, Entry, ENTRY_IMM, ENTRY_SOLICITED, FIRST_PAYLOAD, LINE_SIZE, MAX_PAYLOAD,
    RECEIVED, STATE, STATE_ARMED, STATE_OPEN, TAKEN,
};
use nupa_proto::status::WcStatus;
use nupa_proto::wqe::Sge;
use zerocopy::{FromZeros, IntoBytes};

use super::{BypassState, Connection, Ring, SharedSource};
use crate::ffi::{Lock, ProcessBytes, Slot};
use crate::queue::regions::Lookup;
use crate::queue::size::MAX_SGE;
use crate::queue::RecvQueue;

/// Bytes of an entry before its payload.
const HEAD: usize = LINE_SIZE - FIRST_PAYLOAD;

/// The receiver of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    qpn: u32,
    /// Queue pair that sends.
    sender: u32,
    ring: Arc<Ring>,
    secret: u64,
    /// Line of the next entry.
    line: u32,
    /// Number of the next message, and index of the receive entry that it takes.
    next: u32,
    queue: Arc<Lock<RecvQueue>>,
    /// Doorbell slot of the receive queue.
    slot: Slot,
    lookup: Lookup,
    source: SharedSource,
    bypass_state: Arc<BypassState>,
    /// `STATE_*`, as last stored.
    state: u32,
    /// A message has failed: those behind it are flushed.
    dead: bool,
}

/// What is to be made of a completion of the engine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is the next one.
    This,
    /// The ring comes first.
    Ring,
    /// What it is about was received out of the ring.
    Nothing,
}

impl Receiver {
    /// Opens a ring for the messages behind the one with this completion.
    pub(super) fn open(
        last: &Cqe,
        ring: Arc<Ring>,
        secret: u64,
        connection: &Connection,
        queue: Arc<Lock<RecvQueue>>,
    ) -> Self {
        let next = last.queue_index.get();
        ring.store(RECEIVED, next);
        ring.open(secret);
        Self {
            qpn: last.qpn.get(),
            sender: last.src_qpn.get(),
            ring,
            secret,
            line: 0,
            next,
            queue,
            slot: connection.slot.clone(),
            lookup: connection.lookup.another(),
            source: Arc::clone(&connection.source),
            bypass_state: Arc::clone(&connection.bypass_state),
            state: STATE_OPEN,
            dead: false,
        }
    }

    /// Queue pair that it is of.
    #[inline]
    pub(crate) fn qpn(&self) -> u32 {
        self.qpn
    }

    /// What the queue pair may do.
    pub(super) fn bypass_state(&self) -> &Arc<BypassState> {
        &self.bypass_state
    }

    /// Whether the sender may still put messages into the ring.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.state != 0
    }

    /// Lets no more messages in. What is in the ring then is to be taken.
    #[cold]
    pub(crate) fn close(&mut self) {
        self.bypass_state.stop();
        self.state = 0;
        self.ring.store(STATE, 0);
        fence(Ordering::SeqCst);
    }

    /// As the engine does when it cannot fill a receive entry.
    #[cold]
    fn fail(&mut self) {
        self.dead = true;
        self.close();
        self.source.fail();
    }

    /// The program waits for an event from now on, or does not any more. Whoever arms issues a full fence behind this.
    pub(crate) fn set_armed(&mut self, armed: bool) {
        let state = match armed {
            true => STATE_OPEN | STATE_ARMED,
            false => STATE_OPEN,
        };
        if self.state == 0 || self.state == state {
            return;
        }
        // The kernel may have closed it.
        self.state = match self.ring.swap_state(self.state, state) {
            true => state,
            false => 0,
        };
    }

    /// Whether a message lies in the ring.
    #[inline]
    pub(crate) fn has_message(&self) -> bool {
        self.ring.stamp(self.line) == stamp(self.secret, self.line)
    }

    /// What is to be made of a completion of the engine's with this `queue_index`.
    #[inline]
    pub(crate) fn compare(&self, behind: u32) -> Next {
        match behind.wrapping_sub(1).wrapping_sub(self.next) {
            0 => Next::This,
            ahead if ahead <= u32::MAX / 2 => Next::Ring,
            _ => Next::Nothing,
        }
    }

    /// A completion of the engine's is taken, which was the next one; `failed` if it is one of an error.
    #[inline]
    pub(crate) fn pass(&mut self, failed: bool) {
        self.dead |= failed;
        self.next = self.next.wrapping_add(1);
        self.ring.store(RECEIVED, self.next);
    }

    /// Takes the next message, if it is in the ring.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Cqe> {
        if self.dead || !self.has_message() {
            return None;
        }
        self.take_entry()
    }

    #[inline]
    fn take_entry(&mut self) -> Option<Cqe> {
        let mut entry = Entry::new_zeroed();
        let head = entry.as_mut_bytes().get_mut(..HEAD)?;
        self.ring.read(self.line, 0, head);
        let len = entry.len.get();
        if entry.message.get() != self.next || len > MAX_PAYLOAD {
            return self.refuse(&entry, len);
        }
        let mut sges = [Sge::default(); MAX_SGE];
        let (wr_id, count) = self.queue.lock().entry(self.next, &mut sges)?;
        let status = self.receive(len as usize, sges.get(..count)?);
        self.line = self.line.wrapping_add(lines_for(len));
        self.next = self.next.wrapping_add(1);
        self.slot.store(SlotWord::Arm, self.next);
        self.ring.store(TAKEN, self.line);
        self.ring.store(RECEIVED, self.next);
        let imm = entry.flags & ENTRY_IMM != 0;
        let solicited = entry.flags & ENTRY_SOLICITED != 0;
        if status != WcStatus::Success {
            self.fail();
        }
        Some(Cqe {
            wr_id: wr_id.into(),
            qpn: self.qpn.into(),
            src_qpn: self.sender.into(),
            byte_len: entry.len,
            imm_or_key: if imm { entry.imm } else { 0.into() },
            opcode: CqeOpcode::Recv.to_wire(),
            status: status.to_wire(),
            flags: if imm { CQE_IMM } else { 0 } | if solicited { CQE_SOLICITED } else { 0 },
            queue_index: self.next.into(),
            ..Cqe::default()
        })
    }

    /// The next message should be in the ring and is not: its sender does what it likes. The receive entry completes with an error.
    #[cold]
    pub(crate) fn miss(&mut self) -> Option<Cqe> {
        let status = match self.dead {
            true => WcStatus::WrFlush,
            false => WcStatus::General,
        };
        if !self.dead {
            self.fail();
        }
        let mut sges = [Sge::default(); MAX_SGE];
        let entry = self.queue.lock().entry(self.next, &mut sges);
        self.next = self.next.wrapping_add(1);
        Some(Cqe {
            wr_id: entry?.0.into(),
            qpn: self.qpn.into(),
            opcode: CqeOpcode::Recv.to_wire(),
            status: status.to_wire(),
            queue_index: self.next.into(),
            ..Cqe::default()
        })
    }

    /// Copies the message to where a receive entry says.
    #[inline]
    fn receive(&mut self, len: usize, sges: &[Sge]) -> WcStatus {
        let mut at = 0;
        for sge in sges {
            let Some(memory) = self.lookup.memory(sge, true) else {
                return WcStatus::LocalProtection;
            };
            let part = memory.len().min(len.wrapping_sub(at));
            let to = memory.part(0, part).unwrap_or(ProcessBytes::default());
            self.ring.read_to(self.line, HEAD.wrapping_add(at), to);
            at = at.wrapping_add(part);
        }
        match at == len {
            true => WcStatus::Success,
            false => WcStatus::LocalLength,
        }
    }

    /// An entry that is not the next one, or none that a sender makes. One with a later number waits for those before it, which come by way of the
    /// engine; nothing else comes any more.
    #[cold]
    fn refuse(&mut self, entry: &Entry, len: u32) -> Option<Cqe> {
        let ahead = entry.message.get().wrapping_sub(self.next);
        if len > MAX_PAYLOAD || ahead > u32::MAX / 2 {
            self.close();
        }
        None
    }
}

const _: () = assert!(HEAD < size_of::<Entry>());
