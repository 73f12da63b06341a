// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is done is answered once, or not at all where its being taken out says so.

use super::parts::{connect, end, pattern, End, OK};
use nupa_proto::{
    admin::{QpStateCode, QpType},
    pool::{Class, LinkWord, LINK_CONSUMER},
};
use nupa_testing::World;

/// Requests of a batch.
const BATCH: u64 = 30;

/// Two connected ends with room for all requests of a test.
fn pair() -> (World, End, End) {
    let mut world = World::new(*crate::MODE, 2);
    let [a, b] = [0, 1].map(|id| {
        let mut end = end(&mut world, id);
        end.cq = end.host.cq(&mut world, end.eq.eqn, 10);
        end.qp = end.host.qp(&mut world, QpType::Rc, &end.cq, 11);
        end
    });
    connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
    (world, a, b)
}

/// Entries that node 0 has taken out of its rings of responses.
fn responses(world: &World) -> u32 {
    let [rings, stride] = [0x30, 0x38].map(|at| u64::from_le_bytes(world.shared.peek(at)));
    // Of two nodes, the rings from the second to the first come second.
    let line = rings + stride + LINK_CONSUMER;
    let taken = |class: Class| {
        let at = line + 8 * u64::from(class.to_wire());
        LinkWord::from_wire(u64::from_le_bytes(world.shared.peek(at))).index
    };
    taken(Class::Response) + taken(Class::ShortResponse)
}

/// The other end has done them, and has said so in the rings: whatever becomes of the queue pair then, they are done.
#[test]
fn what_was_said_before_a_queue_pair_fails_counts() {
    // Other rings have no room for all of it.
    if !crate::MODE.is_pooled() {
        return;
    }
    let (mut world, mut a, mut b) = pair();
    (0..=BATCH).for_each(|id| b.receive(id, 1000 * id, 1000));
    // Then it knows how many it may send.
    a.send(BATCH, 0, 60);
    world.pump();
    assert_eq!(a.done(), [(BATCH, OK)]);
    world.hold(Some(1));
    for id in 0..BATCH {
        match id % 15 {
            13 => a.read(id, &b.mr, 0, 9000),
            14 => a.write(id, &b.mr, 0, 9000),
            _ => a.send(id, 1000 * id, 60),
        }
    }
    world.pump();
    world.hold(Some(0));
    world.pump();
    let before = a.done().len() as u64;
    let failed = a.host.set_state(&mut world, a.qp.qpn, QpStateCode::Err);
    assert_eq!(failed, Ok(()));
    let expected: Vec<_> = (before..BATCH).map(|id| (id, OK)).collect();
    assert_eq!(a.done(), expected);
    world.hold(None);
    world.pump();
    assert_eq!(a.done(), []);
}

#[test]
fn who_writes_and_sends_gets_few_responses_and_who_reads_one_each() {
    if !crate::MODE.is_pooled() {
        return;
    }
    let in_lines = crate::MODE.is_in_lines();
    let (mut world, mut a, mut b) = pair();
    let bytes = pattern(200_000, 1);
    a.fill(0, &bytes);
    let expected: Vec<_> = (0..BATCH).map(|id| (id, OK)).collect();
    // Long ones, and in parts, as well.
    let len = |batch: u32, id: u64| if id % 10 == 9 { 9000 * batch + 400 } else { 8 };
    for batch in 0..8 {
        for id in 0..BATCH {
            a.write(id, &b.mr, 1000 * id, len(batch, id));
        }
        world.pump();
        assert_eq!(a.done(), expected);
        for id in 0..BATCH {
            let len = len(batch, id) as usize;
            assert!(b.bytes(1000 * id, len) == a.bytes(1000 * id, len));
        }
        b.fill(0, &[0; 100_000]);
    }
    let written = responses(&world);
    let count = 8 * BATCH as u32;
    assert_eq!(written, if in_lines { 0 } else { count });
    for _ in 0..8 {
        (0..BATCH).for_each(|id| b.receive(id, 1000 * id, 1000));
        (0..BATCH).for_each(|id| a.send(id, 1000 * id, 60));
        world.pump();
        assert_eq!((a.done(), b.done()), (expected.clone(), expected.clone()));
        (0..BATCH).for_each(|id| {
            assert_eq!(b.bytes(1000 * id, 60), a.bytes(1000 * id, 60));
        });
    }
    let sent = responses(&world) - written;
    // It is told how many it may send as often as it has used half of those that it knows of.
    assert!(
        if in_lines {
            sent < count / 4
        } else {
            sent == count
        },
        "{sent}"
    );
    for id in 0..BATCH {
        a.read(id, &b.mr, 1000 * id, 100);
    }
    world.pump();
    assert_eq!(a.done(), expected);
    assert_eq!(responses(&world) - written - sent, BATCH as u32);
}

#[test]
fn an_answer_says_that_all_before_it_is_done() {
    let (mut world, mut a, mut b) = pair();
    a.fill(0, &pattern(200_000, 3));
    b.fill(500_000, &pattern(200_000, 4));
    for round in 0..20u64 {
        // In rings of short and of long ones, by turns.
        let len = if round % 2 == 0 { 16 } else { 100_000 };
        a.write(0, &b.mr, 0, 16);
        a.write(1, &b.mr, 1000, len);
        a.read(2, &b.mr, 500_000, 16);
        a.write(3, &b.mr, 200_000, 16);
        a.read(4, &b.mr, 600_000, len);
        b.receive(9, 300_000, 64);
        a.send(5, 400, 64);
        world.pump();
        let expected: Vec<_> = (0..6).map(|id| (id, OK)).collect();
        assert_eq!(a.done(), expected);
        assert_eq!(b.done(), [(9, OK)]);
        assert!(b.bytes(1000, len as usize) == a.bytes(1000, len as usize));
        assert!(a.bytes(600_000, len as usize) == b.bytes(600_000, len as usize));
        assert_eq!(b.bytes(300_000, 64), a.bytes(400, 64));
    }
}

#[test]
fn what_is_refused_for_a_time_is_not_done_by_being_taken_out() {
    let (mut world, mut a, mut b) = pair();
    a.fill(0, &pattern(10_000, 5));
    for round in 0..10u64 {
        a.write(0, &b.mr, 0, 8);
        a.send(1, 100, 8);
        a.write(2, &b.mr, 200, 3000);
        a.send(3, 300, 8);
        world.turns(50);
        // The first SEND has no receive entry, and nothing behind it is carried out.
        assert_eq!(a.done(), [(0, OK)], "round {round}");
        b.receive(7, 100_000, 64);
        b.receive(8, 200_000, 64);
        world.advance(1_000_000);
        world.pump();
        assert_eq!(a.done(), [(1, OK), (2, OK), (3, OK)]);
        assert_eq!(b.done(), [(7, OK), (8, OK)]);
        assert_eq!(b.bytes(100_000, 8), a.bytes(100, 8));
        assert!(b.bytes(200, 3000) == a.bytes(200, 3000));
        b.fill(0, &[0; 10_000]);
    }
}
