// SPDX-License-Identifier: GPL-2.0 OR MIT
//! WRITEs that nobody asks for, and that the receiver's process leaves where they are.

use super::*;

/// Time between two looks.
const POLL_US: u64 = 10_000;
const WRITES: u32 = STATE_OPEN | STATE_WRITES;

#[test]
fn what_is_left_for_two_looks_is_taken() {
    let (mut world, mut a, mut b, mut ring) = pair_at(250);
    world.pump();
    // Something of others behind the state stays.
    b.host.write(ring.at + 4, &[1, 2, 3, 4]);
    for number in 0..5 {
        ring.write(&b.host, &b.mr, 4096 * number, &pattern(500, number as u8));
    }
    world.advance(POLL_US);
    assert_eq!(ring.taken(&b.host), 250);
    assert_eq!(ring.word(&b.host, STATE), WRITES);
    // Not before it is time.
    world.advance(POLL_US - 1);
    assert_eq!(ring.taken(&b.host), 250);
    world.advance(1);
    assert_eq!((ring.taken(&b.host), ring.taker(&b.host)), (ring.line, 0));
    for number in 0..5 {
        assert!(b.bytes(4096 * number, 500) == pattern(500, number as u8));
    }
    assert_eq!(ring.word(&b.host, STATE), STATE_OPEN);
    assert_eq!(b.host.read(ring.at + 4, 4), [1, 2, 3, 4]);
    assert_eq!((a.done(), b.done(), b.eq.drain()), (vec![], vec![], vec![]));
    // What comes behind it finds it done.
    ask(&mut a, 1, ring.line);
    world.pump();
    assert_eq!(a.done(), [(1, OK)]);
}

#[test]
fn what_has_come_since_is_not() {
    let (mut world, _, b, mut ring) = pair();
    world.pump();
    for number in 0..10 {
        ring.write(&b.host, &b.mr, number, &[1]);
        world.advance(POLL_US);
        assert_eq!(ring.taken(&b.host), number as u32, "it is new");
        // The process takes it.
        ring.set_taken(&b.host, ring.line);
    }
    world.advance(POLL_US);
    world.advance(POLL_US);
    assert_eq!(
        (ring.word(&b.host, STATE), b.bytes(0, 16)),
        (WRITES, vec![0; 16])
    );
}

#[test]
fn nothing_but_writes_is_taken() {
    let (mut world, _, b, mut ring) = pair();
    ring.write(&b.host, &b.mr, 0, b"one");
    let send = ring.line;
    ring.put(&b.host, 0, b"a message");
    ring.write(&b.host, &b.mr, 64, b"two");
    for _ in 0..4 {
        world.advance(POLL_US);
    }
    assert_eq!((ring.taken(&b.host), ring.taker(&b.host)), (send, 0));
    assert_eq!(ring.word(&b.host, STATE), STATE_OPEN);
    ring.set_state(&b.host, WRITES);
    for _ in 0..4 {
        world.advance(POLL_US);
    }
    assert_eq!((ring.taken(&b.host), b.bytes(64, 3)), (send, vec![0; 3]));
    assert_eq!(
        (b.bytes(0, 3), ring.word(&b.host, STATE)),
        (b"one".into(), WRITES)
    );
}

#[test]
fn what_would_be_an_error_is_left_to_who_comes_behind_it() {
    let (mut world, mut a, mut b, mut ring) = pair();
    let wrong = Mr {
        key: b.mr.key ^ 1,
        ..b.mr
    };
    ring.write(&b.host, &b.mr, 0, b"one");
    ring.write(&b.host, &wrong, 64, b"two");
    ring.write(&b.host, &b.mr, 128, b"three");
    for _ in 0..6 {
        world.advance(POLL_US);
    }
    assert_eq!((ring.taken(&b.host), ring.taker(&b.host)), (1, 0));
    assert_eq!((state(&world, &b), b.eq.drain()), (READY, vec![]));
    assert_eq!(
        (b.bytes(0, 3), b.bytes(128, 5)),
        (b"one".into(), vec![0; 5])
    );
    ask(&mut a, 1, ring.line);
    world.pump();
    assert_eq!(a.done(), [(1, WcStatus::RemoteAccess as u8)]);
    assert_eq!((ring.taken(&b.host), state(&world, &b)), (1, FAILED));
}

#[test]
fn a_ring_that_is_held_is_left_alone() {
    let (mut world, _, b, mut ring) = pair();
    ring.write(&b.host, &b.mr, 0, b"one");
    ring.set_taker(&b.host, TAKER_PROCESS);
    for _ in 0..4 {
        world.advance(POLL_US);
        assert_eq!(
            (ring.taken(&b.host), ring.word(&b.host, STATE)),
            (0, WRITES)
        );
    }
    ring.set_taker(&b.host, 0);
    world.advance(POLL_US);
    assert_eq!((ring.taken(&b.host), b.bytes(0, 3)), (1, b"one".into()));
}

#[test]
fn a_queue_pair_that_does_not_receive_takes_nothing() {
    let (mut world, _, b, mut ring) = pair();
    ring.write(&b.host, &b.mr, 0, b"one");
    let err = QpStateCode::Err;
    assert_eq!(b.host.set_state(&mut world, b.qp.qpn, err), Ok(()));
    for _ in 0..4 {
        world.advance(POLL_US);
    }
    assert_eq!((ring.taken(&b.host), b.bytes(0, 3)), (0, vec![0; 3]));
}

#[test]
fn no_turn_is_due_for_it() {
    let (mut world, _, b, mut ring) = pair();
    world.pump();
    let before = world.next;
    ring.write(&b.host, &b.mr, 0, b"one");
    world.advance(POLL_US);
    assert_eq!(world.next, before);
}

/// More rings than one turn looks at.
#[test]
fn all_rings_are_looked_at() {
    let (mut world, mut a, mut b, ring) = pair();
    let mut rings = vec![(ring, b.qp.qpn)];
    for number in 0..110 {
        if number % 40 == 0 {
            [&mut a, &mut b].map(|end| end.host.turn_page());
        }
        let mine = a.host.qp(&mut world, QpType::Rc, &a.cq, 2);
        let theirs = b.host.qp(&mut world, QpType::Rc, &b.cq, 2);
        connect(&mut world, (&a.host, &mine), (&b.host, &theirs));
        let ring = Ring::new(&mut b.host, number);
        assert_eq!(give(&mut world, &b.host, theirs.qpn, ring.at), Ok(()));
        rings.push((ring, theirs.qpn));
    }
    world.advance(POLL_US);
    for (number, (ring, _)) in (0..).zip(&mut rings) {
        ring.write(&b.host, &b.mr, 64 * number, &number.to_le_bytes());
    }
    // Some go in between.
    world.advance(POLL_US);
    for (_, qpn) in rings.drain(30..50) {
        let id = b.host.id;
        assert_eq!(world.engine.destroy_qp(&mut world.nodes, id, qpn), Ok(()));
    }
    world.advance(POLL_US);
    for (ring, qpn) in rings {
        assert_eq!(ring.taken(&b.host), ring.line, "{qpn}");
    }
    for number in (0..30u64).chain(50..111) {
        assert_eq!(b.bytes(64 * number, 8), number.to_le_bytes());
    }
}
