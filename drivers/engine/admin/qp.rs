// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Creation and destruction of queue pairs.

use crate::{
    hal::{NoMemory, Platform, Storage, Table},
    node::{Node, RemoteWaiters},
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        bypassed::PeerRing,
        deferred::DeferredEvents,
        grant::Writers,
        inflight::Inflight,
        kept::KeptWqe,
        latency::Sampler,
        list::Links,
        process_ring::ProcessRing,
        qp::{CreditsTold, QueuePair, RecvSide, SendSide, Wait},
        rq::RecvQueue,
        seats::Seats,
        slice::Slice,
        slots::Owner,
        stall::Stall,
        timer::Timer,
        traffic::Traffic,
    },
};
use nupa_proto::{
    admin::{
        CreateQp, QpStateCode, QpType, QP_FLAG_GSI, QP_FLAG_PRIVILEGED, QP_FLAG_SIGNAL_ALL,
        QP_FLAG_SRQ, RNR_FOREVER,
    },
    doorbell::SLOT_NONE,
    ident::{GSI_QKEY, GSI_QPN},
    status::AdminStatus,
};

/// All flags of a queue pair.
const FLAGS: u8 = QP_FLAG_PRIVILEGED | QP_FLAG_SIGNAL_ALL | QP_FLAG_GSI | QP_FLAG_SRQ;

impl Engine {
    /// Destroys a queue pair; what is in its queues completes no more, but for what it keeps of a shared receive queue.
    pub fn destroy_qp<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        qpn: u32,
    ) -> Result<(), AdminStatus> {
        self.forget_grants(nodes, id, qpn);
        let (node, platform) = nodes.node_mut(id).ok_or(AdminStatus::Internal)?;
        let waiter = node.qps.get_mut(qpn).and_then(|qp| qp.recv.waiter.take());
        let raw = node.qps.get(qpn).is_some_and(|qp| qp.kind == QpType::Raw);
        node.remove_qp(platform, qpn)?;
        self.revoke_grants(nodes, id, Writers::Await);
        if let Some(waiter) = waiter {
            self.wake_waiter(nodes, id, qpn, waiter);
        }
        if raw {
            self.wake_frames(nodes, id, Some(qpn));
        }
        Ok(())
    }
}

impl<S: Storage> Node<S> {
    /// Creates a queue pair in the reset state. A side whose doorbell slot is `SLOT_NONE` does not exist. By itself because of the space that it
    /// takes on the stack.
    #[inline(never)]
    pub fn create_qp(
        &mut self,
        platform: &impl Platform,
        body: &CreateQp,
    ) -> Result<u32, AdminStatus> {
        // It is large: it goes from here to its place, and is not on the stack as well on its way.
        let mut place = S::Table::default();
        let grown = place.grow(1);
        grown.map_err(|NoMemory| AdminStatus::NoResources)?;
        let made = place.slots_mut().first_mut().ok_or(AdminStatus::Internal)?;
        self.make_qp(platform, body, made)?;
        self.add_qp(platform, body, made)
    }

    /// A queue pair that is in no table yet. As above.
    #[inline(never)]
    fn make_qp(
        &mut self,
        platform: &impl Platform,
        body: &CreateQp,
        made: &mut Option<QueuePair<S::Pages>>,
    ) -> Result<(), AdminStatus> {
        let kind = QpType::try_from(body.qp_type).map_err(|_| AdminStatus::InvalidField)?;
        check_flags(kind, body)?;
        let (pd, page) = (body.pd.get(), body.doorbell_page.get());
        self.pds.get(pd).ok_or(AdminStatus::NoSuchObject)?;
        let gsi = body.flags & QP_FLAG_GSI != 0;
        let rd_atomic = self.limits().max_rd_atomic;
        *made = Some(QueuePair {
            kind,
            state: QpStateCode::Reset,
            flags: body.flags,
            pd,
            send: self.send_side(platform, body)?,
            recv: self.recv_side(platform, body)?,
            page,
            remote: None,
            psn: 0,
            established: false,
            has_rings: false,
            access: 0,
            qkey: if gsi { GSI_QKEY } else { 0 },
            rnr_timeout_us: RNR_FOREVER,
            rnr_retry: None,
            min_rnr_timer: 0,
            max_rd_atomic: rd_atomic,
            max_dest_rd_atomic: rd_atomic,
            windows: 0,
            links: Links::default(),
            timer: Timer::default(),
            timer_links: Links::default(),
            poll_links: Links::default(),
            idle_polls: 0,
            deferred: DeferredEvents::default(),
            traffic: Traffic::default(),
        });
        Ok(())
    }

