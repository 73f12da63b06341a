// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completions that say when they were written.

use nupa_proto::admin::CQ_FLAG_TIMESTAMP;

use super::common::World;
use super::node::{Node, Shape, TestCq, TestQp};
use crate::ffi::testing::{send, sys};

/// A queue pair that is connected to another one of its node.
fn node(world: &World, flags: u8) -> (Node, TestCq, [TestQp; 2]) {
    let node = Node::new(world, 0);
    let cq = node.cq_with(8, flags);
    let qps = [(); 2].map(|()| node.qp(Shape::default(), [&cq, &cq], None));
    let [one, two] = &qps;
    node.ready(one, Some((&node, two.qpn)));
    node.ready(two, Some((&node, one.qpn)));
    (node, cq, qps)
}

/// Completes a request, and one more after a while.
fn complete_two(node: &Node, qp: &TestQp) {
    for wr_id in 0..2 {
        node.guest.world.clock.advance(5000);
        let request = send(wr_id, sys::IBV_WR_RDMA_WRITE, sys::IBV_SEND_SIGNALED);
        qp.qp.post_send(&mut [request]).unwrap();
        node.run();
    }
}

#[test]
fn completions_have_the_time_of_the_device() {
    let world = World::new(3);
    let (node, cq, qps) = node(&world, CQ_FLAG_TIMESTAMP);
    complete_two(&node, &qps[0]);
    assert_eq!(cq.cq.timestamps(), [5_000_000, 10_000_000]);
    assert!(cq.cq.timestamps().is_empty());
}

#[test]
fn others_have_none() {
    let world = World::new(3);
    let (node, cq, qps) = node(&world, 0);
    complete_two(&node, &qps[0]);
    assert_eq!(cq.cq.timestamps(), [0, 0]);
}

#[test]
fn what_is_flushed_without_the_device_is_not_older_than_what_is_before_it() {
    let world = World::new(3);
    let (node, cq, qps) = node(&world, CQ_FLAG_TIMESTAMP);
    complete_two(&node, &qps[0]);
    let request = send(2, sys::IBV_WR_RDMA_WRITE, sys::IBV_SEND_SIGNALED);
    qps[0].qp.post_send(&mut [request]).unwrap();
    node.lose();
    assert_eq!(cq.cq.timestamps(), [5_000_000, 10_000_000, 10_000_000]);
}
