// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Connected queue pairs on their way up and down: what waits, what is told, what ends in an error.

use nupa_engine::rings::{Data, Operation};
use nupa_proto::{admin::*, eqe::EventType, status::WcStatus, wqe::WQE_SIGNALED};
use nupa_testing::{Cq, Eq, Host, Mr, Qp, World};
use zerocopy::little_endian::{U16, U32};

const OK: u8 = WcStatus::Success as u8;
const GONE: u8 = WcStatus::RetryExceeded as u8;

struct Side {
    host: Host,
    eq: Eq,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

fn side(world: &mut World, id: u16, log_cq: u8) -> Side {
    let mut host = world.host(id);
    let eq = host.start(world);
    let cq = host.cq(world, eq.eqn, log_cq);
    let qp = host.qp(world, QpType::Rc, &cq, 4);
    let mr = host.mr(world, 4096, false);
    Side {
        host,
        eq,
        cq,
        qp,
        mr,
    }
}

/// Two queue pairs, of which only the first is connected.
fn half() -> (World, Side, Side) {
    let mut world = World::new(*crate::MODE, 2);
    let (a, b) = (side(&mut world, 0, 6), side(&mut world, 1, 6));
    a.host.ready(&mut world, &a.qp, Some((1, b.qp.qpn, 1)));
    (world, a, b)
}

impl Side {
    fn post(&mut self, operation: Operation, data: Data<'_>) {
        self.qp.submit(7, WQE_SIGNALED, operation, data);
    }

    fn send(&mut self) {
        self.post(Operation::Send { imm: None }, Data::Inline(b"hello"));
    }

    fn nop(&mut self) {
        self.post(Operation::Nop, Data::Inline(&[]));
    }

    fn receive(&mut self) {
        let sge = self.mr.sge(0, 64);
        self.qp.recv.post(1, &[sge]).expect("room");
        self.qp.recv.ring();
    }

    fn statuses(&mut self) -> Vec<u8> {
        self.cq.drain().iter().map(|cqe| cqe.status).collect()
    }

    fn go(&self, world: &mut World, state: QpStateCode) {
        self.host
            .set_state(world, self.qp.qpn, state)
            .expect("allowed");
        world.pump();
    }

    /// Connects to a queue pair of node 0, ready to receive.
    fn accept(&self, world: &mut World, peer: u32) {
        self.go(world, QpStateCode::Init);
        let body = ModifyQp {
            mask: U32::new(QP_MASK_STATE | QP_MASK_REMOTE | QP_MASK_ACCESS),
            state: QpStateCode::Rtr.to_wire(),
            remote_node: U16::new(0),
            remote_qpn: U32::new(peer),
            remote_epoch: U32::new(1),
            access: U32::new(ACCESS_ALL),
            ..ModifyQp::default()
        };
        self.host.modify(world, self.qp.qpn, body).expect("allowed");
        world.pump();
    }

