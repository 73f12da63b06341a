// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The sender of a connection: which SENDs go into the ring.

use std::sync::atomic::{fence, Ordering};
use std::sync::{Arc, Weak};

use nupa_engine::rings::{Data, Operation};
use nupa_proto::process_ring::{
    lines_for, stamp, Entry, ENTRY_IMM, ENTRY_SOLICITED, FIRST_PAYLOAD, LINES, LINE_SIZE,
    MAX_PAYLOAD, POSTED, ROOM, STATE, STATE_ARMED, STATE_OPEN, TAKEN,
};
use nupa_proto::wqe::{Sge, WQE_SIGNALED, WQE_SOLICITED};
use zerocopy::{FromZeros, IntoBytes};

use super::{BypassState, Ring, Sent, SharedSource};
use crate::ffi::{Lock, ProcessBytes};
use crate::queue::done::is_ahead;
use crate::queue::regions::Lookup;
use crate::queue::size::MAX_SGE;
use crate::queue::CompletionQueue;

/// Messages after which the sender looks for a ring for the first time. The receiver makes it after [`super::BEFORE_RING`] of them.
const FIRST_LOOK: u32 = 32;
/// Messages between two looks, once it has looked at each power of two up to that.
const LOOKS: u32 = 1 << 16;
/// One in so many messages goes to the engine in any case: indices are compared across half of their range at most.
const ENGINE_SEES: u32 = 1 << 30;
/// Bytes of an entry before its payload.
const HEAD: usize = LINE_SIZE - FIRST_PAYLOAD;
/// Bytes of an entry's stamp, which is written last.
const STAMP: usize = size_of::<u64>();

/// What a SEND that may go into the ring is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) wr_id: u64,
    /// `WQE_*`.
    pub(crate) flags: u8,
    pub(crate) imm: Option<u32>,
}

/// The sender of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    qpn: u32,
    source: SharedSource,
    /// The completion queue.
    completions: Weak<Lock<CompletionQueue>>,
    lookup: Lookup,
    sent: Arc<Sent>,
    ring: Option<Outgoing>,
    at: Position,
    /// Messages that went into the ring.
    bypassed: u32,
    bypass_state: Arc<BypassState>,
    /// It could not look when it was time for that.
    again: bool,
    /// State of what draws the messages that go to the engine although they need not; 0: there are none.
    draw: u32,
}

/// How far a sender is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    /// Messages so far that take a receive entry.
    messages: u32,
    /// Index of the send queue behind the last request that takes no receive entry.
    barrier: u32,
    /// Index of the send queue behind the last request, and behind the last one whose completion is asked for.
    last: u32,
    signaled: u32,
}

/// A ring that was found.
#[derive(Debug)]
struct Outgoing {
    ring: Arc<Ring>,
    secret: u64,
    /// Line of the next entry.
    line: u32,
    /// As last seen.
    posted: u32,
    room: u32,
    taken: u32,
}

/// What a request is to a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// All of a SEND but its data: it may go there.
    message: Option<Message>,
    /// It takes a receive entry of its peer.
    takes_entry: bool,
    signaled: bool,
}

impl Kind {
    /// That of a request with these flags (`WQE_*`).
    #[inline(always)]
    pub(crate) fn of(wr_id: u64, flags: u8, operation: &Operation) -> Self {
        let message = match *operation {
            Operation::Send { imm } => Some(Message { wr_id, flags, imm }),
            _ => None,
        };
        let others = matches!(
            operation,
            Operation::SendInv { .. } | Operation::Write { imm: Some(_), .. }
        );
        Self {
            message,
            takes_entry: others || message.is_some(),
            signaled: flags & WQE_SIGNALED != 0,
        }
    }

    /// Whether it takes a receive entry of its peer.
    #[inline(always)]
    pub(crate) fn takes_entry(&self) -> bool {
        self.takes_entry
    }

    /// The SEND, if it is one.
    #[inline(always)]
    pub(crate) fn message(&self) -> Option<Message> {
        self.message
    }
}

