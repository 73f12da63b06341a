// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events for messages in process rings, which the sender's engine has the receiver's make.

use super::parts::{connect, end, End};
use nupa_proto::{
    admin::{ModifyQp, QpStateCode, QpType, QP_MASK_PROCESS_RINGS},
    eqe::EventType,
    wqe::WQE_SOLICITED,
};
use nupa_testing::{Cq, Qp, World};

/// Queue pairs besides the first one.
const OTHERS: u32 = 80;
const COMPLETION: u8 = EventType::Completion as u8;

/// A queue pair has process rings.
fn allow(world: &mut World, end: &End, qpn: u32) {
    let command = ModifyQp {
        qpn: qpn.into(),
        mask: QP_MASK_PROCESS_RINGS.into(),
        ..ModifyQp::default()
    };
    let id = end.host.id;
    world.engine.at(&mut world.nodes, id, |engine, nodes| {
        assert_eq!(engine.modify_qp(nodes, id, &command), Ok(()));
    });
}

/// Two ends whose queue pairs have process rings.
fn pair() -> (World, End, End) {
    let (mut world, a, b) = super::parts::pair();
    for end in [&a, &b] {
        allow(&mut world, end, end.qp.qpn);
    }
    (world, a, b)
}

/// A message of a queue pair lies in the process ring of its peer.
fn kick_peer(world: &mut World, end: &End, qpn: u32) {
    let id = end.host.id;
    world.engine.at(&mut world.nodes, id, |engine, nodes| {
        engine.send_event(nodes, id, qpn);
    });
}

/// Another queue pair of an end, with a completion queue of its own.
fn another(world: &mut World, end: &mut End) -> (Cq, Qp) {
    let cq = end.host.cq(world, end.eq.eqn, 4);
    let qp = end.host.qp(world, QpType::Rc, &cq, 4);
    (cq, qp)
}

#[test]
fn an_armed_queue_gets_its_event_once() {
    let (mut world, mut a, mut b) = pair();
    let event = (COMPLETION, 0, b.cq.cqn);
    kick_peer(&mut world, &a, a.qp.qpn);
    world.pump();
    assert_eq!(b.eq.drain(), [], "it is not armed");
    for solicited_only in [false, true] {
        b.cq.ring.arm(solicited_only);
        kick_peer(&mut world, &a, a.qp.qpn);
        kick_peer(&mut world, &a, a.qp.qpn);
        world.pump();
        assert_eq!(b.eq.drain(), [event]);
        kick_peer(&mut world, &a, a.qp.qpn);
        world.pump();
        assert_eq!(b.eq.drain(), []);
    }
    assert_eq!((a.eq.drain(), b.cq.drain().len()), (vec![], 0));
    // Completions make events as before.
    b.cq.ring.arm(true);
    b.receive(1, 0, 64);
    a.qp.submit(
        1,
        WQE_SOLICITED,
        nupa_engine::rings::Operation::Send { imm: None },
        nupa_engine::rings::Data::Inline(b"one"),
    );
    world.pump();
    assert_eq!(b.eq.drain(), [event]);
}

/// The receive queue may be a shared one, ...
#[test]
fn a_queue_pair_on_a_shared_queue_gets_its_event() {
    let mut world = World::new(*crate::MODE, 2);
    let [a, mut b] = [0, 1].map(|id| end(&mut world, id));
    let srq = b.host.srq(&mut world, 3);
    let cq = &mut b.host.cq(&mut world, b.eq.eqn, 4);
    let theirs = b.host.qp_on(&mut world, QpType::Rc, 0, Some(&srq), cq, 4);
    connect(&mut world, (&a.host, &a.qp), (&b.host, &theirs));
    for (end, qpn) in [(&a, a.qp.qpn), (&b, theirs.qpn)] {
        allow(&mut world, end, qpn);
    }
    let event = (COMPLETION, 0, cq.cqn);
    kick_peer(&mut world, &a, a.qp.qpn);
    world.pump();
    assert_eq!(b.eq.drain(), []);
    cq.ring.arm(false);
    kick_peer(&mut world, &a, a.qp.qpn);
    world.pump();
    assert_eq!(b.eq.drain(), [event]);
    cq.ring.arm(true);
    fill_ring(&mut world, &a);
    assert_eq!(b.eq.drain(), [event]);
}

/// ... and then its owner may have entries later than messages.
#[test]
fn an_owner_makes_its_own_event() {
    let (mut world, mut a, mut b) = pair();
    let (_, other) = another(&mut world, &mut b);
    let event = (COMPLETION, 0, b.cq.cqn);
    let kick_event = |world: &mut World, end: &End, qpn: u32| {
        let id = end.host.id;
        world.engine.at(&mut world.nodes, id, |engine, nodes| {
            engine.make_own_event(nodes, id, qpn);
        });
        world.pump();
    };
    kick_event(&mut world, &b, b.qp.qpn);
    assert_eq!(b.eq.drain(), [], "it is not armed");
    b.cq.ring.arm(true);
    // None of these has rings, or receives, or is there.
    kick_event(&mut world, &b, other.qpn);
    kick_event(&mut world, &b, 12_345);
    for end in [&a, &b] {
        let reset = QpStateCode::Reset;
        let reset = end.host.set_state(&mut world, end.qp.qpn, reset);
        assert_eq!(reset, Ok(()));
    }
    allow(&mut world, &b, b.qp.qpn);
    kick_event(&mut world, &b, b.qp.qpn);
    assert_eq!(b.eq.drain(), []);
    connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
    kick_event(&mut world, &b, b.qp.qpn);
    assert_eq!(b.eq.drain(), [event]);
    kick_event(&mut world, &b, b.qp.qpn);
    assert_eq!((b.eq.drain(), a.eq.drain()), (vec![], vec![]));
}

