// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Completion queues that get another ring: nothing is lost, doubled or reordered, and arming goes on.

use nupa_engine::rings::{Data, Operation, SendRequest};
use nupa_proto::{
    admin::{QpStateCode, QpType},
    eqe::EventType,
    status::AdminStatus,
    wqe::WQE_SIGNALED,
};
use nupa_testing::{Cq, Eq, Host, Qp, World};
use proptest::{collection::vec, prelude::*};

struct Node {
    world: World,
    host: Host,
    eq: Eq,
    cq: Cq,
    qp: Qp,
    posted: u64,
}

/// A node with a completion queue of `1 << log` entries.
fn node(log: u8) -> Node {
    let mut world = World::new(*crate::MODE, 1);
    let mut host = world.host(0);
    let eq = host.start(&mut world);
    let cq = host.cq(&mut world, eq.eqn, log);
    let qp = host.qp(&mut world, QpType::Raw, &cq, 6);
    host.ready(&mut world, &qp, None);
    Node {
        world,
        host,
        eq,
        cq,
        qp,
        posted: 0,
    }
}

/// Posts a request that does nothing but complete.
fn post_nop(qp: &mut Qp, wr_id: u64) {
    let request = SendRequest {
        wr_id,
        flags: WQE_SIGNALED,
        operation: Operation::Nop,
        data: Data::Inline(&[]),
    };
    qp.send.post(&request).expect("room");
}

impl Node {
    /// Completes requests whose numbers go on from those before.
    fn complete(&mut self, count: u64) {
        for _ in 0..count {
            post_nop(&mut self.qp, self.posted);
            self.posted += 1;
        }
        self.qp.send.ring();
        self.world.pump();
        let index = self.qp.send.index();
        self.qp.send.completed(index).expect("posted");
    }

    fn poll(&mut self, count: usize) -> Vec<u64> {
        let entries = (0..count).map_while(|_| self.cq.ring.poll());
        entries.map(|cqe| cqe.wr_id.get()).collect()
    }

    fn resize(&mut self, log: u8) -> Result<(), AdminStatus> {
        self.host.resize(&mut self.world, &mut self.cq, log)
    }
}

#[test]
fn entries_move_to_the_new_ring() {
    let mut n = node(4);
    // The old ring is in its second pass.
    n.complete(10);
    assert_eq!(n.poll(10).len(), 10);
    n.complete(12);
    assert_eq!(n.poll(3), [10, 11, 12]);
    assert_eq!(n.resize(5), Ok(()));
    n.complete(23);
    let expected: Vec<_> = (13..45).collect();
    assert_eq!(n.poll(100), expected);
    assert_eq!(n.resize(1), Ok(()));
    n.complete(2);
    assert_eq!(n.poll(100), [45, 46]);
    assert_eq!(n.world.node(0).counters().cq_overflows.get(), 0);
}

/// Many entries move in parts, between which others come.
#[test]
fn entries_that_come_while_others_move_come_behind_them() {
    let mut n = node(10);
    for _ in 0..10 {
        n.complete(60);
    }
    let Node {
        world,
        host,
        cq,
        qp,
        posted,
        ..
    } = &mut n;
    let mut parts = 0;
    let resized = host.resize_and(world, cq, 11, |world| {
        parts += 1;
        for _ in 0..40 {
            post_nop(qp, *posted);
            *posted += 1;
        }
        qp.send.ring();
        world.pump();
        let index = qp.send.index();
        qp.send.completed(index).expect("posted");
    });
    assert_eq!((resized, parts), (Ok(()), 2));
    n.complete(21);
    let expected: Vec<_> = (0..701).collect();
    assert_eq!(n.poll(1000), expected);
    assert_eq!(n.world.node(0).counters().cq_overflows.get(), 0);
}

/// One that overflows between two parts is refused, and that is the end of it.
#[test]
fn a_queue_that_overflows_while_entries_move_stays_where_it_is() {
    let mut n = node(9);
    for _ in 0..10 {
        n.complete(50);
    }
    let Node {
        world,
        host,
        cq,
        qp,
        ..
    } = &mut n;
    let resized = host.resize_and(world, cq, 10, |world| {
        for wr_id in 0..20 {
            post_nop(qp, wr_id);
        }
        qp.send.ring();
        world.pump();
    });
    assert_eq!(resized, Err(AdminStatus::InvalidState));
    assert_eq!(n.world.node(0).counters().cq_overflows.get(), 1);
    assert_eq!(n.poll(500).len(), 500);
}

#[test]
fn a_ring_that_is_too_small_is_refused() {
    let mut n = node(4);
    n.complete(9);
    assert_eq!(n.resize(3), Err(AdminStatus::InvalidField));
    assert_eq!(n.poll(1), [0]);
    assert_eq!(n.resize(3), Ok(()));
    assert_eq!(n.poll(100), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn an_armed_queue_stays_armed_and_one_that_fired_does_not() {
    let mut n = node(4);
    let completion = (EventType::Completion as u8, 0, n.cq.cqn);
    assert!(!n.cq.ring.arm(false));
    assert_eq!(n.resize(5), Ok(()));
    n.complete(1);
    assert_eq!(n.eq.drain(), [completion]);
    assert_eq!(n.resize(4), Ok(()));
    n.complete(1);
    assert_eq!(n.eq.drain(), []);
    assert_eq!(n.poll(9), [0, 1]);
    assert!(!n.cq.ring.arm(false));
    n.complete(1);
    assert_eq!(n.eq.drain(), [completion]);
}

#[test]
fn a_queue_that_overflowed_stays_as_it_is() {
    let mut n = node(2);
    n.complete(5);
    assert_eq!(n.resize(4), Err(AdminStatus::InvalidState));
    assert_eq!(n.poll(9), [0, 1, 2, 3]);
    let state = n.world.node(0).query_qp(n.qp.qpn).expect("exists").state;
    assert_eq!(state, QpStateCode::Err.to_wire());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Complete(u64),
    Poll(usize),
    Resize(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1u64..20).prop_map(Step::Complete),
        (1usize..40).prop_map(Step::Poll),
        (0u8..8).prop_map(Step::Resize),
    ]
}

proptest! {
    #[test]
    fn completions_come_in_order_whatever_the_ring(steps in vec(step(), 1..60)) {
        let mut n = node(4);
        let (mut polled, mut room) = (0u64, 16u64);
        for step in steps {
            let waiting = n.posted - polled;
            match step {
                Step::Complete(count) => {
                    n.cq.ring.publish();
                    n.complete(count.min(room - waiting));
                }
                Step::Poll(count) => {
                    for number in n.poll(count) {
                        prop_assert_eq!(number, polled);
                        polled += 1;
                    }
                    prop_assert_eq!(waiting.saturating_sub(count as u64), n.posted - polled);
                }
                Step::Resize(log) if waiting <= 1 << log => {
                    prop_assert_eq!(n.resize(log), Ok(()));
                    room = 1 << log;
                }
                Step::Resize(log) => {
                    prop_assert_eq!(n.resize(log), Err(AdminStatus::InvalidField));
                }
            }
        }
        prop_assert_eq!(n.poll(1000).len() as u64, n.posted - polled);
        prop_assert_eq!(n.world.node(0).counters().cq_overflows.get(), 0);
    }
}
