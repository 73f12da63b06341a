// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The requester's half: takes descriptors off send queues, and completes them.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    state::{check::WcError, qp::Remote, request::Request, wqe::Wqe},
};
use nupa_proto::{
    admin::{QpStateCode, QpType},
    cqe::{Cqe, CqeOpcode},
    status::WcStatus,
    wqe::Opcode,
};
use zerocopy::little_endian::{U32, U64};

/// What was found at the head of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// Nothing.
    Nothing,
    /// No send queue, or one that is not served in its state.
    Idle,
    /// A request.
    Request,
    /// A request that fails here already.
    Failed(WcError),
    /// The owner's producer index is out of bounds: there is nothing to complete.
    Doorbell,
    /// The queue pair is in the error state.
    Flush,
    /// A request that requests under way to another host come before.
    Later,
}

impl Request {
    /// Operation code of the send completion.
    #[inline(always)]
    fn cqe_opcode(&self) -> CqeOpcode {
        match self.opcode {
            Opcode::Read => CqeOpcode::Read,
            Opcode::Write | Opcode::WriteImm => CqeOpcode::Write,
            Opcode::Frame | Opcode::Nop => CqeOpcode::Frame,
            Opcode::CompareSwap => CqeOpcode::CompareSwap,
            Opcode::FetchAdd => CqeOpcode::FetchAdd,
            Opcode::AtomicWrite => CqeOpcode::AtomicWrite,
            Opcode::Flush => CqeOpcode::Flush,
            Opcode::FastReg => CqeOpcode::FastReg,
            Opcode::LocalInv => CqeOpcode::LocalInv,
            Opcode::BindMw => CqeOpcode::BindMw,
            _ => CqeOpcode::Send,
        }
    }
}

impl<S: Storage> Node<S> {
    /// Takes the request at the head of a send queue: copies its descriptor once, then checks the copy. The queue does
    /// not move yet, see [`Node::finish_send`]. `pushed`: the descriptor before this index is in the push slot.
    #[inline(always)]
    pub(crate) fn fetch(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
        pushed: Option<u32>,
        wqe: &mut Wqe,
        request: &mut Request,
    ) -> Fetched {
        let (node, epoch) = (self.id(), self.epoch);
        let (up, max_frame) = (self.is_up(), self.limits().max_frame);
        let Self { qps, mrs, .. } = self;
        let Some(qp) = qps.get_mut(qpn) else {
            return Fetched::Idle;
        };
        match qp.state {
            QpStateCode::Err | QpStateCode::Sqe => return Fetched::Flush,
            _ if qp.send.ring.is_none() => return Fetched::Idle,
            QpStateCode::Rts => {}
            // A request that was sent in part is still sent to its end.
            QpStateCode::Sqd if qp.send.inflight.sent.is_some() => {}
            _ => return Fetched::Idle,
        }
        match qp.has_work(platform) {
            Some(true) => {}
            Some(false) => return Fetched::Nothing,
            None => return Fetched::Doorbell,
        }
        request.source = Remote {
            node,
            qpn,
            epoch,
            psn: qp.psn,
        };
        request.home = node;
        let at = qp.send.index;
        let composed = qp.decode::<S>(platform, mrs, at, pushed, wqe, request);
        let mut checked = composed.and_then(|()| request.check(up, max_frame));
        if qp.send.inflight.count != 0 {
            checked = checked.and_then(|()| qp.check_same(request));
            if checked.is_err() {
                // Parts of it that were sent are taken back.
                qp.send.inflight.take_back();
            }
            if qp.send.inflight.count != 0 && qp.waits_for_responses(request, checked) {
                return Fetched::Later;
            }
        }
        let succeeded = qp.traffic.requests;
        if qp.send.sampler.wants(succeeded) && !request.is_local() {
            qp.send.sampler.begin(platform, succeeded, request.behind);
        }
        match checked {
            Ok(()) => Fetched::Request,
            Err(error) => Fetched::Failed(error),
        }
    }

