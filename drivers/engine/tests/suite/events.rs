// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Arming, moderation, overflow, polling, budgets.

use nupa_engine::{
    rings::{Data, Operation, SendRequest},
    NodeTable,
};
use nupa_proto::{
    admin::{ModifyCq, QpStateCode, QpType, CQ_FLAG_IGNORE_OVERRUN},
    eqe::EventType,
    regs::{FAULT_EVENT_QUEUE, FAULT_NONE},
    status::{AdminStatus, WcStatus},
    wqe::WQE_SIGNALED,
};
use nupa_testing::{Cq, Eq, Host, Qp, World};
use zerocopy::little_endian::{U16, U32};

struct Node {
    world: World,
    host: Host,
    eq: Eq,
    cq: Cq,
    qp: Qp,
}

/// A node with a queue pair in RTS, its completion queue of `1 << log` entries reporting to vector 1.
fn node(log: u8) -> Node {
    let mut world = World::new(*crate::MODE, 1);
    let mut host = world.host(0);
    host.start(&mut world);
    let eq = host.eq(&mut world, 1, 2);
    let cq = host.cq(&mut world, eq.eqn, log);
    let qp = host.qp(&mut world, QpType::Raw, &cq, 6);
    host.ready(&mut world, &qp, None);
    Node {
        world,
        host,
        eq,
        cq,
        qp,
    }
}

impl Node {
    fn nop(&mut self, count: usize) {
        for _ in 0..count {
            let request = SendRequest {
                wr_id: 0,
                flags: WQE_SIGNALED,
                operation: Operation::Nop,
                data: Data::Inline(&[]),
            };
            let room = self.qp.send.post(&request);
            room.expect("room");
        }
        self.qp.send.ring();
        self.world.pump();
        self.qp
            .send
            .completed(self.qp.send.index())
            .expect("posted");
    }

    fn raised(&self) -> Vec<u16> {
        self.host.machine.take_raised()
    }

    fn moderate(&mut self, usecs: u16, max_count: u16) {
        let (usecs, max_count) = (U16::new(usecs), U16::new(max_count));
        let body = ModifyCq {
            cqn: U32::new(self.cq.cqn),
            usecs,
            max_count,
        };
        let (node, machine) = self.world.nodes.node_mut(0).expect("exists");
        node.modify_cq(machine, &body).expect("exists");
    }
}

const COMPLETION: u8 = EventType::Completion as u8;

#[test]
fn armed_once_raised_once() {
    let mut n = node(6);
    let completion = (COMPLETION, 0, n.cq.cqn);
    assert!(!n.eq.ring.arm());
    n.nop(1);
    assert_eq!((n.raised(), n.eq.drain()), (vec![], vec![]));
    // Arming tells that something is there; no event for what was there before.
    assert!(n.cq.ring.arm(false));
    assert_eq!(n.raised(), []);
    n.nop(2);
    assert_eq!((n.raised(), n.eq.drain()), (vec![1], vec![completion]));
    n.nop(2);
    assert_eq!((n.raised(), n.eq.drain()), (vec![], vec![]));
    // An event without an armed event queue raises no vector.
    assert_eq!(n.cq.drain().len(), 5);
    assert!(!n.cq.ring.arm(false));
    n.nop(1);
    assert_eq!(n.raised(), []);
    assert!(n.eq.ring.arm());
    assert_eq!(n.eq.drain(), [completion]);
}

#[test]
fn solicited_only_waits_for_a_solicited_one_or_an_error() {
    let mut n = node(6);
    n.cq.ring.arm(true);
    n.nop(1);
    assert_eq!(n.eq.drain(), []);
    n.host
        .set_state(&mut n.world, n.qp.qpn, QpStateCode::Err)
        .expect("allowed");
    n.nop(1);
    assert_eq!(n.eq.drain(), [(COMPLETION, 0, n.cq.cqn)]);
}

