// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs that fail, and devices that go.

use super::*;

#[test]
fn a_key_that_goes_after_the_buffer_was_posted_fails_the_queue_pair() {
    let sides = Sides::with_rings();
    sides.receive(1, 64);
    sides.of_b.regions.remove(sides.b.node.key);
    sides.post(1, 8, SIGNALED);
    let [wc] = sides.b.cq.cq.poll(2)[..] else {
        panic!("no completion");
    };
    assert_eq!((wc.wr_id, wc.status), (1, sys::IBV_WC_LOC_PROT_ERR));
    assert_eq!(sides.of_b.failures(), 1);
    assert_eq!(Sides::ring_state(&sides.of_b.incoming()), 0);
}

#[test]
fn what_was_received_before_an_error_is_shown_and_the_rest_is_flushed() {
    let sides = Sides::with_rings();
    for wr_id in 0..6 {
        sides.receive(wr_id, 64);
    }
    for wr_id in 0..3 {
        sides.post(wr_id, 8, SIGNALED);
    }
    sides.b.node.modify(&sides.b.qp, QpStateCode::Err, |_| ());
    sides.of_b.close();
    sides.b.qp.qp.pair().changed(false, true);
    let found = Sides::poll(&sides.b);
    let found: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let (ok, flushed) = (sys::IBV_WC_SUCCESS, sys::IBV_WC_WR_FLUSH_ERR);
    let expected = [
        (0, ok),
        (1, ok),
        (2, ok),
        (3, flushed),
        (4, flushed),
        (5, flushed),
    ];
    assert_eq!(found, expected);
    sides.post(9, 8, SIGNALED);
    let found = Sides::poll(&sides.a);
    assert!(found.iter().map(|wc| wc.wr_id).eq(0..3), "{}", found.len());
}

#[test]
fn nothing_is_received_behind_a_message_that_failed() {
    let sides = Sides::with_rings();
    // Room for the second one only; the first one goes to the engine.
    sides.receive(0, 64);
    sides.receive(1, 64);
    sides.post(0, 100, SIGNALED);
    sides.post(1, 8, SIGNALED);
    sides.a.node.run();
    let found = Sides::poll(&sides.b);
    let found: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let expected = [(0, sys::IBV_WC_LOC_LEN_ERR), (1, sys::IBV_WC_WR_FLUSH_ERR)];
    assert_eq!(found, expected);
    let found = Sides::poll(&sides.a);
    let found: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let expected = [
        (0, sys::IBV_WC_REM_INV_REQ_ERR),
        (1, sys::IBV_WC_WR_FLUSH_ERR),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_queue_pair_that_has_failed_sends_nothing_into_a_ring() {
    let sides = Sides::with_rings();
    sides.receive(1, 64);
    sides.of_b.regions.remove(sides.b.node.key);
    sides.post(1, 8, SIGNALED);
    assert_eq!(sides.b.cq.cq.poll(2).len(), 1);
    assert_eq!(sides.of_b.failures(), 1);
    // The other way.
    let mut sges = [sides.b.node.sge(0, 8)];
    let before = sides.of_a.incoming().load(nupa_proto::process_ring::TAKEN);
    let message = send(9, sys::IBV_WR_SEND, SIGNALED).with(&mut sges);
    sides.b.qp.qp.post_send(&mut [message]).unwrap();
    assert_eq!(
        sides.of_a.incoming().load(nupa_proto::process_ring::TAKEN),
        before
    );
    assert!(sides.b.cq.cq.poll(1).is_empty(), "it is the engine's");
}

#[test]
fn what_was_sent_keeps_its_order_after_the_device_went() {
    let (ok, flushed) = (sys::IBV_WC_SUCCESS, sys::IBV_WC_WR_FLUSH_ERR);
    // Long ones go to the engine; what lies in the ring was sent.
    for (lengths, statuses) in [
        ([STEP, 8, STEP], [flushed, ok, flushed]),
        ([8, STEP, 8], [ok, flushed, ok]),
        ([8, 8, STEP], [ok, ok, flushed]),
    ] {
        let sides = Sides::with_rings();
        for (wr_id, len) in (0..).zip(lengths) {
            sides.receive(wr_id, STEP);
            sides.post(wr_id, len, SIGNALED);
        }
        sides.a.node.lose();
        let found: Vec<_> = std::iter::from_fn(|| sides.a.cq.cq.poll(1).pop())
            .take(70)
            .filter(|wc| wc.opcode == sys::IBV_WC_SEND)
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
        let expected: Vec<_> = (0..).zip(statuses).collect();
        assert_eq!(found, expected, "{lengths:?}");
        // Nothing goes into the ring any more.
        let lines = sides.of_b.incoming();
        let before: Vec<u8> = ring_bytes(&lines);
        sides.post(9, 8, SIGNALED);
        assert!(ring_bytes(&lines) == before);
    }
}

/// What lies in the lines of a ring.
fn ring_bytes(pages: &Pages) -> Vec<u8> {
    let mut bytes = vec![0; LINES as usize * LINE_SIZE];
    pages.read(CONTROL_SIZE, &mut bytes);
    bytes
}

#[test]
fn a_queue_pair_that_fails_before_it_has_a_ring_finds_none() {
    let mut sides = Sides::new(false);
    for _ in 0..20 {
        sides.transfer(8);
    }
    let mut sges = [sides.a.node.sge(0, 8)];
    sges[0].lkey = !sges[0].lkey;
    let bad = send(1, sys::IBV_WR_SEND, SIGNALED).with(&mut sges);
    sides.a.qp.qp.post_send(&mut [bad]).unwrap();
    sides.a.node.run();
    assert_ne!(Sides::poll(&sides.a)[0].status, sys::IBV_WC_SUCCESS);
    for wr_id in 100..150 {
        sides.post(wr_id, 8, SIGNALED);
        sides.a.node.run();
        let found = Sides::poll(&sides.a);
        let found: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(found, [(wr_id, sys::IBV_WC_WR_FLUSH_ERR)]);
    }
}
