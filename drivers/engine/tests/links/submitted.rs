// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Payload that something else than the processor copies to where hosts share memory: in any order, and sometimes not at all.

use super::parts::{connect, pair, pattern, post, End, OK};
use nupa_engine::rings::{Data, Operation};
use nupa_proto::{
    admin::QpType,
    pool::{DIRECTORY_SIZE, GRANT_BUSY, LINE},
};
use nupa_testing::World;

/// Bytes from which on it is submitted, of a request that is long, and of one that is not.
const FROM: u32 = 5000;
const LEN: usize = 150_000;
const SMALL: usize = 4999;
/// Bytes of one of several.
const PART: u64 = 37_000;

/// Two ends whose hosts submit. With a grant if the second one's region is device memory.
fn submitting(device: bool) -> (World, End, End) {
    let (mut world, mut a, mut b) = pair();
    if device {
        b.mr = b.host.device_mr(&mut world, LEN as u64);
    }
    a.write(1, &b.mr, 0, 100);
    world.pump();
    assert_eq!(a.done(), [(1, OK)]);
    for id in [0, 1] {
        world.machine(id).ram().submit_from(FROM);
    }
    (world, a, b)
}

/// Bytes of each of two nodes that were copied so.
fn submitted(world: &World) -> [usize; 2] {
    [0, 1].map(|id| world.machine(id).ram().submitted())
}

/// A WRITE of new bytes, which arrive.
fn write(world: &mut World, a: &mut End, b: &End, id: u64, len: usize) {
    let bytes = pattern(len, id as u8);
    a.fill(0, &bytes);
    a.write(id, &b.mr, 0, len as u32);
    world.pump();
    assert_eq!(a.done(), [(id, OK)]);
    assert!(b.bytes(0, len) == bytes, "{id}");
}

#[test]
fn long_payload_is_submitted() {
    for device in [false, true] {
        let (mut world, mut a, b) = submitting(device);
        write(&mut world, &mut a, &b, 2, SMALL);
        assert_eq!(submitted(&world), [0, 0]);
        write(&mut world, &mut a, &b, 3, LEN);
        let [sent, none] = submitted(&world);
        assert!(
            sent > LEN * 9 / 10 && sent < LEN && none == 0,
            "{sent} {none}"
        );
        // The answer is the responder's, unless that is device memory, which no channel reads.
        let bytes = pattern(LEN, 77);
        b.fill(0, &bytes);
        a.read(4, &b.mr, 0, LEN as u32);
        world.pump();
        assert_eq!(a.done(), [(4, OK)]);
        assert!(a.bytes(0, LEN) == bytes);
        let [same, answered] = submitted(&world);
        assert_eq!(same, sent);
        assert!(answered > LEN * 9 / 10 || device, "{answered}");
    }
}

/// Whichever part it is: all of it is there in the end, and what is stored late changes nothing.
#[test]
fn what_cannot_be_finished_is_tried_again() {
    for device in [false, true] {
        for nth in 1..5 {
            let (mut world, mut a, b) = submitting(device);
            world.machine(0).ram().fail_to_finish(nth);
            for id in 2..6 {
                write(&mut world, &mut a, &b, id, LEN);
            }
            world.machine(1).ram().fail_to_finish(nth);
            for id in 6..9 {
                let bytes = pattern(LEN, id as u8);
                b.fill(0, &bytes);
                a.read(id, &b.mr, 0, LEN as u32);
                world.pump();
                assert_eq!(a.done(), [(id, OK)]);
                assert!(a.bytes(0, LEN) == bytes);
            }
        }
    }
}

/// Several processors copy what comes from the pool, too. What one of them fails to copy is copied again at once.
#[test]
fn processors_share_copies_in_both_directions() {
    for device in [false, true] {
        for nth in 0..7 {
            let (mut world, mut a, mut b) = submitting(device);
            for id in [0, 1] {
                world.machine(id).ram().share_copies_from(FROM);
                world.machine(id).ram().fail_to_finish(nth);
            }
            write(&mut world, &mut a, &b, 2, SMALL);
            assert_eq!(submitted(&world), [0, 0]);
            write(&mut world, &mut a, &b, 3, LEN);
            let direct = device && crate::MODE.is_direct();
            let [sent, taken] = submitted(&world);
            // A batch that failed is counted in part.
            assert!(sent > LEN / 2 && sent <= LEN, "{nth}: {sent}");
            assert_eq!(taken > LEN / 2, !direct, "{nth}: {taken}");
            let bytes = pattern(LEN, 77);
            b.fill(0, &bytes);
            a.read(4, &b.mr, 0, LEN as u32);
            world.pump();
            assert_eq!(a.done(), [(4, OK)]);
            assert!(a.bytes(0, LEN) == bytes, "{nth}");
            let [fetched, answered] = submitted(&world);
            assert!(fetched > sent + LEN / 2, "{nth}: {fetched}");
            assert!(answered > taken + LEN / 2, "{nth}: {answered}");
            let bytes = pattern(LEN, 78);
            a.fill(0, &bytes);
            b.receive(5, 0, LEN as u32);
            a.send(6, 0, LEN as u32);
            world.pump();
            assert!(b.bytes(0, LEN) == bytes, "{nth}");
        }
    }
}

