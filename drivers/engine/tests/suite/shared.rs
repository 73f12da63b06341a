// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Shared receive queues.

use nupa_engine::{
    hal::{Doorbells, SlotWord},
    rings::{Data, Operation, SendRequest},
    NodeTable,
};
use nupa_proto::{
    admin::*,
    eqe::EventType,
    status::{AdminStatus, WcStatus},
    wqe::{Sge, WQE_SIGNALED},
};
use nupa_testing::{Cq, Eq, Host, Mr, Qp, Srq, World};
use zerocopy::little_endian::U32;

const OK: u8 = WcStatus::Success as u8;
const FLUSHED: u8 = WcStatus::WrFlush as u8;

/// Node 0 with two queue pairs, connected to two of node 1 that share a receive queue.
struct Shared {
    world: World,
    host: Host,
    cq: Cq,
    qps: [Qp; 2],
    there: Host,
    eq: Eq,
    there_cq: Cq,
    there_qps: [Qp; 2],
    srq: Srq,
    mr: Mr,
}

fn shared() -> Shared {
    let mut world = World::new(*crate::MODE, 2);
    let mut host = world.host(0);
    let eq = host.start(&mut world);
    let cq = host.cq(&mut world, eq.eqn, 6);
    let qps = [0; 2].map(|_| host.qp(&mut world, QpType::Rc, &cq, 4));
    let mut there = world.host(1);
    let eq = there.start(&mut world);
    let there_cq = there.cq(&mut world, eq.eqn, 6);
    let srq = there.srq(&mut world, 3);
    let there_qps =
        [0; 2].map(|_| there.qp_on(&mut world, QpType::Rc, 0, Some(&srq), &there_cq, 4));
    let mr = there.mr(&mut world, 4096, false);
    for (a, b) in qps.iter().zip(&there_qps) {
        host.ready(&mut world, a, Some((1, b.qpn, 1)));
        there.ready(&mut world, b, Some((0, a.qpn, 1)));
    }
    Shared {
        world,
        host,
        cq,
        qps,
        there,
        eq,
        there_cq,
        there_qps,
        srq,
        mr,
    }
}

impl Shared {
    fn send(&mut self, qp: usize, bytes: &[u8]) {
        let request = SendRequest {
            wr_id: 0,
            flags: WQE_SIGNALED,
            operation: Operation::Send { imm: None },
            data: Data::Inline(bytes),
        };
        self.qps[qp].send.post(&request).expect("room");
        self.qps[qp].send.ring();
        self.world.pump();
    }

    fn give(&mut self, wr_id: u64, sges: &[Sge]) {
        self.srq.ring.post(wr_id, sges).expect("room");
        self.srq.ring.ring();
        self.world.pump();
    }

    fn statuses(&mut self) -> Vec<u8> {
        self.cq.drain().iter().map(|cqe| cqe.status).collect()
    }

    /// `wr_id`, queue pair, status and index of all receive completions.
    fn received(&mut self) -> Vec<(u64, u32, u8, u32)> {
        let cqes = self.there_cq.drain();
        for cqe in &cqes {
            let freed = self.srq.ring.completed(cqe.queue_index.get());
            assert_eq!(freed, Ok(1));
        }
        let tuple = |cqe: &nupa_proto::cqe::Cqe| {
            (
                cqe.wr_id.get(),
                cqe.qpn.get(),
                cqe.status,
                cqe.queue_index.get(),
            )
        };
        cqes.iter().map(tuple).collect()
    }

    fn limit(&mut self, limit: u32) -> Result<(), AdminStatus> {
        let body = ModifySrq {
            srqn: U32::new(self.srq.srqn),
            limit: U32::new(limit),
        };
        let (node, machine) = self.world.nodes.node_mut(1).expect("exists");
        node.modify_srq(machine, &body)
    }

