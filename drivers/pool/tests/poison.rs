// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Lines of a pool that cannot be read: they cost the node that writes them, and nobody else.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod rig;

use nupa_pool::{
    Area, Blocked, Grant, JoinOptions, Outgoing, Poisoned, Refusal, Sharing, Unshared, Violation,
    Window,
};
use nupa_proto::{
    pool::{
        sharing::{RingOwner, EXPORT_TABLE},
        Class, Superblock, GRANT_BUSY, GRANT_TABLE, LINE, LINK_CONSUMER, LINK_WANT, PAGE,
        SLOT_SIZE, STATE_OFFSET,
    },
    wqe::Opcode,
};
use rig::{frame, options, ring, settle, write_request, Node, Ring, World, MEDIUM};
use std::sync::Arc;
use zerocopy::FromBytes;

const VICTIM: u16 = 1;

both_formats!(
    a_ring_that_cannot_be_read_isolates_its_source,
    a_ring_whose_credits_cannot_be_read_isolates_its_target,
    who_cannot_say_that_he_waits_for_room_is_woken_for_any,
);

/// Three linked nodes.
fn trio() -> (Arc<World>, [Node; 3]) {
    trio_in(false)
}

/// The same, whose rings have entries of lines or not.
fn trio_in(in_lines: bool) -> (Arc<World>, [Node; 3]) {
    let world = World::new(MEDIUM, 3, true, 5);
    world.know_lines(in_lines);
    let mut nodes = [0, 1, 2].map(|n| Node::new(&world.host(n), 3, n as u64 + 1));
    let [a, b, c] = &mut nodes;
    settle(&mut [a, b, c]);
    assert!(nodes.iter().all(|node| node.links.len() == 2));
    (world, nodes)
}

fn settle_all(nodes: &mut [Node; 3]) {
    let [a, b, c] = nodes;
    settle(&mut [a, b, c]);
}

/// Where the ring of frames from one node to another lies.
fn frames(world: &World, source: u16, target: u16) -> Ring {
    let block = Superblock::read_from_bytes(&world.peek::<128>(0)).unwrap();
    ring(&block, source, target, Class::Frame)
}

/// A frame goes from one node to another, and back.
fn works(nodes: &mut [Node; 3], one: usize, two: usize) {
    for (from, to) in [(one, two), (two, one)] {
        let host = nodes[from].host.clone();
        let link = nodes[from].link(to as u16);
        let body = frame(9);
        let sent = host.send(&mut link.send.frame, &Outgoing::Frame(&body), &[7; 64], 0);
        assert_eq!(sent, Ok(()));
        link.send.frame.publish(&host);
        let host = nodes[to].host.clone();
        let receiver = &mut nodes[to].link(from as u16).receive.frame;
        let message = receiver.next(&host).unwrap().unwrap();
        assert_eq!(host.payload(&message), [7; 64]);
        receiver.release(&host);
        receiver.publish(&host);
    }
}

/// The victim comes back after its lines were repaired, and all is well.
fn comes_back(nodes: &mut [Node; 3]) {
    let victim = &mut nodes[usize::from(VICTIM)];
    victim.links.clear();
    assert!(victim.member.renew(&victim.host));
    victim.member.enable(&victim.host);
    settle_all(nodes);
    for (one, two) in [(0, 1), (1, 2), (0, 2)] {
        works(nodes, one, two);
    }
}

#[test]
fn a_slot_that_cannot_be_read_is_a_node_that_is_gone() {
    for (line, area) in [(0, "claim"), (LINE, "heartbeat")] {
        let (world, mut nodes) = trio();
        let offset = PAGE + u64::from(VICTIM) * SLOT_SIZE as u64 + line;
        world.poison(offset);
        world.pass(200_000);
        for other in [0, 2] {
            let events = nodes[other].tick();
            assert!(events.down.contains(VICTIM) && !events.evicted, "{area}");
            let poisoned = nodes[other].member.poisoned(VICTIM);
            assert_eq!(poisoned, Some(Poisoned { offset }));
            assert!(nodes[other]
                .member
                .peer(&nodes[other].host, VICTIM)
                .is_none());
        }
        works(&mut nodes, 0, 2);
        let events = nodes[usize::from(VICTIM)].tick();
        // The claim is its own only as long as it can see that.
        assert_eq!(events.evicted, line == 0);
        let own = nodes[usize::from(VICTIM)].member.poisoned(VICTIM);
        assert_eq!(own.is_some(), line == 0);
        // The host is restarted: the slot is of no use, so it takes another, until it is repaired.
        let host = world.host(1);
        let pool = host.attach(&options(false, 3, 1)).unwrap();
        let prefer = Some(VICTIM);
        let wishes = JoinOptions {
            prefer,
            ..JoinOptions::new(9)
        };
        assert_ne!(pool.join(&host, &host, &wishes).unwrap().node(), VICTIM);
        world.poke_whole(offset);
        assert_eq!(pool.join(&host, &host, &wishes).unwrap().node(), VICTIM);
    }
}

