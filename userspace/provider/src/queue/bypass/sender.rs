// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The sender of a connection: which SENDs and WRITEs go into the ring.

use std::sync::{Arc, Weak};

use nupa_engine::rings::Data;
use nupa_proto::process_ring::{MAX_PAYLOAD, TAKEN};

use super::direct::{look_up, PeerRegions};
use super::outgoing::{Outgoing, TARGET};
use super::unconfirmed::{Put, Unconfirmed};
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
/// Blocks of the send queue, and lines of the ring, after which is looked whether the region of a request can be mapped: a power of two.
const LOOK_FOR_REGIONS: u32 = 1 << 6;
/// One in so many messages goes to the engine in any case: indices are compared across half of their range at most.
const ENGINE_SEES: u32 = 1 << 30;

/// The sender of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    qpn: u32,
    pub(super) source: SharedSource,
    /// The completion queue.
    completions: Weak<Lock<CompletionQueue>>,
    pub(super) lookup: Lookup,
    pub(super) sent: Arc<Sent>,
    pub(super) ring: Option<Outgoing>,
    pub(super) at: Position,
    /// Messages that went into the ring.
    pub(super) bypassed: u32,
    /// Those that are there as well, and are not among these yet.
    pub(super) unconfirmed: Unconfirmed,
    pub(super) bypass_state: Arc<BypassState>,
    /// Regions of the peer's that are mapped.
    pub(super) peer_regions: PeerRegions,
    /// Whether completions of what goes past the engine are shown.
    registered: bool,
    /// Whether there is a ring, or a region that is mapped.
    bypasses: bool,
    /// WRITEs may go into the ring, too.
    writes: bool,
    /// It could not look when it was time for that.
    again: bool,
    /// State of what draws the messages that go to the engine although they need not; 0: there are none.
    pub(super) draw: u32,
}

