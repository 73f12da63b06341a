// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Nodes that join, leave, die, and come back.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod rig;

use nupa_pool::{Blocked, Events, JoinOptions, Outgoing, Peer, Pool, Refusal, Time};
use nupa_proto::pool::{DEAD_AFTER_US, HEARTBEAT_US};
use rig::{frame, options, pair, settle, Node, Run, World, MEDIUM, SMALL};
use std::sync::Arc;

fn trio(seed: u64) -> (Arc<World>, Pool, [Node; 3]) {
    let world = World::new(MEDIUM, 4, true, seed);
    let pool = world.host(0).attach(&options(true, 3, 9)).unwrap();
    let mut nodes = [1, 2, 3].map(|token| {
        let mut options = JoinOptions::new(token);
        options.identity = 100 + token;
        Node::join(&world.host(token as usize - 1), &pool, &options)
    });
    let [a, b, c] = &mut nodes;
    settle(&mut [a, b, c]);
    (world, pool, nodes)
}

fn ids(nodes: &[Node]) -> Vec<u16> {
    nodes.iter().map(|node| node.member.node()).collect()
}

#[test]
fn each_node_gets_a_slot_of_its_own_and_sees_the_others() {
    let (_, _, mut nodes) = trio(1);
    assert_eq!(ids(&nodes), [0, 1, 2]);
    for node in &mut nodes {
        let own = node.member.node();
        let seen: Vec<u16> = node.links.keys().copied().collect();
        let others: Vec<u16> = (0..3).filter(|other| *other != own).collect();
        assert_eq!(seen, others);
        let peer = node.member.peer(&node.host, others[0]).unwrap();
        assert_eq!((peer.epoch, peer.identity), (1, 101 + u64::from(others[0])));
        assert_eq!(node.member.peer(&node.host, own), None);
        assert_eq!(node.member.peer(&node.host, 60_000), None);
    }
}

#[test]
fn a_full_pool_takes_nobody() {
    let world = World::new(SMALL, 3, true, 4);
    let pool = world.host(0).attach(&options(true, 2, 9)).unwrap();
    let live = |token: u64| -> Run<'_, Result<u16, Refusal>> {
        Box::new(move |host| {
            let mut node = Node::join(&host, &pool, &JoinOptions::new(token));
            while host.now_us() < 6_000_000 {
                host.sleep_us(HEARTBEAT_US / 2);
                assert!(!node.tick().evicted);
            }
            Ok(node.member.node())
        })
    };
    let late: Run<'_, Result<u16, Refusal>> = Box::new(|host| {
        host.sleep_us(1_000_000);
        let joined = pool.join(&host, &host, &JoinOptions::new(3));
        joined.map(|member| member.node())
    });
    let results = world.run(vec![live(1), live(2), late]);
    assert_eq!(results[2], Err(Refusal::Full { nodes: 2 }));
    let mut ids = [results[0].unwrap(), results[1].unwrap()];
    ids.sort();
    assert_eq!(ids, [0, 1]);
}

#[test]
fn hosts_that_join_at_once_get_different_slots() {
    for seed in 0..60 {
        let world = World::new(MEDIUM, 3, seed % 2 == 0, seed);
        let join = |token: u64| -> Run<'_, u16> {
            Box::new(move |host| {
                host.sleep_us(token * 7 % 40);
                let pool = host.attach(&options(true, 3, token)).unwrap();
                let mut node = Node::join(&host, &pool, &JoinOptions::new(token));
                let mut up = 0;
                for _ in 0..20 {
                    host.sleep_us(HEARTBEAT_US);
                    let events = node.tick();
                    assert!(!events.evicted && events.refused_by.is_empty());
                    up += events.up.iter().count();
                }
                assert_eq!(up, 2);
                node.member.node()
            })
        };
        let mut ids = world.run(vec![join(seed + 1), join(seed + 2), join(seed + 3)]);
        ids.sort();
        assert_eq!(ids, [0, 1, 2], "seed {seed}");
    }
}

