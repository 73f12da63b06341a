// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where there is no trapped page the kernel is asked to kick, and only when the controller wants to be kicked.

use super::common::World;
use super::node::{pair, pattern, Kicks, Node, Shape, Side};
use crate::ffi::testing::{recv, send, sys, SendExt};

/// A queue pair whose queues are kicked like this.
fn shape(kicks: Kicks) -> Shape {
    Shape {
        kicks,
        ..Shape::default()
    }
}

/// Posts a WRITE of 64 bytes from the start of the one's memory to the other's.
fn write(a: &Side, b: &Side, wr_id: u64) {
    let mut sge = [a.node.sge(0, 64)];
    let request = send(wr_id, sys::IBV_WR_RDMA_WRITE, sys::IBV_SEND_SIGNALED)
        .with(&mut sge)
        .remote(b.node.memory, b.node.key);
    a.qp.qp.post_send(&mut [request]).unwrap();
}

/// Numbers and statuses of completions.
fn summary(polled: &[sys::ibv_wc]) -> Vec<(u64, sys::ibv_wc_status)> {
    polled.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

#[test]
fn requests_are_served_after_one_call() {
    let (a, b) = pair(shape(Kicks::Called));
    let bytes = pattern(64, 1);
    a.node.fill(0, &bytes);
    for wr_id in 0..5 {
        write(&a, &b, wr_id);
    }
    assert_eq!(a.node.run(), 1, "the first is asked for, the rest is seen");
    let done = summary(&a.cq.cq.poll(8));
    assert_eq!(done, [0, 1, 2, 3, 4].map(|n| (n, sys::IBV_WC_SUCCESS)));
    assert_eq!(b.node.bytes(0, 64), bytes);
    // The controller has stopped looking by now.
    write(&a, &b, 5);
    assert_eq!(a.node.run(), 1);
    assert_eq!(a.completion().wr_id, 5);
    assert!(!a.node.was_pushed());
}

#[test]
fn batches_and_receive_queues_are_kicked_too() {
    let (a, b) = pair(shape(Kicks::Called));
    // The sender comes first and waits, so that the controller has to be told of the buffer.
    let posted = a.qp.qp.batch(true, |batch| {
        let batch = batch.next(1, sys::IBV_SEND_SIGNALED);
        batch.send().sges(&[a.node.sge(0, 8)]);
    });
    assert_eq!((posted, a.node.run()), (0, 1));
    assert!(a.cq.cq.poll(1).is_empty() && b.cq.cq.poll(1).is_empty());
    let mut sge = [b.node.sge(0, 64)];
    b.qp.qp.post_recv(&mut [recv(2, &mut sge)]).unwrap();
    assert_eq!(b.node.run(), 1);
    assert_eq!((a.completion().wr_id, b.completion().wr_id), (1, 2));
}

#[test]
fn shared_receive_queues_are_kicked_too() {
    let world = World::new(3);
    let node = Node::kicking(&world, 0, Kicks::Called);
    let cq = node.cq(8);
    let srq = node.srq(64);
    let qp = node.qp(shape(Kicks::Called), [&cq, &cq], Some(&srq));
    let peer = node.qp(shape(Kicks::Called), [&cq, &cq], Some(&srq));
    node.ready(&qp, Some((&node, peer.qpn)));
    node.ready(&peer, Some((&node, qp.qpn)));
    let request = || send(1, sys::IBV_WR_SEND, sys::IBV_SEND_SIGNALED);
    qp.qp.post_send(&mut [request()]).unwrap();
    assert_eq!(node.run(), 1);
    assert!(cq.cq.poll(1).is_empty());
    srq.srq.post(&mut [recv(2, &mut [])]).unwrap();
    assert_eq!(node.run(), 1);
    let mut done = summary(&cq.cq.poll(4));
    done.sort_unstable();
    assert_eq!(done, [1, 2].map(|n| (n, sys::IBV_WC_SUCCESS)));
}

#[test]
fn no_call_is_made_while_the_controller_polls() {
    let (a, b) = pair(shape(Kicks::Called));
    let fabric = &a.node.guest.world.fabric;
    fabric.borrow_mut().set_polling(true);
    for wr_id in 0..4 {
        write(&a, &b, wr_id);
        // A queue pair is polled once it has had work.
        assert_eq!(a.node.run(), usize::from(wr_id == 0));
        fabric.borrow_mut().poll_doorbells();
        assert_eq!(a.completion().wr_id, wr_id);
    }
    fabric.borrow_mut().set_polling(false);
    write(&a, &b, 4);
    assert_eq!(a.node.run(), 1);
    assert_eq!(a.completion().wr_id, 4);
}

#[test]
fn a_queue_that_was_idle_for_long_is_polled_again_once_it_has_kicked() {
    let (a, b) = pair(shape(Kicks::Called));
    let fabric = &a.node.guest.world.fabric;
    fabric.borrow_mut().set_polling(true);
    let look = |times| {
        for _ in 0..times {
            fabric.borrow_mut().poll_doorbells();
        }
    };
    for (wr_id, idle, kicks) in [(0, 10, 1), (1, 10_000, 0), (2, 10, 1), (3, 10, 0)] {
        write(&a, &b, wr_id);
        assert_eq!(a.node.run(), kicks, "request {wr_id}");
        look(1);
        assert_eq!(a.completion().wr_id, wr_id);
        look(idle);
    }
}

#[test]
fn a_queue_that_has_waited_for_long_is_polled_as_before() {
    let (a, b) = pair(shape(Kicks::Called));
    let fabric = &a.node.guest.world.fabric;
    fabric.borrow_mut().set_polling(true);
    write(&a, &b, 0);
    assert_eq!((a.node.run(), a.completion().wr_id), (1, 0));
    // There is no buffer for it yet.
    let message = send(1, sys::IBV_WR_SEND, sys::IBV_SEND_SIGNALED);
    a.qp.qp.post_send(&mut [message]).unwrap();
    assert_eq!(a.node.run(), 0);
    for _ in 0..10_000 {
        fabric.borrow_mut().poll_doorbells();
    }
    b.qp.qp.post_recv(&mut [recv(2, &mut [])]).unwrap();
    assert_eq!(b.node.run(), 1);
    assert_eq!((a.completion().wr_id, b.completion().wr_id), (1, 2));
    fabric.borrow_mut().poll_doorbells();
    write(&a, &b, 3);
    assert_eq!(a.node.run(), 0);
    fabric.borrow_mut().poll_doorbells();
    assert_eq!(a.completion().wr_id, 3);
}

#[test]
fn work_is_flushed_when_the_device_goes() {
    let (a, b) = pair(shape(Kicks::Called));
    write(&a, &b, 0);
    a.node.run();
    write(&a, &b, 1);
    a.node.lose();
    let flushed = |n| (n, sys::IBV_WC_WR_FLUSH_ERR);
    assert_eq!(summary(&a.cq.cq.poll(4)), [(0, sys::IBV_WC_SUCCESS)]);
    assert_eq!(summary(&a.cq.cq.poll(4)), [flushed(1)]);
    write(&a, &b, 2);
    assert_eq!(summary(&a.cq.cq.poll(4)), [flushed(2)]);
}

#[test]
fn a_trapped_page_does_not_mean_push_slots() {
    for (kicks, pushed) in [(Kicks::Pushed, true), (Kicks::Trapped, false)] {
        let (a, b) = pair(shape(kicks));
        write(&a, &b, 0);
        assert_eq!(a.node.run(), 1);
        assert_eq!(a.completion().wr_id, 0);
        assert_eq!(a.node.was_pushed(), pushed);
    }
}
