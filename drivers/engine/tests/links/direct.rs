// SPDX-License-Identifier: GPL-2.0 OR MIT
//! WRITEs to device memory of another node, which the requester does by itself where memory is coherent. Everywhere else the same
//! is done through the rings, and nobody can tell.

use super::parts::{connect, end, pair, pattern, post, End, OK};
use nupa_engine::rings::{Data, Operation};
use nupa_proto::{
    admin::*,
    pool::{DIRECTORY_SIZE, GRANT_BUSY, GRANT_SLOTS, GRANT_TIMEOUT_US, LINE},
    status::WcStatus,
};
use nupa_testing::{Mr, World};
use zerocopy::little_endian::U32;

/// Bytes of a region.
const LEN: u64 = 150_000;
const ACCESS: u8 = WcStatus::RemoteAccess as u8;

/// Two ends, of which the second has device memory; one WRITE was done there.
fn granted() -> (World, End, End) {
    let (mut world, mut a, mut b) = pair();
    b.mr = b.host.device_mr(&mut world, LEN);
    a.write(1, &b.mr, 0, 100);
    world.pump();
    assert_eq!(a.done(), [(1, OK)]);
    assert_eq!(count(&world), 0);
    (world, a, b)
}

/// Direct writes of node 0.
fn count(world: &World) -> u64 {
    world.node(0).counters().tx_direct_writes.get()
}

/// As many, where there are any.
fn so_many(count: u64) -> u64 {
    if crate::MODE.is_direct() {
        count
    } else {
        0
    }
}

#[test]
fn writes_to_device_memory_need_no_target() {
    let (mut world, mut a, b) = granted();
    for (id, len) in [(2, 1), (3, 4096), (4, 65_537), (5, LEN as u32)] {
        let bytes = pattern(LEN as usize, id as u8);
        a.fill(0, &bytes);
        world.hold(Some(1));
        a.write(id, &b.mr, 0, len);
        world.turns(40);
        if crate::MODE.is_direct() {
            assert_eq!(a.done(), [(id, OK)]);
            assert!(b.bytes(0, len as usize) == bytes[..len as usize], "{len}");
        }
        world.hold(None);
        world.pump();
        if !crate::MODE.is_direct() {
            assert_eq!(a.done(), [(id, OK)]);
        }
        assert!(b.bytes(0, len as usize) == bytes[..len as usize], "{len}");
    }
    assert_eq!(count(&world), so_many(4));
    let sent = world.node(0).counters().tx_messages.get();
    assert_eq!(sent, 5);
    let served = world.node(1).counters().rx_messages.get();
    assert_eq!(served, 5 - so_many(4));
}

/// A turn that is over by time ends in the middle of a WRITE, as of any other.
#[test]
fn a_slow_write_ends_with_its_turn() {
    const LEN: usize = 400_000;
    let (mut world, mut a, mut b) = pair();
    b.mr = b.host.device_mr(&mut world, LEN as u64);
    a.write(1, &b.mr, 0, 100);
    world.pump();
    let bytes = pattern(LEN, 1);
    a.fill(0, &bytes);
    world.nodes.hosts[0].take_most_moved();
    world.now.step.set(100);
    a.write(2, &b.mr, 0, LEN as u32);
    world.pump();
    world.now.step.set(0);
    assert_eq!(a.done(), [(1, OK), (2, OK)]);
    assert_eq!(count(&world), so_many(1));
    assert!(b.bytes(0, LEN) == bytes);
    // The clock is looked at first when something was written.
    let most = world.nodes.hosts[0].take_most_moved();
    assert!(most <= 2 << 16, "{most} bytes in one turn");
}