/// How far a sender is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    /// Messages so far that take a receive entry.
    pub(super) messages: u32,
    /// Index of the send queue behind the last request that takes no receive entry.
    barrier: u32,
    /// Index of the send queue behind the last request, and behind the last one whose completion is asked for.
    last: u32,
    pub(super) signaled: u32,
    /// Line behind the last WRITE in the ring, unless the engine was told to take what is before.
    pub(super) written: Option<u32>,
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
            unconfirmed: Unconfirmed::default(),
            bypass_state: Arc::clone(&connection.bypass_state),
            peer_regions: PeerRegions::new(connection.send_slot.clone()),
            registered: false,
            bypasses: false,
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
            unconfirmed: Unconfirmed::default(),
            bypass_state: Arc::clone(&self.bypass_state),
            peer_regions: self.peer_regions.another(),
            registered: false,
            bypasses: false,
            again: false,
            draw: self.draw,
        }
    }

    /// With a ring that was found.
    #[cfg(all(test, debug_assertions))]
    pub(super) fn with_ring(mut self, ring: Arc<super::Ring>) -> Self {
        self.sent.set_ring(Arc::clone(&ring));
        self.ring = Some(Outgoing::new(ring));
        self.note_bypasses();
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
        if let Some(key) = kind.key() {
            self.peer_regions.seen = Some(key);
        }
        let is_time = (at.last ^ index) & LOOK_FOR_REGIONS != 0;
        at.last = index;
        if kind.is_signaled() {
            at.signaled = index;
        }
        if is_time {
            self.look_for_region_of(kind);
        }
    }

    #[cold]
    fn look_for_region_of(&mut self, kind: Kind) {
        if let Some(key) = kind.key() {
            self.look_for_region(key);
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
        self.peer_regions.seen = None;
    }

    /// Puts a SEND or WRITE into the ring, if it may go there, or carries a WRITE or READ out. With `more`, others of a list follow: then it may be that this is not
    /// confirmed yet.
    #[inline]
    pub(crate) fn send(&mut self, message: Message, data: Data<'_>, more: bool) -> Put {
        let is_send = matches!(message.body, Body::Send { .. });
        if !is_send && !self.confirm() {
            return Put::Closed;
        }
        match self.put(message, data) {
            true if is_send => self.confirm_unless(more),
            true => Put::Yes,
            false => self.leave(),
        }
    }

    /// A request is for the engine: what was put into the ring before it comes first.
    #[inline(always)]
    pub(crate) fn leave(&mut self) -> Put {
        match self.confirm() {
            true => Put::No,
            false => Put::Closed,
        }
    }

    /// Puts a SEND, which is to be confirmed, or WRITE into the ring, or carries a WRITE or READ out. False if it is for the engine.
    #[inline(always)]
    fn put(&mut self, message: Message, data: Data<'_>) -> bool {
        let may_be_copied = !self.peer_regions.is_empty() && message.target().is_some();
        if may_be_copied && self.copy(&message, data) {
            return true;
        }
        if message.is_read() {
            return false;
        }
        // WRITEs do not count towards the messages after which a ring is looked for.
        if self.ring.is_none() && (message.is_write() || !self.look()) {
            return false;
        }
        if !self.bypass_state.is_ready() || !self.keeps_order(&message) {
            return false;
        }
        if self.draw != 0 && self.is_drawn() || self.number() % ENGINE_SEES == 0 {
            return false;
        }
        let mut parts = [ProcessBytes::default(); MAX_SGE];
        let (inline, parts) = match data {
            Data::Inline(bytes) => (bytes, &[][..]),
            Data::Sges(sges) => match look_up(&mut self.lookup, sges, false, &mut parts) {
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
            Body::Read { .. } => false,
        }
    }

    /// Puts a WRITE into the ring, if there is a place for it. What the receiver does not take, because its state has changed, its engine does.
    #[inline]
    fn put_write(
        &mut self,
        message: &Message,
        len: u32,
        inline: &[u8],
        parts: &[ProcessBytes],
    ) -> bool {
        let (number, sent) = (self.at.messages, &self.sent);
        let Some(out) = self.ring.as_mut().filter(|_| self.writes) else {
            return false;
        };
        if !out.pad(len) || !out.admits(sent, number, message, len, false) {
            return false;
        }
        let key = message.target().map(|(key, _)| key);
        if key.is_some_and(|key| self.peer_regions.take_owed(key)) {
            return false;
        }
        let line = out.line;
        // Also if its completion is not asked for: one that fails makes an event.
        let Some(adding) = sent.begin_if(true, true) else {
            return false;
        };
        out.write(number, message, len, inline, parts);
        out.count_write(len);
        out.written = Some(out.line);
        let signaled = message.is_signaled();
        sent.add_write(message.wr_id, out.line, self.at.signaled, signaled);
        let is_time = (line ^ out.line) & LOOK_FOR_REGIONS != 0;
        self.at.written = Some(out.line);
        drop(adding);
        if is_time {
            if let Some(key) = key {
                self.look_for_region(key);
            }
        }
        true
    }

    /// Number of the next message.
    #[inline(always)]
    pub(super) fn number(&self) -> u32 {
        let unconfirmed = self.unconfirmed.messages();
        self.at.messages.wrapping_add(unconfirmed)
    }

    /// Whether all that was handed to the engine is complete, and all that was put into the ring is taken.
    #[inline]
    pub(super) fn is_idle(&mut self) -> bool {
        let empty = self.ring.as_mut().is_none_or(Outgoing::is_empty);
        empty && !self.sent.done().is_before(self.at.last)
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

    /// Whether a request may go past the engine.
    #[inline(always)]
    pub(crate) fn may_send(&self, message: &Message) -> bool {
        match message.body {
            Body::Send { .. } => true,
            Body::Write { .. } => self.bypasses(),
            Body::Read { .. } => !self.peer_regions.is_empty(),
        }
    }

    /// Whether there is a ring, or a region that is mapped.
    #[inline(always)]
    pub(crate) fn bypasses(&self) -> bool {
        self.bypasses
    }

    /// There is a ring, or are regions, that there were not, or the other way round.
    pub(super) fn note_bypasses(&mut self) {
        self.bypasses = self.ring.is_some() || !self.peer_regions.is_empty();
    }

    /// Draws whether a message is to go to the engine. (xorshift, G. Marsaglia, Journal of Statistical Software 8 (14), 2003.)
    #[cold]
    pub(super) fn is_drawn(&mut self) -> bool {
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
        self.register(|sender| {
            let Some(ring) = sender.source.find().map(Arc::new) else {
                return false;
            };
            sender.sent.set_ring(Arc::clone(&ring));
            sender.ring = Some(Outgoing::new(ring));
            sender.note_bypasses();
            true
        })
    }

    /// Has completions of what goes past the engine shown, if there is something that does. Whether there is.
    pub(super) fn register(&mut self, is_there: impl FnOnce(&mut Self) -> bool) -> bool {
        if self.registered {
            return is_there(self);
        }
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
        if !is_there(self) {
            return false;
        }
        completions.add_sent(self.qpn, Arc::clone(&self.sent), &self.bypass_state);
        self.registered = true;
        true
    }
}