    fn state(&self) -> SrqState {
        let srqn = self.srq.srqn;
        self.world.node(1).query_srq(srqn).expect("exists")
    }

    fn event(&self, kind: EventType, object: u32) -> (u8, u16, u32) {
        (kind as u8, 0, object)
    }
}

#[test]
fn entries_are_taken_in_order_by_whoever_comes() {
    let mut s = shared();
    for i in 0..3 {
        let sge = s.mr.sge(i * 16, 16);
        s.give(i, &[sge]);
    }
    s.send(1, b"one");
    s.send(0, b"two");
    s.send(1, b"three");
    assert_eq!(s.statuses(), [OK; 3]);
    let [a, b] = [s.there_qps[0].qpn, s.there_qps[1].qpn];
    let expected = [(0, b, OK, 1), (1, a, OK, 2), (2, b, OK, 3)];
    assert_eq!(s.received(), expected);
    let bytes = s.there.read(s.mr.addr, 48);
    assert_eq!((&bytes[..3], &bytes[16..19]), (&b"one"[..], &b"two"[..]));
    assert_eq!(s.state().index.get(), 3);
}

#[test]
fn senders_wait_for_entries_and_are_woken_by_them() {
    let mut s = shared();
    s.send(0, b"a");
    s.send(1, b"b");
    assert_eq!(s.statuses(), []);
    let sge = s.mr.sge(0, 16);
    s.give(1, &[sge]);
    assert_eq!(s.statuses(), [OK]);
    s.give(2, &[sge]);
    assert_eq!(s.statuses(), [OK]);
    assert_eq!(s.received().len(), 2);
    // Its responder goes away while it waits.
    s.send(0, b"c");
    let qpn = s.there_qps[0].qpn;
    s.there
        .set_state(&mut s.world, qpn, QpStateCode::Err)
        .expect("allowed");
    s.world.pump();
    assert_eq!(s.statuses(), []);
    s.world.advance(500_000);
    assert_eq!(s.statuses(), [WcStatus::RetryExceeded as u8]);
    let last = s.event(EventType::LastWqe, qpn);
    assert_eq!(s.eq.drain(), [last]);
}

#[test]
fn limit_is_reported_once() {
    let mut s = shared();
    let sge = s.mr.sge(0, 16);
    for i in 0..4 {
        s.give(i, &[sge]);
    }
    assert_eq!(s.limit(9), Err(AdminStatus::InvalidField));
    s.limit(3).expect("allowed");
    s.send(0, b"x");
    assert_eq!((s.eq.drain(), s.state().limit.get()), (vec![], 3));
    s.send(0, b"x");
    let event = s.event(EventType::SrqLimit, s.srq.srqn);
    assert_eq!((s.eq.drain(), s.state().limit.get()), (vec![event], 0));
    s.send(0, b"x");
    assert_eq!(s.eq.drain(), []);
    // Armed when fewer are left already.
    s.limit(2).expect("allowed");
    assert_eq!(s.eq.drain(), [event]);
}

#[test]
fn an_error_of_one_queue_pair_leaves_the_entries_to_the_others() {
    let mut s = shared();
    let (short, sge) = (s.mr.sge(0, 2), s.mr.sge(0, 16));
    s.give(1, &[short]);
    s.give(2, &[sge]);
    s.send(0, b"long");
    let length = WcStatus::LocalLength as u8;
    assert_eq!(s.statuses(), [WcStatus::RemoteInvalidRequest as u8]);
    let [a, b] = [s.there_qps[0].qpn, s.there_qps[1].qpn];
    assert_eq!(s.received(), [(1, a, length, 1)]);
    let events = [EventType::QpFatal, EventType::LastWqe].map(|kind| s.event(kind, a));
    assert_eq!(s.eq.drain(), events);
    s.send(1, b"good");
    assert_eq!(
        (s.statuses(), s.received()),
        (vec![OK], vec![(2, b, OK, 2)])
    );
    // A bad entry is reported to the queue pair that took it.
    let stranger = nupa_testing::sge(0, 8, 77);
    s.give(3, &[stranger]);
    s.send(1, b"bad");
    assert_eq!(s.statuses(), [WcStatus::RemoteOperation as u8]);
    assert_eq!(s.received(), [(3, b, WcStatus::LocalProtection as u8, 3)]);
}

