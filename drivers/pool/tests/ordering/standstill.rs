// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A host stands still for so long that another takes its slot, and goes on then: it finds that out, and nothing of it is taken for the next
//! owner's.

use crate::{
    cold::{Cold, Steps},
    epochs::{link, send},
    of_all_hosts, Hosts, Setup,
};
use nupa_pool::{Import, JoinOptions, Link, Membership, Sharing, Time, Window};
use nupa_proto::pool::{
    sharing::{DmHandle, RingOwner},
    Class, CAP_POOL_LINES, GRANT_BUSY, GRANT_TABLE, HEARTBEAT_US, LINE, PAGE, SLOT_SIZE,
};
use std::cell::Cell;

of_all_hosts! {
    #[test]
    fn nothing_of_the_former_owner_is_taken() { take_over::<false> within 2 }

    #[test]
    fn nothing_of_the_former_owner_is_taken_in_lines() { take_over::<true> within 2 }
}

/// Bytes of a frame of the former owner of a slot, and of the next one.
const FORMER: u32 = 60;
const NEXT: u32 = 61;

/// Node 1's host stands still, its peer has found that out, and another host takes the slot and comes up. The former one goes on meanwhile.
fn take_over<H: Hosts, const LINES: bool>(setup: &Setup) {
    let memory = setup.memory();
    let capabilities = if LINES { CAP_POOL_LINES } else { 0 };
    let (nodes, [_, mut out]) = setup.opened(&memory, capabilities);
    let [mut peer, former] = nodes;
    // It has seen the other side of the link.
    assert!(out.send.frame.reserve(&memory, 0).is_ok());
    let time = Steps(Cell::new(10 * HEARTBEAT_US));
    for _ in 0..30 {
        time.sleep_us(HEARTBEAT_US);
        peer.tick(&memory, time.now_us());
    }
    assert!(peer.peer(&memory, 1).is_none(), "it is not taken for dead");
    let (pool, claim) = (setup.pool, PAGE + SLOT_SIZE as u64);
    let ring = pool.geometry().ring(1, 0, Class::Frame);
    let entry = ring.in_lines().entry(0);
    let words = match LINES {
        false => [claim, ring.producer(), entry, entry + 8],
        true => [claim, entry, entry + 8, entry + LINE],
    };
    let hosts = H::map(memory, &words);
    let clock = H::clock(&hosts[1]);
    let both = [hosts[1].clone(), hosts[1].clone()];
    let go_on = move |memory: &H::Host| {
        // It may stand still once more behind the look.
        if former.is_valid(memory) {
            send(memory, &mut out, FORMER);
        }
        former
    };
    let next = move |memory: &H::Host| {
        let options = JoinOptions {
            prefer: Some(1),
            capabilities,
            dead_after_us: 1,
            ..JoinOptions::new(3)
        };
        let mut next = pool.join(memory, &clock, &options).unwrap();
        assert_eq!((next.node(), next.epoch()), (1, 2));
        next.enable(memory);
        time.sleep_us(HEARTBEAT_US);
        assert!(peer.tick(memory, time.now_us()).up.contains(1));
        let mut back = peer.open(memory, 1).unwrap();
        let out = link(&both, &time, &mut [peer, next], 1);
        let found = back.receive.frame.next(memory);
        assert!(matches!(found, Ok(None)), "{found:?}");
        (time, out, back)
    };
    let (mut former, (time, mut out, mut back)) = H::run(&hosts, go_on, next);
    let [one, other] = &hosts;
    let events = former.tick(&**one, time.now_us());
    assert!(events.evicted, "it does not learn it");
    assert!(back.receive.frame.next(&**other).unwrap().is_none());
    // What the next owner sends is taken.
    send(&**other, &mut out, NEXT);
    let found = back.receive.frame.next(&**other).unwrap().unwrap();
    assert_eq!(found.payload_len(), NEXT);
}

