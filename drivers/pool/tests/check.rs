// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is wrong in a pool is found, each in its place, and nothing else.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod rig;

use nupa_pool::{check, Outgoing, Problem, Sharing};
use nupa_proto::pool::{
    crc32,
    line::{LineHead, LongPart, RequestLine},
    message::{Header, ENTRY_SIZE},
    sharing::{Export, Hold, RingOwner, EXPORT_TABLE, HOLD_TABLE},
    Class, Slot, Superblock, GRANT_TABLE, LINE, LINK_BULK, LINK_CONSUMER, LINK_WANT, PAGE,
    SLOT_SIZE, STATE_OFFSET,
};
use rig::{pair, pair_in, ring, write_request, Host, Node, Random, World, SMALL};
use std::{mem::offset_of, sync::Arc};
use zerocopy::{FromBytes, IntoBytes};

/// Where the first slot is.
const SLOTS: u64 = 4096;

fn problems(host: &Host) -> Vec<Problem> {
    let mut found = Vec::new();
    check(host, |problem| found.push(problem));
    found
}

fn superblock(world: &World) -> Superblock {
    Superblock::read_from_bytes(&world.peek::<128>(0)).unwrap()
}

/// A pool with two nodes, of which each has sent the other something that was not taken out, and that share memory.
fn busy_pool(coherent: bool) -> (Arc<World>, Node, Node) {
    busy(pair(coherent, 1))
}

fn busy((world, mut a, mut b): (Arc<World>, Node, Node)) -> (Arc<World>, Node, Node) {
    for (node, peer) in [(&mut a, 1), (&mut b, 0)] {
        for len in [0, 100, 5000, 60_000] {
            let host = node.host.clone();
            let body = write_request(len, 1);
            let sender = &mut node.link(peer).send.request;
            let bytes = vec![7; len as usize];
            let message = Outgoing::Request(&body);
            host.send(sender, &message, &bytes, 0).unwrap();
            sender.publish(&host);
        }
    }
    let mut sharing = Sharing::new();
    let memory = a.member.pool().device_memory(a.member.node());
    let export = (memory.start, 5000);
    let handle = sharing
        .export(&a.host, &a.member, export, &RingOwner::default(), 5)
        .unwrap();
    sharing.import(&a.host, &a.member, &handle).unwrap();
    (world, a, b)
}

