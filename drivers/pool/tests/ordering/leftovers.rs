// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hosts whose caches have lines from long before: what these say is not believed, and what was never written back does no harm.

use crate::{caches::Caches, check, check_within, epochs::send, Hosts, Setup};
use nupa_pool::{Body, JoinOptions, Link, Membership, Pool, Time, Window};
use nupa_proto::pool::{Class, CAP_POOL_LINES, HEARTBEAT_US, LINE, STATE_OFFSET};
use std::sync::Arc;

/// Any host of this kind.
type CachedHost = <Caches as Hosts>::Host;

/// Bytes of a frame of long before, which has no room in an entry of either kind, and of one that is sent now.
const OLD: u32 = 200;
const NEW: u32 = 300;
/// Any byte of the payload of the latter.
const BYTE: u8 = 0x5a;
/// How often something is waited for.
const ATTEMPTS: u32 = 20;

#[test]
fn old_lines_are_not_believed() {
    check_within::<Caches>(1, begin::<false>);
}

#[test]
fn old_lines_are_not_taken_for_entries() {
    check_within::<Caches>(1, begin::<true>);
}

#[test]
fn what_was_given_up_does_not_arrive_after_its_node_has_left() {
    check::<Caches>(give_up::<false>);
}

#[test]
fn what_was_given_up_in_a_line_does_not_arrive_after_its_node_has_left() {
    check::<Caches>(give_up::<true>);
}

const fn capabilities(lines: bool) -> u64 {
    match lines {
        true => CAP_POOL_LINES,
        false => 0,
    }
}

/// Both hosts have the memory in their caches as it was long ago: they talked in it, as the same nodes with the same epochs and tokens, and then the
/// pool was discarded. It was formatted anew since. What they had stored to entries and payload of their own is not written back yet.
fn begin<const LINES: bool>(setup: &Setup) {
    let old = setup.memory();
    let (_, mut links) = setup.opened(&old, capabilities(LINES));
    let [first, second] = [0, 1].map(|node: u16| {
        let link = &mut links[usize::from(node)];
        let payload = link.send.frame.reserve(&old, OLD).unwrap().payload;
        send(&old, link, OLD);
        send(&old, link, OLD);
        let geometry = setup.pool.geometry();
        let ring = geometry.ring(node, 1 - node, Class::Frame).entry(0);
        let lines = |start: u64, lines| (0..lines).map(move |line| start + line * LINE);
        lines(ring, 8)
            .chain(lines(payload.start, 8))
            .collect::<Vec<_>>()
    });
    for line in [0, LINE, STATE_OFFSET] {
        old.set_line(line, [0; LINE as usize]);
    }
    let hosts = Caches::map_over(setup.memory(), Arc::new(old), [&first, &second]);
    let one = |host: &CachedHost| talk(host, 0, capabilities(LINES));
    let other = |host: &CachedHost| talk(host, 1, capabilities(LINES));
    Caches::run(&hosts, one, other);
}

/// Attaches, joins, sends a frame to the other node, and takes one.
fn talk(host: &CachedHost, node: u16, capabilities: u64) {
    let pool = Pool::attach(host, host).unwrap();
    let options = JoinOptions {
        prefer: Some(node),
        capabilities,
        ..JoinOptions::new(u64::from(node) + 1)
    };
    let mut member = pool.join(host, host, &options).unwrap();
    assert_eq!((member.node(), member.epoch()), (node, 1));
    member.enable(host);
    let mut link = meet(host, &mut member, 1 - node);
    let (mut sent, mut taken) = (false, false);
    for _ in 0..ATTEMPTS {
        sent = sent || send_new(host, &mut link);
        taken = taken || take_new(host, &mut link);
        if sent && taken {
            return;
        }
        host.sleep_us(HEARTBEAT_US);
        look_around(host, &mut member);
    }
    panic!("sent: {sent}, taken: {taken}");
}

fn look_around(host: &CachedHost, member: &mut Membership) {
    let events = member.tick(host, host.now_us());
    assert!(!events.evicted && events.down.is_empty() && events.refused_by.is_empty());
}

/// Looks around until the other node is up, and makes the link.
fn meet(host: &CachedHost, member: &mut Membership, other: u16) -> Link {
    for _ in 0..ATTEMPTS {
        host.sleep_us(HEARTBEAT_US);
        look_around(host, member);
        if let Some(link) = member.open(host, other) {
            return link;
        }
    }
    panic!("the other node does not come up")
}

/// Sends a frame, if the other side of the link is there.
fn send_new(host: &CachedHost, link: &mut Link) -> bool {
    let Ok(place) = link.send.frame.reserve(host, NEW) else {
        return false;
    };
    host.write(place.payload.start, &[BYTE; NEW as usize]);
    send(host, link, NEW);
    true
}

/// Takes a frame, which must be such a one.
fn take_new(host: &CachedHost, link: &mut Link) -> bool {
    let ring = &mut link.receive.frame;
    let Some(found) = ring.next(host).unwrap() else {
        return false;
    };
    assert!(matches!(found.body, Body::Frame(_)));
    assert_eq!(found.payload_len(), NEW, "it is of long before");
    let mut payload = [0; NEW as usize];
    host.read(found.payload.start, &mut payload).unwrap();
    assert_eq!(payload, [BYTE; NEW as usize], "the payload is");
    ring.release(host);
    true
}

/// Node 1 stores payloads, puts no entries in for them, and leaves. What another host, which has the slot then, stores in their places is not written
/// over when the cache of the former makes room.
fn give_up<const LINES: bool>(setup: &Setup) {
    let memory = setup.memory();
    let ([_, mut former], [_, mut out]) = setup.opened(&memory, capabilities(LINES));
    let hosts = Caches::map(memory, &[]);
    let [one, other]: [&CachedHost; 2] = [&hosts[0], &hosts[1]];
    // One that has no room in an entry, and one that is in its line.
    let places = [NEW, 16].map(|len| {
        let ring = match len {
            NEW => &mut out.send.frame,
            _ => &mut out.send.short_response,
        };
        let place = ring.reserve(one, len).unwrap().payload;
        one.write(place.start, &vec![0xee; len as usize]);
        place.start
    });
    former.leave(one);
    for at in places {
        other.write(at, &[BYTE; 16]);
        other.publish(at, LINE);
        // It writes the line back if it is dirty.
        one.refresh(at, LINE);
        let mut found = [0; 16];
        other.refresh(at, LINE);
        other.read(at, &mut found).unwrap();
        assert_eq!(found, [BYTE; 16], "it is written over");
    }
}
