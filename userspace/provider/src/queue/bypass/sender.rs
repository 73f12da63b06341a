// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The sender of a connection: which SENDs and WRITEs go into the ring.

use std::sync::{Arc, Weak};

use nupa_engine::rings::Data;
use nupa_proto::process_ring::{MAX_PAYLOAD, STATE_ARMED, STATE_OPEN, TAKEN};
use nupa_proto::wqe::Sge;

use super::outgoing::{Outgoing, TARGET};
use super::{Body, BypassState, Connection, Kind, Message, Sent, SharedSource};
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
    /// WRITEs may go into the ring, too.
    writes: bool,
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
    /// Line behind the last WRITE in the ring, unless the engine was told to take what is before.
    written: Option<u32>,
}

impl Sender {
    /// The sender of a queue pair that has sent nothing yet.
    pub(crate) fn new(
        qpn: u32,
        connection: &Connection,
        completions: Weak<Lock<CompletionQueue>>,
        sent: Arc<Sent>,
    ) -> Self {
        Self {
            qpn,
            source: Arc::clone(&connection.source),
            completions,
            lookup: connection.lookup.another(),
            writes: connection.writes && sent.drain_id().is_some(),
            sent,
            ring: None,
            at: Position::default(),
            bypassed: 0,
            bypass_state: Arc::clone(&connection.bypass_state),
            again: false,
            draw: if connection.mixed { 1 } else { 0 },
        }
    }

    /// The same for a queue pair that has gone to the reset state.
    pub(crate) fn another(&self) -> Self {
        let sent = Arc::new(self.sent.another());
        Self {
            qpn: self.qpn,
            source: Arc::clone(&self.source),
            completions: Weak::clone(&self.completions),
            lookup: self.lookup.another(),
            writes: self.writes && sent.drain_id().is_some(),
            sent,
            ring: None,
            at: Position::default(),
            bypassed: 0,
            bypass_state: Arc::clone(&self.bypass_state),
            again: false,
            draw: self.draw,
        }
    }

    /// With a ring that was found.
    #[cfg(all(test, debug_assertions))]
    pub(super) fn with_ring(mut self, ring: Arc<super::Ring>) -> Self {
        self.sent.set_ring(Arc::clone(&ring));
        self.ring = Some(Outgoing::new(ring));
        self
    }