/// Damages a pool that nothing is wrong with; each problem that is found then, in words.
fn damaged(world: &World, host: &Host, offset: u64, bytes: &[u8]) -> Vec<String> {
    let mut before = vec![0; bytes.len()];
    for (at, byte) in (offset..).zip(&mut before) {
        *byte = world.peek::<1>(at)[0];
    }
    world.poke(offset, bytes);
    let found = problems(host);
    world.poke(offset, &before);
    assert_eq!(problems(host), [], "repaired");
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn nothing_is_wrong_with_a_sound_pool() {
    let (world, mut a, mut b) = busy_pool(true);
    let host = world.host(0);
    assert_eq!(problems(&host), []);
    // Some of it is consumed, more is sent, and epochs go by.
    let receiver = &mut b.link(0).receive.request;
    for _ in 0..3 {
        receiver.next(&host).unwrap().unwrap();
        receiver.release(&host);
    }
    receiver.publish(&host);
    assert_eq!(problems(&host), []);
    assert!(a.member.renew(&host));
    rig::settle(&mut [&mut a, &mut b]);
    a.member.enable(&host);
    rig::settle(&mut [&mut a, &mut b]);
    assert_eq!(problems(&host), []);
    assert!(b.member.isolate(&host, 0));
    assert_eq!(problems(&host), []);
    a.member.leave(&host);
    b.member.leave(&host);
    assert_eq!(problems(&host), []);
    Node::new(&host, 2, 9);
    assert_eq!(problems(&host), []);
}

#[test]
fn looking_writes_nothing() {
    let (world, a, _) = busy_pool(false);
    let all = || -> Vec<[u8; 4096]> {
        let pages = (0..SMALL as u64).step_by(PAGE as usize);
        pages.map(|page| world.peek(page)).collect()
    };
    world.poke(SLOTS, &[9]);
    let before = all();
    assert!(!problems(&a.host).is_empty());
    assert!(all() == before);
}

#[test]
fn a_superblock_is_checked_field_by_field() {
    let (world, a, _) = busy_pool(true);
    let good = superblock(&world);
    let try_with = |change: &dyn Fn(&mut Superblock), expected: &[&str]| {
        let mut block = good;
        change(&mut block);
        block.check.set(0);
        block.check.set(crc32(block.as_bytes()));
        let found = damaged(&world, &a.host, 0, block.as_bytes());
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{found} for {expected}");
        }
    };
    try_with(&|_| {}, &[]);
    try_with(&|b| b.magic.set(7), &["the memory holds no pool"]);
    try_with(
        &|b| b.version.set(0x0002_0001),
        &["offset 0x8, superblock: version is 0x20001, and has to be 0x20000"],
    );
    let size = &["offset 0x10, superblock: size is 0x200000, and has to be 0x400000"];
    try_with(&|b| b.size.set(2 << 20), size);
    try_with(
        &|b| b.flags.set(6),
        &["offset 0x20, superblock: flags is 0x6"],
    );
    let nodes = &["max_nodes is 0x41, and has to be 0x2 to 0x40"];
    try_with(&|b| b.max_nodes.set(65), nodes);
    try_with(&|b| b.max_nodes.set(60), &["enough for rings"]);
    try_with(&|b| b.log_entries = 17, &["log_entries is 0x11"]);
    try_with(&|b| b.log_bulk = 9, &["log_bulk is 0x9"]);
    let rings = &["offset 0x30, superblock: rings is 0x3000, and has to be 0x2000"];
    try_with(&|b| b.rings.set(0x3000), rings);
    try_with(
        &|b| {
            b.slots.set(0);
            b.ring_stride.set(0);
            b.device_memory.set(0);
            b.device_memory_stride.set(0);
        },
        &[
            "slots",
            "ring_stride",
            "device_memory",
            "device_memory_stride",
        ],
    );
    try_with(&|b| b.reserved[9] = 1, &["reserved is 0x1"]);
}

#[test]
fn checksum_and_state_are_checked() {
    let (world, a, _) = busy_pool(true);
    let found = damaged(&world, &a.host, 0x18, &[0xee]);
    assert!(
        found.len() == 1 && found[0].contains("offset 0xc, superblock: check is"),
        "{found:?}"
    );
    // The rest says what it was.
    let found = damaged(&world, &a.host, 0, &[0xee]);
    assert!(
        found.len() == 1 && found[0].contains("all else here is a pool's"),
        "{found:?}"
    );
    for state in [0, 1, 3] {
        let found = damaged(&world, &a.host, STATE_OFFSET, &[state]);
        assert!(
            found.len() == 1 && found[0].contains("offset 0x80, superblock: state"),
            "{found:?}"
        );
    }
}

#[test]
fn slots_are_checked() {
    let (world, a, _) = busy_pool(true);
    let slot = SLOTS + SLOT_SIZE as u64;
    for (at, bytes, expected) in [
        (
            offset_of!(Slot, claim) + 7,
            [3u8].as_slice(),
            "slot of node 1: claim",
        ),
        (offset_of!(Slot, claim), &[0; 4], "of an epoch"),
        (
            offset_of!(Slot, reserved0) + 9,
            &[1],
            "slot of node 1: reserved",
        ),
        (offset_of!(Slot, token), &[0xee], "token is"),
        (offset_of!(Slot, presence), &[9], "presence is"),
        (offset_of!(Slot, presence) + 7, &[1], "no other flags"),
        (offset_of!(Slot, bell), &[1], "bell is 0x1"),
        (
            offset_of!(Slot, reserved1) + 135,
            &[1],
            "offset 0x11f8, slot of node 1: reserved",
        ),
    ] {
        let found = damaged(&world, &a.host, slot + at as u64, bytes);
        assert!(
            found.iter().any(|line| line.contains(expected)),
            "{found:?} for {expected}"
        );
    }
    // A slot that nobody has, of a node that says it takes part.
    let free = World::new(SMALL, 1, true, 1);
    let mut node = Node::new(&free.host(0), 2, 1);
    node.member.leave(&node.host);
    let found = damaged(
        &free,
        &node.host,
        SLOTS + offset_of!(Slot, presence) as u64 + 4,
        &[1],
    );
    assert!(
        found.len() == 1 && found[0].contains("without flags"),
        "{found:?}"
    );
}

