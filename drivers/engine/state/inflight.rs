// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Requests of a connected queue pair that are under way to another host's engine.
//!
//! They stay in the send queue's ring until they are answered, which happens in the order in which they were sent. A descriptor is
//! read and checked once more then; nothing else of it is kept.

use crate::{
    hal::Platform,
    node::Node,
    path::requester::malformed,
    state::{
        check::{Check, Refusal},
        qp::{QueuePair, Remote, Wait},
        request::Request,
        wqe::Descriptor,
    },
    storage::Storage,
};
use nupa_proto::{admin::QpStateCode, eqe::EventType, wqe::Opcode};

/// Requests of one send queue that may be under way.
const WINDOW: u16 = 64;

/// Requests of a send queue that are under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flight {
    /// How many.
    pub(crate) count: u16,
    /// Those among them that something is handed back for.
    reads: u8,
    /// Requests before the next one were sent, and none of them was refused.
    pub(crate) started: bool,
    /// Number of the next request.
    pub(crate) sequence: u32,
    /// Block of the oldest one's descriptor.
    pub(crate) head: u32,
    /// Bytes of the request at the head of the send queue that are under way already. It is counted then.
    pub(crate) sent: Option<u32>,
}

impl Flight {
    /// Nothing is under way. Numbers begin at one that is drawn, so that an answer to a request of a queue pair that had the same
    /// number before is not taken for one to this one's.
    pub(crate) fn new(sequence: u32) -> Self {
        Self {
            sequence,
            ..Self::default()
        }
    }

    /// Number of the oldest request.
    pub(crate) fn oldest(&self) -> u32 {
        self.sequence.wrapping_sub(u32::from(self.count))
    }

    /// The first part of a request is on its way. Returns its number.
    pub(crate) fn begin(&mut self, index: u32, opcode: Opcode) -> u32 {
        if self.count == 0 {
            self.head = index;
        }
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        self.count = self.count.saturating_add(1);
        self.reads = self.reads.saturating_add(u8::from(hands_back(opcode)));
        (self.started, self.sent) = (true, Some(0));
        sequence
    }

    /// The request that is under way in part is taken back: its target will be told to forget it.
    pub(crate) fn take_back(&mut self) {
        if self.sent.take().is_some() {
            self.count = self.count.saturating_sub(1);
            self.sequence = self.sequence.wrapping_sub(1);
        }
    }
}

/// Whether a request counts as one that something is handed back for.
fn hands_back(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite | Opcode::Flush
    )
}

impl<P> QueuePair<P> {
    /// Forgets what is under way: it is in the send queue again. Answers to it do not count any more.
    pub(crate) fn ground(&mut self) {
        self.send.direct = 0;
        let flight = &mut self.send.flight;
        if flight.count != 0 {
            self.send.index = flight.head;
        }
        *flight = Flight {
            sequence: flight.sequence,
            ..Flight::default()
        };
    }

    /// The oldest request, which is at hand, was answered.
    pub(crate) fn answered(&mut self, request: &Request) {
        let flight = &mut self.send.flight;
        flight.count = flight.count.saturating_sub(1);
        let reads = u8::from(hands_back(request.opcode));
        flight.reads = flight.reads.saturating_sub(reads);
        flight.head = request.behind;
        // What is refused need not be sent to its end: it is over as it is, and not again at the head of the queue.
        if flight.count == 0 && flight.sent.take().is_some() {
            self.send.index = request.behind;
        }
    }

    /// Whether the request at hand has to wait until requests before it were answered.
    #[cold]
    pub(crate) fn comes_later(&self, request: &Request, checked: Result<(), Refusal>) -> bool {
        let flight = &self.send.flight;
        if flight.sent.is_some() {
            return false;
        }
        let here = request.target.node == request.source.node;
        let most = hands_back(request.opcode) && flight.reads >= self.max_rd_atomic;
        checked.is_err()
            || request.is_local()
            || request.fenced
            || here
            || most
            || flight.count >= WINDOW
    }
}

impl<S: Storage> Node<S> {
    /// All of the request at hand is on its way.
    pub(crate) fn sent_off(&mut self, request: &Request) {
        if let Some(pair) = self.pairs.get_mut(request.source.qpn) {
            pair.send.index = request.behind;
            pair.send.flight.sent = None;
        }
    }

    /// The request at hand cannot be sent: if part of it was, that does not count. Returns whether there are others under
    /// way, which come first.
    pub(crate) fn not_sent(&mut self, request: &Request) -> bool {
        let Some(pair) = self.pairs.get_mut(request.source.qpn) else {
            return false;
        };
        pair.send.flight.take_back();
        pair.send.flight.count != 0
    }

    /// Reads the descriptor at block `at`, of a request that is under way or was, once more. Fails if it is not what it was.
    pub(crate) fn refetch(
        &self,
        platform: &impl Platform,
        qpn: u32,
        at: u32,
        descriptor: &mut Descriptor,
        request: &mut Request,
    ) -> Result<(), Refusal> {
        let missing = malformed(Check::Peer);
        let pair = self.pairs.get(qpn).ok_or(missing)?;
        request.source = Remote {
            node: self.id(),
            qpn,
            epoch: self.epoch,
            psn: pair.psn,
        };
        request.home = self.id();
        let regions = &self.regions;
        pair.compose::<S>(platform, regions, at, None, descriptor, request)?;
        request.check(true, self.limits().max_frame)
    }

    /// What is left to do once requests of a queue pair were answered or taken back. Returns whether its send queue waited
    /// for that and goes on.
    pub(crate) fn landed(&mut self, platform: &impl Platform, qpn: u32) -> bool {
        let Some(pair) = self.pairs.get(qpn) else {
            return false;
        };
        if pair.state == QpStateCode::Sqd && pair.send.flight.count == 0 {
            self.report(platform, EventType::SqDrained, 0, qpn);
            return false;
        }
        let waited = pair.send.wait == Wait::Answers;
        if waited {
            self.unpark(qpn);
        }
        waited
    }
}
