// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A node whose program uses the provider.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use guestmem::MmapRegion;
use nupa_proto::admin::{
    AdminOpcode, ById, CreateCq, CreateQp, CreateSrq, ModifyQp, QpState, QpStateCode, QpTraffic,
    QpType, ACCESS_ALL, QP_FLAG_SRQ, QP_MASK_ACCESS, QP_MASK_QKEY, QP_MASK_RD_ATOMIC,
    QP_MASK_REMOTE, QP_MASK_RNR_RETRY, QP_MASK_STATE,
};
use nupa_proto::cqe::CQE_SIZE;
use nupa_proto::doorbell::{
    kick_offset, PAGE_SIZE, PUSH_OFFSET, SLOTS, SLOT_DRIVER, SLOT_INDEX, SLOT_NONE, SLOT_SIZE,
};
use nupa_proto::regs::BAR_DOORBELL;
use nupa_proto::uabi::SLOT_LIVE;
use nupa_proto::wqe::BLOCK_SIZE;
use zerocopy::IntoBytes;

use super::common::guest::{direct, iova, Bars, Guest, FIRST_UNUSED};
use super::common::queues::Eq;
use super::common::{World, DOORBELL_PAGES};
use crate::ffi::testing::{sys, Cq, Qp, Srq};
use crate::ffi::{Called, Calls, DoorbellPair, Kick, Pages, Slot};
use crate::queue::{
    CompletionQueue, QueuePair, Received, RecvQueue, RecvSize, SendQueue, SendSize,
};

/// What a word of the trapped page reads when nothing was stored to it.
const NO_KICK: u32 = u32::MAX;
/// Queue key of the datagram queue pairs.
pub(super) const QKEY: u32 = 0x1111_1111;
/// Bytes of the memory that a node registers.
pub(super) const LEN: usize = 1 << 20;

/// A node with a context of one doorbell page, a domain and registered memory.
pub(super) struct Node<W: Bars = World> {
    pub(super) guest: Guest<W>,
    pair: Arc<DoorbellPair>,
    shared: usize,
    trapped: usize,
    kicks: Kicks,
    asked: Arc<Asked>,
    eq: RefCell<Eq<W>>,
    pub(super) pd: u32,
    pub(super) memory: u64,
    pub(super) key: u32,
}

/// How often the program has asked the kernel to kick a slot.
#[derive(Debug)]
struct Asked {
    slots: [AtomicUsize; SLOTS as usize],
    /// It has, for any of them.
    any: AtomicBool,
}

/// One of them.
#[derive(Debug)]
struct Call {
    slot: usize,
    asked: Arc<Asked>,
}

impl Kick for Call {
    fn kick(&self) {
        self.asked.slots[self.slot].fetch_add(1, Ordering::Relaxed);
        self.asked.any.store(true, Ordering::Relaxed);
    }
}

/// What a controller looks at beside the shared page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kicks {
    /// Trapped page and push slots.
    Pushed,
    /// A trapped page.
    Trapped,
    /// Nothing: the kernel has to kick.
    Called,
}

/// A completion queue and its number.
pub(super) struct TestCq {
    pub(super) cqn: u32,
    pub(super) cq: Cq,
}

/// A shared receive queue and its number.
pub(super) struct TestSrq {
    srqn: u32,
    pub(super) srq: Srq,
}

/// A queue pair and its number.
pub(super) struct TestQp {
    pub(super) qpn: u32,
    pub(super) qp: Qp,
    /// Doorbell slots of its send queue, and of its receive queue if it has one.
    pub(super) send_slot: Slot,
    pub(super) recv_slot: Option<Slot>,
}

/// What a queue pair is to be like.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) requests: u32,
    pub(super) sge: u32,
    pub(super) inline: u32,
    pub(super) qp_type: QpType,
    pub(super) signal_all: bool,
    /// Blocks of the send queue beyond what the program is told of.
    pub(super) more_blocks: u32,
    /// How its queues are kicked.
    pub(super) kicks: Kicks,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            requests: 64,
            sge: 4,
            inline: 64,
            qp_type: QpType::Rc,
            signal_all: false,
            more_blocks: 0,
            kicks: Kicks::Pushed,
        }
    }
}

pub(super) fn map(ram: &MmapRegion, offset: usize, len: usize) -> Pages {
    let len = len.next_multiple_of(PAGE_SIZE);
    Pages::of_file(ram.file(), offset as u64, len).unwrap()
}

impl Node {
    pub(super) fn new(world: &World, id: u16) -> Self {
        Self::kicking(world, id, Kicks::Pushed)
    }

