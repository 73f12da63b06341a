// SPDX-License-Identifier: GPL-2.0 OR MIT
//! State and attributes of queue pairs, as far as they concern one node only.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        grant::Writers,
        process_ring::RingAt,
        qp::{QueuePair, Remote},
        slots::clear,
    },
};
use nupa_proto::{
    admin::{
        ModifyQp, QpState, QpStateCode, QpType, ACCESS_ALL, MAX_RNR_TIMER, QP_MASK_ACCESS,
        QP_MASK_PEER_RING, QP_MASK_PROCESS_RINGS, QP_MASK_QKEY, QP_MASK_RD_ATOMIC, QP_MASK_REMOTE,
        QP_MASK_RING, QP_MASK_RNR, QP_MASK_RNR_RETRY, QP_MASK_SQ_PSN, QP_MASK_STATE,
        RNR_RETRY_FOREVER,
    },
    eqe::EventType,
    status::AdminStatus,
};
use zerocopy::little_endian::U32;

/// All bits of a modification's mask.
const MASK: u32 = QP_MASK_STATE
    | QP_MASK_REMOTE
    | QP_MASK_ACCESS
    | QP_MASK_QKEY
    | QP_MASK_RNR
    | QP_MASK_RD_ATOMIC
    | QP_MASK_SQ_PSN
    | QP_MASK_RNR_RETRY
    | QP_MASK_PROCESS_RINGS
    | QP_MASK_RING
    | QP_MASK_PEER_RING;

impl Engine {
    /// Changes attributes and state of a queue pair. Work that was posted before starts here if the new state is
    /// ready to send, and is flushed if it is the error state.
    pub fn modify_qp<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        body: &ModifyQp,
    ) -> Result<(), AdminStatus> {
        let qpn = body.qpn.get();
        let goes_to = (body.mask.get() & QP_MASK_STATE != 0)
            .then(|| QpStateCode::try_from(body.state).ok())
            .flatten();
        match goes_to {
            Some(QpStateCode::Err) => self.take_all_responses(nodes, id, qpn),
            Some(QpStateCode::Reset) => self.forget_grants(nodes, id, qpn),
            _ => {}
        }
        let (node, platform) = nodes.node_mut(id).ok_or(AdminStatus::Internal)?;
        node.change_qp(platform, body)?;
        self.revoke_grants(nodes, id, Writers::Await);
        let (node, _) = nodes.node_mut(id).ok_or(AdminStatus::Internal)?;
        let state = node.qps.get(qpn).map(|qp| qp.state);
        if matches!(
            state,
            Some(QpStateCode::Rts | QpStateCode::Sqd | QpStateCode::Err)
        ) {
            node.schedule(qpn);
        }
        if matches!(
            state,
            Some(QpStateCode::Rts | QpStateCode::Rtr | QpStateCode::Err | QpStateCode::Reset)
        ) {
            self.wake(nodes, id, qpn);
        }
        Ok(())
    }
}

impl<S: Storage> Node<S> {
    /// Reads state and indices of a queue pair, and what it has counted so far: see [`Node::count_bypassed_of`].
    pub fn query_qp(&self, qpn: u32) -> Result<QpState, AdminStatus> {
        let qp = self.qps.get(qpn).ok_or(AdminStatus::NoSuchObject)?;
        Ok(QpState {
            state: qp.state.to_wire(),
            sq_index: U32::new(qp.send.index),
            rq_index: U32::new(qp.recv.queue.as_ref().map_or(0, |queue| queue.index)),
            traffic: qp.traffic.to_wire(),
            ..QpState::default()
        })
    }

    /// Changes a queue pair's attributes and state; what follows from the new state is the engine's to do.
    pub(crate) fn change_qp(
        &mut self,
        platform: &impl Platform,
        body: &ModifyQp,
    ) -> Result<(), AdminStatus> {
        let (qpn, mask) = (body.qpn.get(), body.mask.get());
        let most = self.limits().max_rd_atomic;
        let state = requested_state(body, most)?;
        let qp = self.qps.get_mut(qpn).ok_or(AdminStatus::NoSuchObject)?;
        qp.check_change(mask, state)?;
        if mask & QP_MASK_REMOTE != 0 {
            qp.remote = Some(Remote {
                node: body.remote_node.get(),
                qpn: body.remote_qpn.get(),
                epoch: body.remote_epoch.get(),
                psn: body.rq_psn.get(),
            });
        }
        if mask & QP_MASK_SQ_PSN != 0 {
            qp.psn = body.sq_psn.get();
        }
        if mask & QP_MASK_ACCESS != 0 {
            qp.access = body.access.get();
        }
        if mask & QP_MASK_RNR != 0 {
            qp.rnr_timeout_us = body.rnr_timeout_us.get();
        }
        if mask & QP_MASK_RNR_RETRY != 0 {
            qp.rnr_retry = Some(body.rnr_retry);
            qp.min_rnr_timer = body.min_rnr_timer;
        }
        if mask & QP_MASK_QKEY != 0 {
            qp.qkey = body.qkey.get();
        }
        if mask & QP_MASK_RD_ATOMIC != 0 {
            qp.max_rd_atomic = body.max_rd_atomic;
            qp.max_dest_rd_atomic = body.max_dest_rd_atomic;
        }
        if mask & QP_MASK_PROCESS_RINGS != 0 {
            qp.has_rings = true;
            let (queues, srqn) = ([qp.send.cqn, qp.recv.cqn], qp.recv.srqn);
            if let Some(queue) = &mut qp.recv.queue {
                queue.set_bypassed();
            }
            if let Some(srq) = srqn.and_then(|srqn| self.srqs.get_mut(srqn)) {
                srq.queue.share_with_owner(platform);
            }
            for cqn in queues {
                if let Some(queue) = self.cqs.get_mut(cqn) {
                    queue.has_rings = true;
                }
            }
        }
        if mask & QP_MASK_RING != 0 {
            self.set_ring(platform, qpn, RingAt::new(body.ring.get()));
        }
        if mask & QP_MASK_PEER_RING != 0 {
            self.set_peer_ring(platform, qpn, RingAt::new(body.ring.get()));
        }
        if let Some(state) = state {
            self.enter(platform, qpn, state);
        }
        Ok(())
    }