impl Sender {
    /// The sender of a queue pair that has sent nothing yet.
    pub(crate) fn new(
        qpn: u32,
        (source, bypass_state): (SharedSource, Arc<BypassState>),
        lookup: Lookup,
        completions: Weak<Lock<CompletionQueue>>,
        sent: Arc<Sent>,
        mixed: bool,
    ) -> Self {
        Self {
            qpn,
            source,
            completions,
            lookup,
            sent,
            ring: None,
            at: Position::default(),
            bypassed: 0,
            bypass_state,
            again: false,
            draw: if mixed { 1 } else { 0 },
        }
    }

    /// The same for a queue pair that has gone to the reset state.
    pub(crate) fn another(&self) -> Self {
        let source = (Arc::clone(&self.source), Arc::clone(&self.bypass_state));
        let completions = Weak::clone(&self.completions);
        let sent = Arc::new(self.sent.another());
        let mixed = self.draw != 0;
        Self::new(
            self.qpn,
            source,
            self.lookup.another(),
            completions,
            sent,
            mixed,
        )
    }

    /// What a request to the engine says.
    #[inline(always)]
    pub(crate) fn bypassed(&self) -> u32 {
        self.bypassed
    }

    /// A request has gone to the engine; `index` is that of the send queue behind it.
    #[inline(always)]
    pub(crate) fn note(&mut self, kind: Kind, index: u32) {
        let at = &mut self.at;
        match kind.takes_entry {
            true => at.messages = at.messages.wrapping_add(1),
            false => at.barrier = index,
        }
        at.last = index;
        if kind.signaled {
            at.signaled = index;
        }
    }

    /// What [`Sender::rewind`] goes back to.
    #[inline(always)]
    pub(crate) fn mark(&self) -> Position {
        self.at
    }

    /// Requests that went to the engine were taken back.
    pub(crate) fn rewind(&mut self, at: Position) {
        self.at = at;
    }

    /// Puts a SEND into the ring, if it may go there.
    #[inline]
    pub(crate) fn send(&mut self, message: Message, data: Data<'_>) -> bool {
        if self.ring.is_none() && !self.look() {
            return false;
        }
        // The order of others would not be kept.
        if !self.bypass_state.is_ready() || self.sent.done().is_before(self.at.barrier) {
            return false;
        }
        let signaled = message.flags & WQE_SIGNALED != 0;
        // Nothing would say when requests before it are complete whose completion is not asked for.
        if signaled && self.at.last != self.at.signaled && self.sent.done().is_before(self.at.last)
        {
            return false;
        }
        if self.draw != 0 && self.is_drawn() || self.at.messages % ENGINE_SEES == 0 {
            return false;
        }
        let mut parts = [ProcessBytes::default(); MAX_SGE];
        let (inline, parts) = match data {
            Data::Inline(bytes) => (bytes, &[][..]),
            Data::Sges(sges) => match find(&mut self.lookup, sges, &mut parts) {
                Some(parts) => (&[][..], parts),
                None => return false,
            },
        };
        let len = parts
            .iter()
            .fold(inline.len(), |sum, part| sum.saturating_add(part.len()));
        let Ok(len) = u32::try_from(len) else {
            return false;
        };
        let (number, sent) = (self.at.messages, &self.sent);
        let Some(out) = self.ring.as_mut().filter(|_| len <= MAX_PAYLOAD) else {
            return false;
        };
        let state = out.ring.load(STATE);
        // That it may go to the engine in any case is for tests: as if the receiver's program had waited since just now.
        let may_go = STATE_OPEN | if self.draw == 0 { 0 } else { STATE_ARMED };
        let waits = state & STATE_OPEN == 0 || state & !may_go != 0;
        if waits || !out.has_room(number, len) {
            return false;
        }
        let adding = match signaled {
            true if !sent.has_room() => return false,
            true => match sent.begin() {
                None => return false,
                adding => adding,
            },
            false => None,
        };
        let state = out.write(number, &message, len, inline, parts);
        if state & STATE_OPEN == 0 {
            // The receiver takes nothing any more.
            self.bypass_state.stop();
            return false;
        }
        if signaled {
            sent.add(message.wr_id, number, self.at.signaled);
        }
        drop(adding);
        if state & STATE_ARMED != 0 {
            self.source.kick_peer();
        }
        self.at.messages = self.at.messages.wrapping_add(1);
        self.bypassed = self.bypassed.wrapping_add(1);
        true
    }

