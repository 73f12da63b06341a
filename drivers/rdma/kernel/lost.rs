// SPDX-License-Identifier: GPL-2.0
//! Queue pairs whose controller was reset or went away: what was posted, and what is posted from then on, completes
//! with a flush error, so that those who wait for that (`ib_drain_qp()`) go on.

use super::{KernelCq, KernelQp};
use kernel::prelude::*;
use nk_rdma::{Event, WcOpcode, WorkCompletion};
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

impl KernelQp {
    /// The controller was lost, and the pair is to be in the error state.
    pub(crate) fn lose(&self) -> Result {
        let mut ids = KVec::new();
        let mut ring = self.pair.send.lock();
        ring.lost = true;
        while let Some(id) = ring.poster.give_up() {
            ids.push(id, GFP_ATOMIC)?;
        }
        drop(ring);
        self.flush_sends(&mut ids.drain_all())?;

        if let Some(ring) = &mut *self.pair.recv.lock() {
            ring.lost = true;
            while let Some(id) = ring.poster.give_up() {
                ids.push(id, GFP_ATOMIC)?;
            }
        }
        if self.pair.srq.is_some() {
            self.events.add(Event::LastWqe);
        }
        self.flush_receives(&mut ids.into_iter())
    }

    /// Completes send requests with a flush error. Any context.
    pub(super) fn flush_sends(&self, ids: &mut dyn Iterator<Item = u64>) -> Result {
        let [cq, _] = &self.cqs;
        self.flush(cq, WcOpcode::Send, ids)
    }

    /// Completes receive requests with a flush error. Any context.
    pub(super) fn flush_receives(&self, ids: &mut dyn Iterator<Item = u64>) -> Result {
        let [_, cq] = &self.cqs;
        self.flush(cq, WcOpcode::Recv, ids)
    }

    fn flush(&self, cq: &KernelCq, opcode: WcOpcode, ids: &mut dyn Iterator<Item = u64>) -> Result {
        let mut completions = ids.map(|id| flushed(id, opcode));
        cq.add(self.qpn, self.pair.handle(), &mut completions)
    }
}
