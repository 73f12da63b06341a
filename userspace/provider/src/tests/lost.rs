// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device goes without a word to the queues: what was posted is flushed all the same, once and in order.

use super::common::World;
use super::node::{pair, Node, Shape, Side};
use crate::ffi::testing::{recv, send, sys, SendExt};

/// Posts WRITEs, signaled or not.
fn post(a: &Side, b: &Side, numbers: std::ops::Range<u64>, flags: u32) {
    for wr_id in numbers {
        let mut sge = [a.node.sge(0, 64)];
        let request = send(wr_id, sys::IBV_WR_RDMA_WRITE, flags)
            .with(&mut sge)
            .remote(b.node.memory, b.node.key);
        a.qp.qp.post_send(&mut [request]).unwrap();
    }
}

/// Posts receives.
fn receive(side: &Side, numbers: std::ops::Range<u64>) {
    for wr_id in numbers {
        let mut sge = [side.node.sge(0, 64)];
        side.qp.qp.post_recv(&mut [recv(wr_id, &mut sge)]).unwrap();
    }
}

/// Numbers and statuses of completions.
fn summary(polled: &[sys::ibv_wc]) -> Vec<(u64, sys::ibv_wc_status)> {
    polled.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// What flushed requests with these numbers come back as.
fn flushed(numbers: impl Iterator<Item = u64>) -> Vec<(u64, sys::ibv_wc_status)> {
    numbers.map(|n| (n, sys::IBV_WC_WR_FLUSH_ERR)).collect()
}

#[test]
fn work_is_flushed_once_behind_what_was_completed() {
    let (a, b) = pair(Shape::default());
    receive(&a, 100..103);
    post(&a, &b, 0..3, sys::IBV_SEND_SIGNALED);
    a.node.run();
    // Neither of these was looked at, signaled or not.
    post(&a, &b, 3..5, sys::IBV_SEND_SIGNALED);
    post(&a, &b, 5..7, 0);
    assert_eq!(a.cq.cq.poll(1).len(), 1);
    a.node.lose();
    let polled = a.cq.cq.poll(2);
    let success = |n| (n, sys::IBV_WC_SUCCESS);
    assert_eq!(summary(&polled), [success(1), success(2)]);
    let polled = a.cq.cq.poll(3);
    assert_eq!(summary(&polled), flushed(3..6));
    assert!(polled.iter().all(|wc| wc.qp_num == a.qp.qpn));
    let polled = a.cq.cq.poll(16);
    assert_eq!(summary(&polled), flushed((6..7).chain(100..103)));
    assert!(polled[1..].iter().all(|wc| wc.opcode == sys::IBV_WC_RECV));
    assert!(a.cq.cq.poll(16).is_empty());
}

#[test]
fn work_that_is_posted_afterwards_is_flushed_too_for_ever() {
    let (a, b) = pair(Shape::default());
    a.node.lose();
    for round in 0..50 {
        let numbers = round * 10..round * 10 + 10;
        post(&a, &b, numbers.clone(), sys::IBV_SEND_SIGNALED);
        receive(&a, numbers.clone());
        let polled = a.cq.cq.poll_ex();
        assert_eq!(summary(&polled), flushed(numbers.clone().chain(numbers)));
        assert!(a.cq.cq.poll(1).is_empty());
    }
}

#[test]
fn each_side_of_a_queue_pair_is_flushed_to_its_own_completion_queue() {
    let node = Node::new(&World::new(3), 0);
    let cqs = [node.cq(8), node.cq(8)];
    let [sends, recvs] = &cqs;
    let qp = node.qp(Shape::default(), [sends, recvs], None);
    let peer = node.qp(Shape::default(), [recvs, recvs], None);
    node.ready(&qp, Some((&node, peer.qpn)));
    let request = || send(1, sys::IBV_WR_SEND, sys::IBV_SEND_SIGNALED);
    qp.qp.post_send(&mut [request()]).unwrap();
    qp.qp.post_recv(&mut [recv(2, &mut [])]).unwrap();
    node.lose();
    assert_eq!(summary(&sends.cq.poll(4)), flushed(1..2));
    assert_eq!(summary(&recvs.cq.poll(4)), flushed(2..3));
    assert!(sends.cq.poll(4).is_empty() && recvs.cq.poll(4).is_empty());
}

#[test]
fn shared_entries_stay() {
    let node = Node::new(&World::new(3), 0);
    let cq = node.cq(8);
    let srq = node.srq(64);
    let qp = node.qp(Shape::default(), [&cq, &cq], Some(&srq));
    srq.srq.post(&mut [recv(1, &mut [])]).unwrap();
    node.lose();
    assert!(cq.cq.poll(4).is_empty(), "of {}", qp.qpn);
}

#[test]
fn polling_within_a_batch_does_not_wait_for_its_end() {
    let (a, b) = pair(Shape::default());
    post(&a, &b, 0..2, sys::IBV_SEND_SIGNALED);
    a.node.lose();
    let posted = a.qp.qp.batch(true, |batch| {
        let batch = batch.next(2, sys::IBV_SEND_SIGNALED);
        batch
            .write(b.node.key, b.node.memory)
            .sges(&[a.node.sge(0, 64)]);
        assert!(a.cq.cq.poll(4).is_empty());
    });
    assert_eq!(posted, 0);
    assert_eq!(summary(&a.cq.cq.poll(4)), flushed(0..3));
}