#[test]
fn who_leaves_is_gone_at_once_and_its_slot_is_free() {
    let (world, pool, [mut a, mut b, mut c]) = trio(1);
    let host = b.host.clone();
    b.member.leave(&host);
    world.pass(HEARTBEAT_US);
    let events = a.tick();
    assert!(events.down.contains(1) && events.silent.is_empty() && events.up.is_empty());
    assert_eq!(a.member.peer(&a.host, 1), None);
    // Somebody else gets it, at once, under another epoch.
    let before = host.now_us();
    let mut d = Node::join(&world.host(3), &pool, &JoinOptions::new(4));
    assert_eq!((d.member.node(), d.member.epoch()), (1, 2));
    assert!(host.now_us() - before < DEAD_AFTER_US);
    settle(&mut [&mut a, &mut c, &mut d]);
    assert_eq!(a.member.peer(&a.host, 1).unwrap().epoch, 2);
    assert_eq!(a.link(1).epoch, 2);
}

#[test]
fn a_dead_node_is_noticed_and_its_slot_goes_to_who_had_it_before() {
    let (world, pool, [mut a, b, mut c]) = trio(1);
    drop(b);
    let dead = world.host(0).now_us();
    let mut down = Vec::new();
    for _ in 0..30 {
        world.pass(HEARTBEAT_US);
        let events = a.tick();
        assert_eq!(events.silent, events.down);
        down.extend(events.down.iter());
        c.tick();
    }
    assert_eq!(down, [1]);
    assert!(world.host(0).now_us() - dead >= DEAD_AFTER_US);
    // A stranger would take it, since no other is left; the one who had it comes first.
    let mut options = JoinOptions::new(44);
    options.identity = 102;
    let mut b = Node::join(&world.host(1), &pool, &options);
    assert_eq!((b.member.node(), b.member.epoch()), (1, 2));
    let (mut late_a, mut late_c) = (a, c);
    settle(&mut [&mut late_a, &mut b, &mut late_c]);
    assert_eq!(late_a.link(1).epoch, 2);
    assert!(b.links.contains_key(&0) && b.links.contains_key(&2));
}

#[test]
fn wishes_count_where_they_can() {
    let world = World::new(MEDIUM, 3, true, 1);
    let pool = world.host(0).attach(&options(true, 3, 9)).unwrap();
    let mut wish = JoinOptions::new(1);
    wish.prefer = Some(2);
    let a = Node::join(&world.host(0), &pool, &wish);
    assert_eq!(a.member.node(), 2);
    // It was restarted so quickly that its slot seems to live: it waits until it does not.
    drop(a);
    wish.token = 5;
    let a = Node::join(&world.host(0), &pool, &wish);
    assert_eq!((a.member.node(), a.member.epoch()), (2, 2));
    wish.prefer = Some(700);
    assert_eq!(Node::join(&world.host(1), &pool, &wish).member.node(), 0);
}

#[test]
fn a_host_that_was_stopped_takes_nobody_for_dead() {
    let (world, mut a, mut b) = pair(true, 1);
    // All of the machine was stopped.
    world.pass(60_000_000);
    assert_eq!(a.tick(), Events::default());
    assert_eq!(b.tick(), Events::default());
    settle(&mut [&mut a, &mut b]);
    assert!(a.links.contains_key(&1) && b.links.contains_key(&0));
}