fn a_ring_that_cannot_be_read_isolates_its_source(in_lines: bool) {
    for class in [None, Some(Class::Frame)] {
        let (world, mut nodes) = trio_in(in_lines);
        let ring = frames(&world, VICTIM, 0);
        let offset = match class {
            None => ring.word / LINE * LINE,
            Some(_) => ring.entries,
        };
        // Something is on its way.
        let victim = &mut nodes[usize::from(VICTIM)];
        let (host, body) = (victim.host.clone(), frame(9));
        let sender = &mut victim.link(0).send.frame;
        host.send(sender, &Outgoing::Frame(&body), &[7; 64], 0)
            .unwrap();
        sender.publish(&host);
        world.poison(offset);
        let host = nodes[0].host.clone();
        let receiver = &mut nodes[0].link(VICTIM).receive.frame;
        assert_eq!(
            receiver.next(&host).unwrap_err(),
            Violation::Poisoned { offset }
        );
        let area = nodes[0].member.pool().geometry().area(offset);
        let (source, target) = (u64::from(VICTIM), 0);
        let expected = Area::Link {
            source,
            target,
            class,
        };
        assert_eq!(area, expected);
        assert!(nodes[0].member.isolate(&host, VICTIM));
        nodes[0].links.remove(&VICTIM);
        works(&mut nodes, 0, 2);
        works(&mut nodes, 1, 2);
        world.poke_whole(offset);
        comes_back(&mut nodes);
    }
}

fn a_ring_whose_credits_cannot_be_read_isolates_its_target(in_lines: bool) {
    let (world, mut nodes) = trio_in(in_lines);
    let offset = frames(&world, 0, VICTIM).word / LINE * LINE + LINK_CONSUMER;
    world.poison(offset);
    let host = nodes[0].host.clone();
    let sender = &mut nodes[0].link(VICTIM).send.frame;
    let blocked = sender.reserve(&host, 64).unwrap_err();
    assert_eq!(blocked, Blocked::Violation(Violation::Poisoned { offset }));
    assert!(nodes[0].member.isolate(&host, VICTIM));
    nodes[0].links.remove(&VICTIM);
    works(&mut nodes, 0, 2);
    world.poke_whole(offset);
    comes_back(&mut nodes);
    // Who sends nothing learns of it as well: where the other's refusal would stand.
    world.poison(offset);
    world.pass(200_000);
    assert!(nodes[0].tick().down.contains(VICTIM));
    works(&mut nodes, 0, 2);
}

fn who_cannot_say_that_he_waits_for_room_is_woken_for_any(in_lines: bool) {
    let (world, mut nodes) = trio_in(in_lines);
    let host = nodes[usize::from(VICTIM)].host.clone();
    let sender = &mut nodes[usize::from(VICTIM)].link(0).send.frame;
    let body = frame(9);
    host.send(sender, &Outgoing::Frame(&body), &[7; 64], 0)
        .unwrap();
    sender.publish(&host);
    world.poison(frames(&world, VICTIM, 0).word / LINE * LINE + LINK_WANT);
    let host = nodes[0].host.clone();
    let receiver = &mut nodes[0].link(VICTIM).receive.frame;
    assert!(receiver.next(&host).unwrap().is_some());
    receiver.release(&host);
    receiver.publish(&host);
    assert!(receiver.take_wanted());
}

/// The second line of an entry, where its source has written to it already.
#[test]
fn an_entry_whose_second_line_cannot_be_read_isolates_its_source() {
    let (world, mut nodes) = trio_in(true);
    let geometry = *nodes[0].member.pool().geometry();
    let ring = geometry.ring(VICTIM, 0, Class::ShortRequest).in_lines();
    let mut body = write_request(8, 0);
    body.opcode = Opcode::FetchAdd.to_wire();
    let victim = &mut nodes[usize::from(VICTIM)];
    let host = victim.host.clone();
    let sender = &mut victim.link(0).send.short_request;
    host.send(sender, &Outgoing::Request(&body), &[], 0)
        .unwrap();
    let offset = ring.entry(1);
    world.poison(offset);
    let host = nodes[0].host.clone();
    let receiver = &mut nodes[0].link(VICTIM).receive.short_request;
    assert_eq!(
        receiver.next(&host).unwrap_err(),
        Violation::Poisoned { offset }
    );
    assert!(nodes[0].member.isolate(&host, VICTIM));
    nodes[0].links.remove(&VICTIM);
    works(&mut nodes, 0, 2);
    comes_back(&mut nodes);
    // What is written anew can be read again.
    let victim = &mut nodes[usize::from(VICTIM)];
    let host = victim.host.clone();
    let sender = &mut victim.link(0).send.short_request;
    host.send(sender, &Outgoing::Request(&body), &[], 0)
        .unwrap();
    let host = nodes[0].host.clone();
    let receiver = &mut nodes[0].link(VICTIM).receive.short_request;
    assert!(receiver.next(&host).unwrap().is_some());
}