    /// As if so many lines had been used.
    #[cfg(all(test, debug_assertions))]
    pub(super) fn skip_lines(&mut self, lines: u32) {
        if let Some(out) = &mut self.ring {
            out.line = out.line.wrapping_add(lines);
        }
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
        match kind.takes_entry() {
            true => at.messages = at.messages.wrapping_add(1),
            false => at.barrier = index,
        }
        at.last = index;
        if kind.is_signaled() {
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

    /// Puts a SEND or WRITE into the ring, if it may go there.
    #[inline]
    pub(crate) fn send(&mut self, message: Message, data: Data<'_>) -> bool {
        if self.ring.is_none() && !self.look() {
            return false;
        }
        if !self.bypass_state.is_ready() || !self.keeps_order(&message) {
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
        let head = if message.is_write() { TARGET } else { 0 };
        let len = inline.len().saturating_add(head);
        let len = parts
            .iter()
            .fold(len, |sum, part| sum.saturating_add(part.len()));
        let Ok(len) = u32::try_from(len) else {
            return false;
        };
        if len > MAX_PAYLOAD {
            return false;
        }
        match message.body {
            Body::Send { .. } => self.put_message(&message, len, inline, parts),
            Body::Write { .. } => self.put_write(&message, len, inline, parts),
        }
    }

    /// Puts a SEND into the ring, if there is a place for it.
    #[inline]
    fn put_message(
        &mut self,
        message: &Message,
        len: u32,
        inline: &[u8],
        parts: &[ProcessBytes],
    ) -> bool {
        let (number, sent) = (self.at.messages, &self.sent);
        let Some(out) = &mut self.ring else {
            return false;
        };
        if !out.admits(sent, number, message, len, self.draw != 0) {
            return false;
        }
        out.settle(&mut self.at.written);
        // If a WRITE before it fails it is flushed, also if its completion is not asked for.
        let (signaled, noted) = (
            message.is_signaled(),
            message.is_signaled() || self.at.written.is_some(),
        );
        let Some(adding) = sent.begin_if(noted, signaled) else {
            return false;
        };
        let state = out.write(number, message, len, inline, parts);
        if state & STATE_OPEN == 0 {
            // The receiver takes nothing any more.
            self.bypass_state.stop();
            return false;
        }
        out.count(message, len);
        out.sent = out.line;
        if noted {
            sent.add(message.wr_id, number, self.at.signaled, signaled);
        }
        drop(adding);
        if state & STATE_ARMED != 0 {
            self.source.kick_peer();
        }
        self.at.messages = self.at.messages.wrapping_add(1);
        self.bypassed = self.bypassed.wrapping_add(1);
        true
    }

    /// The same with a WRITE. What the receiver does not take, because its state has changed, its engine does.
    #[inline]
    fn put_write(
        &mut self,
        message: &Message,
        len: u32,
        inline: &[u8],
        parts: &[ProcessBytes],
    ) -> bool {
        let (number, sent) = (self.at.messages, &self.sent);
        let Some(out) = &mut self.ring else {
            return false;
        };
        if !out.pad(len) || !out.admits(sent, number, message, len, false) {
            return false;
        }
        // Also if its completion is not asked for: one that fails makes an event.
        let Some(_adding) = sent.begin_if(true, true) else {
            return false;
        };
        out.write(number, message, len, inline, parts);
        out.count(message, len);
        out.written = Some(out.line);
        let signaled = message.is_signaled();
        sent.add_write(message.wr_id, out.line, self.at.signaled, signaled);
        self.at.written = Some(out.line);
        true
    }

    /// Whether what the engine still has to do may be overtaken by a request, and is known to be complete when that is.
    #[inline(always)]
    fn keeps_order(&self, message: &Message) -> bool {
        let (at, done) = (&self.at, self.sent.done());
        if message.is_write() {
            return !done.is_before(at.last);
        }
        // The order of others would not be kept.
        if done.is_before(at.barrier) {
            return false;
        }
        // Nothing would say when requests before it are complete whose completion is not asked for.
        !message.is_signaled() || at.last == at.signaled || !done.is_before(at.last)
    }

    /// Line behind the last WRITE that may lie in the ring, of which the engine was not told: it is to be, before it is handed anything else.
    #[inline(always)]
    pub(crate) fn untaken(&mut self) -> Option<u32> {
        let written = self.at.written?;
        self.untaken_before(written)
    }

    #[inline(never)]
    fn untaken_before(&mut self, written: u32) -> Option<u32> {
        let out = self.ring.as_ref()?;
        if is_ahead(written, out.load(TAKEN)) {
            return Some(written);
        }
        self.at.written = None;
        None
    }

    /// The engine was told to take the WRITEs that are in the ring, by a request that ends at this index of the send queue.
    pub(crate) fn note_drain(&mut self, line: u32, index: u32, signaled: bool) {
        let at = &mut self.at;
        at.written = None;
        (at.barrier, at.last) = (index, index);
        if signaled {
            at.signaled = index;
            self.sent.note_drain(line, index);
        }
    }

    /// What is in the ring, and was sent out of it.
    #[inline]
    pub(crate) fn sent(&self) -> &Arc<Sent> {
        &self.sent
    }

    /// Whether it has a ring.
    #[inline(always)]
    pub(crate) fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Whether a request may go into the ring, of which there is one if it is a WRITE.
    #[inline(always)]
    pub(crate) fn may_send(&self, message: &Message) -> bool {
        !message.is_write() || self.writes && self.has_ring()
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
        self.ring = Some(Outgoing::new(ring));
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