    /// Draws whether a message is to go to the engine. (xorshift, G. Marsaglia, Journal of Statistical Software 8 (14), 2003.)
    #[cold]
    fn is_drawn(&mut self) -> bool {
        self.draw ^= self.draw << 13;
        self.draw ^= self.draw >> 17;
        self.draw ^= self.draw << 5;
        self.draw & 4 != 0
    }

    /// Looks for a ring, now and then.
    #[inline]
    fn look(&mut self) -> bool {
        let messages = self.at.messages;
        let again = std::mem::take(&mut self.again);
        let is_time = messages.is_power_of_two() || messages % LOOKS == 0 || again;
        messages >= FIRST_LOOK && is_time && self.bypass_state.is_ready() && self.find()
    }

    #[cold]
    fn find(&mut self) -> bool {
        let Some(completions) = self.completions.upgrade() else {
            return false;
        };
        // A program may post while it has the queue locked: between `ibv_start_poll()` and `ibv_end_poll()`.
        let Some(mut completions) = completions.try_lock() else {
            self.again = true;
            return false;
        };
        if !completions.may_bypass() {
            return false;
        }
        let Some(ring) = self.source.find().map(Arc::new) else {
            return false;
        };
        self.sent.set_ring(Arc::clone(&ring));
        completions.add_sent(self.qpn, Arc::clone(&self.sent), &self.bypass_state);
        self.ring = Some(Outgoing {
            secret: ring.secret(),
            line: 0,
            posted: 0,
            room: 0,
            taken: 0,
            ring,
        });
        true
    }
}

/// The memory that entries mean, if the process has mapped all of it.
#[inline(always)]
fn find<'a>(
    lookup: &mut Lookup,
    sges: &[Sge],
    parts: &'a mut [ProcessBytes; MAX_SGE],
) -> Option<&'a [ProcessBytes]> {
    let found = parts.get_mut(..sges.len())?;
    for (part, sge) in found.iter_mut().zip(sges) {
        *part = lookup.memory(sge, false)?;
    }
    Some(found)
}

impl Outgoing {
    /// Whether there is a receive entry for a message, and room for it.
    #[inline(always)]
    fn has_room(&mut self, number: u32, len: u32) -> bool {
        let lines = lines_for(len);
        let fits = |out: &Self| {
            let used = out.line.wrapping_sub(out.taken);
            // Whatever a receiver says that means no good.
            let free = used.saturating_add(lines) <= LINES;
            is_ahead(out.posted, number) && len <= out.room && free
        };
        if fits(self) {
            return true;
        }
        self.posted = self.ring.load(POSTED);
        self.room = self.ring.load(ROOM);
        self.taken = self.ring.load(TAKEN);
        fits(self)
    }

    /// Writes an entry; returns the receiver's state after that.
    #[inline(always)]
    fn write(
        &mut self,
        number: u32,
        message: &Message,
        len: u32,
        inline: &[u8],
        parts: &[ProcessBytes],
    ) -> u32 {
        let (ring, line) = (&self.ring, self.line);
        let mut entry = Entry::new_zeroed();
        entry.len.set(len);
        entry.message.set(number);
        if let Some(imm) = message.imm {
            entry.imm.set(imm);
            entry.flags |= ENTRY_IMM;
        }
        if message.flags & WQE_SOLICITED != 0 {
            entry.flags |= ENTRY_SOLICITED;
        }
        if let Some(head) = entry.as_bytes().get(STAMP..HEAD) {
            ring.write(line, STAMP, head);
        }
        ring.write(line, HEAD, inline);
        let mut at = HEAD.wrapping_add(inline.len());
        for part in parts {
            ring.write_from(line, at, *part);
            at = at.wrapping_add(part.len());
        }
        ring.set_stamp(line, stamp(self.secret, line));
        self.line = line.wrapping_add(lines_for(len));
        fence(Ordering::SeqCst);
        ring.load(STATE)
    }
}