    fn send_side(
        &mut self,
        platform: &impl Platform,
        body: &CreateQp,
    ) -> Result<SendSide<S::Pages>, AdminStatus> {
        let (cqn, slot) = (body.send_cqn.get(), body.sq_slot.get());
        let ring = match slot {
            SLOT_NONE => None,
            _ => {
                self.cqs.get(cqn).ok_or(AdminStatus::NoSuchObject)?;
                self.slots.check(platform, body.doorbell_page.get(), slot)?;
                let size = self.limits().send_ring(body.log_sq);
                Some(self.make_ring(platform, &body.sq, size)?)
            }
        };
        Ok(SendSide {
            ring,
            cqn,
            slot,
            index: 0,
            posted: 0,
            wait: Wait::No,
            inflight: Inflight::new(platform.random()),
            done: 0,
            rnr_deadline: None,
            peer_deadline: None,
            ring_need: 0,
            rest: Slice::NONE,
            // Frames are not measured.
            sampler: if body.qp_type == QpType::Raw.to_wire() {
                Sampler::OFF
            } else {
                Sampler::NEW
            },
            peer_ring: PeerRing::default(),
        })
    }

    fn recv_side(
        &mut self,
        platform: &impl Platform,
        body: &CreateQp,
    ) -> Result<RecvSide<S::Pages>, AdminStatus> {
        let (cqn, slot) = (body.recv_cqn.get(), body.rq_slot.get());
        let srqn = (body.flags & QP_FLAG_SRQ != 0).then_some(body.srqn.get());
        let queue = match (srqn, slot) {
            (Some(srqn), _) => {
                self.srqs.get(srqn).ok_or(AdminStatus::NoSuchObject)?;
                None
            }
            (None, SLOT_NONE) => None,
            (None, _) => {
                let page = body.doorbell_page.get();
                self.slots.check(platform, page, slot)?;
                let size = self.limits().recv_ring(body.log_rq, body.log_rq_stride);
                let ring = self.make_ring(platform, &body.rq, size)?;
                Some(RecvQueue::new(ring, page, slot))
            }
        };
        if queue.is_some() || srqn.is_some() {
            self.cqs.get(cqn).ok_or(AdminStatus::NoSuchObject)?;
        }
        Ok(RecvSide {
            queue,
            srqn,
            cqn,
            stall: Stall::default(),
            kept: self.kept_wqe(srqn)?,
            seats: Seats::default(),
            ring: ProcessRing::default(),
            expected: None,
            taken: 0,
            credits: CreditsTold::default(),
            waiter: None,
            links: Links::default(),
        })
    }

    /// Room for what a queue pair keeps of a shared receive queue.
    fn kept_wqe(&self, srqn: Option<u32>) -> Result<Option<KeptWqe<S::Pages>>, AdminStatus> {
        let Some(srqn) = srqn else {
            return Ok(None);
        };
        let srq = self.srqs.get(srqn).ok_or(AdminStatus::NoSuchObject)?;
        let kept = KeptWqe::new::<S>(srq.queue.entry_size());
        kept.map(Some).map_err(|NoMemory| AdminStatus::NoResources)
    }

    /// Adds a queue pair to those that there are. As above.
    #[inline(never)]
    fn add_qp(
        &mut self,
        platform: &impl Platform,
        body: &CreateQp,
        made: &mut Option<QueuePair<S::Pages>>,
    ) -> Result<u32, AdminStatus> {
        let qp = made.as_ref().ok_or(AdminStatus::Internal)?;
        if body.sq_slot == body.rq_slot && !(qp.send.ring.is_none() && qp.has_recv()) {
            return Err(AdminStatus::InvalidField);
        }
        // There may be room for each of its rings and not for both.
        self.check_pages(qp.stored_pages())?;
        let (page, pd, gsi) = (qp.page, qp.pd, qp.flags & QP_FLAG_GSI != 0);
        let (send, recv) = (qp.send.slot, qp.recv.slot());
        let (cqns, srqn) = (qp.cqns(), qp.recv.srqn);
        let stored = qp.stored_pages();
        self.prepare_waits(page)?;
        let qpn = if gsi {
            if self.qps.get(GSI_QPN).is_some() {
                return Err(AdminStatus::Busy);
            }
            let added = self.qps.insert_reserved(GSI_QPN, made);
            added.map(|()| GSI_QPN)
        } else {
            self.qps.insert_from(made)
        };
        let qpn = qpn.map_err(|_| AdminStatus::NoResources)?;
        let claimed = [(send, Owner::Send(qpn)), (recv, Owner::Recv(qpn))]
            .into_iter()
            .filter(|(slot, _)| *slot != SLOT_NONE)
            .try_for_each(|(slot, owner)| self.slots.claim(platform, page, slot, owner));
        if let Err(status) = claimed {
            self.slots.release(page, send);
            self.slots.release(page, recv);
            self.drop_qp(qpn);
            return Err(status);
        }
        for cqn in cqns.into_iter().flatten() {
            self.count_user(cqn, 1);
        }
        self.count_srq_user(srqn, 1);
        self.use_pd(pd);
        self.count_pages(stored);
        Ok(qpn)
    }

