// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queues of a test guest, made by admin commands.

use nupa_engine::rings::{
    CompletionRing, Data, EventRing, Operation, RecvRing, SendRequest, SendRing,
};
use nupa_proto::admin::{
    AdminOpcode, CreateCq, CreateEq, CreateMr, CreateQp, CreateSrq, ModifyQp, PageList,
    QpStateCode, QpType, SetRss, SetRxFilter, ACCESS_ALL, ACCESS_LOCAL_WRITE, QP_FLAG_PRIVILEGED,
    QP_FLAG_SRQ, QP_MASK_ACCESS, QP_MASK_REMOTE, QP_MASK_RNR, QP_MASK_RNR_RETRY, QP_MASK_STATE,
};
use nupa_proto::cqe::{Cqe, CQE_SIZE};
use nupa_proto::doorbell::SLOT_NONE;
use nupa_proto::eqe::EQE_SIZE;
use nupa_proto::frame::FrameMeta;
use nupa_proto::ident::{node_mac, DMA_LKEY};
use nupa_proto::status::AdminStatus;
use nupa_proto::wqe::{Sge, BLOCK_SIZE, WQE_SIGNALED};
use zerocopy::IntoBytes;

use super::guest::{direct, iova, Bars, Guest};
use super::rings::{RingMemory, SlotDoorbell};
use super::World;

pub type Sends<W = World> = SendRing<RingMemory, SlotDoorbell<W>>;
pub type Recvs<W = World> = RecvRing<RingMemory, SlotDoorbell<W>>;
pub type Completions<W = World> = CompletionRing<RingMemory, SlotDoorbell<W>>;
pub type Events<W = World> = EventRing<RingMemory, SlotDoorbell<W>>;

/// log2 of the bytes of a receive entry.
pub const LOG_STRIDE: u8 = 6;

/// log2 of the blocks of a send queue, and of the entries of a receive queue.
const LOG_SQ: u8 = 6;
const LOG_RQ: u8 = 5;
/// How long a connected peer waits before it sends again for want of receive buffers: 10.24 ms.
const RNR_TIMER: u8 = 20;

/// An event queue.
pub struct Eq<W: Bars = World> {
    pub eqn: u32,
    pub ring: Events<W>,
}

/// A completion queue.
pub struct Cq<W: Bars = World> {
    pub cqn: u32,
    pub ring: Completions<W>,
}

/// A queue pair with a completion queue of its own.
pub struct Qp<W: Bars = World> {
    pub qpn: u32,
    pub send: Sends<W>,
    pub recv: Recvs<W>,
    pub cq: Cq<W>,
    /// Where its rings lie in memory.
    pub sq_base: usize,
    pub rq_base: usize,
    /// The receive ring is that of a shared receive queue.
    shared: bool,
    /// Doorbell slots of both queues.
    slots: [(u32, u16); 2],
}

impl<W: Bars> Guest<W> {
    fn ring(&self, base: usize) -> RingMemory {
        RingMemory {
            ram: self.ram.clone(),
            base,
        }
    }

    pub fn create_eq(&self, log_entries: u8, vector: u16) -> Result<Eq<W>, AdminStatus> {
        let base = self.alloc(EQE_SIZE << log_entries);
        let (page, slot) = self.slot();
        let command = CreateEq {
            ring: direct(base),
            doorbell_page: page.into(),
            doorbell_slot: slot.into(),
            vector: vector.into(),
            log_entries,
            ..CreateEq::default()
        };
        let eqn = self.create(AdminOpcode::CreateEq, &command)?;
        let doorbell = SlotDoorbell::new(self, (page, slot));
        let ring = EventRing::new(self.ring(base), doorbell, log_entries);
        Ok(Eq { eqn, ring })
    }

    pub fn eq(&self, vector: u16) -> Eq<W> {
        self.create_eq(6, vector).unwrap()
    }

