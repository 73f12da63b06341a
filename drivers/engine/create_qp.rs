// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Creation and destruction of queue pairs, and what of their state concerns one node only.

use crate::{
    hal::Platform,
    list::Links,
    node::Node,
    qp::{QueuePair, RecvSide, Remote, SendSide, Wait},
    ring::Ring,
    slots::{clear, Owner},
    storage::Storage,
};
use nupa_proto::{
    admin::{
        CreateQp, ModifyQp, QpState, QpStateCode, QpType, ACCESS_ALL, QP_FLAG_PRIVILEGED,
        QP_FLAG_SIGNAL_ALL, QP_MASK_ACCESS, QP_MASK_QKEY, QP_MASK_REMOTE, QP_MASK_RNR,
        QP_MASK_STATE, RNR_FOREVER,
    },
    doorbell::SLOT_NONE,
    status::AdminStatus,
    wqe::{BLOCK_SIZE, MAX_RECV_STRIDE, MIN_RECV_STRIDE},
};
use zerocopy::little_endian::U32;

/// All flags of a queue pair.
const FLAGS: u8 = QP_FLAG_PRIVILEGED | QP_FLAG_SIGNAL_ALL;
/// All bits of a modification's mask. UD, and with it the queue key, is not offered.
const MASK: u32 = QP_MASK_STATE | QP_MASK_REMOTE | QP_MASK_ACCESS | QP_MASK_RNR;

impl<S: Storage> Node<S> {
    /// Creates a queue pair in the reset state. A side whose doorbell slot is `SLOT_NONE` does not exist.
    pub fn create_qp(
        &mut self,
        platform: &impl Platform,
        body: &CreateQp,
    ) -> Result<u32, AdminStatus> {
        let kind = QpType::try_from(body.qp_type).map_err(|_| AdminStatus::InvalidField)?;
        if kind == QpType::Ud {
            return Err(AdminStatus::Unsupported);
        }
        if body.flags & !FLAGS != 0 || body.reserved != [0; 3] || body.srqn.get() != 0 {
            return Err(AdminStatus::InvalidField);
        }
        let (pd, page) = (body.pd.get(), body.doorbell_page.get());
        self.domains.get(pd).ok_or(AdminStatus::NoSuchObject)?;
        let pair = QueuePair {
            kind,
            state: QpStateCode::Reset,
            flags: body.flags,
            pd,
            send: self.send_side(platform, body)?,
            recv: self.recv_side(platform, body)?,
            page,
            remote: None,
            access: 0,
            rnr_timeout_us: RNR_FOREVER,
            windows: 0,
            links: Links::default(),
        };
        if pair.send.slot == pair.recv.slot {
            return Err(AdminStatus::InvalidField);
        }
        self.add_pair(platform, pair)
    }

    fn send_side(
        &self,
        platform: &impl Platform,
        body: &CreateQp,
    ) -> Result<SendSide<S::Pages>, AdminStatus> {
        let (cqn, slot) = (body.send_cqn.get(), body.sq_slot.get());
        let log_size = BLOCK_SIZE.trailing_zeros() as u8;
        let ring = match slot {
            SLOT_NONE => None,
            _ => {
                self.completions.get(cqn).ok_or(AdminStatus::NoSuchObject)?;
                self.slots.check(platform, body.doorbell_page.get(), slot)?;
                Some(self.make_ring(platform, &body.sq, body.log_sq, log_size)?)
            }
        };
        Ok(SendSide {
            ring,
            cqn,
            slot,
            index: 0,
            posted: 0,
            wait: Wait::No,
            rnr_deadline: None,
        })
    }

    fn recv_side(
        &self,
        platform: &impl Platform,
        body: &CreateQp,
    ) -> Result<RecvSide<S::Pages>, AdminStatus> {
        let (cqn, slot) = (body.recv_cqn.get(), body.rq_slot.get());
        let ring = match slot {
            SLOT_NONE => None,
            _ => {
                self.completions.get(cqn).ok_or(AdminStatus::NoSuchObject)?;
                self.slots.check(platform, body.doorbell_page.get(), slot)?;
                Some(self.recv_ring(platform, body)?)
            }
        };
        Ok(RecvSide {
            ring,
            cqn,
            slot,
            index: 0,
            posted: 0,
            wanted: false,
            stalled: false,
        })
    }

