// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The error state: everything that is posted completes with a flush error.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{check::Check, qp::QueuePair, rq::RecvQueue, slice::REQUESTS, wqe::Wqe},
};
use nupa_proto::{
    admin::QpStateCode,
    cqe::{Cqe, CqeOpcode},
    eqe::EventType,
    status::WcStatus,
};
use zerocopy::little_endian::{U16, U32, U64};

impl Engine {
    /// Completes what is in the queues of a queue pair in the error state, or in the send queue of one that has stopped sending, and
    /// gives the queue pair that waits for it a turn. What is too much for one turn, or comes meanwhile, is for the next one.
    #[cold]
    pub(crate) fn flush<N: NodeTable>(&mut self, nodes: &mut N, id: u16, qpn: u32) {
        for _ in 0..REQUESTS {
            let Some((node, platform)) = nodes.node_mut(id) else {
                return;
            };
            if self.budget.is_spent() {
                return node.schedule(qpn);
            }
            if !node.flush_one(platform, qpn, &mut self.wqe) {
                return self.wake(nodes, id, qpn);
            }
            self.budget.spend(platform, 0);
        }
        if let Some((node, _)) = nodes.node_mut(id) {
            node.schedule(qpn);
        }
    }
}

impl<S: Storage> Node<S> {
    /// Puts a queue pair into the error state on the device's own account; its work is flushed at its next turn.
    pub(crate) fn fail(&mut self, platform: &impl Platform, qpn: u32) {
        self.fail_with(platform, qpn, EventType::QpFatal);
    }

    /// As [`Node::fail`], with another event.
    #[cold]
    pub(crate) fn fail_with(&mut self, platform: &impl Platform, qpn: u32, event: EventType) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        if matches!(qp.state, QpStateCode::Err | QpStateCode::Reset) {
            return;
        }
        qp.state = QpStateCode::Err;
        self.grants_stale = true;
        self.schedule(qpn);
        self.report(platform, event, 0, qpn);
        self.report_last_wqe(platform, qpn);
    }

    /// The owner's producer index of a queue pair is out of bounds.
    #[cold]
    pub(crate) fn fail_doorbell(&mut self, platform: &impl Platform, qpn: u32) {
        self.counters.bad_descriptors.add(1);
        self.fail(platform, qpn);
    }

    /// A UD queue pair got a request wrong: it sends no more, but receives (InfiniBand volume 1, 10.3.1).
    #[cold]
    pub(crate) fn stop_sending(&mut self, qpn: u32) {
        let qp = self.qps.get_mut(qpn);
        if let Some(qp) = qp.filter(|qp| qp.state == QpStateCode::Rts) {
            qp.state = QpStateCode::Sqe;
            self.schedule(qpn);
        }
    }

    /// A queue pair in the error state takes no more entries of its shared receive queue, if it has one. Its owner may destroy it once
    /// it knows, so an entry that it keeps is completed before (InfiniBand volume 1, 11.6.3.2).
    pub(crate) fn report_last_wqe(&mut self, platform: &impl Platform, qpn: u32) {
        let is_last = |qp: &QueuePair<_>| qp.recv.srqn.is_some() && !qp.recv.keeps_entry();
        if self.qps.get(qpn).is_some_and(is_last) {
            self.report(platform, EventType::LastWqe, 0, qpn);
        }
    }

    /// Completes the next entry in a queue of a queue pair in the error state, or in the send queue of one that has stopped sending.
    /// False if there is none: then kicks are asked for.
    fn flush_one(&mut self, platform: &impl Platform, qpn: u32, wqe: &mut Wqe) -> bool {
        // First, because an owner that goes on posting to the queue pair waits for this.
        if let Some(entry) = self.flush_kept(qpn) {
            self.complete_flushed(platform, qpn, entry);
            self.report_last_wqe(platform, qpn);
            return true;
        }
        let entry = self.flush_send(platform, qpn, wqe);
        let Some(entry) = entry.or_else(|| self.flush_receive(platform, qpn)) else {
            return false;
        };
        self.complete_flushed(platform, qpn, entry);
        true
    }

    fn complete_flushed(&mut self, platform: &impl Platform, qpn: u32, entry: Cqe) {
        let Some(qp) = self.qps.get(qpn) else {
            return;
        };
        self.counters.flushed.add(1);
        let receive = entry.opcode == CqeOpcode::Recv.to_wire();
        let cqn = if receive { qp.recv.cqn } else { qp.send.cqn };
        self.complete(platform, cqn, &entry, true);
    }

    /// Takes one send request off a queue pair in the error state.
    fn flush_send(&mut self, platform: &impl Platform, qpn: u32, wqe: &mut Wqe) -> Option<Cqe> {
        let qp = self.qps.get_mut(qpn)?;
        let fails = matches!(qp.state, QpStateCode::Err | QpStateCode::Sqe);
        if !fails || qp.send.ring.is_none() {
            return None;
        }
        qp.rewind();
        // An index that is out of bounds says nothing about what is posted.
        let more =
            qp.has_work(platform)? || (qp.publish(platform, false) && qp.has_work(platform)?);
        if !more {
            return None;
        }
        let header = qp.read_wqe(platform, qp.send.index, wqe, None);
        let blocks = header.map(|header| u32::from(header.blocks));
        qp.send.index = match blocks {
            Ok(blocks) => qp.send.index.wrapping_add(blocks),
            Err(_) => qp.send.posted,
        };
        Some(flushed(
            qpn,
            CqeOpcode::Send,
            U64::new(wqe.wr_id()),
            qp.send.index,
        ))
    }

    /// Takes one receive entry off a queue pair in the error state.
    fn flush_receive(&mut self, platform: &impl Platform, qpn: u32) -> Option<Cqe> {
        let qp = self.qps.get_mut(qpn)?;
        if qp.state != QpStateCode::Err {
            return None;
        }
        let queue = qp.recv.queue.as_mut()?;
        let posted = |queue: &mut RecvQueue<_>| queue.has_next(platform).ok();
        let more = posted(queue)? || (queue.want_entries(platform) && posted(queue)?);
        if !more {
            return None;
        }
        let wr_id = queue.wr_id(platform.memory(), queue.index);
        queue.index = queue.index.wrapping_add(1);
        let mut entry = flushed(qpn, CqeOpcode::Recv, wr_id, queue.index);
        entry.buffers = U16::new(1);
        Some(entry)
    }
}