/// A node that shares memory with another, before another host takes its slot.
struct Former {
    node: Membership,
    sharing: Sharing,
    export: DmHandle,
    import: Import,
    /// What the other node exports.
    others: DmHandle,
}

/// Something that is asked of it then.
type Ask = fn(&mut Former, &Cold);

/// All that writes to the pool by itself, and not by way of a link.
const ASKED: [(&str, Ask); 10] = [
    ("enable", |former, memory| former.node.enable(memory)),
    ("set_polling", |former, memory| {
        former.node.set_polling(memory, false);
    }),
    ("beat", |former, memory| {
        assert!(!former.node.heartbeat().beat(memory));
    }),
    ("open", |former, memory| {
        let opened: Option<Link> = former.node.open(memory, 0);
        assert!(opened.is_none());
    }),
    ("isolate", |former, memory| {
        former.node.isolate(memory, 0);
    }),
    ("renew", |former, memory| {
        assert!(!former.node.renew(memory))
    }),
    ("leave", |former, memory| former.node.leave(memory)),
    ("export", |former, memory| {
        let (node, place) = (&former.node, former.export);
        let memory_of_node = node.pool().device_memory(place.node.get());
        let place = (memory_of_node.start, PAGE);
        let exported = former
            .sharing
            .export(memory, node, place, &RingOwner::default(), 8);
        assert!(exported.is_err());
    }),
    ("import", |former, memory| {
        let (node, others) = (&former.node, &former.others);
        assert!(former.sharing.import(memory, node, others).is_err());
    }),
    ("withdraw and release", |former, memory| {
        let index = former.export.index.get();
        let place = former.node.pool().device_memory(former.node.node()).start;
        former
            .sharing
            .withdraw(memory, &former.node, (index, place));
        former
            .sharing
            .release(memory, &former.node, former.import.line);
    }),
];

/// Some of what is node 1's, and is zeroed when it begins or ends something: its word of a grant and its busy word for node 0, and its words of a ring.
fn words_of_next(setup: &Setup) -> [u64; 6] {
    let geometry = setup.pool.geometry();
    let directory = geometry.directory(1).unwrap().start;
    let [out, back] = [(1, 0), (0, 1)].map(|(from, to)| geometry.ring(from, to, Class::Request));
    [
        directory + GRANT_TABLE,
        directory + GRANT_BUSY,
        out.producer(),
        out.producer_want(),
        back.consumer(),
        back.consumer_bulk(),
    ]
}

/// Node 1, with what it shares, which looks around for the first time since another host took its slot only after it was asked.
#[test]
fn who_has_lost_its_slot_writes_nothing() {
    let setup = Setup::new(true);
    for (what, ask) in ASKED {
        let memory = setup.memory();
        let [other, node] = setup.joined(&memory, 0);
        let export = |node: &Membership| {
            let mut sharing = Sharing::new();
            let place = setup.pool.device_memory(node.node()).start;
            let handle = sharing.export(&memory, node, (place, PAGE), &RingOwner::default(), 7);
            (sharing, handle.unwrap())
        };
        let ((_, others), (mut sharing, own)) = (export(&other), export(&node));
        let import = sharing.import(&memory, &node, &others).unwrap();
        let mut former = Former {
            node,
            sharing,
            export: own,
            import,
            others,
        };
        let options = JoinOptions {
            prefer: Some(1),
            dead_after_us: 1,
            ..JoinOptions::new(3)
        };
        let time = Steps(Cell::new(0));
        let mut next = setup.pool.join(&memory, &time, &options).unwrap();
        assert_eq!(next.node(), 1);
        next.enable(&memory);
        for word in words_of_next(&setup) {
            memory.store(word, 9);
        }
        let before = memory.bytes();
        ask(&mut former, &memory);
        assert!(before == memory.bytes(), "{what} writes");
        assert!(former.node.tick(&memory, u64::MAX / 2).evicted, "{what}");
        ask(&mut former, &memory);
        assert!(before == memory.bytes(), "{what} writes afterwards");
    }
}