#[test]
fn moderation_waits_for_count_or_time() {
    let mut n = node(6);
    let completion = (COMPLETION, 0, n.cq.cqn);
    n.moderate(50, 4);
    n.cq.ring.arm(false);
    n.nop(3);
    assert_eq!(n.eq.drain(), []);
    assert_eq!(n.world.next, Some(50));
    n.nop(1);
    assert_eq!(n.eq.drain(), [completion]);
    assert_eq!(n.world.next, None);

    n.cq.drain();
    n.cq.ring.arm(false);
    n.nop(1);
    n.world.advance(49);
    assert_eq!(n.eq.drain(), []);
    n.world.advance(1);
    assert_eq!(n.eq.drain(), [completion]);

    // What was polled meanwhile needs no event, and the queue stays armed.
    n.cq.drain();
    n.cq.ring.arm(false);
    n.nop(1);
    n.cq.drain();
    n.world.advance(50);
    assert_eq!(n.eq.drain(), []);
    n.moderate(0, 0);
    n.nop(1);
    assert_eq!(n.eq.drain(), [completion]);
}

#[test]
fn completion_queue_overflow_stops_its_queue_pairs_only() {
    let mut n = node(2);
    let other = n.host.cq(&mut n.world, n.eq.eqn, 6);
    let bystander = n.host.qp(&mut n.world, QpType::Raw, &other, 4);
    n.host.ready(&mut n.world, &bystander, None);
    n.nop(5);
    assert_eq!(n.cq.drain().len(), 4);
    let state = |n: &Node, qpn| n.world.node(0).query_qp(qpn).expect("exists").state;
    assert_eq!(state(&n, n.qp.qpn), QpStateCode::Err.to_wire());
    assert_eq!(state(&n, bystander.qpn), QpStateCode::Rts.to_wire());
    assert_eq!(n.world.node(0).fault(), FAULT_NONE);
}

#[test]
fn a_completion_queue_that_ignores_overruns_goes_on() {
    let mut n = node(6);
    let flags = CQ_FLAG_IGNORE_OVERRUN;
    n.cq = n.host.cq_with(&mut n.world, n.eq.eqn, 2, flags);
    n.qp = n.host.qp(&mut n.world, QpType::Raw, &n.cq, 6);
    n.host.ready(&mut n.world, &n.qp, None);
    n.nop(3);
    assert_eq!(n.cq.drain().len(), 3);
    // What its owner finds next is from two passes later; behind it is what it takes for old.
    n.nop(9);
    let seen: Vec<_> =
        n.cq.drain()
            .iter()
            .map(|cqe| cqe.queue_index.get())
            .collect();
    assert_eq!(seen, [12]);
    let node = n.world.node(0);
    let state = node.query_qp(n.qp.qpn).expect("exists").state;
    assert_eq!(state, QpStateCode::Rts.to_wire());
    assert_eq!(node.counters().cq_overflows.get(), 0);
}

#[test]
fn an_event_queue_that_cannot_be_written_is_fatal() {
    let mut n = node(6);
    n.eq.ring = n.host.lost_eq(&mut n.world, 1).ring;
    let lost = n.world.node(0).object_counts()[0] as u32 - 1;
    let cq = n.host.cq(&mut n.world, lost, 4);
    let qp = n.host.qp(&mut n.world, QpType::Raw, &cq, 4);
    n.host.ready(&mut n.world, &qp, None);
    (n.cq, n.qp) = (cq, qp);
    n.cq.ring.arm(false);
    n.nop(1);
    assert_eq!(n.world.node(0).fault(), FAULT_EVENT_QUEUE);
    // Nothing goes on until the reset.
    assert!(!n.world.node(0).is_up());
    n.cq.drain();
    n.nop(1);
    assert_eq!(n.cq.drain().len(), 0);
    n.world.engine.enable(&mut n.world.nodes, 0);
    assert!(!n.world.node(0).is_up());
    n.world.engine.reset(&mut n.world.nodes, 0);
    n.world.engine.enable(&mut n.world.nodes, 0);
    assert!(n.world.node(0).is_up());
    assert_eq!(n.world.node(0).fault(), FAULT_NONE);
}