/// A host reads its own requests again to learn which are done.
#[test]
fn a_request_that_its_source_cannot_read_again_costs_its_target() {
    let (world, mut nodes) = trio_in(true);
    let geometry = *nodes[0].member.pool().geometry();
    let offset = geometry
        .ring(0, VICTIM, Class::ShortRequest)
        .in_lines()
        .entry(0);
    let host = nodes[0].host.clone();
    let sender = &mut nodes[0].link(VICTIM).send.short_request;
    let body = write_request(8, 0);
    host.send(sender, &Outgoing::Request(&body), &[7; 8], 0)
        .unwrap();
    let there = nodes[usize::from(VICTIM)].host.clone();
    let receiver = &mut nodes[usize::from(VICTIM)].link(0).receive.short_request;
    assert!(receiver.next(&there).unwrap().is_some());
    receiver.release(&there);
    receiver.publish(&there);
    world.poison(offset);
    let link = nodes[0].link(VICTIM);
    assert!(link.has_next(&host, Class::ShortResponse));
    assert_eq!(
        link.next(&host, Class::ShortResponse).unwrap_err(),
        Violation::Poisoned { offset }
    );
    assert!(nodes[0].member.isolate(&host, VICTIM));
    nodes[0].links.remove(&VICTIM);
    works(&mut nodes, 0, 2);
    comes_back(&mut nodes);
}

#[test]
fn what_a_peer_says_of_device_memory_and_cannot_be_read() {
    let (world, mut nodes) = trio();
    let host = nodes[0].host.clone();
    let geometry = *nodes[0].member.pool().geometry();
    let directory = geometry.directory(VICTIM).unwrap().start;
    // The victim's grants for node 0, and its busy word.
    let grant = Grant {
        slot: 0,
        serial: 5,
        offset: geometry.device_memory(VICTIM).start,
        addr: 0,
        len: 64,
        key: 1,
        reads: true,
    };
    let grants = nodes[0].link(VICTIM).grants.clone().unwrap();
    let (table, busy) = (directory + GRANT_TABLE, directory + GRANT_BUSY);
    world.poison(table);
    world.poison(busy);
    let offset = table;
    assert_eq!(grants.begin(&host, &grant), Err(Poisoned { offset }));
    let offset = busy;
    assert_eq!(grants.in_use(&host), Err(Poisoned { offset }));
    // What it exports.
    let mut sharing = Sharing::new();
    let memory = geometry.device_memory(VICTIM);
    let victim = &nodes[usize::from(VICTIM)];
    let exported = sharing.export(
        &victim.host,
        &victim.member,
        (memory.start, 4096),
        &RingOwner::default(),
        77,
    );
    let handle = exported.unwrap();
    let offset = directory + EXPORT_TABLE;
    world.poison(offset);
    let import = Sharing::new().import(&host, &nodes[0].member, &handle);
    assert_eq!(import.unwrap_err(), Unshared::Poisoned { offset });
    // What it holds may be anything: so nobody gets memory until that is known.
    let mut found = Vec::new();
    let own = geometry.device_memory(0);
    nodes[0]
        .member
        .pool()
        .held(&host, 0, |range| found.push(range));
    assert_eq!(found, []);
    world.poison(directory + nupa_proto::pool::sharing::HOLD_TABLE);
    nodes[0]
        .member
        .pool()
        .held(&host, 0, |range| found.push(range));
    assert_eq!(found, [own]);
    // Whoever takes the slot writes all of it.
    let victim = &mut nodes[usize::from(VICTIM)];
    victim.member.leave(&victim.host);
    let again = Node::join(&world.host(1), nodes[0].member.pool(), &JoinOptions::new(4));
    assert_eq!(again.member.node(), VICTIM);
    for line in [table, busy, offset] {
        assert_eq!(host.load(line), Ok(0));
    }
}

#[test]
fn a_pool_whose_superblock_cannot_be_read_is_refused() {
    for offset in [0, LINE, STATE_OFFSET] {
        let (world, mut nodes) = trio();
        world.poison(offset);
        let host = world.host(2);
        let refused = host.attach(&options(true, 3, 1)).unwrap_err();
        assert_eq!(
            refused,
            Refusal::Poisoned {
                offset: offset / LINE * LINE
            }
        );
        assert!(refused
            .to_string()
            .contains("memory error in the pool's superblock"));
        world.pass(200_000);
        // Who is in it looks at the state word only, and has no pool without.
        let events = nodes[0].tick();
        assert_eq!(events.evicted, offset == STATE_OFFSET);
    }
}