    /// A node with another kind of doorbell page.
    pub(super) fn kicking(world: &World, id: u16, kicks: Kicks) -> Self {
        Self::of(Guest::up(world, id), kicks)
    }
}

impl<W: Bars> Node<W> {
    /// The node of a guest whose function is enabled.
    pub(super) fn of(guest: Guest<W>, kicks: Kicks) -> Self {
        let eq = RefCell::new(guest.eq(0));
        let shared = FIRST_UNUSED - DOORBELL_PAGES as usize * PAGE_SIZE;
        let trapped = guest.alloc(PAGE_SIZE);
        guest.ram.write(trapped, &[0xff; PAGE_SIZE]).unwrap();
        let pair = Arc::new(DoorbellPair {
            shared: map(&guest.ram, shared, PAGE_SIZE),
            trapped: match kicks {
                Kicks::Called => Pages::anonymous(PAGE_SIZE).unwrap(),
                _ => map(&guest.ram, trapped, PAGE_SIZE),
            },
            push: kicks == Kicks::Pushed,
        });
        let marks = (0..usize::from(SLOTS)).map(|slot| slot * SLOT_SIZE + SLOT_DRIVER);
        for mark in marks {
            guest.ram.store_u32(shared + mark, SLOT_LIVE).unwrap();
        }
        let pd = guest.pd();
        let memory = iova(guest.alloc(LEN));
        let key = guest.register(pd, memory, LEN as u64, ACCESS_ALL).unwrap();
        Self {
            guest,
            pair,
            shared,
            trapped,
            kicks,
            asked: Arc::new(Asked {
                slots: [const { AtomicUsize::new(0) }; SLOTS as usize],
                any: AtomicBool::new(false),
            }),
            eq,
            pd,
            memory,
            key,
        }
    }

    /// Takes the device away from the program, as the kernel does: zeroes where the doorbells were.
    pub(super) fn lose(&self) {
        self.guest.ram.write(self.shared, &[0; PAGE_SIZE]).unwrap();
    }

    fn slot(&self) -> (u16, Slot) {
        let (page, number) = self.guest.slot();
        assert_eq!(page, 0, "a test uses one page");
        (number, Slot::new(&self.pair, number).unwrap())
    }

    /// How a slot is kicked if not by itself.
    fn call(&self, number: u16, slot: &Slot) -> Option<Called> {
        let call = Call {
            slot: number.into(),
            asked: Arc::clone(&self.asked),
        };
        (self.kicks == Kicks::Called).then(|| Called::new(slot, Arc::new(call)))
    }

    /// Takes a ring's place in memory, both as the controller and as the program see it.
    fn ring(&self, len: usize) -> (usize, Pages) {
        let base = self.guest.alloc(len.next_multiple_of(PAGE_SIZE));
        (base, map(&self.guest.ram, base, len))
    }

    pub(super) fn cq(&self, log_entries: u8) -> TestCq {
        self.cq_with(log_entries, 0)
    }

    /// As [`Node::cq`], with flags.
    pub(super) fn cq_with(&self, log_entries: u8, flags: u8) -> TestCq {
        let (base, memory) = self.ring(CQE_SIZE << log_entries);
        let (number, slot) = self.slot();
        let command = CreateCq {
            ring: direct(base),
            doorbell_slot: number.into(),
            log_entries,
            flags,
            eqn: self.eq.borrow().eqn.into(),
            ..CreateCq::default()
        };
        let cqn = self.guest.create(AdminOpcode::CreateCq, &command).unwrap();
        let cq = Cq::new(CompletionQueue::new(memory, slot, log_entries));
        TestCq { cqn, cq }
    }

    pub(super) fn srq(&self, requests: u32) -> TestSrq {
        let size = RecvSize::new(requests, 4, 16).unwrap();
        let (base, memory) = self.ring(size.bytes());
        let (number, slot) = self.slot();
        let command = CreateSrq {
            ring: direct(base),
            pd: self.pd.into(),
            doorbell_slot: number.into(),
            log_entries: size.log_entries,
            log_stride: size.log_stride,
            ..CreateSrq::default()
        };
        let srqn = self.guest.create(AdminOpcode::CreateSrq, &command).unwrap();
        let calls = Calls {
            queue: self.call(number, &slot),
            recv: None,
        };
        let srq = Srq::new(RecvQueue::new(memory, slot, size), calls);
        TestSrq { srqn, srq }
    }