#[test]
fn polled_queues_ask_for_no_kick_until_polling_ends() {
    let mut n = node(6);
    assert!(!n.world.engine.set_polled(&mut n.world.nodes, 0, true));
    let nop = SendRequest {
        wr_id: 0,
        flags: WQE_SIGNALED,
        operation: Operation::Nop,
        data: Data::Inline(&[]),
    };
    // It is polled once it has had work.
    n.qp.send.post(&nop).expect("room");
    assert!(n.qp.send.ring());
    n.world.pump();
    assert_eq!(n.cq.drain().len(), 1);
    n.qp.send.post(&nop).expect("room");
    assert!(!n.qp.send.ring());
    assert!(n.world.engine.poll(&mut n.world.nodes, 0));
    assert!(!n.world.engine.poll(&mut n.world.nodes, 0));
    assert_eq!(n.cq.drain().len(), 1);
    n.qp.send.post(&nop).expect("room");
    assert!(!n.qp.send.ring());
    assert!(n.world.engine.set_polled(&mut n.world.nodes, 0, false));
    n.world.pump();
    assert_eq!(n.cq.drain().len(), 1);
    n.qp.send.post(&nop).expect("room");
    assert!(n.qp.send.ring());
}

#[test]
fn producer_index_out_of_bounds_ends_the_queue_pair() {
    use nupa_engine::hal::{Doorbells, SlotWord};
    let mut n = node(6);
    n.host.machine.store(0, n.qp.slots.0, SlotWord::Index, 65);
    n.world.engine.kick(&mut n.world.nodes, 0, 0, n.qp.slots.0);
    n.world.pump();
    let state = n.world.node(0).query_qp(n.qp.qpn).expect("exists").state;
    assert_eq!(state, QpStateCode::Err.to_wire());
    assert_eq!(n.cq.drain().len(), 0);
}

#[test]
fn reset_state_forgets_all_work() {
    let mut n = node(6);
    n.nop(3);
    n.cq.drain();
    n.host
        .set_state(&mut n.world, n.qp.qpn, QpStateCode::Reset)
        .expect("allowed");
    n.qp.send.reset();
    n.qp.recv.reset();
    n.host.ready(&mut n.world, &n.qp, None);
    n.nop(2);
    let done = n.cq.drain();
    assert_eq!(
        done.iter()
            .map(|cqe| cqe.queue_index.get())
            .collect::<Vec<_>>(),
        [1, 2]
    );
    assert!(done
        .iter()
        .all(|cqe| cqe.status == WcStatus::Success.to_wire()));
}

#[test]
fn state_diagram_and_objects_in_use_are_respected() {
    let mut n = node(6);
    let invalid = Err(AdminStatus::InvalidState);
    let qpn = n.qp.qpn;
    assert_eq!(
        n.host.set_state(&mut n.world, qpn, QpStateCode::Rtr),
        invalid
    );
    assert_eq!(
        n.host.set_state(&mut n.world, qpn, QpStateCode::Init),
        invalid
    );
    assert_eq!(
        n.host.set_state(&mut n.world, qpn, QpStateCode::Sqd),
        Ok(())
    );
    assert_eq!(
        n.host.set_state(&mut n.world, qpn, QpStateCode::Rts),
        Ok(())
    );
    assert_eq!(
        n.host.set_state(&mut n.world, qpn, QpStateCode::Reset),
        Ok(())
    );
    assert_eq!(
        n.host.set_state(&mut n.world, qpn, QpStateCode::Rts),
        invalid
    );
    let rc = n.host.qp(&mut n.world, QpType::Rc, &n.cq, 4);
    assert_eq!(
        n.host.set_state(&mut n.world, rc.qpn, QpStateCode::Init),
        Ok(())
    );
    // Not connected.
    assert_eq!(
        n.host.set_state(&mut n.world, rc.qpn, QpStateCode::Rtr),
        invalid
    );

    let (node, _) = n.world.nodes.node_mut(0).expect("exists");
    assert_eq!(node.destroy_cq(n.cq.cqn), Err(AdminStatus::Busy));
    assert_eq!(node.destroy_eq(n.eq.eqn), Err(AdminStatus::Busy));
    assert_eq!(node.dealloc_pd(n.host.pd), Err(AdminStatus::Busy));
    assert_eq!(node.destroy_eq(99), Err(AdminStatus::NoSuchObject));
    for qpn in [qpn, rc.qpn] {
        n.world
            .engine
            .destroy_qp(&mut n.world.nodes, 0, qpn)
            .expect("exists");
    }
    let (node, _) = n.world.nodes.node_mut(0).expect("exists");
    assert_eq!(node.destroy_cq(n.cq.cqn), Ok(()));
    assert_eq!(node.destroy_eq(n.eq.eqn), Ok(()));
    assert_eq!(node.dealloc_pd(n.host.pd), Ok(()));
}
