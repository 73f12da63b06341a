// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Requests of a connected queue pair that are under way to another host's engine.
//!
//! They stay in the send queue's ring until they are answered, which happens in the order in which they were sent. A descriptor is
//! read and checked once more then; nothing else of it is kept.

use nupa_proto::wqe::Opcode;

/// Requests of one send queue that may be under way.
pub(crate) const WINDOW: u16 = 64;

/// Requests of a send queue that are under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inflight {
    /// How many.
    pub(crate) count: u16,
    /// Those among them that something is handed back for.
    pub(crate) reads: u8,
    /// Requests before the next one were sent, and none of them was refused.
    pub(crate) started: bool,
    /// Number of the next request.
    pub(crate) sequence: u32,
    /// Block of the oldest one's descriptor.
    pub(crate) head: u32,
    /// Bytes of the request at the head of the send queue that are under way already. It is counted then.
    pub(crate) sent: Option<u32>,
}

impl Inflight {
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
        self.reads = self.reads.saturating_add(u8::from(counts_as_read(opcode)));
        (self.started, self.sent) = (true, Some(0));
        sequence
    }

    /// The request that is under way in part is taken back: its destination will be told to forget it.
    pub(crate) fn revoke_grants(&mut self) {
        if self.sent.take().is_some() {
            self.count = self.count.saturating_sub(1);
            self.sequence = self.sequence.wrapping_sub(1);
        }
    }
}

/// Whether a request counts as one that something is handed back for.
pub(crate) fn counts_as_read(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite | Opcode::Flush
    )
}