/// Others to the same peer wait meanwhile, and then go on.
#[test]
fn others_are_not_lost() {
    for nth in 1..30 {
        let device = nth % 2 == 0;
        let (mut world, mut a, mut b) = submitting(device);
        let mut other = a.host.qp(&mut world, QpType::Rc, &a.cq, 6);
        let target = b.host.qp(&mut world, QpType::Rc, &b.cq, 6);
        let there = b.host.mr(&mut world, LEN as u64, false);
        connect(&mut world, (&a.host, &other), (&b.host, &target));
        world.machine(0).ram().fail_to_finish(nth / 2 + 1);
        let [bytes, others] = [9, 10].map(|seed| pattern(LEN, seed));
        a.fill(0, &bytes);
        a.fill(LEN as u64, &others);
        // Each to a place of its own.
        for id in 2..6 {
            let at = (id - 2) * PART;
            a.write(id, &b.mr, at, PART as u32);
            let sge = a.mr.sge(LEN as u64 + at, PART as u32);
            let (addr, rkey, imm) = (there.iova + at, there.key, None);
            let operation = Operation::Write { addr, rkey, imm };
            post(&mut other, 10 + id, operation, Data::Sges(&[sge]));
        }
        world.pump();
        let mut done = a.done();
        done.sort_unstable();
        let all: Vec<_> = (2..6).chain(12..16).map(|id| (id, OK)).collect();
        assert_eq!(done, all);
        let all = 4 * PART as usize;
        assert!(b.bytes(0, all) == bytes[..all], "{nth}");
        assert!(b.host.read(there.addr, all) == others[..all], "{nth}");
    }
}

/// Several queue pairs wait for room in a full ring, and a copy hangs: who is served next does not get the room that is still stored to, where its
/// payload would be changed before it is read.
#[test]
fn nobody_gets_room_that_is_still_stored_to() {
    const QPS: u64 = 4;
    const EACH: u64 = 8;
    let all = (QPS * EACH * PART) as usize;
    for nth in 1..6 {
        let (mut world, mut a, mut b) = submitting(false);
        let from = a.host.mr(&mut world, all as u64, false);
        let to = b.host.mr(&mut world, all as u64, false);
        let bytes = pattern(all, nth as u8);
        a.host.write(from.addr, &bytes);
        world.hold(Some(1));
        for qp in 0..QPS {
            let mut one = a.host.qp(&mut world, QpType::Rc, &a.cq, 6);
            let other = b.host.qp(&mut world, QpType::Rc, &b.cq, 6);
            connect(&mut world, (&a.host, &one), (&b.host, &other));
            for id in qp * EACH..(qp + 1) * EACH {
                let (addr, rkey, imm) = (to.iova + id * PART, to.key, None);
                let sge = from.sge(id * PART, PART as u32);
                let operation = Operation::Write { addr, rkey, imm };
                post(&mut one, id, operation, Data::Sges(&[sge]));
            }
        }
        world.turns(500);
        world.machine(0).ram().fail_to_finish(nth);
        world.machine(0).ram().store_late_soon();
        world.hold(None);
        world.pump();
        let mut done = a.done();
        done.sort_unstable();
        let expected: Vec<_> = (0..QPS * EACH).map(|id| (id, OK)).collect();
        assert_eq!(done, expected);
        assert!(b.host.read(to.addr, all) == bytes, "{nth}");
    }
}

/// A queue pair that goes in the middle of a direct WRITE that hangs: its host says no more that it is writing.
#[test]
fn a_peer_waits_no_longer_than_something_is_stored() {
    if !crate::MODE.is_direct() {
        return;
    }
    let (mut world, mut a, b) = submitting(true);
    world.machine(0).ram().fail_to_finish(1);
    a.write(2, &b.mr, 0, LEN as u32);
    let memory = world.engine.device_memory(0).expect("is a pool");
    let busy = memory.start - DIRECTORY_SIZE + GRANT_BUSY + LINE;
    let is_busy = |world: &World| world.shared.peek::<8>(busy) != [0; 8];
    for _ in 0..1000 {
        if is_busy(&world) {
            break;
        }
        world.turns(1);
    }
    assert!(is_busy(&world), "nothing hangs");
    let destroyed = world.engine.destroy_qp(&mut world.nodes, 0, a.qp.qpn);
    assert_eq!(destroyed, Ok(()));
    world.pump();
    assert!(!is_busy(&world));
    let destroyed = world.engine.destroy_mr(&mut world.nodes, 1, b.mr.key);
    assert_eq!(destroyed, Ok(()));
    assert!(world.engine.writers_gone(&mut world.nodes, 1));
}