    /// A queue pair in its initial state; with receive entries of its own, or shared ones.
    pub(super) fn qp(&self, shape: Shape, cqs: [&TestCq; 2], srq: Option<&TestSrq>) -> TestQp {
        let datagrams = shape.qp_type == QpType::Ud;
        let send = SendSize::new(
            shape.requests,
            (shape.sge, shape.inline),
            datagrams,
            shape.more_blocks,
            16,
        )
        .unwrap();
        let recv = RecvSize::new(shape.requests, shape.sge, 16).unwrap();
        let (sq, sq_memory) = self.ring(BLOCK_SIZE << send.log_blocks);
        let (sq_number, sq_slot) = self.slot();
        let own = srq
            .is_none()
            .then(|| (self.ring(recv.bytes()), self.slot()));
        let parameters = CreateQp {
            sq: direct(sq),
            rq: own
                .as_ref()
                .map_or_else(Default::default, |((base, _), _)| direct(*base)),
            qp_type: shape.qp_type.to_wire(),
            flags: if srq.is_some() { QP_FLAG_SRQ } else { 0 },
            log_sq: send.log_blocks,
            log_rq: if srq.is_some() { 0 } else { recv.log_entries },
            log_rq_stride: if srq.is_some() { 0 } else { recv.log_stride },
            pd: self.pd.into(),
            send_cqn: cqs[0].cqn.into(),
            recv_cqn: cqs[1].cqn.into(),
            sq_slot: sq_number.into(),
            rq_slot: own
                .as_ref()
                .map_or(SLOT_NONE, |(_, (number, _))| *number)
                .into(),
            srqn: srq.map_or(0, |srq| srq.srqn).into(),
            ..CreateQp::default()
        };
        let buffer = self.guest.buffer(parameters.as_bytes());
        let qpn = self.guest.create(AdminOpcode::CreateQp, &buffer).unwrap();
        let recv_slot = own.as_ref().map(|(_, slot)| slot);
        let calls = Calls {
            queue: self.call(sq_number, &sq_slot),
            recv: recv_slot.and_then(|(number, slot)| self.call(*number, slot)),
        };
        let recv_slot = recv_slot.map(|(_, slot)| slot.clone());
        let received = match (own, srq) {
            (Some(((_, memory), (_, slot))), _) => {
                Received::own(RecvQueue::new(memory, slot, recv))
            }
            (None, Some(srq)) => Received::Shared(srq.srq.entries()),
            (None, None) => unreachable!("one of them is there"),
        };
        let send_slot = sq_slot.clone();
        let send = SendQueue::new(sq_memory, sq_slot, send, shape.signal_all);
        let shared = cqs.map(|cq| cq.cq.shared());
        let qp = Qp::new(QueuePair::new(
            qpn, datagrams, send, received, shared, calls,
        ));
        let made = TestQp {
            qpn,
            qp,
            send_slot,
            recv_slot,
        };
        self.modify(&made, QpStateCode::Init, |command| {
            command.mask = (QP_MASK_STATE | QP_MASK_ACCESS).into();
            command.access = ACCESS_ALL.into();
            if datagrams {
                command.mask = (QP_MASK_STATE | QP_MASK_QKEY).into();
                (command.access, command.qkey) = (0.into(), QKEY.into());
            }
        });
        made
    }

    pub(super) fn modify(
        &self,
        qp: &TestQp,
        state: QpStateCode,
        change: impl FnOnce(&mut ModifyQp),
    ) {
        let mut command = ModifyQp {
            qpn: qp.qpn.into(),
            mask: QP_MASK_STATE.into(),
            state: state.to_wire(),
            ..ModifyQp::default()
        };
        change(&mut command);
        self.guest.modify(&command).unwrap();
        qp.qp.set_state(sys::ibv_qp_state::from(state.to_wire()));
    }

    /// Makes a queue pair ready to send, connected if it is of that kind.
    pub(super) fn ready(&self, qp: &TestQp, peer: Option<(&Node<W>, u32)>) {
        let peer = peer.map(|(node, qpn)| (node.guest.node, qpn, node.guest.epoch()));
        self.ready_for(qp, peer, 1);
    }

    /// As [`Node::ready`], for a peer of this node, queue pair number and epoch, and so many tries for want of a receive buffer.
    pub(super) fn ready_for(&self, qp: &TestQp, peer: Option<(u16, u32, u32)>, rnr_retry: u8) {
        self.modify(qp, QpStateCode::Rtr, |command| {
            if let Some((node, qpn, epoch)) = peer {
                let mask = QP_MASK_STATE | QP_MASK_REMOTE | QP_MASK_RNR_RETRY | QP_MASK_RD_ATOMIC;
                command.mask = mask.into();
                command.remote_node = node.into();
                command.remote_qpn = qpn.into();
                command.remote_epoch = epoch.into();
                // After 10.24 ms.
                (command.rnr_retry, command.min_rnr_timer) = (rnr_retry, 20);
                (command.max_rd_atomic, command.max_dest_rd_atomic) = (16, 16);
            }
        });
        self.modify(qp, QpStateCode::Rts, |_| ());
    }

