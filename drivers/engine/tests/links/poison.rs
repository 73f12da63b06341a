// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Payload in a pool, and device memory, that cannot be read: whoever has written it is isolated, or the request fails. Others go on.

use crate::links::parts::{connect, end, pair, pattern, End, OK};
use nupa_pool::Violation;
use nupa_proto::{
    admin::QpType,
    pool::{message::ENTRY_SIZE, Class, LINE, LINK_RINGS, MIN_LOG_BULK},
    status::WcStatus,
};
use nupa_testing::World;

/// Bytes of a message, and the place in it that cannot be read.
const LEN: u32 = 5000;
const AT: u64 = 20 * LINE;
/// Entries of a ring.
const ENTRIES: u64 = 256;

/// Where the payload of the first message in a ring of long ones between two of three nodes begins.
fn payload(world: &World, source: u64, target: u64, class: Class) -> u64 {
    let [rings, stride] = [0x30, 0x38].map(|at| u64::from_le_bytes(world.shared.peek(at)));
    let pair = source * 2 + target - u64::from(target > source);
    let ring = ENTRIES * ENTRY_SIZE + (1 << MIN_LOG_BULK);
    let before = u64::from(class.to_wire()) * ring;
    rings + pair * stride + LINK_RINGS + before + ENTRIES * ENTRY_SIZE
}

/// Connected ends of nodes 0 and 1, and one of node 2 that is connected to node 0.
fn trio() -> (World, [End; 3]) {
    let mut world = World::new(*crate::MODE, 3);
    let mut ends = [0, 1, 2].map(|id| end(&mut world, id));
    let [a, b, c] = &mut ends;
    connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
    let cq = a.host.cq(&mut world, a.eq.eqn, 5);
    let aside = a.host.qp(&mut world, QpType::Rc, &cq, 4);
    connect(&mut world, (&a.host, &aside), (&c.host, &c.qp));
    (world, ends)
}

/// Node `peer` has something on its way to node 0, which `post` asks for; its payload cannot be read when node 0 looks. Whether one processor copies it
/// there, or several.
fn isolates(peer: u16, class: Class, at: u64, post: impl Fn(&mut End, &mut End)) {
    for shared_from in [None, Some(4096)] {
        isolates_with(shared_from, peer, class, at, &post);
    }
}

fn isolates_with(
    shared_from: Option<u32>,
    peer: u16,
    class: Class,
    at: u64,
    post: &impl Fn(&mut End, &mut End),
) {
    let (mut world, [mut a, mut b, mut c]) = trio();
    if let Some(from) = shared_from {
        world.machine(0).ram().share_copies_from(from);
    }
    world.engine.members().set_hostile(peer);
    match class {
        Class::Response => {
            // The question goes first.
            post(&mut a, &mut b);
            world.hold(Some(1));
            world.turns(60);
            world.hold(Some(0));
        }
        _ => {
            world.hold(Some(0));
            post(&mut a, &mut b);
        }
    }
    world.turns(200);
    let offset = payload(&world, u64::from(peer), 0, class) + at;
    world.shared.poison(offset);
    world.hold(None);
    world.pump();
    let found = world.engine.members().violations.clone();
    assert!(
        matches!(found[..], [Violation::Poisoned { .. }]),
        "{found:?}"
    );
    let unread = world.machine(0).ram().unread();
    assert_eq!(unread > 0, shared_from.is_some(), "{unread}");
    // The question failed, or nobody has asked. What was not carried out is not done, either.
    let done = [a.done(), b.done()].concat();
    assert!(done.iter().all(|(_, status)| *status != OK), "{done:?}");
    let bytes = pattern(LEN as usize, 7);
    c.fill(100_000, &bytes);
    c.write(9, &a.mr, 100_000, LEN);
    world.pump();
    assert_eq!(c.done(), [(9, OK)]);
    assert!(a.bytes(100_000, LEN as usize) == bytes);
}

#[test]
fn payload_of_a_write_that_cannot_be_read_isolates_its_source() {
    isolates(1, Class::Request, AT, |a, b| b.write(1, &a.mr, 0, LEN));
}

/// So much is freed by the last part that the peer would be told at once.
#[test]
fn a_write_whose_last_part_cannot_be_read_is_not_done() {
    isolates(1, Class::Request, 65536 + AT, |a, b| {
        b.write(1, &a.mr, 0, 2 * 65536);
    });
}

#[test]
fn payload_of_a_message_that_cannot_be_read_isolates_its_source() {
    isolates(1, Class::Request, AT, |a, b| {
        a.receive(5, 0, LEN);
        b.send(1, 0, LEN);
    });
}

#[test]
fn payload_of_an_answer_that_cannot_be_read_isolates_who_gives_it() {
    isolates(1, Class::Response, AT, |a, b| a.read(1, &b.mr, 0, LEN));
}

#[test]
fn device_memory_that_cannot_be_read_fails_the_request_and_nothing_else() {
    for shared in [false, true] {
        let share = |world: &World| {
            for id in [0, 1] {
                let from = if shared { 4096 } else { u32::MAX };
                world.machine(id).ram().share_copies_from(from);
            }
        };
        let (mut world, mut a, mut b) = pair();
        share(&world);
        b.mr = b.host.device_mr(&mut world, 10_000);
        poison_own(&world, 1);
        a.read(1, &b.mr, 0, LEN);
        world.pump();
        assert_eq!(a.done(), [(1, WcStatus::RemoteOperation as u8)]);
        assert_eq!(world.engine.members().violations, []);
        assert_eq!(world.machine(1).ram().unread() > 0, shared);
        // Of its own, as the source of a WRITE.
        let (mut world, mut a, b) = pair();
        share(&world);
        a.mr = a.host.device_mr(&mut world, 10_000);
        poison_own(&world, 0);
        a.write(2, &b.mr, 0, LEN);
        world.pump();
        assert_eq!(a.done(), [(2, WcStatus::LocalProtection as u8)]);
        assert_eq!(world.engine.members().violations, []);
        assert_eq!(world.machine(0).ram().unread() > 0, shared);
    }
}

/// Has a line of a node's device memory be one that cannot be read.
fn poison_own(world: &World, id: u16) {
    let own = world.engine.device_memory(id).expect("there is a pool");
    world.shared.poison(own.start + AT);
}