#[test]
fn nobody_else_makes_events() {
    let mut world = World::new(*crate::MODE, 3);
    let [mut a, mut b, mut c] = [0, 1, 2].map(|id| end(&mut world, id));
    connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
    // These name a queue pair that is not connected to them.
    let epoch = world.node(1).epoch();
    let (_, aside) = another(&mut world, &mut a);
    a.host.ready(&mut world, &aside, Some((1, b.qp.qpn, epoch)));
    c.host.ready(&mut world, &c.qp, Some((1, b.qp.qpn, epoch)));
    let (_, unconnected) = another(&mut world, &mut a);
    for qpn in [aside.qpn, unconnected.qpn] {
        allow(&mut world, &a, qpn);
    }
    allow(&mut world, &c, c.qp.qpn);
    b.cq.ring.arm(false);
    kick_peer(&mut world, &a, aside.qpn);
    kick_peer(&mut world, &c, c.qp.qpn);
    kick_peer(&mut world, &a, unconnected.qpn);
    kick_peer(&mut world, &a, 12_345);
    world.pump();
    assert_eq!(b.eq.drain(), []);
    // Nor for all.
    fill_ring(&mut world, &c);
    assert_eq!(b.eq.drain(), []);
    // Nor queue pairs that have no process rings.
    for of_a in [true, false] {
        kick_peer(&mut world, &a, a.qp.qpn);
        world.pump();
        assert_eq!(b.eq.drain(), []);
        let end = if of_a { &a } else { &b };
        allow(&mut world, end, end.qp.qpn);
    }
    kick_peer(&mut world, &a, a.qp.qpn);
    world.pump();
    assert_eq!(b.eq.drain(), [(COMPLETION, 0, b.cq.cqn)]);
    assert_eq!((a.eq.drain(), c.eq.drain()), (vec![], vec![]));
}

/// Tells so often of messages that some of it is owed, while the other host looks at nothing.
fn fill_ring(world: &mut World, end: &End) {
    world.hold(Some(1));
    for _ in 0..5000 {
        kick_peer(world, end, end.qp.qpn);
    }
    world.pump();
    world.hold(None);
    world.pump();
}

#[test]
fn what_there_was_no_room_for_is_made_up_for() {
    let (mut world, mut a, mut b) = pair();
    let mut cq = b.host.cq(&mut world, b.eq.eqn, 4);
    // More than one turn looks at; the last one completes somewhere else.
    let mut last = 0;
    for number in 0..OTHERS {
        if number % 40 == 0 {
            [&mut a, &mut b].map(|end| end.host.turn_page());
        }
        let theirs = if number == OTHERS - 1 { &cq } else { &b.cq };
        let mine = a.host.qp(&mut world, QpType::Rc, &a.cq, 2);
        let theirs = b.host.qp(&mut world, QpType::Rc, theirs, 2);
        connect(&mut world, (&a.host, &mine), (&b.host, &theirs));
        allow(&mut world, &a, mine.qpn);
        allow(&mut world, &b, theirs.qpn);
        last = mine.qpn;
    }
    cq.ring.arm(true);
    world.hold(Some(1));
    for _ in 0..5000 {
        kick_peer(&mut world, &a, a.qp.qpn);
    }
    kick_peer(&mut world, &a, last);
    world.pump();
    world.hold(None);
    world.pump();
    assert_eq!(b.eq.drain(), [(COMPLETION, 0, cq.cqn)]);
}

#[test]
fn an_event_waits_for_room_in_its_queue() {
    let (mut world, a, mut b) = pair();
    let event = (COMPLETION, 0, b.cq.cqn);
    let (queue, mut events) = (b.cq.cqn, 0);
    // Until its event queue is full.
    for _ in 0..100 {
        b.cq.ring.arm(false);
        kick_peer(&mut world, &a, a.qp.qpn);
        world.pump();
    }
    for _ in 0..10 {
        let found = b.eq.drain();
        assert!(found.iter().all(|found| *found == event), "{queue}");
        events += found.len();
        world.advance(10_000);
    }
    assert_eq!(events, 65);
}

#[test]
fn who_takes_an_entry_before_its_event_gets_the_event_all_the_same() {
    let (mut world, mut a, mut b) = pair();
    let event = (COMPLETION, 0, b.cq.cqn);
    // Its event queue is full then.
    for _ in 0..64 {
        b.cq.ring.arm(false);
        kick_peer(&mut world, &a, a.qp.qpn);
        world.pump();
    }
    b.cq.ring.arm(false);
    b.receive(1, 0, 64);
    a.qp.submit(
        1,
        0,
        nupa_engine::rings::Operation::Send { imm: None },
        nupa_engine::rings::Data::Inline(b"one"),
    );
    world.pump();
    assert_eq!(b.cq.drain().len(), 1);
    assert_eq!(b.eq.drain(), [event; 64]);
    world.advance(10_000);
    assert_eq!(b.eq.drain(), [event]);
}