impl<S: Storage> Node<S> {
    /// Takes the entry of a shared receive queue that is kept for a queue pair in the error state.
    fn flush_kept(&mut self, qpn: u32) -> Option<Cqe> {
        let fails = self.qps.get(qpn)?.state == QpStateCode::Err;
        fails.then(|| self.flush_held(qpn))?
    }

    /// Takes the entries of a shared receive queue that are kept for a queue pair.
    fn flush_held(&mut self, qpn: u32) -> Option<Cqe> {
        let kept = self.qps.get(qpn)?.recv.kept.as_ref();
        let wr_id = kept.filter(|kept| kept.is_held())?.wr_id();
        let taken = self.take_srq_entries(qpn, 1);
        let mut entry = flushed(qpn, CqeOpcode::Recv, wr_id, taken.behind);
        entry.buffers = U16::new(taken.count);
        Some(entry)
    }

    /// A queue pair is about to be reset or destroyed: what it keeps of a shared receive queue is completed before, since nothing else may say that it is
    /// free again.
    pub(crate) fn end_kept(&mut self, platform: &impl Platform, qpn: u32) {
        if let Some(entry) = self.flush_held(qpn) {
            self.complete_flushed(platform, qpn, entry);
        }
    }
}

/// A completion of work that was not done.
fn flushed(qpn: u32, opcode: CqeOpcode, wr_id: U64, queue_index: u32) -> Cqe {
    Cqe {
        wr_id,
        qpn: U32::new(qpn),
        opcode: opcode.to_wire(),
        status: WcStatus::WrFlush.to_wire(),
        vendor_error: Check::Flushed as u8,
        queue_index: U32::new(queue_index),
        ..Cqe::default()
    }
}