/// A grant that ends in the middle of a WRITE because others have so many: the next one writes all of it again.
#[test]
fn a_write_whose_grant_goes_to_others_leaves_nothing_out_of_the_next() {
    const LEN: usize = 400_000;
    for seed in 0..60 {
        let (mut world, mut a, mut b) = pair();
        b.mr = b.host.device_mr(&mut world, LEN as u64);
        let mut others = Vec::new();
        for _ in 0..2 * GRANT_SLOTS {
            let here = a.host.qp(&mut world, QpType::Rc, &a.cq, 4);
            let there = b.host.qp(&mut world, QpType::Rc, &b.cq, 4);
            connect(&mut world, (&a.host, &here), (&b.host, &there));
            others.push(here);
        }
        world.shuffle(seed);
        for id in 2..6 {
            let bytes = pattern(LEN, id as u8);
            a.fill(0, &bytes);
            a.write(id, &b.mr, 0, LEN as u32);
            let write = Operation::Write {
                addr: b.mr.iova,
                rkey: b.mr.key,
                imm: None,
            };
            for here in &mut others {
                post(here, 9, write, Data::Inline(&[1; 8]));
            }
            world.pump();
            assert_eq!(a.done().len(), 1 + others.len());
            let written = b.bytes(8, LEN - 8);
            assert!(written == bytes[8..], "{seed}: {id}");
        }
    }
}

#[test]
fn other_memory_is_written_through_the_ring() {
    let (mut world, mut a, b) = pair();
    for id in 0..3 {
        a.fill(0, &pattern(5000, id as u8));
        a.write(id, &b.mr, 0, 5000);
        world.pump();
        assert_eq!(a.done(), [(id, OK)]);
        assert!(b.bytes(0, 5000) == pattern(5000, id as u8));
    }
    assert_eq!(count(&world), 0);
}

#[test]
fn a_write_does_not_overtake_what_was_posted_before() {
    let (mut world, mut a, mut b) = granted();
    let bytes = pattern(4096, 7);
    a.fill(0, &bytes);
    // The message finds no entry, so it is not done, and neither is what is behind it.
    a.send(2, 0, 64);
    a.write(3, &b.mr, 0, 4096);
    world.turns(200);
    assert_eq!(a.done(), []);
    assert!(b.bytes(1, 4095) == [0; 4095]);
    b.receive(9, 10_000, 64);
    world.pump();
    assert_eq!(
        (a.done(), b.done()),
        (vec![(2, OK), (3, OK)], vec![(9, OK)])
    );
    assert!(b.bytes(0, 4096) == bytes);
    // A message behind a WRITE comes after it.
    b.receive(10, 10_000, 64);
    a.write(4, &b.mr, 4096, 4096);
    a.send(5, 0, 64);
    world.pump();
    assert_eq!(
        (a.done(), b.done()),
        (vec![(4, OK), (5, OK)], vec![(10, OK)])
    );
    assert!(b.bytes(4096, 4096) == a.bytes(4096, 4096));
}

#[test]
fn what_lies_outside_of_the_region_is_refused_as_ever() {
    let (mut world, mut a, b) = granted();
    a.write(2, &b.mr, LEN - 99, 100);
    world.pump();
    assert_eq!((a.done(), count(&world)), (vec![(2, ACCESS)], 0));
}

#[test]
fn memory_that_was_deregistered_is_not_written() {
    let (mut world, mut a, b) = granted();
    a.fill(0, &pattern(100, 3));
    a.write(2, &b.mr, 0, 100);
    world.pump();
    assert_eq!((a.done(), count(&world)), (vec![(2, OK)], so_many(1)));
    let before = b.bytes(0, 200);
    let destroyed = world.engine.destroy_mr(&mut world.nodes, 1, b.mr.key);
    assert_eq!(destroyed, Ok(()));
    a.fill(0, &pattern(100, 4));
    a.write(3, &b.mr, 0, 100);
    world.pump();
    assert_eq!((a.done(), count(&world)), (vec![(3, ACCESS)], so_many(1)));
    assert!(b.bytes(0, 200) == before);
}

#[test]
fn rights_that_were_taken_away_are_gone() {
    for region in [true, false] {
        let (mut world, mut a, b) = granted();
        let access = U32::new(ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ);
        if region {
            let body = ModifyMr {
                key: b.mr.key.into(),
                mask: MR_MASK_ACCESS.into(),
                mr: CreateMr {
                    access,
                    ..CreateMr::default()
                },
            };
            let changed = world.engine.modify_mr(&mut world.nodes, 1, &body);
            assert_eq!(changed, Ok(b.mr.key));
        } else {
            let body = ModifyQp {
                mask: QP_MASK_ACCESS.into(),
                access,
                ..ModifyQp::default()
            };
            let changed = b.host.modify(&mut world, b.qp.qpn, body);
            changed.expect("allowed");
        }
        a.write(2, &b.mr, 0, 100);
        world.pump();
        assert_eq!((a.done(), count(&world)), (vec![(2, ACCESS)], 0));
    }
}

