// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The receiver of a connection: it takes messages out of the ring, in the order of their numbers, and WRITEs between them.

mod entries;
mod waits;
mod writes;

use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use nupa_engine::hal::SlotWord;
use nupa_engine::rings::Doorbell;
use nupa_proto::cqe::{Cqe, CqeOpcode, CQE_IMM, CQE_SOLICITED};
use nupa_proto::process_ring::{
    self, lines_for, stamp, ENTRY_IMM, ENTRY_SOLICITED, ENTRY_WRITE, FIRST_PAYLOAD, LINES,
    LINE_SIZE, MAX_PAYLOAD, POSTED, RECEIVED, STATE, STATE_ARMED, STATE_WRITES, TAKEN,
    TOTALS_TAKEN,
};
use nupa_proto::status::WcStatus;
use zerocopy::{FromZeros, IntoBytes};

use self::entries::{Entries, Shared, WINDOW};
use self::waits::Waits;
use self::writes::Offer;
use super::{BypassState, Connection, Moved, Ring, SharedSource};
use crate::ffi::{fence, yield_now, Lock, ProcessBytes};
use crate::queue::regions::Lookup;
use crate::queue::shared::{Entry, Waiter};
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
    /// Line of the next entry, as far as is known: the engine takes WRITEs as well.
    line: u32,
    /// Number of the next message, and index of the receive entry that it takes.
    next: u32,
    queue: Arc<Lock<RecvQueue>>,
    entries: Entries,
    /// The one that a message takes.
    entry: Entry,
    lookup: Lookup,
    source: SharedSource,
    bypass_state: Arc<BypassState>,
    /// The sender may put messages into the ring, unless the kernel has closed it.
    open: bool,
    /// The program waits for an event.
    armed: bool,
    /// A message has failed: those behind it are flushed.
    dead: bool,
    /// The memory that WRITEs may name.
    targets: Lookup,
    /// The engine takes WRITEs that the process does not take, so there may be some.
    takes_writes: bool,
    offer: Offer,
    waits: Waits,
    /// What was taken.
    moved: Moved<TOTALS_TAKEN>,
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
    /// Opens a ring for messages from number `next` on, which follow the one with the completion `last`. `None` if there are receive entries in the way
    /// that only the engine can fill, or the kernel has closed the ring.
    pub(super) fn open(
        last: &Cqe,
        next: u32,
        ring: Arc<Ring>,
        connection: &Connection,
        queue: Arc<Lock<RecvQueue>>,
    ) -> Option<Self> {
        let entries = match connection.shared {
            false => {
                let lookup = connection.recv_lookup.another();
                queue.lock().attach(Arc::clone(&ring), lookup);
                Entries::Own(connection.slot.clone())
            }
            true => {
                let waiter = Arc::new(Waiter::new(Arc::clone(&connection.source)));
                if !queue.lock().share(&ring, &waiter) {
                    return None;
                }
                let posted = next.wrapping_add(WINDOW);
                ring.store(POSTED, posted);
                // A message of the connection before may have been taken after the controller cleared it.
                connection.slot.store(SlotWord::Arm, 0);
                Entries::Shared(Shared {
                    slot: connection.slot.clone(),
                    waiter,
                    seated: 0,
                    posted,
                    reserved: VecDeque::new(),
                    said_by: None,
                    before: 0,
                })
            }
        };
        ring.store(RECEIVED, next);
        if !ring.open() {
            let mut queue = queue.lock();
            queue.detach();
            queue.unshare(&ring);
            return None;
        }
        queue.lock().opened(&ring);
        Some(Self {
            qpn: last.qpn.get(),
            sender: last.src_qpn.get(),
            secret: ring.secret(),
            moved: Moved::new(&ring),
            ring,
            line: 0,
            next,
            queue,
            entries,
            entry: Entry::default(),
            lookup: connection.recv_lookup.another(),
            source: Arc::clone(&connection.source),
            bypass_state: Arc::clone(&connection.bypass_state),
            open: true,
            armed: false,
            dead: false,
            targets: connection.lookup.another(),
            takes_writes: connection.writes,
            offer: Offer::default(),
            waits: Waits::default(),
        })
    }

    /// As if so many lines had been taken.
    #[cfg(all(test, debug_assertions))]
    pub(super) fn skip_lines(&mut self, lines: u32) {
        let line = self.ring.load(TAKEN).wrapping_add(lines);
        self.ring.store(TAKEN, line);
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
        self.open
    }

    /// Lets no more messages in. What is in the ring then is to be taken.
    #[cold]
    pub(crate) fn close(&mut self) {
        self.bypass_state.stop();
        self.open = false;
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
        self.armed = armed;
        if let Entries::Shared(shared) = &self.entries {
            // What it waits for is found out when it looks for completions once more.
            shared.waiter.set(false);
        }
        if armed {
            self.offer.take_back();
            self.ring.set_state_bit(STATE_WRITES, false);
        }
        if self.open && !self.ring.set_state_bit(STATE_ARMED, armed) {
            self.open = false;
            // It is already, unless the sender writes where it should not.
            self.ring.store(STATE, 0);
        }
    }

    /// Whether an entry lies in the ring.
    #[inline]
    pub(crate) fn has_entry(&mut self) -> bool {
        self.line = self.ring.load(TAKEN);
        self.ring.stamp(self.line) == stamp(self.secret, self.line)
    }

    /// Whether the next message lies next in the ring.
    fn has_next(&mut self) -> bool {
        let entry = self.has_entry().then(|| self.entry_head());
        entry
            .is_some_and(|entry| entry.flags & ENTRY_WRITE == 0 && entry.message.get() == self.next)
    }

    /// What lies next in the ring, without its payload.
    #[inline]
    fn entry_head(&self) -> process_ring::Entry {
        let mut entry = process_ring::Entry::new_zeroed();
        if let Some(head) = entry.as_mut_bytes().get_mut(..HEAD) {
            self.ring.read(self.line, 0, head);
        }
        entry
    }

    /// What is to be made of a completion of the engine's, after what was in the ring before it was taken.
    #[inline]
    pub(crate) fn compare(&mut self, cqe: &Cqe) -> Next {
        if let Entries::Shared(_) = &self.entries {
            if !self.dead && self.has_next() {
                // The engine takes entries for all messages before its own that the sender tells it of: there are more than that.
                self.fail();
            }
            return Next::This;
        }
        match cqe
            .queue_index
            .get()
            .wrapping_sub(1)
            .wrapping_sub(self.next)
        {
            0 => Next::This,
            ahead if ahead <= u32::MAX / 2 => Next::Ring,
            _ => Next::Nothing,
        }
    }

    /// A completion of the engine's is about to be compared: it may say which entries the engine has taken for messages in the ring.
    #[inline]
    pub(crate) fn see(&mut self, cqe: &Cqe) {
        let Entries::Shared(shared) = &mut self.entries else {
            return;
        };
        let (behind, buffers) = (cqe.queue_index.get(), u32::from(cqe.buffers.get()));
        if buffers <= 1 || shared.said_by == Some(behind) {
            return;
        }
        shared.said_by = Some(behind);
        let mut queue = self.queue.lock();
        for ahead in (2..=buffers).rev() {
            let entry = queue.take_reserved(behind.wrapping_sub(ahead));
            shared.reserved.extend(entry);
        }
    }

    /// A completion of the engine's is taken, which was the next one; `failed` if it is one of an error.
    #[inline]
    pub(crate) fn pass(&mut self, cqe: &Cqe, failed: bool) {
        if let Entries::Shared(shared) = &mut self.entries {
            let reserved = u32::from(cqe.buffers.get()).saturating_sub(1);
            let missing = reserved > shared.seated.wrapping_sub(shared.before);
            shared.before = shared.seated;
            shared.said_by = None;
            self.give_back();
            if missing && !self.dead && !failed {
                // The sender has told the engine of more messages than it has put into the ring since the last one: it does what it likes. Of fewer that are
                // missing nobody can tell, because the entries for them may have been taken in vain.
                self.fail();
            }
        }
        self.dead |= failed;
        self.next = self.next.wrapping_add(1);
        if let Entries::Shared(shared) = &mut self.entries {
            shared.extend(&self.ring, self.next);
        }
        self.ring.store(RECEIVED, self.next);
    }

    /// Takes the next message, if it is in the ring, and the WRITEs before it. Writes the message's completion to `completion`; if there is none, returns false.
    ///
    /// It is written where it is read, because a copy of what was just written in parts makes the processor wait.
    #[inline]
    pub(crate) fn take(&mut self, completion: &mut Cqe) -> bool {
        if self.dead || !self.has_entry() || !self.ring.hold() {
            return false;
        }
        let taken = self.take_entries(completion);
        self.ring.release();
        taken
    }

    /// As [`Receiver::take`], but waits for the engine, if that takes entries just now.
    #[inline]
    pub(super) fn wait_and_take(&mut self) -> Option<Cqe> {
        match self.dead || !self.has_entry() {
            true => None,
            false => self.wait_for_entry(),
        }
    }

    #[cold]
    fn wait_for_entry(&mut self) -> Option<Cqe> {
        self.waits.begin(Instant::now());
        let held = loop {
            if self.dead || !self.has_entry() {
                break false;
            }
            if self.ring.hold() {
                break true;
            }
            if self.waits.are_too_long(Instant::now()) {
                // The sender writes where it should not.
                self.fail();
            }
            yield_now();
        };
        self.waits.end(Instant::now());
        if !held {
            return None;
        }
        let mut completion = Cqe::default();
        let taken = self.take_entries(&mut completion);
        self.ring.release();
        taken.then_some(completion)
    }

    #[inline]
    fn take_entries(&mut self, completion: &mut Cqe) -> bool {
        // No more than there is room for, so that an end is in sight.
        for _ in 0..LINES {
            if !self.has_entry() {
                return false;
            }
            let entry = self.entry_head();
            if entry.flags & ENTRY_WRITE == 0 {
                return self.take_message(&entry, completion);
            }
            if !self.write(&entry) {
                return false;
            }
        }
        false
    }

    #[inline]
    fn take_message(&mut self, entry: &process_ring::Entry, completion: &mut Cqe) -> bool {
        let len = entry.len.get();
        if entry.message.get() != self.next || len > MAX_PAYLOAD {
            self.refuse(entry, len);
            return false;
        }
        if !self.seat() {
            return false;
        }
        let (wr_id, status) = (self.entry.wr_id, self.receive(len as usize));
        self.line = self.line.wrapping_add(lines_for(len));
        self.next = self.next.wrapping_add(1);
        self.tell();
        self.ring.store(TAKEN, self.line);
        self.ring.store(RECEIVED, self.next);
        let imm = entry.flags & ENTRY_IMM != 0;
        let solicited = entry.flags & ENTRY_SOLICITED != 0;
        match status {
            WcStatus::Success => self.moved.count(&self.ring, 1, len),
            _ => self.fail(),
        }
        *completion = Cqe {
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
        };
        true
    }

    /// Finds the receive entry of the next message. False if there is none.
    #[inline]
    fn seat(&mut self) -> bool {
        match &mut self.entries {
            Entries::Own(_) => self.queue.lock().entry(self.next, &mut self.entry),
            Entries::Shared(shared) => {
                let waiter = self.armed.then_some(&*shared.waiter);
                let found = self.queue.lock().seat(&mut shared.reserved, waiter);
                let Some(entry) = found else {
                    return false;
                };
                self.entry = entry;
                shared.seated = shared.seated.wrapping_add(1);
                // At once: until then the engine cannot tell how many entries its next message takes.
                shared.slot.store(SlotWord::Arm, shared.seated);
                true
            }
        }
    }

    /// A message of the ring has filled its entry.
    #[inline]
    fn tell(&mut self) {
        match &mut self.entries {
            Entries::Own(slot) => slot.store(SlotWord::Arm, self.next),
            Entries::Shared(shared) => shared.extend(&self.ring, self.next),
        }
    }

    /// Posts entries again that the engine has taken for messages which had taken one themselves.
    fn give_back(&mut self) {
        let Entries::Shared(shared) = &mut self.entries else {
            return;
        };
        if shared.reserved.is_empty() {
            return;
        }
        let mut queue = self.queue.lock();
        for entry in shared.reserved.drain(..) {
            queue.post_again(&entry);
        }
        queue.ring_and_call();
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
        let found = self.queue.lock().entry(self.next, &mut self.entry);
        self.next = self.next.wrapping_add(1);
        found.then(|| Cqe {
            wr_id: self.entry.wr_id.into(),
            qpn: self.qpn.into(),
            opcode: CqeOpcode::Recv.to_wire(),
            status: status.to_wire(),
            queue_index: self.next.into(),
            ..Cqe::default()
        })
    }

    /// Copies the message to where its receive entry says.
    #[inline]
    fn receive(&mut self, len: usize) -> WcStatus {
        let mut at = 0;
        for sge in self.entry.sges() {
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
    fn refuse(&mut self, entry: &process_ring::Entry, len: u32) {
        let ahead = entry.message.get().wrapping_sub(self.next);
        if len > MAX_PAYLOAD || ahead > u32::MAX / 2 {
            self.close();
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.give_back();
        // Whoever posts may just be making its event.
        self.queue.lock().unshare(&self.ring);
    }
}

const _: () = assert!(HEAD < size_of::<process_ring::Entry>());
