// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Requests of a connected queue pair that are under way to another host's engine.
//!
//! They stay in the send queue's ring until their response comes, in the order in which they were sent. A descriptor is read and checked
//! anew for each part of its message and for the response. Its process may change it meanwhile, so what the responder was told with
//! the first part is kept, and has to be the same for the others.
//!
//! Long and short ones go through rings of their own. Short ones that were sent before a long one are carried out before it
//! ([`Class::short`](nupa_proto::pool::Class::short)); behind a long one all go the same way as it, until nothing is under way.

use nupa_proto::{
    pool::message::{takes_entry, READ_PIECE},
    wqe::Opcode,
};

/// Requests of one send queue that may be in flight: as many as it may start before others have their turn
/// ([`REQUESTS`](crate::state::slice)).
pub(crate) const WINDOW: u16 = 64;

/// Bytes of a READ that may be asked for and not handed back: enough to keep the link busy in both directions, and no more, because
/// requests of others queue behind it.
pub(crate) const READ_WINDOW: u32 = 16 * READ_PIECE;

/// Requests of a send queue that are under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inflight {
    /// How many.
    pub(crate) count: u16,
    /// Those among them that something is handed back for.
    pub(crate) reads: u8,
    /// Those among them that take a receive entry.
    pub(crate) receives: u16,
    /// How many more of those the responder has entries for, as far as is known.
    pub(crate) credits: u16,
    /// Requests before the next one were sent, and none of them was refused.
    pub(crate) started: bool,
    /// Number of the next request.
    pub(crate) sequence: u32,
    /// Block of the oldest one's descriptor.
    pub(crate) head: u32,
    /// One of them is, or was, in the ring of long requests.
    pub(crate) long: bool,
    /// Bytes of the request at the head of the send queue that are under way already, or were asked for. It is counted then.
    pub(crate) sent: Option<u32>,
    /// Operation and bytes of that request, as its first part said.
    begun: (Opcode, u32, u32),
    /// Bytes of the oldest one, a READ, that were handed back.
    pub(crate) received: u32,
}

impl Inflight {
    /// Nothing is under way. Numbers begin at one that is drawn, so that an answer to a request of a queue pair that had the same
    /// number before is not taken for one to this one's.
    pub(crate) fn new(sequence: u32) -> Self {
        Self {
            count: 0,
            reads: 0,
            receives: 0,
            credits: 0,
            started: false,
            sequence,
            head: 0,
            long: false,
            sent: None,
            begun: (Opcode::Nop, 0, 0),
            received: 0,
        }
    }

    /// Number of the oldest request.
    pub(crate) fn oldest(&self) -> u32 {
        self.sequence.wrapping_sub(u32::from(self.count))
    }

    /// Whether the request of that number is under way.
    pub(crate) fn has(&self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.oldest()) < u32::from(self.count)
    }

    /// Counts a request whose first part is sent now.
    pub(crate) fn begin(&mut self, index: u32, begun: (Opcode, u32, u32), long: bool) {
        self.begun = begun;
        let (opcode, ..) = begun;
        if self.count == 0 {
            (self.head, self.long) = (index, false);
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.count = self.count.saturating_add(1);
        self.reads = self.reads.saturating_add(u8::from(counts_as_read(opcode)));
        if takes_entry(opcode) {
            self.receives = self.receives.saturating_add(1);
            self.credits = self.credits.saturating_sub(1);
        }
        self.long |= long;
        (self.started, self.sent) = (true, Some(0));
    }

    /// Whether a request has to go through the ring of long ones because one before it did.
    pub(crate) fn follows_long(&self) -> bool {
        self.count != 0 && self.long
    }

    /// Whether more of the READ at the head of the send queue may be asked for, of which so much was.
    pub(crate) fn may_ask(&self, sent: u32) -> bool {
        // Only the oldest one is handed back.
        let received = if self.count <= 1 { self.received } else { 0 };
        sent.saturating_sub(received) < READ_WINDOW
    }

    /// The request that is under way in part is taken back. The one that is sent in its place has its number, and begins anew.
    pub(crate) fn take_back(&mut self) {
        if self.sent.take().is_some() {
            let (opcode, ..) = self.begun;
            self.end(opcode);
            self.sequence = self.sequence.wrapping_sub(1);
            self.started = false;
        }
    }

    /// Whether the request at the head of the send queue is the one that was sent in part, if one was.
    pub(crate) fn goes_on_with(&self, request: (Opcode, u32, u32)) -> bool {
        self.sent.is_none() || self.begun == request
    }

    /// One is not under way any more.
    pub(crate) fn end(&mut self, opcode: Opcode) {
        self.count = self.count.saturating_sub(1);
        self.reads = self.reads.saturating_sub(u8::from(counts_as_read(opcode)));
        self.receives = self.receives.saturating_sub(u16::from(takes_entry(opcode)));
    }

    /// The responder has said how many entries it had behind the oldest request, which has ended.
    pub(crate) fn grant_credits(&mut self, credits: u16) {
        self.credits = credits.saturating_sub(self.receives);
    }

    /// Whether a request has to wait until another one was answered, because there may be no receive entry for it.
    pub(crate) fn wants_credits(&self, opcode: Opcode) -> bool {
        self.credits == 0 && takes_entry(opcode)
    }
}

/// Whether a request counts as one that something is handed back for.
pub(crate) fn counts_as_read(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite | Opcode::Flush
    )
}