/// What a WRITE comes to after `change`, to device memory or to other memory.
fn status_after(device: bool, change: impl Fn(&mut World, &mut End)) -> Vec<(u64, u8)> {
    let (mut world, mut a, mut b) = pair();
    if device {
        b.mr = b.host.device_mr(&mut world, LEN);
    }
    a.write(1, &b.mr, 0, 100);
    world.pump();
    assert_eq!(a.done(), [(1, OK)]);
    let before = b.bytes(0, 100);
    change(&mut world, &mut b);
    a.fill(0, &pattern(100, 5));
    a.write(2, &b.mr, 0, 100);
    world.pump();
    assert!(b.bytes(0, 100) == before);
    assert_eq!(count(&world), 0);
    a.done()
}

#[test]
fn a_queue_pair_that_receives_no_more_ends_its_grants() {
    let changes: [fn(&mut World, &mut End); 4] = [
        |world, b| {
            let state = b.host.set_state(world, b.qp.qpn, QpStateCode::Err);
            state.expect("allowed");
        },
        |world, b| {
            let state = b.host.set_state(world, b.qp.qpn, QpStateCode::Reset);
            state.expect("allowed");
            // Who waits for it to be connected again gives up some time.
            world.pump();
        },
        |world, b| {
            let gone = world.engine.destroy_qp(&mut world.nodes, 1, b.qp.qpn);
            gone.expect("exists");
        },
        |world, b| {
            // Its own mistake.
            let nowhere = Mr { key: 0, ..b.mr };
            let mr = std::mem::replace(&mut b.mr, nowhere);
            b.write(10, &mr, 0, 8);
            b.mr = mr;
            world.pump();
        },
    ];
    for change in changes {
        assert_eq!(status_after(true, change), status_after(false, change));
    }
}

#[test]
fn a_node_that_comes_back_has_granted_nothing() {
    let (mut world, mut a, b) = granted();
    let key = b.mr.key;
    world.engine.reset(&mut world.nodes, 1);
    world.pump();
    a.write(2, &b.mr, 0, 100);
    world.engine.enable(&mut world.nodes, 1);
    world.pump();
    assert!(a.done().iter().all(|(_, status)| *status != OK));
    assert_eq!(count(&world), 0);
    let mut b = end(&mut world, 1);
    b.mr = b.host.device_mr(&mut world, LEN);
    a.qp = a.host.qp(&mut world, QpType::Rc, &a.cq, 6);
    connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
    let stale = Mr { key, ..b.mr };
    for (id, mr, status) in [(3, b.mr, OK), (4, b.mr, OK), (5, stale, ACCESS)] {
        a.write(id, &mr, 0, 100);
        world.pump();
        assert_eq!(a.done(), [(id, status)]);
    }
    assert_eq!(count(&world), so_many(1));
}

#[test]
fn more_regions_than_grants_are_written_as_well() {
    let (mut world, mut a, mut b) = pair();
    let regions = u64::from(GRANT_SLOTS) + 5;
    let mrs: Vec<Mr> = (0..regions)
        .map(|_| b.host.device_mr(&mut world, 4096))
        .collect();
    for round in 0..4u8 {
        let bytes = pattern(4096, round);
        a.fill(0, &bytes);
        for (id, mr) in (0..).zip(&mrs) {
            // Some more often than others.
            for _ in 0..=id % 3 {
                a.write(id, mr, 0, 4096);
                world.pump();
                let [done] = a.cq.drain()[..] else {
                    panic!("one completion")
                };
                assert_eq!((done.wr_id.get(), done.status), (id, OK));
                let freed = a.qp.send.completed(done.queue_index.get());
                freed.expect("it was posted");
            }
            assert!(b.host.read(mr.addr, 4096) == bytes);
        }
    }
    assert_eq!(count(&world) != 0, crate::MODE.is_direct());
}