    pub fn create_cq(&self, log_entries: u8, eqn: u32) -> Result<Cq<W>, AdminStatus> {
        let base = self.alloc(CQE_SIZE << log_entries);
        let (page, slot) = self.slot();
        let command = CreateCq {
            ring: direct(base),
            doorbell_page: page.into(),
            doorbell_slot: slot.into(),
            log_entries,
            eqn: eqn.into(),
            ..CreateCq::default()
        };
        let cqn = self.create(AdminOpcode::CreateCq, &command)?;
        let doorbell = SlotDoorbell::new(self, (page, slot));
        let ring = CompletionRing::new(self.ring(base), doorbell, log_entries);
        Ok(Cq { cqn, ring })
    }

    pub fn cq(&self, eqn: u32) -> Cq<W> {
        self.create_cq(6, eqn).unwrap()
    }

    /// Creates a queue pair with rings of 64 blocks and 32 entries.
    pub fn create_qp(&self, qp_type: QpType, pd: u32, cq: Cq<W>) -> Result<Qp<W>, AdminStatus> {
        let sq = self.alloc(BLOCK_SIZE << LOG_SQ);
        let rq = self.alloc(1 << (LOG_RQ + LOG_STRIDE));
        // Both slots lie in one page: all queues of a test fit the first.
        let (sq_slot, rq_slot) = (self.slot(), self.slot());
        assert_eq!(sq_slot.0, rq_slot.0);
        let parameters = CreateQp {
            sq: direct(sq),
            rq: direct(rq),
            qp_type: qp_type.to_wire(),
            flags: QP_FLAG_PRIVILEGED,
            log_sq: LOG_SQ,
            log_rq: LOG_RQ,
            log_rq_stride: LOG_STRIDE,
            pd: pd.into(),
            send_cqn: cq.cqn.into(),
            recv_cqn: cq.cqn.into(),
            doorbell_page: sq_slot.0.into(),
            sq_slot: sq_slot.1.into(),
            rq_slot: rq_slot.1.into(),
            ..CreateQp::default()
        };
        self.finish_qp(parameters, cq, [sq_slot, rq_slot])
    }

    /// As [`Guest::create_qp`], connected, with the receive ring in a shared receive queue of its own; its number.
    pub fn create_qp_on_srq(&self, pd: u32, cq: Cq<W>) -> Result<(Qp<W>, u32), AdminStatus> {
        let (sq, rq) = (
            self.alloc(BLOCK_SIZE << LOG_SQ),
            self.alloc(1 << (LOG_RQ + LOG_STRIDE)),
        );
        let (sq_slot, rq_slot) = (self.slot(), self.slot());
        let srq = CreateSrq {
            ring: direct(rq),
            pd: pd.into(),
            doorbell_page: rq_slot.0.into(),
            doorbell_slot: rq_slot.1.into(),
            log_entries: LOG_RQ,
            log_stride: LOG_STRIDE,
            flags: QP_FLAG_PRIVILEGED,
            ..CreateSrq::default()
        };
        let srqn = self.create(AdminOpcode::CreateSrq, &srq)?;
        let parameters = CreateQp {
            sq: direct(sq),
            flags: QP_FLAG_PRIVILEGED | QP_FLAG_SRQ,
            log_sq: LOG_SQ,
            pd: pd.into(),
            send_cqn: cq.cqn.into(),
            recv_cqn: cq.cqn.into(),
            doorbell_page: sq_slot.0.into(),
            sq_slot: sq_slot.1.into(),
            rq_slot: SLOT_NONE.into(),
            srqn: srqn.into(),
            ..CreateQp::default()
        };
        let mut qp = self.finish_qp(parameters, cq, [sq_slot, rq_slot])?;
        qp.rq_base = rq;
        qp.recv = self.recv_ring(&qp);
        Ok((qp, srqn))
    }