    fn event(&self, kind: EventType) -> (u8, u16, u32) {
        (kind as u8, 0, self.qp.qpn)
    }
}

#[test]
fn a_request_waits_for_its_peer_to_be_connected() {
    let (mut world, mut a, mut b) = half();
    b.receive();
    a.send();
    world.pump();
    world.advance(400_000);
    assert_eq!(a.statuses(), []);
    b.accept(&mut world, a.qp.qpn);
    assert_eq!((a.statuses(), b.statuses()), (vec![OK], vec![OK]));
    // Whoever waits to be told that its peer is ready learns it from the first message, once.
    let established = b.event(EventType::CommEstablished);
    assert_eq!(b.eq.drain(), [established]);
    b.receive();
    a.send();
    world.pump();
    assert_eq!((b.statuses(), b.eq.drain()), (vec![OK], vec![]));
}

#[test]
fn it_does_not_wait_for_ever_nor_for_a_stranger() {
    let (mut world, mut a, _) = half();
    a.send();
    world.pump();
    world.advance(499_999);
    assert_eq!(a.statuses(), []);
    world.advance(1);
    assert_eq!(a.statuses(), [GONE]);
    assert_eq!(world.node(0).counters().tx_retry_exceeded.get(), 1);

    let (mut world, mut a, b) = half();
    a.send();
    world.pump();
    b.accept(&mut world, a.qp.qpn + 1);
    assert_eq!(a.statuses(), [GONE]);
}

/// A channel adapter does not answer for a queue pair that is gone or in the error state, so the requester tries again for as long. What
/// it was waiting for from earlier requests completes meanwhile: programs end that way, one a little before the other.
#[test]
fn a_request_to_a_queue_pair_that_is_gone_fails_later() {
    for destroyed in [false, true] {
        let (mut world, mut a, mut b) = half();
        b.accept(&mut world, a.qp.qpn);
        b.receive();
        a.send();
        world.pump();
        assert_eq!(a.statuses(), [OK]);
        if destroyed {
            let engine = &mut world.engine;
            let gone = engine.destroy_qp(&mut world.nodes, 1, b.qp.qpn);
            gone.expect("exists");
        } else {
            b.go(&mut world, QpStateCode::Err);
        }
        a.send();
        world.pump();
        world.advance(499_000);
        assert_eq!(a.statuses(), []);
        world.advance(1000);
        assert_eq!(a.statuses(), [GONE]);
    }
}

#[test]
fn peer_timeout_and_rnr_timeout_are_independent() {
    let (mut world, mut a, mut b) = half();
    let body = ModifyQp {
        mask: U32::new(QP_MASK_RNR),
        rnr_timeout_us: U32::new(RNR_FOREVER),
        ..ModifyQp::default()
    };
    a.host.modify(&mut world, a.qp.qpn, body).expect("allowed");
    a.send();
    world.pump();
    world.advance(1000);
    b.accept(&mut world, a.qp.qpn);
    world.advance(u64::from(u32::MAX));
    assert_eq!((a.statuses(), world.next), (vec![], None));
    b.receive();
    world.pump();
    assert_eq!(a.statuses(), [OK]);
    assert_eq!(world.node(1).counters().rx_rnr_naks.get(), 1);
}

#[test]
fn draining_is_reported_and_holds_back_what_comes_later() {
    let (mut world, mut a, b) = half();
    b.accept(&mut world, a.qp.qpn);
    a.nop();
    world.pump();
    a.go(&mut world, QpStateCode::Sqd);
    assert_eq!(
        (a.statuses(), a.eq.drain()),
        (vec![OK], vec![a.event(EventType::SqDrained)])
    );
    a.nop();
    world.pump();
    assert_eq!(a.statuses(), []);
    a.go(&mut world, QpStateCode::Rts);
    assert_eq!((a.statuses(), a.eq.drain()), (vec![OK], vec![]));
}

#[test]
fn overflow_of_a_completion_queue_is_counted_and_ends_its_queue_pairs() {
    let mut world = World::new(*crate::MODE, 1);
    let mut a = side(&mut world, 0, 2);
    a.host.ready(&mut world, &a.qp, Some((0, a.qp.qpn, 1)));
    for _ in 0..6 {
        a.nop();
    }
    world.pump();
    let overflow = (EventType::CqError as u8, 0, a.cq.cqn);
    assert_eq!(a.eq.drain(), [overflow, a.event(EventType::QpFatal)]);
    let counters = world.node(0).counters();
    assert_eq!(counters.cq_overflows.get(), 1);
    assert_eq!(counters.flushed.get(), 1);
    assert_eq!(a.statuses(), [OK; 4]);
}

#[test]
fn target_memory_that_is_gone_ends_both_queue_pairs() {
    use nupa_engine::NodeTable;
    use zerocopy::little_endian::U64;
    let (mut world, mut a, mut b) = half();
    b.accept(&mut world, a.qp.qpn);
    let body = CreateMr {
        pages: PageList {
            addr: U64::new(1 << 40),
            ..PageList::default()
        },
        len: U64::new(4096),
        pd: U32::new(b.host.pd),
        access: U32::new(ACCESS_ALL),
        ..CreateMr::default()
    };
    let (node, machine) = world.nodes.node_mut(1).expect("exists");
    let rkey = node.create_mr(machine, &body).expect("region");
    let write = Operation::Write {
        addr: 0,
        rkey,
        imm: None,
    };
    a.post(write, Data::Inline(&[1]));
    world.pump();
    assert_eq!(a.statuses(), [WcStatus::RemoteOperation as u8]);
    let established = b.event(EventType::CommEstablished);
    assert_eq!(b.eq.drain(), [established, b.event(EventType::QpFatal)]);
}