    /// What has gone through a queue pair, as its engine tells.
    pub(super) fn traffic(&self, qp: &TestQp) -> QpTraffic {
        let pair = ById {
            id: qp.qpn.into(),
            reserved: 0.into(),
        };
        let state: QpState = self.guest.command(AdminOpcode::QueryQp, &pair).unwrap();
        state.traffic
    }

    /// Takes the events that the controller has made; how many there were.
    pub(super) fn take_events(&self) -> usize {
        let mut eq = self.eq.borrow_mut();
        std::iter::from_fn(|| eq.ring.poll()).count()
    }

    /// Whether anything was ever stored to a push slot.
    pub(super) fn was_pushed(&self) -> bool {
        let mut slots = [0; PAGE_SIZE - PUSH_OFFSET];
        let at = self.shared + PUSH_OFFSET;
        self.guest.ram.read(at, &mut slots).unwrap();
        slots != [0; PAGE_SIZE - PUSH_OFFSET]
    }

    /// As [`Node::run`], if the program has asked the kernel since the last time. That is cheap.
    pub(super) fn run_if_asked(&self) {
        if self.asked.any.load(Ordering::Relaxed) {
            self.asked.any.store(false, Ordering::Relaxed);
            self.run();
        }
    }

    /// Hands the stores to the trapped page to the controller, as a hypervisor does, or the calls, as the kernel does;
    /// how many there were.
    pub(super) fn run(&self) -> usize {
        let mut kicks = 0;
        for slot in 0..SLOTS {
            let asked = self.asked.slots[usize::from(slot)].swap(0, Ordering::Relaxed);
            if asked > 0 {
                let at = self.shared + usize::from(slot) * SLOT_SIZE + SLOT_INDEX;
                let index = self.guest.ram.load_u32(at).unwrap();
                let offset = kick_offset(0, slot);
                self.guest
                    .write_bar(BAR_DOORBELL, offset, &index.to_le_bytes());
                kicks += asked;
            }
            for within in [0, 4] {
                let at = self.trapped + usize::from(slot) * SLOT_SIZE + within;
                let value = self.guest.ram.load_u32(at).unwrap();
                if value != NO_KICK {
                    self.guest.ram.store_u32(at, NO_KICK).unwrap();
                    let offset = kick_offset(0, slot) + within;
                    self.guest
                        .write_bar(BAR_DOORBELL, offset, &value.to_le_bytes());
                    kicks += 1;
                }
            }
        }
        self.guest.world.settle();
        kicks
    }

    /// An entry for a part of the registered memory.
    pub(super) fn sge(&self, offset: usize, length: u32) -> sys::ibv_sge {
        sys::ibv_sge {
            addr: self.memory + offset as u64,
            length,
            lkey: self.key,
        }
    }

    pub(super) fn fill(&self, offset: usize, bytes: &[u8]) {
        let base = usize::try_from(self.memory - iova(0)).unwrap();
        self.guest.ram.write(base + offset, bytes).unwrap();
    }

    pub(super) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.guest.get(self.memory + offset as u64, len)
    }
}

/// One side of a connection.
pub(super) struct Side {
    pub(super) node: Node,
    pub(super) cq: TestCq,
    pub(super) qp: TestQp,
}

impl Side {
    fn new(world: &World, id: u16, shape: Shape) -> Self {
        let node = Node::kicking(world, id, shape.kicks);
        let cq = node.cq(8);
        let qp = node.qp(shape, [&cq, &cq], None);
        Self { node, cq, qp }
    }

    /// Polls for the one completion that must be there.
    pub(super) fn completion(&self) -> sys::ibv_wc {
        let mut polled = self.cq.cq.poll(2);
        assert_eq!(polled.len(), 1);
        polled.pop().unwrap()
    }
}

/// Two sides, connected if their kind is.
pub(super) fn pair(shape: Shape) -> (Side, Side) {
    let world = World::new(3);
    let (a, b) = (Side::new(&world, 0, shape), Side::new(&world, 1, shape));
    let connected = shape.qp_type == QpType::Rc;
    a.node
        .ready(&a.qp, connected.then_some((&b.node, b.qp.qpn)));
    b.node
        .ready(&b.qp, connected.then_some((&a.node, a.qp.qpn)));
    (a, b)
}

/// Bytes that depend on a seed.
pub(super) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i / 251) as u8 ^ (i as u8).wrapping_add(seed))
        .collect()
}