    /// Creates a queue pair, and its rings as its owner sees them.
    fn finish_qp(
        &self,
        parameters: CreateQp,
        cq: Cq<W>,
        slots: [(u32, u16); 2],
    ) -> Result<Qp<W>, AdminStatus> {
        let offset = |list: PageList| list.addr.get().saturating_sub(iova(0)) as usize;
        let (sq, rq) = (offset(parameters.sq), offset(parameters.rq));
        let [sq_slot, rq_slot] = slots;
        let buffer = self.buffer(parameters.as_bytes());
        let qpn = self.create(AdminOpcode::CreateQp, &buffer)?;
        let (sq_bell, rq_bell) = (
            SlotDoorbell::new(self, sq_slot),
            SlotDoorbell::new(self, rq_slot),
        );
        Ok(Qp {
            qpn,
            send: SendRing::new(self.ring(sq), sq_bell, LOG_SQ),
            recv: RecvRing::new(self.ring(rq), rq_bell, LOG_RQ, LOG_STRIDE),
            cq,
            sq_base: sq,
            rq_base: rq,
            shared: parameters.flags & QP_FLAG_SRQ != 0,
            slots,
        })
    }

    /// Starts the rings of a queue pair over, after it was reset.
    pub fn renew(&self, qp: &mut Qp<W>) {
        let bell = SlotDoorbell::new(self, qp.slots[0]);
        qp.send = SendRing::new(self.ring(qp.sq_base), bell, LOG_SQ);
        // A shared receive queue goes on where it was.
        if !qp.shared {
            qp.recv = self.recv_ring(qp);
        }
    }

    fn recv_ring(&self, qp: &Qp<W>) -> Recvs<W> {
        let bell = SlotDoorbell::new(self, qp.slots[1]);
        RecvRing::new(self.ring(qp.rq_base), bell, LOG_RQ, LOG_STRIDE)
    }

    pub fn modify(&self, command: &ModifyQp) -> Result<(), AdminStatus> {
        self.command::<_, [u8; 0]>(AdminOpcode::ModifyQp, command)
            .map(|_| ())
    }

    /// Takes a queue pair to a state.
    pub fn set_state(&self, qpn: u32, state: QpStateCode) -> Result<(), AdminStatus> {
        self.modify(&ModifyQp {
            qpn: qpn.into(),
            mask: QP_MASK_STATE.into(),
            state: state.to_wire(),
            ..ModifyQp::default()
        })
    }

    /// A raw queue pair that is ready, gives up after 20 ms without buffers, and takes all frames of this node.
    pub fn raw(&self, eqn: u32) -> Qp<W> {
        let qp = self.raw_quiet(eqn);
        self.spread(&[qp.qpn]).unwrap();
        self.filter(&[node_mac(self.node)], nupa_proto::admin::RX_BROADCAST)
            .unwrap();
        qp
    }

    /// A raw queue pair that is ready but gets no frames yet.
    pub fn raw_quiet(&self, eqn: u32) -> Qp<W> {
        let pd = self.pd();
        let cq = self.cq(eqn);
        let qp = self.create_qp(QpType::Raw, pd, cq).unwrap();
        self.set_state(qp.qpn, QpStateCode::Init).unwrap();
        self.modify(&ModifyQp {
            qpn: qp.qpn.into(),
            mask: (QP_MASK_STATE | QP_MASK_RNR).into(),
            state: QpStateCode::Rtr.to_wire(),
            rnr_timeout_us: 20_000.into(),
            ..ModifyQp::default()
        })
        .unwrap();
        self.set_state(qp.qpn, QpStateCode::Rts).unwrap();
        qp
    }

    /// Sets the spreading table.
    pub fn spread(&self, table: &[u32]) -> Result<(), AdminStatus> {
        let command = SetRss {
            table: self.put(table.as_bytes()).into(),
            count: (table.len() as u32).into(),
            ..SetRss::default()
        };
        let set: Result<[u8; 0], _> = self.command(AdminOpcode::SetRss, &command);
        set.map(|_| ())
    }