/// Where in the pool the serial of node 1's first grant stands in a response.
fn response(world: &World, region: u64) -> u64 {
    let serial = (u64::from(world.node(1).epoch()) << 32) | 1;
    let size = world.shared.size() as u64;
    let mut words = (0..size - 16).step_by(8);
    let found = words.find(|at| {
        world.shared.peek::<16>(*at) == *[serial.to_le_bytes(), region.to_le_bytes()].as_flattened()
    });
    found.expect("it was answered")
}

#[test]
fn a_grant_of_what_is_not_the_peers_isolates_it() {
    if !crate::MODE.is_direct() {
        return;
    }
    let offer = |world: &World| world.engine.device_memory(1).expect("is a pool");
    // Offset, address, length and slot.
    type Change = fn(std::ops::Range<u64>) -> (u64, u64, u64, u16);
    let changes: [Change; 9] = [
        |memory| (0, 0, memory.end, 0),
        |memory| (memory.start - 1, 0, 100, 0),
        |memory| (memory.start - DIRECTORY_SIZE, 0, 8, 0),
        |memory| (memory.end - 8, 0, 9, 0),
        |memory| (memory.start, 0, u64::MAX, 0),
        |_| (u64::MAX, 0, 2, 0),
        |memory| (memory.start, u64::MAX, 2, 0),
        |memory| (memory.start, 0, 0, 0),
        |memory| (memory.start, 0, 100, GRANT_SLOTS),
    ];
    for change in changes {
        let (mut world, mut a, mut b) = pair();
        b.mr = b.host.device_mr(&mut world, LEN);
        world.engine.members().set_hostile(1);
        // It is sent, answered, and the answer is changed before it is looked at.
        world.hold(Some(1));
        a.write(1, &b.mr, 0, 100);
        world.turns(40);
        world.hold(Some(0));
        world.turns(40);
        let memory = offer(&world);
        let at = response(&world, memory.start);
        let (offset, addr, len, slot) = change(memory);
        for (field, value) in [(8, offset), (16, addr), (24, len)] {
            world.shared.poke(at + field, &value.to_le_bytes());
        }
        world.shared.poke(at + 36, &slot.to_le_bytes());
        world.hold(None);
        world.pump();
        assert_eq!(world.engine.members().violations.len(), 1);
        a.write(2, &b.mr, 0, 100);
        world.pump();
        assert_eq!(count(&world), 0);
        assert_ne!(a.done().last().map(|(_, status)| *status), Some(OK));
    }
}

/// A driver that takes memory out of use waits for a peer that writes there, but not for ever; the node goes on meanwhile.
#[test]
fn a_driver_waits_for_who_is_writing_and_nobody_else_does() {
    for stops in [true, false] {
        let mut world = World::new(*crate::MODE, 3);
        let (mut a, mut b, mut c) = (end(&mut world, 0), end(&mut world, 1), end(&mut world, 2));
        let other = b.host.qp(&mut world, QpType::Rc, &b.cq, 6);
        connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
        connect(&mut world, (&c.host, &c.qp), (&b.host, &other));
        let target = b.mr;
        b.mr = b.host.device_mr(&mut world, LEN);
        a.write(1, &b.mr, 0, 100);
        world.pump();
        assert_eq!(a.done(), [(1, OK)]);

        // It says that it is writing.
        let serial = (u64::from(world.node(1).epoch()) << 32) | 1;
        let memory = world.engine.device_memory(0);
        let busy = memory.map(|memory| memory.start - DIRECTORY_SIZE + GRANT_BUSY + LINE);
        let busy = busy.filter(|_| crate::MODE.is_direct());
        if let Some(busy) = busy {
            world.shared.poke(busy, &serial.to_le_bytes());
        }
        let before = world.now.get();
        let destroyed = world.engine.destroy_mr(&mut world.nodes, 1, b.mr.key);
        assert_eq!((destroyed, world.now.get()), (Ok(()), before));
        let gone = world.engine.writers_gone(&mut world.nodes, 1);
        assert_eq!(gone, busy.is_none());
        for id in 0..10 {
            c.write(id, &target, 0, 5000);
            world.pump();
            assert_eq!(c.done(), [(id, OK)]);
        }
        let Some(busy) = busy else {
            continue;
        };
        world.pass(GRANT_TIMEOUT_US - 1);
        assert!(!world.engine.writers_gone(&mut world.nodes, 1));
        if stops {
            world.shared.poke(busy, &[0; 8]);
        } else {
            world.engine.members().set_hostile(0);
            world.pass(1);
        }
        assert!(world.engine.writers_gone(&mut world.nodes, 1));
        world.pump();
        a.write(3, &target, 0, 100);
        world.pump();
        let goes_on = a.done().last() == Some(&(3, OK));
        assert_eq!(goes_on, stops);
    }
}