#[test]
fn words_of_rings_are_checked() {
    let (world, a, _) = busy_pool(true);
    let ring = ring(&superblock(&world), 0, 1, Class::Request);
    for (at, bytes, expected) in [
        (
            0,
            [0xff, 0xff].as_slice(),
            "ahead of the consumer's by no more",
        ),
        (6, &[0xee], "same two epochs"),
        (6, &[0, 0], "of index 0"),
        (40, &[1], "reserved is 0x1"),
        (LINK_WANT + 6, &[9], "want word is"),
        (LINK_WANT + 63, &[9], "reserved is"),
        (LINK_CONSUMER, &[9], "ahead of the consumer's by no more"),
        (LINK_CONSUMER + 4, &[9], "word of the consumer"),
        (LINK_BULK, &[9], "multiple of 64"),
        (LINK_BULK + 4, &[9], "bulk word of the consumer"),
    ] {
        let found = damaged(&world, &a.host, ring.word + at, bytes);
        let place = "indices of the rings from node 0 to node 1: ";
        let fits = |line: &String| line.contains(expected) && line.contains(place);
        assert!(found.iter().any(fits), "{found:?} for {expected}");
    }
}

#[test]
fn what_waits_in_a_ring_is_checked() {
    let (world, a, _) = busy_pool(true);
    let ring = ring(&superblock(&world), 1, 0, Class::Request);
    let second = ring.entries + ENTRY_SIZE;
    for (at, bytes, expected) in [
        (
            offset_of!(Header, kind),
            [9u8].as_slice(),
            "entry 1 has kind 9",
        ),
        (offset_of!(Header, index), &[7], "entry 1 has index 7"),
        (offset_of!(Header, source), &[7], "tags of another entry"),
        (
            offset_of!(Header, payload_len) + 3,
            &[7],
            "bytes of payload",
        ),
        (size_of::<Header>(), &[0xee], "0xee in a field"),
    ] {
        let found = damaged(&world, &a.host, second + at as u64, bytes);
        let place = format!("offset {second:#x}, ring of requests from node 1 to node 0: ");
        assert!(
            found.len() == 1 && found[0].contains(expected),
            "{found:?} for {expected}"
        );
        assert!(found[0].starts_with(&place), "{found:?}");
    }
    // An entry that was taken out may be anything.
    assert_eq!(
        damaged(&world, &a.host, ring.entries + 9 * ENTRY_SIZE, &[9]),
        [""; 0]
    );
}

#[test]
fn lines_that_wait_are_checked() {
    let (world, a, _) = busy(pair_in(true));
    assert_eq!(problems(&a.host), []);
    let ring = ring(&superblock(&world), 1, 0, Class::Request);
    let second = ring.entries + LINE;
    let behind = |at: usize| second + 8 + at as u64;
    for (at, bytes, expected) in [
        (
            behind(offset_of!(LineHead, kind)),
            [9u8].as_slice(),
            "entry 1 has kind 9",
        ),
        (behind(offset_of!(LineHead, lines)), &[3], "0x3 in a field"),
        (
            behind(offset_of!(RequestLine, opcode)),
            &[0xee],
            "0xee in a field",
        ),
        (
            behind(offset_of!(RequestLine, room) + offset_of!(LongPart, payload_len) + 3),
            &[7],
            "bytes of payload",
        ),
        (ring.word + LINK_BULK, &[9], "multiple of 64"),
    ] {
        let found = damaged(&world, &a.host, at, bytes);
        assert!(
            found.len() == 1 && found[0].contains(expected),
            "{found:?} for {expected}"
        );
    }
    // One that is of another index is not there, and what is behind it is not looked at.
    assert_eq!(damaged(&world, &a.host, second, &[7]), [""; 0]);
    assert_eq!(damaged(&world, &a.host, ring.word, &[7]), [""; 0]);
}

