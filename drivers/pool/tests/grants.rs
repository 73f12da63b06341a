// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Leave to write directly: whose words say what, what ends it, and that an owner knows when nobody writes any more.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod rig;

use nupa_pool::{Grant, Grants, InUse, JoinOptions, Time, Window};
use nupa_proto::pool::{DEAD_AFTER_US, GRANT_SLOTS, GRANT_TIMEOUT_US};
use rig::{options, pair, settle, Host, Node, Run};

/// What node 1 grants in these tests.
fn grant(grants: &Grants, slot: u16, serial: u64) -> Grant {
    Grant {
        slot,
        serial,
        offset: grants.memory().start,
        addr: 0,
        len: 64,
        key: 9,
        reads: true,
    }
}

/// The other node writes with a grant.
fn writing(serial: u64) -> InUse {
    InUse { serial, mapped: 0 }
}

/// Processes of the other node have mapped what grants in these slots are about.
fn mapped(slots: &[u16]) -> InUse {
    let mapped = slots.iter().map(|slot| 1 << slot).sum();
    InUse { serial: 0, mapped }
}

fn grants(node: &Node) -> Grants {
    let link = node.links.values().next().unwrap();
    link.grants.clone().unwrap()
}

#[test]
fn each_sees_what_the_other_gives_and_uses() {
    let (_, a, b) = pair(true, 1);
    let (here, there) = (grants(&a), grants(&b));
    for slot in [0, GRANT_SLOTS - 1] {
        let serial = 100 + u64::from(slot);
        let grant = grant(&there, slot, serial);
        assert!(here.is_sound(&grant) && !there.is_sound(&grant));
        assert_eq!(here.begin(&a.host, &grant), Ok(false));
        there.give(&b.host, slot, serial);
        assert_eq!(there.in_use(&b.host), Ok(InUse::NOTHING));
        assert_eq!(here.begin(&a.host, &grant), Ok(true));
        assert_eq!(there.in_use(&b.host), Ok(writing(serial)));
        assert_eq!(here.in_use(&a.host), Ok(InUse::NOTHING));
        here.end(&a.host);
        assert_eq!(there.in_use(&b.host), Ok(InUse::NOTHING));
        assert_eq!(
            here.begin(&a.host, &Grant { serial: 7, ..grant }),
            Ok(false)
        );
        there.give(&b.host, slot, 0);
        assert_eq!(here.begin(&a.host, &grant), Ok(false));
        assert_eq!(there.in_use(&b.host), Ok(InUse::NOTHING));
    }
    // There is no such word.
    there.give(&b.host, GRANT_SLOTS, 5);
}

#[test]
fn the_owner_sees_what_processes_have_mapped() {
    let (_, a, b) = pair(true, 1);
    let (here, there) = (grants(&a), grants(&b));
    let [first, last] = [0, GRANT_SLOTS - 1].map(|slot| grant(&there, slot, 100));
    assert_eq!(here.map(&a.host, &first), Ok(false));
    assert_eq!(there.in_use(&b.host), Ok(InUse::NOTHING));
    [first, last].map(|grant| there.give(&b.host, grant.slot, 100));
    for grant in [first, last] {
        assert_eq!(here.map(&a.host, &grant), Ok(true));
        assert_eq!(here.map(&a.host, &grant), Ok(false), "it is mapped");
    }
    let both = there.in_use(&b.host).unwrap();
    assert_eq!(both, mapped(&[0, last.slot]));
    assert!(both.has(0, 5) && both.has(last.slot, 5) && !both.has(1, 5));
    there.give(&b.host, 0, 0);
    assert_eq!(here.holds(&a.host, &first), Ok(false));
    assert_eq!(here.holds(&a.host, &last), Ok(true));
    assert_eq!(here.begin(&a.host, &last), Ok(true));
    assert_eq!(there.in_use(&b.host).unwrap().serial, 100);
    here.end(&a.host);
    here.unmap(&a.host, 0).unwrap();
    assert_eq!(there.in_use(&b.host), Ok(mapped(&[last.slot])));
    here.unmap(&a.host, last.slot).unwrap();
    assert_eq!(there.in_use(&b.host), Ok(InUse::NOTHING));
}

#[test]
fn what_is_not_the_peers_to_give_is_not_taken() {
    let (_, a, b) = pair(true, 2);
    let (here, memory) = (grants(&a), grants(&b).memory());
    let good = grant(&grants(&b), 0, 1);
    let whole = memory.end - memory.start;
    assert!(here.is_sound(&Grant { len: whole, ..good }));
    for (offset, addr, len, slot) in [
        (memory.start, 0, whole + 1, 0),
        (memory.start - 1, 0, 2, 0),
        (memory.end, 0, 1, 0),
        (0, 0, memory.end, 0),
        (u64::MAX, 0, 1, 0),
        (memory.start, 0, u64::MAX, 0),
        (memory.start, u64::MAX, 1, 0),
        (memory.start, 0, 0, 0),
        (memory.start, 0, 1, GRANT_SLOTS),
    ] {
        let bad = Grant {
            offset,
            addr,
            len,
            slot,
            ..good
        };
        assert!(!here.is_sound(&bad), "{bad:?}");
    }
}