#[test]
fn sends_of_a_queue_pair_without_receive_ring_are_flushed() {
    let mut s = shared();
    let qpn = s.there_qps[1].qpn;
    s.there
        .set_state(&mut s.world, qpn, QpStateCode::Err)
        .expect("allowed");
    let nop = SendRequest {
        wr_id: 8,
        flags: 0,
        operation: Operation::Nop,
        data: Data::Inline(&[]),
    };
    s.there_qps[1].send.post(&nop).expect("room");
    s.there_qps[1].send.ring();
    s.world.pump();
    let statuses: Vec<u8> = s.there_cq.drain().iter().map(|cqe| cqe.status).collect();
    assert_eq!(statuses, [FLUSHED]);
}

#[test]
fn an_index_out_of_bounds_ends_the_queue() {
    let mut s = shared();
    let machine = s.there.machine.clone();
    machine.store(0, s.srq.slot, SlotWord::Index, 9);
    s.world.engine.kick(&mut s.world.nodes, 1, 0, s.srq.slot);
    s.send(0, b"x");
    s.send(1, b"x");
    let failed = WcStatus::RemoteOperation as u8;
    assert_eq!(s.statuses(), [failed, failed]);
    let events = s.eq.drain();
    let fatal = s.event(EventType::SrqFatal, s.srq.srqn);
    let count = events.iter().filter(|event| **event == fatal).count();
    assert_eq!((count, events.len()), (1, 5));
}

/// Somebody waits for entries when the index goes out of bounds: the look for them ends, and so does the wait.
#[test]
fn an_index_out_of_bounds_ends_the_wait_for_entries() {
    let mut s = shared();
    s.send(0, b"early");
    s.send(1, b"early too");
    assert_eq!(s.statuses(), []);
    let slot = s.srq.slot;
    s.there.machine.store(0, slot, SlotWord::Index, 1000);
    s.world.engine.kick(&mut s.world.nodes, 1, 0, slot);
    s.world.pump();
    assert_eq!(s.eq.drain()[0], s.event(EventType::SrqFatal, s.srq.srqn));
    let statuses = s.statuses();
    assert_eq!(statuses.len(), 2);
    assert!(!statuses.contains(&OK), "{statuses:?}");
}

#[test]
fn a_queue_in_use_stays() {
    let mut s = shared();
    let srqn = s.srq.srqn;
    let (node, _) = s.world.nodes.node_mut(1).expect("exists");
    assert_eq!(node.destroy_srq(srqn), Err(AdminStatus::Busy));
    assert_eq!(node.dealloc_pd(s.there.pd), Err(AdminStatus::Busy));
    for qp in &s.there_qps {
        let engine = &mut s.world.engine;
        engine
            .destroy_qp(&mut s.world.nodes, 1, qp.qpn)
            .expect("exists");
    }
    let (node, _) = s.world.nodes.node_mut(1).expect("exists");
    node.destroy_srq(srqn).expect("free");
    assert_eq!(node.destroy_srq(srqn), Err(AdminStatus::NoSuchObject));
    node.destroy_cq(s.there_cq.cqn).expect("free");
    let destroyed = s.world.engine.destroy_mr(&mut s.world.nodes, 1, s.mr.key);
    destroyed.expect("exists");
    let (node, _) = s.world.nodes.node_mut(1).expect("exists");
    node.dealloc_pd(s.there.pd).expect("free");
    // Its doorbell slot is free again.
    assert_eq!(s.host.srq(&mut s.world, 2).srqn, 0);
}