/// A grant that an error ends while a driver waits for the writer of another one: its writer has not had its time yet.
#[test]
fn who_writes_with_what_ended_later_is_not_refused_with_who_does_not_stop() {
    if !crate::MODE.is_direct() {
        return;
    }
    let mut world = World::new(*crate::MODE, 3);
    let (mut a, mut b, mut c) = (end(&mut world, 0), end(&mut world, 1), end(&mut world, 2));
    let mut failing = b.host.qp(&mut world, QpType::Rc, &b.cq, 6);
    let next = b.host.qp(&mut world, QpType::Rc, &b.cq, 6);
    let mut again = c.host.qp(&mut world, QpType::Rc, &c.cq, 6);
    connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
    connect(&mut world, (&c.host, &c.qp), (&b.host, &failing));
    connect(&mut world, (&c.host, &again), (&b.host, &next));
    let target = b.mr;
    let mrs = [0; 2].map(|_| b.host.device_mr(&mut world, 4096));
    a.write(1, &mrs[0], 0, 100);
    c.write(1, &mrs[1], 0, 100);
    world.pump();
    assert_eq!((a.done(), c.done()), (vec![(1, OK)], vec![(1, OK)]));
    // Both say that they are writing, each with its first grant.
    let serial = (u64::from(world.node(1).epoch()) << 32) | 1;
    for id in [0, 2] {
        let memory = world.engine.device_memory(id).expect("is a pool");
        let busy = memory.start - DIRECTORY_SIZE + GRANT_BUSY + LINE;
        world.shared.poke(busy, &serial.to_le_bytes());
    }
    world.engine.members().set_hostile(0);
    let destroyed = world.engine.destroy_mr(&mut world.nodes, 1, mrs[0].key);
    assert_eq!(destroyed, Ok(()));
    world.pass(GRANT_TIMEOUT_US - 1);
    // The other one's queue pair fails.
    let nowhere = nupa_testing::sge(b.mr.iova, 8, 0);
    let (addr, rkey, imm) = (0, 0, None);
    post(
        &mut failing,
        9,
        Operation::Write { addr, rkey, imm },
        Data::Sges(&[nowhere]),
    );
    world.pump();
    assert!(!world.engine.writers_gone(&mut world.nodes, 1));
    world.pass(1);
    assert!(world.engine.writers_gone(&mut world.nodes, 1));
    std::mem::swap(&mut c.qp, &mut again);
    a.write(2, &target, 0, 100);
    c.write(2, &target, 0, 100);
    world.pump();
    assert_ne!(a.done().last(), Some(&(2, OK)));
    assert_eq!(c.done(), [(2, OK)]);
}

/// A node that is reset waits for them as well; it has nothing else to do.
#[test]
fn a_reset_waits_for_who_is_writing() {
    if !crate::MODE.is_direct() {
        return;
    }
    let (mut world, _a, _b) = granted();
    world.engine.members().set_hostile(0);
    let serial = (u64::from(world.node(1).epoch()) << 32) | 1;
    let memory = world.engine.device_memory(0).expect("is a pool");
    let busy = memory.start - DIRECTORY_SIZE + GRANT_BUSY + LINE;
    world.shared.poke(busy, &serial.to_le_bytes());
    let before = world.now.get();
    world.engine.reset(&mut world.nodes, 1);
    assert_eq!(world.now.get() - before, GRANT_TIMEOUT_US);
}