    fn recv_ring(
        &self,
        platform: &impl Platform,
        body: &CreateQp,
    ) -> Result<Ring<S::Pages>, AdminStatus> {
        let log_stride = body.log_rq_stride;
        let stride = 1usize.checked_shl(u32::from(log_stride)).unwrap_or(0);
        if !(MIN_RECV_STRIDE..=MAX_RECV_STRIDE).contains(&stride) {
            return Err(AdminStatus::InvalidField);
        }
        self.make_ring(platform, &body.rq, body.log_rq, log_stride)
    }

    fn add_pair(
        &mut self,
        platform: &impl Platform,
        pair: QueuePair<S::Pages>,
    ) -> Result<u32, AdminStatus> {
        let (page, send, recv, pd) = (pair.page, pair.send.slot, pair.recv.slot, pair.pd);
        let cqns = [
            pair.send.ring.is_some().then_some(pair.send.cqn),
            pair.recv.ring.is_some().then_some(pair.recv.cqn),
        ];
        let qpn = self
            .pairs
            .insert(|_| pair)
            .map_err(|_| AdminStatus::NoResources)?;
        let claimed = [(send, Owner::Send(qpn)), (recv, Owner::Recv(qpn))]
            .into_iter()
            .filter(|(slot, _)| *slot != SLOT_NONE)
            .try_for_each(|(slot, owner)| self.slots.claim(platform, page, slot, owner));
        if let Err(status) = claimed {
            self.slots.release(page, send);
            self.slots.release(page, recv);
            self.pairs.remove(qpn);
            return Err(status);
        }
        for cqn in cqns.into_iter().flatten() {
            self.count_user(cqn, 1);
        }
        self.use_domain(pd);
        Ok(qpn)
    }

    fn count_user(&mut self, cqn: u32, change: i32) {
        if let Some(queue) = self.completions.get_mut(cqn) {
            queue.users = queue.users.saturating_add_signed(change);
        }
    }

    /// Destroys a queue pair; what is in its queues completes no more.
    pub(crate) fn remove_qp(&mut self, qpn: u32) -> Result<(), AdminStatus> {
        if self.pairs.get(qpn).is_none() {
            return Err(AdminStatus::NoSuchObject);
        }
        if self.spread.contains(qpn) {
            return Err(AdminStatus::Busy);
        }
        self.unpark(qpn);
        self.unbind_windows(qpn);
        let Some(pair) = self.pairs.remove(qpn) else {
            return Ok(());
        };
        for slot in pair.slots() {
            self.slots.release(pair.page, slot);
        }
        if pair.send.ring.is_some() {
            self.count_user(pair.send.cqn, -1);
        }
        if pair.recv.ring.is_some() {
            self.count_user(pair.recv.cqn, -1);
        }
        self.release_domain(pair.pd);
        Ok(())
    }

    /// Reads state and indices of a queue pair.
    pub fn query_qp(&self, qpn: u32) -> Result<QpState, AdminStatus> {
        let pair = self.pairs.get(qpn).ok_or(AdminStatus::NoSuchObject)?;
        Ok(QpState {
            state: pair.state.to_wire(),
            sq_index: U32::new(pair.send.index),
            rq_index: U32::new(pair.recv.index),
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
        let state = requested_state(body)?;
        let pair = self.pairs.get_mut(qpn).ok_or(AdminStatus::NoSuchObject)?;
        pair.check_change(mask, state)?;
        if mask & QP_MASK_REMOTE != 0 {
            pair.remote = Some(Remote {
                node: body.remote_node.get(),
                qpn: body.remote_qpn.get(),
                epoch: body.remote_epoch.get(),
            });
        }
        if mask & QP_MASK_ACCESS != 0 {
            pair.access = body.access.get();
        }
        if mask & QP_MASK_RNR != 0 {
            pair.rnr_timeout_us = body.rnr_timeout_us.get();
        }
        if let Some(state) = state {
            self.enter(platform, qpn, state);
        }
        Ok(())
    }

    fn enter(&mut self, platform: &impl Platform, qpn: u32, state: QpStateCode) {
        self.unpark(qpn);
        let Some(pair) = self.pairs.get_mut(qpn) else {
            return;
        };
        pair.state = state;
        if state == QpStateCode::Reset {
            pair.clear();
            for slot in pair.slots() {
                clear(platform, pair.page, slot);
            }
        }
    }
}

/// Checks a modification by itself; returns the new state, if there is to be one.
fn requested_state(body: &ModifyQp) -> Result<Option<QpStateCode>, AdminStatus> {
    let mask = body.mask.get();
    if mask & QP_MASK_QKEY != 0 {
        return Err(AdminStatus::Unsupported);
    }
    if mask & !MASK != 0 || body.reserved != 0 || body.access.get() & !ACCESS_ALL != 0 {
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
        if connects && self.kind != QpType::Rc {
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