    /// Drops one that was just added. As above.
    #[cold]
    #[inline(never)]
    fn drop_qp(&mut self, qpn: u32) {
        self.qps.remove(qpn);
    }

    /// Makes the lists that queue pairs may have to wait in.
    fn prepare_waits(&mut self, page: u32) -> Result<(), AdminStatus> {
        let count = usize::from(self.config.remote_nodes);
        if self.remote_waiters.slots().len() < count {
            let grown = self.remote_waiters.grow(count);
            grown.map_err(|NoMemory| AdminStatus::NoResources)?;
        }
        for slot in self.remote_waiters.slots_mut() {
            let waiters = slot.get_or_insert_with(RemoteWaiters::default);
            let prepared = waiters.prepare(page);
            prepared.map_err(|NoMemory| AdminStatus::NoResources)?;
        }
        let prepared = self.timers.prepare();
        let prepared = prepared.and_then(|()| self.ready.prepare(page));
        prepared.map_err(|NoMemory| AdminStatus::NoResources)
    }

    fn count_user(&mut self, cqn: u32, change: i32) {
        if let Some(queue) = self.cqs.get_mut(cqn) {
            queue.users = queue.users.saturating_add_signed(change);
        }
    }

    fn count_srq_user(&mut self, srqn: Option<u32>, change: i32) {
        if let Some(srq) = srqn.and_then(|srqn| self.srqs.get_mut(srqn)) {
            srq.users = srq.users.saturating_add_signed(change);
        }
    }

    /// Destroys a queue pair; what is in its queues completes no more, but for what it keeps of a shared receive queue.
    pub(crate) fn remove_qp(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
    ) -> Result<(), AdminStatus> {
        if self.qps.get(qpn).is_none() {
            return Err(AdminStatus::NoSuchObject);
        }
        if self.rss.contains(qpn) {
            return Err(AdminStatus::Busy);
        }
        self.unpark(qpn);
        self.end_kept(platform, qpn);
        self.forget_waiter(qpn);
        self.polled_qps.remove(&mut self.qps, qpn);
        self.set_ring(platform, qpn, None);
        self.set_peer_ring(platform, qpn, None);
        self.deferred_qps.remove(&mut self.qps, qpn);
        self.unbind_windows(qpn);
        self.groups.remove(|entry| entry.qpn == qpn);
        let Some(qp) = self.qps.remove(qpn) else {
            return Ok(());
        };
        for slot in qp.slots() {
            self.slots.release(qp.page, slot);
        }
        for cqn in qp.cqns().into_iter().flatten() {
            self.count_user(cqn, -1);
        }
        self.count_srq_user(qp.recv.srqn, -1);
        self.release_pd(qp.pd);
        let rings = [qp.send.ring, qp.recv.queue.map(RecvQueue::into_ring)];
        for ring in rings.into_iter().flatten() {
            self.retire_ring(ring);
        }
        Ok(())
    }
}

/// Whether kind, flags and reserved fields of a new queue pair go together.
fn check_flags(kind: QpType, body: &CreateQp) -> Result<(), AdminStatus> {
    let has = |flag| body.flags & flag != 0;
    let valid = body.flags & !FLAGS == 0
        && body.reserved == [0; 3]
        && (kind == QpType::Ud || !has(QP_FLAG_GSI))
        && (kind != QpType::Raw || !has(QP_FLAG_SRQ))
        && (has(QP_FLAG_SRQ) || body.srqn.get() == 0)
        && (body.rq_slot.get() == SLOT_NONE || !has(QP_FLAG_SRQ));
    if valid {
        Ok(())
    } else {
        Err(AdminStatus::InvalidField)
    }
}
