// SPDX-License-Identifier: GPL-2.0
//! Queue pairs whose controller was reset or went away: what was posted, and what is posted from then on, completes
//! with a flush error, so that those who wait for that (`ib_drain_qp()`) go on.
//!
//! Requests stay in their rings until somebody polls for them, so this needs no memory and cannot fail.

use super::{qp::Pair, KernelQp};
use kernel::sync::Arc;
use nk_rdma::{Completions, Event, WcOpcode, WorkCompletion};
use nupa_proto::status::WcStatus;

/// The completion of a request that was not processed.
fn flushed(id: u64, opcode: WcOpcode) -> WorkCompletion {
    WorkCompletion {
        id,
        status: WcStatus::WrFlush.to_wire(),
        opcode,
        vendor_error: 0,
        byte_len: 0,
        imm: None,
        invalidated: None,
        src_qpn: 0,
        header: None,
        vlan_id: None,
    }
}

impl Pair {
    /// Whether the send queue was lost and has requests that nobody was told of. Any context.
    fn has_lost_send(&self) -> bool {
        let ring = self.send.lock();
        ring.lost && ring.poster.is_busy()
    }

    /// As [`Pair::has_lost_send`], of the receive queue.
    fn has_lost_receive(&self) -> bool {
        match &*self.recv.lock() {
            Some(ring) => ring.lost && ring.poster.is_busy(),
            None => false,
        }
    }

    /// Takes the oldest request of a send queue that was lost. Any context.
    fn take_lost_send(&self) -> Option<u64> {
        match &mut *self.send.lock() {
            ring if ring.lost => ring.poster.give_up(),
            _ => None,
        }
    }

    /// As [`Pair::take_lost_send`], of the receive queue.
    fn take_lost_receive(&self) -> Option<u64> {
        match &mut *self.recv.lock() {
            Some(ring) if ring.lost => ring.poster.give_up(),
            _ => None,
        }
    }
}

/// A queue pair as one of its completion queues has it.
pub(super) struct Member {
    pub(super) pair: Arc<Pair>,
    /// Whether send requests complete there.
    pub(super) send: bool,
    /// Whether receive requests do.
    pub(super) recv: bool,
}

impl Member {
    /// Whether there are requests of lost queues that complete here. Any context.
    pub(super) fn has_lost(&self) -> bool {
        (self.send && self.pair.has_lost_send()) || (self.recv && self.pair.has_lost_receive())
    }

    /// Completes requests of lost queues until there are none or there is no room. Any context.
    pub(super) fn flush(&self, completions: &mut Completions<'_>) {
        while !completions.is_full() {
            let send = self.send.then(|| self.pair.take_lost_send()).flatten();
            let completion = match send {
                Some(id) => flushed(id, WcOpcode::Send),
                None => match self.recv.then(|| self.pair.take_lost_receive()).flatten() {
                    Some(id) => flushed(id, WcOpcode::Recv),
                    None => return,
                },
            };
            completions.push(self.pair.handle(), &completion);
        }
    }
}

impl KernelQp {
    /// The controller was lost, and the pair is to be in the error state. Any context.
    pub(crate) fn lose(&self) {
        self.pair.send.lock().lost = true;
        if let Some(ring) = &mut *self.pair.recv.lock() {
            ring.lost = true;
        }
        if self.pair.srq.is_some() {
            self.events.add(Event::LastWqe);
        }
        for cq in &self.cqs {
            cq.lose();
        }
    }
}
