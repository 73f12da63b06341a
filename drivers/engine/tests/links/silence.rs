// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A peer that is there and does nothing: connections to it end after a while, others do not; one that is slow is waited for.

use super::parts::{connect, end, pair, pattern, post, FLUSHED, OK};
use nupa_engine::rings::{Data, Operation};
use nupa_proto::{
    admin::{QpStateCode, QpType},
    eqe::EventType,
    status::WcStatus,
};
use nupa_testing::World;

const GONE: u8 = WcStatus::RetryExceeded as u8;

#[test]
fn a_peer_that_does_nothing_cannot_be_reached() {
    let mut world = World::new(*crate::MODE, 3);
    let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
    let mut c = end(&mut world, 2);
    connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
    let mut second = a.host.qp(&mut world, QpType::Rc, &a.cq, 5);
    let there = b.host.qp(&mut world, QpType::Rc, &b.cq, 5);
    connect(&mut world, (&a.host, &second), (&b.host, &there));
    let idle = a.host.qp(&mut world, QpType::Rc, &a.cq, 4);
    let target = b.host.qp(&mut world, QpType::Rc, &b.cq, 4);
    connect(&mut world, (&a.host, &idle), (&b.host, &target));
    let mut aside = a.host.qp(&mut world, QpType::Rc, &a.cq, 4);
    connect(&mut world, (&a.host, &aside), (&c.host, &c.qp));
    world.hold(Some(1));
    // More than its rings hold; the second has to wait for room.
    for id in 0..20 {
        a.write(id, &b.mr, 0, 900_000);
    }
    let write = |mr: &nupa_testing::Mr| Operation::Write {
        addr: mr.iova,
        rkey: mr.key,
        imm: None,
    };
    post(&mut second, 50, write(&b.mr), Data::Inline(&[5; 8]));
    post(&mut second, 51, write(&b.mr), Data::Inline(&[5; 8]));
    world.pump();
    world.advance(9_999_999);
    post(&mut aside, 60, write(&c.mr), Data::Inline(&[6; 8]));
    world.pump();
    assert_eq!(a.done(), [(60, OK)]);
    world.advance(1);
    let mut done = a.done();
    done.sort();
    let mut expected: Vec<(u64, u8)> = vec![(0, GONE)];
    expected.extend((1..20).map(|id| (id, FLUSHED)));
    expected.extend([(50, GONE), (51, FLUSHED)]);
    assert_eq!(done, expected);
    let counters = world.node(0).counters();
    assert_eq!(counters.tx_retry_exceeded.get(), 2);
    let mut fatal = a.eq.drain();
    fatal.retain(|(event, _, _)| *event == EventType::QpFatal as u8);
    assert_eq!(fatal.len(), 2);
    // Who asked nothing of it stays connected, and is served when it goes on.
    let state = |world: &World, qpn| world.node(0).query_qp(qpn).expect("exists").state;
    assert_eq!(state(&world, idle.qpn), QpStateCode::Rts.to_wire());
    world.hold(None);
    world.pump();
    let mut idle = idle;
    post(&mut idle, 70, write(&b.mr), Data::Inline(&[7; 8]));
    c.fill(0, &pattern(100_000, 3));
    let mr = a.mr;
    c.write(1, &mr, 0, 100_000);
    world.pump();
    assert_eq!((a.done(), c.done()), (vec![(70, OK)], vec![(1, OK)]));
    assert_eq!(b.bytes(0, 8), [7; 8]);
    assert!(a.bytes(0, 100_000) == pattern(100_000, 3));
}

#[test]
fn a_peer_that_is_slow_is_waited_for() {
    let (mut world, mut a, b) = pair();
    a.fill(0, &pattern(900_000, 2));
    for id in 0..4 {
        a.write(id, &b.mr, 0, 900_000);
        a.read(id + 4, &b.mr, 0, 900_000);
    }
    let mut done = Vec::new();
    for round in 0.. {
        world.hold(Some(1));
        world.advance(9_000_000);
        world.hold(None);
        world.turns(6);
        done.extend(a.done());
        if done.len() == 8 {
            break;
        }
        assert!(round < 1000, "{done:?}");
    }
    assert!(done.iter().all(|(_, status)| *status == OK), "{done:?}");
    assert!(b.bytes(0, 900_000) == pattern(900_000, 2));
}

/// What is asked of it just when it is looked whether it did something is not given up.
#[test]
fn a_peer_that_is_asked_late_is_waited_for() {
    for seed in 0..30 {
        let (mut world, mut a, b) = pair();
        world.shuffle(seed);
        a.write(0, &b.mr, 0, 8);
        world.pump();
        world.pass(10_000_000);
        for id in 1..9 {
            world.turns(1);
            a.write(id, &b.mr, 0, 8);
        }
        world.pump();
        let expected: Vec<_> = (0..9).map(|id| (id, OK)).collect();
        assert_eq!(a.done(), expected);
    }
}
