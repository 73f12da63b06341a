// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Polling, plain and piece by piece, arming, and completions of queue pairs that are no more.

use nupa_proto::admin::{AdminOpcode, QpStateCode};

use super::node::{pair, Shape, Side};
use crate::ffi::testing::{send, sys, SendExt};

/// Posts WRITEs that complete with these numbers.
fn writes(a: &Side, b: &Side, numbers: std::ops::Range<u64>) {
    for wr_id in numbers {
        let mut sge = [a.node.sge(0, 64)];
        let request = send(wr_id, sys::IBV_WR_RDMA_WRITE, sys::IBV_SEND_SIGNALED)
            .with(&mut sge)
            .remote(b.node.memory, b.node.key);
        a.qp.qp.post_send(&mut [request]).unwrap();
    }
    a.node.run();
}

#[test]
fn polling_piece_by_piece_reads_the_same() {
    let (a, b) = pair(Shape::default());
    assert!(a.cq.cq.poll_ex().is_empty());
    writes(&a, &b, 0..40);
    assert_eq!(a.cq.cq.poll(3).len(), 3);
    let seen = a.cq.cq.poll_ex();
    assert!(seen.iter().map(|wc| wc.wr_id).eq(3..40));
    for wc in &seen {
        assert_eq!(
            (wc.status, wc.opcode),
            (sys::IBV_WC_SUCCESS, sys::IBV_WC_RDMA_WRITE)
        );
        assert_eq!((wc.qp_num, wc.vendor_err, wc.wc_flags), (a.qp.qpn, 0, 0));
    }
    assert!(a.cq.cq.poll_ex().is_empty());
    assert!(a.cq.cq.poll(1).is_empty());
}

#[test]
fn a_ring_that_wraps_many_times_loses_nothing() {
    let (a, b) = pair(Shape::default());
    let mut next = 0;
    for round in 0..100u64 {
        let end = next + 1 + round % 60;
        writes(&a, &b, next..end);
        let polled = a.cq.cq.poll(64);
        assert!(polled.iter().map(|wc| wc.wr_id).eq(next..end));
        next = end;
    }
}

#[test]
fn an_armed_queue_makes_one_event() {
    let (a, b) = pair(Shape::default());
    let _ = a.node.guest.irqs.take(0);
    writes(&a, &b, 0..1);
    assert_eq!(a.node.guest.irqs.take(0), 0);
    a.cq.cq.arm(true);
    writes(&a, &b, 1..2);
    assert_eq!(a.node.guest.irqs.take(0), 0, "nothing was solicited");
    assert_eq!(a.cq.cq.poll(8).len(), 2);
}

#[test]
fn completions_of_a_reset_queue_pair_are_gone_and_it_starts_over() {
    let (a, b) = pair(Shape::default());
    writes(&a, &b, 0..10);
    assert_eq!(a.cq.cq.poll(1).len(), 1);
    a.node.modify(&a.qp, QpStateCode::Reset, |_| ());
    a.qp.qp.pair().reset();
    assert!(a.cq.cq.poll(16).is_empty());
    a.node.modify(&a.qp, QpStateCode::Init, |_| ());
    a.node.ready(&a.qp, Some((&b.node, b.qp.qpn)));
    writes(&a, &b, 10..70);
    let polled = a.cq.cq.poll(128);
    assert!(polled.iter().map(|wc| wc.wr_id).eq(10..70));
}

#[test]
fn completions_of_a_destroyed_queue_pair_are_skipped() {
    let (a, b) = pair(Shape::default());
    let other = a.node.qp(Shape::default(), [&a.cq, &a.cq], None);
    let peer = b.node.qp(Shape::default(), [&b.cq, &b.cq], None);
    a.node.ready(&other, Some((&b.node, peer.qpn)));
    b.node.ready(&peer, Some((&a.node, other.qpn)));
    writes(&a, &b, 0..3);
    let mut sge = [a.node.sge(0, 64)];
    let request = send(50, sys::IBV_WR_RDMA_WRITE, sys::IBV_SEND_SIGNALED)
        .with(&mut sge)
        .remote(b.node.memory, b.node.key);
    other.qp.post_send(&mut [request]).unwrap();
    a.node.run();
    let Side { node, cq, qp } = a;
    node.guest.by_id(AdminOpcode::DestroyQp, qp.qpn).unwrap();
    drop(qp);
    let seen: Vec<_> = cq
        .cq
        .poll(8)
        .iter()
        .map(|wc| (wc.wr_id, wc.qp_num))
        .collect();
    assert_eq!(seen, [(50, other.qpn)]);
}
