// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The error state: everything that is posted completes with a flush error.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    state::{check::Check, qp::QueuePair, rq::RecvQueue, wqe::Descriptor},
};
use nupa_proto::eqe::EventType;
use nupa_proto::{
    admin::QpStateCode,
    cqe::{Cqe, CqeOpcode},
    status::WcStatus,
};
use zerocopy::little_endian::{U16, U32, U64};

impl<S: Storage> Node<S> {
    /// Puts a queue pair into the error state on the device's own account; its work is flushed at its next turn.
    pub(crate) fn fail(&mut self, platform: &impl Platform, qpn: u32) {
        self.fail_with(platform, qpn, EventType::QpFatal);
    }

    /// As [`Node::fail`], with another event.
    #[cold]
    pub(crate) fn fail_with(&mut self, platform: &impl Platform, qpn: u32, event: EventType) {
        let Some(pair) = self.pairs.get_mut(qpn) else {
            return;
        };
        if matches!(pair.state, QpStateCode::Err | QpStateCode::Reset) {
            return;
        }
        pair.state = QpStateCode::Err;
        self.lends_anew = true;
        self.schedule(qpn);
        self.report(platform, event, 0, qpn);
        self.left_shared(platform, qpn);
    }

    /// A UD queue pair got a request wrong: it sends no more, but receives (InfiniBand volume 1, 10.3.1).
    #[cold]
    pub(crate) fn stop_sending(&mut self, qpn: u32) {
        let pair = self.pairs.get_mut(qpn);
        if let Some(pair) = pair.filter(|pair| pair.state == QpStateCode::Rts) {
            pair.state = QpStateCode::Sqe;
            self.schedule(qpn);
        }
    }

    /// A queue pair has gone to the error state: if its entries come from a shared receive queue, it takes no more.
    pub(crate) fn left_shared(&mut self, platform: &impl Platform, qpn: u32) {
        let shares = |pair: &QueuePair<_>| pair.recv.srqn.is_some();
        if self.pairs.get(qpn).is_some_and(shares) {
            self.report(platform, EventType::LastWqe, 0, qpn);
        }
    }

    /// Completes everything in both queues of a queue pair in the error state, or in the send queue of one that has
    /// stopped sending, and asks for kicks.
    #[cold]
    pub(crate) fn flush(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
        descriptor: &mut Descriptor,
    ) {
        while let Some(entry) = self.flush_send(platform, qpn, descriptor) {
            self.complete_flushed(platform, qpn, entry);
        }
        while let Some(entry) = self.flush_receive(platform, qpn) {
            self.complete_flushed(platform, qpn, entry);
        }
        if let Some(entry) = self.flush_kept(platform, qpn) {
            self.complete_flushed(platform, qpn, entry);
        }
    }

    fn complete_flushed(&mut self, platform: &impl Platform, qpn: u32, entry: Cqe) {
        let Some(pair) = self.pairs.get(qpn) else {
            return;
        };
        self.counters.flushed.add(1);
        let receive = entry.opcode == CqeOpcode::Recv.to_wire();
        let cqn = if receive {
            pair.recv.cqn
        } else {
            pair.send.cqn
        };
        self.complete(platform, cqn, &entry, true);
    }

    /// Takes one send request off a queue pair in the error state.
    fn flush_send(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
        descriptor: &mut Descriptor,
    ) -> Option<Cqe> {
        let pair = self.pairs.get_mut(qpn)?;
        let fails = matches!(pair.state, QpStateCode::Err | QpStateCode::Sqe);
        if !fails || pair.send.ring.is_none() {
            return None;
        }
        pair.ground();
        // An index that is out of bounds says nothing about what is posted.
        let more = pair.has_work(platform)?
            || (pair.publish(platform, false) && pair.has_work(platform)?);
        if !more {
            return None;
        }
        let header = pair.read_descriptor(platform, pair.send.index, descriptor, None);
        let blocks = header.map(|header| u32::from(header.blocks));
        pair.send.index = match blocks {
            Ok(blocks) => pair.send.index.wrapping_add(blocks),
            Err(_) => pair.send.posted,
        };
        Some(flushed(
            qpn,
            CqeOpcode::Send,
            U64::new(descriptor.wr_id()),
            pair.send.index,
        ))
    }

    /// Takes one receive entry off a queue pair in the error state.
    fn flush_receive(&mut self, platform: &impl Platform, qpn: u32) -> Option<Cqe> {
        let pair = self.pairs.get_mut(qpn)?;
        if pair.state != QpStateCode::Err {
            return None;
        }
        let queue = pair.recv.queue.as_mut()?;
        let posted = |queue: &mut RecvQueue<_>| queue.is_posted(platform, queue.index).ok();
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
    fn flush_kept(&mut self, platform: &impl Platform, qpn: u32) -> Option<Cqe> {
        let pair = self.pairs.get(qpn)?;
        let kept = pair.recv.kept.filter(|_| pair.state == QpStateCode::Err)?;
        let srq = self.shared.get(pair.recv.srqn?)?;
        let wr_id = srq.queue.wr_id(platform.memory(), kept);
        let behind = self.take_shared(qpn, 1);
        let mut entry = flushed(qpn, CqeOpcode::Recv, wr_id, behind);
        entry.buffers = U16::new(1);
        Some(entry)
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