#[test]
fn who_was_taken_for_dead_is_told_and_comes_back_with_another_epoch() {
    let (world, mut a, mut b) = pair(true, 1);
    let (here, there) = (a.host.clone(), b.host.clone());
    let old = &mut b.links.remove(&0).unwrap();
    for _ in 0..30 {
        world.pass(HEARTBEAT_US);
        a.tick();
    }
    assert!(a.links.is_empty());
    // It does not know yet; what it sends is not taken.
    let sent = there.send(
        &mut old.send.frame,
        &Outgoing::Frame(&frame(1)),
        &[0; 60],
        0,
    );
    assert_eq!(sent, Err(Blocked::Down));
    let events = b.tick();
    assert!(events.refused_by.contains(0) && !events.evicted);
    assert!(b.member.renew(&there));
    assert_eq!(b.member.epoch(), 2);
    b.links.clear();
    settle(&mut [&mut a, &mut b]);
    // Not before it is enabled again.
    assert!(a.links.is_empty());
    b.member.enable(&there);
    settle(&mut [&mut a, &mut b]);
    assert_eq!(a.link(1).epoch, 2);
    there
        .send(
            &mut b.link(0).send.frame,
            &Outgoing::Frame(&frame(1)),
            &[0; 60],
            0,
        )
        .unwrap();
    b.link(0).send.frame.publish(&there);
    assert!(a.link(1).receive.frame.next(&here).unwrap().is_some());
}

#[test]
fn nothing_of_an_older_epoch_is_consumed() {
    let (world, mut a, mut b) = pair(true, 1);
    let (here, there) = (a.host.clone(), b.host.clone());
    // Some of it was consumed, some not.
    for qpn in 0..5 {
        let sender = &mut a.link(1).send.frame;
        here.send(sender, &Outgoing::Frame(&frame(qpn)), &[7; 60], 0)
            .unwrap();
        sender.publish(&here);
    }
    let receiver = &mut b.link(0).receive.frame;
    receiver.next(&there).unwrap().unwrap();
    receiver.release(&there);
    receiver.publish(&there);
    let mut old = a.links.remove(&1).unwrap();
    assert!(a.member.renew(&here));
    a.member.enable(&here);
    // The old link still sends.
    let sender = &mut old.send.frame;
    here.send(sender, &Outgoing::Frame(&frame(90)), &[7; 60], 0)
        .unwrap();
    sender.publish(&here);
    world.pass(HEARTBEAT_US);
    assert!(b.tick().down.contains(0));
    settle(&mut [&mut a, &mut b]);
    assert_eq!(b.link(0).epoch, 2);
    assert_eq!(b.link(0).receive.frame.next(&there), Ok(None));
    // And what it writes now is not for the new epoch.
    old.send.frame.publish(&here);
    let sender = &mut a.link(1).send.frame;
    here.send(sender, &Outgoing::Frame(&frame(5)), &[8; 60], 0)
        .unwrap();
    sender.publish(&here);
    let message = b.link(0).receive.frame.next(&there).unwrap().unwrap();
    assert_eq!(there.payload(&message), [8; 60]);
}

/// A host that sleeps shows another epoch, not enabled, and does nothing more: it keeps its slot and comes back.
#[test]
fn who_sleeps_for_long_keeps_its_place() {
    let (world, _, [mut a, mut b, mut c]) = trio(1);
    let host = b.host.clone();
    assert!(b.member.renew(&host));
    b.links.clear();
    world.pass(HEARTBEAT_US);
    let events = a.tick();
    assert!(events.down.contains(1) && events.silent.is_empty());
    for _ in 0..100 {
        world.pass(HEARTBEAT_US);
        a.tick();
        c.tick();
    }
    assert!(b.member.is_valid(&host));
    b.member.enable(&host);
    settle(&mut [&mut a, &mut b, &mut c]);
    assert_eq!(a.member.peer(&a.host, 1).unwrap().epoch, 2);
    assert!(b.links.contains_key(&0));
}

#[test]
fn a_pool_that_is_formatted_anew_evicts_its_nodes() {
    let (world, mut a, _) = pair(true, 1);
    world.poke(0, &[0; 4096]);
    let again = world.host(1).attach(&options(true, 2, 55)).unwrap();
    world.pass(HEARTBEAT_US);
    assert!(a.tick().evicted);
    assert!(!a.member.renew(&a.host));
    assert_eq!(a.member.open(&a.host, 1).map(|link| link.epoch), None);
    // It has left nothing behind, and does not touch what is another's now.
    let b = Node::join(&world.host(1), &again, &JoinOptions::new(6));
    assert_eq!((b.member.node(), b.member.epoch()), (0, 1));
    let host = a.host.clone();
    a.member.leave(&host);
    let mut b = b;
    world.pass(HEARTBEAT_US);
    assert!(!b.tick().evicted);
}