    /// Whether a queue pair that sends has no more descriptors posted.
    pub(crate) fn is_drained(&mut self, platform: &impl Platform, qpn: u32) -> bool {
        let qp = self.qps.get_mut(qpn);
        let sends = qp.filter(|qp| qp.state == QpStateCode::Rts && qp.send.ring.is_some());
        sends.is_some_and(|qp| qp.has_work(platform) == Some(false))
    }

    /// Publishes the index from which on kicks are wanted for a send queue that has nothing left; true if there is work after all.
    #[inline(always)]
    pub(crate) fn publish(&mut self, platform: &impl Platform, qpn: u32) -> bool {
        let polled = self.polls(qpn);
        let qp = self.qps.get(qpn);
        qp.is_some_and(|qp| qp.publish(platform, polled))
    }

    /// Moves the send queue past a request that is done, and completes it if it is to be. Returns whether the queue
    /// pair goes on.
    #[inline(always)]
    pub(crate) fn finish_send(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        result: Result<(), WcError>,
    ) -> bool {
        let qpn = request.source.qpn;
        let Self { qps, counters, .. } = self;
        let Some(qp) = qps.get_mut(qpn) else {
            return false;
        };
        if qp.send.sampler.is_measuring() {
            let fine = result.is_ok();
            let sampler = &mut qp.send.sampler;
            sampler.end(platform, request.behind, fine, counters);
        }
        match qp.send.inflight.count {
            0 => (qp.send.index, qp.send.done) = (request.behind, 0),
            _ => qp.acknowledged(request),
        }
        (qp.send.rnr_deadline, qp.send.peer_deadline) = (None, None);
        if result.is_ok() && !request.is_local() {
            qp.traffic.requested(request.opcode, request.len);
        }
        let (cqn, kind) = (qp.send.cqn, qp.kind);
        self.count_send(request, result);
        if result.is_err() || request.signaled {
            let entry = request.completion(result);
            self.complete(platform, cqn, &entry, result.is_err());
        }
        match result {
            Ok(()) => true,
            Err(error) if kind == QpType::Raw && is_peers(error.status) => true,
            Err(_) if kind == QpType::Ud => {
                self.stop_sending(qpn);
                false
            }
            Err(_) => {
                self.fail(platform, qpn);
                false
            }
        }
    }

    #[inline(always)]
    fn count_send(&mut self, request: &Request, result: Result<(), WcError>) {
        let counters = &mut self.counters;
        match (result, request.opcode) {
            (Ok(()), _) if request.is_local() => {}
            (Ok(()), Opcode::Frame) => {
                counters.tx_frames.add(1);
                counters.tx_bytes.add(request.len);
            }
            (Ok(()), _) => {
                counters.tx_messages.add(1);
                counters.tx_message_bytes.add(request.len);
                if request.opcode == Opcode::Read {
                    counters.tx_read_bytes.add(request.len);
                }
            }
            (Err(error), _) => {
                counters.tx_errors.add(1);
                counters
                    .tx_retry_exceeded
                    .add(u32::from(error.status == WcStatus::RetryExceeded));
                counters
                    .bad_descriptors
                    .add(u32::from(error.status == WcStatus::LocalQpOperation));
            }
        }
    }
}

impl Request {
    #[inline(always)]
    fn completion(&self, result: Result<(), WcError>) -> Cqe {
        let (status, vendor_error) = match result {
            Ok(()) => (WcStatus::Success, 0),
            Err(error) => (error.status, error.check as u8),
        };
        Cqe {
            wr_id: U64::new(self.wr_id),
            qpn: U32::new(self.source.qpn),
            byte_len: U32::new(match self.opcode {
                Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd => self.len,
                _ => 0,
            }),
            opcode: self.cqe_opcode().to_wire(),
            status: status.to_wire(),
            vendor_error,
            queue_index: U32::new(self.behind),
            ..Cqe::default()
        }
    }
}

/// Whether an error lies with the peer, so that a connectionless sender goes on with the next request.
fn is_peers(status: WcStatus) -> bool {
    matches!(
        status,
        WcStatus::RetryExceeded
            | WcStatus::RnrRetryExceeded
            | WcStatus::RemoteOperation
            | WcStatus::RemoteInvalidRequest
    )
}