#[test]
fn who_is_refused_or_left_behind_has_no_grant() {
    let ends: [fn(&mut Node); 4] = [
        |b| assert!(b.member.isolate(&b.host, 0)),
        |b| assert!(b.member.renew(&b.host)),
        |b| b.member.leave(&b.host),
        |b| {
            // The other says nothing.
            for _ in 0..30 {
                b.host.world.pass(DEAD_AFTER_US / 20);
                b.tick();
            }
            assert!(b.links.is_empty());
        },
    ];
    for end in ends {
        let (_, a, mut b) = pair(true, 3);
        let (here, there) = (grants(&a), grants(&b));
        let grant = grant(&there, 3, 77);
        there.give(&b.host, 3, 77);
        assert_eq!(here.begin(&a.host, &grant), Ok(true));
        here.end(&a.host);
        end(&mut b);
        assert_eq!(here.begin(&a.host, &grant), Ok(false));
    }
}

#[test]
fn a_new_link_begins_without_grants() {
    let (_, mut a, mut b) = pair(true, 4);
    let (here, there) = (grants(&a), grants(&b));
    there.give(&b.host, 3, 77);
    assert_eq!(here.begin(&a.host, &grant(&there, 3, 77)), Ok(true));
    assert!(a.member.renew(&a.host));
    a.links.clear();
    a.member.enable(&a.host);
    settle(&mut [&mut a, &mut b]);
    assert_eq!(here.begin(&a.host, &grant(&there, 3, 77)), Ok(false));
    assert_eq!(there.in_use(&b.host), Ok(InUse::NOTHING));
}

#[test]
fn pools_that_are_not_coherent_know_no_grants() {
    let (_, mut a, mut b) = pair(false, 5);
    assert!(a.link(1).grants.is_none() && b.link(0).grants.is_none());
}

/// The owner takes a grant back, waits until it is not used, and finds its memory as it leaves it, in any order of steps.
#[test]
fn nobody_writes_after_the_owner_has_waited() {
    for seed in 0..400 {
        let (world, a, b) = pair(true, seed);
        let (here, there) = (grants(&a), grants(&b));
        let at = there.memory().start;
        let granted = grant(&there, 0, 5);
        there.give(&b.host, 0, 5);
        let writer: Run<'_, ()> = Box::new(move |host: Host| {
            for value in 1..40u64 {
                if here.begin(&host, &granted) != Ok(true) {
                    return;
                }
                host.write(at, &value.to_le_bytes());
                host.write(at + 8, &value.to_le_bytes());
                here.end(&host);
            }
        });
        let owner: Run<'_, ()> = Box::new(move |host: Host| {
            for _ in 0..seed % 50 {
                there.in_use(&host).unwrap();
            }
            there.give(&host, 0, 0);
            host.fence();
            while there.in_use(&host) == Ok(writing(5)) {}
            let found = (host.load(at), host.load(at + 8));
            assert_eq!(found.0, found.1, "half of a write");
            for _ in 0..100 {
                assert_eq!((host.load(at), host.load(at + 8)), found);
            }
        });
        world.run(vec![writer, owner]);
    }
}

/// Takes the slot of node 1, which has died.
fn take_over(host: &Host) -> Node {
    let pool = host.attach(&options(false, 2, 9)).unwrap();
    let wishes = JoinOptions {
        prefer: Some(1),
        ..host.wishes(9)
    };
    let node = Node::join(host, &pool, &wishes);
    assert_eq!(node.member.node(), 1);
    node
}

/// A peer may go on with a write that was under way when the owner died: the next owner of the slot waits until it is over.
#[test]
fn the_next_owner_has_its_memory_for_itself() {
    for seed in 0..40 {
        let (world, a, b) = pair(true, seed);
        let (here, there) = (grants(&a), grants(&b));
        let (at, granted) = (there.memory().start, grant(&there, 0, 5));
        there.give(&b.host, 0, 5);
        drop(b);
        let writer: Run<'_, ()> = Box::new(move |host: Host| {
            // Before the slot is taken, and after it.
            host.sleep_us(DEAD_AFTER_US - 1000);
            assert_eq!(here.begin(&host, &granted), Ok(true));
            host.sleep_us(seed * GRANT_TIMEOUT_US / 50);
            host.write(at, &[0xee; 8]);
            here.end(&host);
        });
        let owner: Run<'_, ()> = Box::new(move |host: Host| {
            let _node = take_over(&host);
            host.write(at, &[0; 8]);
            host.sleep_us(GRANT_TIMEOUT_US);
            assert_eq!(host.load(at), Ok(0), "seed {seed}: a write came later");
        });
        world.run(vec![writer, owner]);
    }
}

/// Who died in the middle of a write is not waited for without end.
#[test]
fn who_never_ends_a_write_keeps_nobody_out() {
    let (_, a, b) = pair(true, 6);
    let (here, there) = (grants(&a), grants(&b));
    there.give(&b.host, 0, 5);
    assert_eq!(here.begin(&a.host, &grant(&there, 0, 5)), Ok(true));
    let host = b.host.clone();
    drop(b);
    let start = host.now_us();
    take_over(&host);
    let took = host.now_us() - start;
    assert!(
        (GRANT_TIMEOUT_US..2 * GRANT_TIMEOUT_US).contains(&(took - DEAD_AFTER_US)),
        "{took}"
    );
}