    /// Sets the receive filter.
    pub fn filter(&self, addresses: &[[u8; 6]], flags: u32) -> Result<(), AdminStatus> {
        let command = SetRxFilter {
            addresses: self.put(addresses.as_bytes()).into(),
            count: (addresses.len() as u32).into(),
            flags: flags.into(),
        };
        let set: Result<[u8; 0], _> = self.command(AdminOpcode::SetRxFilter, &command);
        set.map(|_| ())
    }

    /// A connected queue pair in its initial state.
    pub fn rc(&self, pd: u32, eqn: u32) -> Qp<W> {
        let cq = self.cq(eqn);
        let qp = self.create_qp(QpType::Rc, pd, cq).unwrap();
        self.set_state(qp.qpn, QpStateCode::Init).unwrap();
        qp
    }

    /// Connects a queue pair to a peer and makes it ready.
    pub fn connect_to(
        &self,
        qp: &Qp<W>,
        peer: &Guest<W>,
        peer_qpn: u32,
        epoch: u32,
    ) -> Result<(), AdminStatus> {
        self.modify(&ModifyQp {
            qpn: qp.qpn.into(),
            mask: (QP_MASK_STATE | QP_MASK_REMOTE | QP_MASK_ACCESS | QP_MASK_RNR_RETRY).into(),
            state: QpStateCode::Rtr.to_wire(),
            remote_node: peer.node.into(),
            remote_qpn: peer_qpn.into(),
            remote_epoch: epoch.into(),
            access: ACCESS_ALL.into(),
            rnr_retry: 1,
            min_rnr_timer: RNR_TIMER,
            ..ModifyQp::default()
        })?;
        self.set_state(qp.qpn, QpStateCode::Rts)
    }

    /// Registers contiguous memory; addresses are DMA addresses. Returns the key.
    pub fn register(&self, pd: u32, addr: u64, len: u64, access: u32) -> Result<u32, AdminStatus> {
        let command = CreateMr {
            pages: PageList {
                addr: addr.into(),
                ..PageList::default()
            },
            iova: addr.into(),
            len: len.into(),
            pd: pd.into(),
            access: (access | ACCESS_LOCAL_WRITE).into(),
        };
        self.create(AdminOpcode::CreateMr, &command)
    }

    /// Posts a receive buffer of fresh memory; its address.
    pub fn post_buffer(&self, qp: &mut Qp<W>, len: u32) -> u64 {
        let addr = iova(self.alloc(len as usize));
        let sge = sge(addr, len, DMA_LKEY);
        qp.recv.post(addr, &[sge]).unwrap();
        qp.recv.ring();
        addr
    }

    /// Posts a frame.
    pub fn send_frame(&self, qp: &mut Qp<W>, to: u16, bytes: &[u8], meta: FrameMeta) -> u32 {
        let sge = sge(self.put(bytes), bytes.len() as u32, DMA_LKEY);
        let index = qp.send.post(&SendRequest {
            wr_id: 0xf00d,
            flags: WQE_SIGNALED,
            operation: Operation::Frame { node: to, meta },
            data: Data::Sges(&[sge]),
        });
        qp.send.ring();
        index.unwrap()
    }
}

impl<W: Bars> Qp<W> {
    /// Polls for a completion that must be there.
    pub fn poll(&mut self) -> Cqe {
        self.cq.ring.poll().expect("a completion")
    }

    /// Checks that no completion is there.
    pub fn assert_idle(&mut self) {
        let cqe = self.cq.ring.poll();
        assert!(cqe.is_none(), "unexpected completion {cqe:?}");
    }
}

/// A scatter/gather entry.
pub fn sge(addr: u64, len: u32, lkey: u32) -> Sge {
    Sge {
        addr: addr.into(),
        len: len.into(),
        lkey: lkey.into(),
    }
}

/// A frame with a header and a payload that depends on `seed`.
pub fn frame(to: [u8; 6], from: [u8; 6], len: usize, seed: u8) -> Vec<u8> {
    let mut bytes = [to, from].concat();
    bytes.extend([0x08, 0x00]);
    bytes.extend((bytes.len()..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)));
    bytes
}