#[test]
fn who_sleeps_is_woken() {
    let (_, mut a, b) = pair(true, 1);
    assert!(!b.member.must_wake(&b.host, 0));
    a.member.set_polling(&a.host, false);
    assert!(b.member.must_wake(&b.host, 0));
    a.member.set_polling(&a.host, true);
    assert!(!b.member.must_wake(&b.host, 0));
}

#[test]
fn a_host_that_was_stopped_leaves_the_next_owner_of_its_slot_alone() {
    let (world, mut a, mut b) = pair(true, 1);
    // It neither polls nor ticks, and another host takes its slot.
    while a.host.now_us() < 2 * DEAD_AFTER_US {
        world.pass(HEARTBEAT_US);
        b.tick();
    }
    let pool = world.host(2).attach(&options(true, 2, 3)).unwrap();
    let mut c = Node::join(&world.host(2), &pool, &JoinOptions::new(3));
    assert_eq!(c.member.node(), a.member.node());
    settle(&mut [&mut b, &mut c]);
    assert!(!b.member.must_wake(&b.host, 0));
    a.member.set_polling(&a.host, false);
    assert!(
        !b.member.must_wake(&b.host, 0),
        "it has put the new owner to sleep"
    );
    assert!(a.tick().evicted && !c.tick().evicted);
}

#[test]
fn a_node_that_is_busy_shows_that_it_lives_until_its_epoch_is_over() {
    let (_, _, [mut a, mut b, _c]) = trio(31);
    let node = a.member.node();
    let heartbeat = a.member.heartbeat();
    // Nobody works with the first node for long.
    for _ in 0..30 {
        assert!(heartbeat.beat(&a.host));
        a.host.sleep_us(HEARTBEAT_US);
        assert!(!b.tick().down.contains(node));
    }
    assert!(a.member.renew(&a.host));
    assert!(!heartbeat.beat(&a.host));
    assert!(a.member.heartbeat().beat(&a.host));
    let heartbeat = a.member.heartbeat();
    a.member.leave(&a.host);
    assert!(!heartbeat.beat(&a.host));
}

/// What is known of others lies where the host says; a node without a place there is nobody, its slot is not taken, and nothing panics.
#[test]
fn who_has_no_place_for_others_sees_nobody() {
    let (world, pool, [a, b, mut c]) = trio(1);
    drop((a, b));
    let host = world.host(3);
    let nowhere = pool.join_with(&host, &host, &JoinOptions::new(4), Vec::new());
    assert_eq!(nowhere.err(), Some(Refusal::Full { nodes: 3 }));
    for places in [2, 3, 9] {
        let peers = vec![Peer::UNKNOWN; places];
        let mut wish = JoinOptions::new(4);
        wish.prefer = Some(1);
        let mut member = pool.join_with(&host, &host, &wish, peers).unwrap();
        assert_eq!(member.node(), 1);
        member.enable(&host);
        let mut seen = false;
        for _ in 0..4 {
            world.pass(HEARTBEAT_US);
            c.tick();
            let events = member.tick(&host, host.now_us());
            assert!(!events.evicted && events.down.is_empty() && events.refused_by.is_empty());
            seen |= events.up.contains(2);
        }
        assert_eq!(seen, places > 2, "{places} places");
        assert_eq!(member.peer(&host, 2).is_some(), seen);
        assert_eq!(member.open(&host, 2).is_some(), seen);
        assert_eq!(member.poisoned(1), None);
        assert_eq!(member.isolate(&host, 2), seen);
        assert!(member.renew(&host));
        member.leave(&host);
        world.pass(HEARTBEAT_US);
        assert!(member.tick(&host, host.now_us()).evicted);
    }
}