#[test]
fn directories_are_checked() {
    let (world, a, b) = busy_pool(true);
    let start = a.member.pool().geometry().directory(0).unwrap().start;
    let export = start + EXPORT_TABLE;
    let hold = start + HOLD_TABLE;
    let end = a.member.pool().geometry().size();
    for (at, bytes, expected) in [
        (start, [1u8].as_slice(), "reserved is 0x1"),
        (start + 64 + 8, &[1], "reserved is 0x1"),
        (start + GRANT_TABLE, &[1], "reserved is 0x1"),
        (
            start + GRANT_TABLE + 128,
            &[1, 0, 0, 0, 9],
            "grant is 0x900000001",
        ),
        (
            export + offset_of!(Export, offset) as u64,
            &[1],
            "offset of an export",
        ),
        (
            export + offset_of!(Export, len) as u64 + 6,
            &[1],
            "len of an export",
        ),
        (
            export + offset_of!(Export, reserved) as u64,
            &[1],
            "reserved is",
        ),
        (
            hold + offset_of!(Hold, offset) as u64,
            &end.to_le_bytes(),
            "offset of a hold",
        ),
        (hold + offset_of!(Hold, len) as u64, &[1], "len of a hold"),
        (
            hold + offset_of!(Hold, reserved) as u64,
            &[1],
            "reserved is",
        ),
    ] {
        let found = damaged(&world, &a.host, at, bytes);
        let fits = found.len() == 1 && found[0].contains("directory of node 0: ");
        assert!(
            fits && found[0].contains(expected),
            "{found:?} for {expected}"
        );
    }
    // What programs have is theirs, and a node that is not there has no directory.
    assert_eq!(
        damaged(
            &world,
            &a.host,
            start + nupa_proto::pool::DIRECTORY_SIZE,
            &[9; 64]
        ),
        [""; 0]
    );
    let mut b = b;
    b.member.leave(&b.host);
    let other = b.member.pool().geometry().directory(1).unwrap().start;
    assert_eq!(damaged(&world, &a.host, other + PAGE, &[9; 64]), [""; 0]);
}

#[test]
fn lines_that_cannot_be_read_are_told() {
    let (world, a, _) = busy_pool(true);
    for (offset, area) in [(SLOTS, "slot of node 0"), (0, "superblock")] {
        world.poison(offset);
        let found = problems(&a.host);
        let text = found[0].to_string();
        assert!(
            text.contains(area) && text.contains("cannot be read"),
            "{text}"
        );
        world.poke_whole(offset);
    }
}

#[test]
fn whatever_lies_there_is_survived() {
    let (world, a, _) = busy_pool(true);
    let block = superblock(&world);
    let pool = a.member.pool();
    let ring = ring(&block, 0, 1, Class::Request);
    let directory = pool.geometry().directory(0).unwrap();
    let parts = [
        (0, 128),
        (SLOTS, 2 * SLOT_SIZE as u64),
        (ring.word, 256),
        (ring.entries, 4 * ENTRY_SIZE),
        (directory.start, 0x1100),
        (directory.start + EXPORT_TABLE, 64),
        (directory.start + HOLD_TABLE, 64),
    ];
    let mut random = Random(5);
    for round in 0..3000 {
        // The superblock is sound most of the time, or nothing behind it would be looked at.
        let first = usize::from(round % 8 != 0);
        let (start, len) = parts[first + random.below((parts.len() - first) as u64) as usize];
        let value = match random.below(3) {
            0 => random.draw(),
            1 => u64::MAX,
            _ => 1 << random.below(64),
        };
        world.poke(start + random.below(len / 8) * 8, &value.to_le_bytes());
        if start == 0 && round % 16 == 0 {
            let mut found = superblock(&world);
            found.check.set(0);
            found.check.set(crc32(found.as_bytes()));
            world.poke(0, found.as_bytes());
        }
        problems(&a.host);
        if start == 0 {
            world.poke(0, block.as_bytes());
        }
    }
}