    fn enter(&mut self, platform: &impl Platform, qpn: u32, state: QpStateCode) {
        self.unpark(qpn);
        if state == QpStateCode::Reset {
            self.end_kept(platform, qpn);
            self.set_ring(platform, qpn, None);
            self.set_peer_ring(platform, qpn, None);
        }
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        let before = core::mem::replace(&mut qp.state, state);
        // What its owner changes meanwhile is to be sent.
        qp.send.done = 0;
        match state {
            QpStateCode::Reset => {
                qp.clear();
                for slot in qp.slots() {
                    clear(platform, qp.page, slot);
                }
            }
            // Every request is done when it has been fetched, unless another host has it.
            QpStateCode::Sqd if before == QpStateCode::Rts && qp.send.inflight.count == 0 => {
                self.report(platform, EventType::SqDrained, 0, qpn);
            }
            QpStateCode::Err if before != QpStateCode::Err => self.report_last_wqe(platform, qpn),
            _ => {}
        }
    }
}

/// Whether a queue pair may be given the process ring at this address, if it is to be given one. To forget it, it need not have rings.
fn is_ring_valid(mask: u32, ring: u64) -> bool {
    let has_rings = mask & QP_MASK_PROCESS_RINGS != 0;
    match mask & (QP_MASK_RING | QP_MASK_PEER_RING) {
        0 => true,
        QP_MASK_RING | QP_MASK_PEER_RING => ring == 0 || has_rings && RingAt::new(ring).is_some(),
        _ => false,
    }
}

/// Checks a modification by itself; returns the new state, if there is to be one.
fn requested_state(body: &ModifyQp, max_rd_atomic: u8) -> Result<Option<QpStateCode>, AdminStatus> {
    let mask = body.mask.get();
    let rd_atomic = body.max_rd_atomic.max(body.max_dest_rd_atomic);
    let valid = mask & !MASK == 0
        && body.reserved == 0
        && body.reserved1 == [0; 4]
        && body.access.get() & !ACCESS_ALL == 0
        && rd_atomic <= max_rd_atomic
        && body.rnr_retry <= RNR_RETRY_FOREVER
        && body.min_rnr_timer <= MAX_RNR_TIMER;
    if !valid || !is_ring_valid(mask, body.ring.get()) {
        return Err(AdminStatus::InvalidField);
    }
    if mask & QP_MASK_STATE == 0 {
        return Ok(None);
    }
    let state = QpStateCode::try_from(body.state);
    state.map(Some).map_err(|_| AdminStatus::InvalidField)
}

impl<P> QueuePair<P> {
    /// Checks a modification against kind and state.
    fn check_change(&self, mask: u32, state: Option<QpStateCode>) -> Result<(), AdminStatus> {
        let connects = mask & QP_MASK_REMOTE != 0;
        let keyed = mask & QP_MASK_QKEY != 0;
        let connected_only = QP_MASK_REMOTE
            | QP_MASK_SQ_PSN
            | QP_MASK_RNR_RETRY
            | QP_MASK_PROCESS_RINGS
            | QP_MASK_RING
            | QP_MASK_PEER_RING;
        if (mask & connected_only != 0 && self.kind != QpType::Rc)
            || (keyed && self.kind != QpType::Ud)
        {
            return Err(AdminStatus::InvalidField);
        }
        if connects && !matches!(self.state, QpStateCode::Reset | QpStateCode::Init) {
            return Err(AdminStatus::InvalidState);
        }
        let Some(state) = state else { return Ok(()) };
        let needs_peer = state == QpStateCode::Rtr && self.kind == QpType::Rc;
        let connected = connects || self.remote.is_some();
        if !self.may_go_to(state) || (needs_peer && !connected) {
            return Err(AdminStatus::InvalidState);
        }
        Ok(())
    }
}
