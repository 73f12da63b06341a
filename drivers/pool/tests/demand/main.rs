// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Links on demand, in pools with inboxes: they are made, ended and made again, nothing is lost, and no inbox is lent twice.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod late;
mod many;
#[path = "../rig/mod.rs"]
mod rig;
mod station;

use nupa_pool::{check, Format, FormatOptions, LinkState, Pool, Window};
use nupa_proto::pool::{DEAD_AFTER_US, HEARTBEAT_US};
use rig::{Host, World};
use station::{wishes, Station};
use std::sync::Arc;

type Few = Vec<Station<Host>>;

/// Bytes of a pool for `nodes` nodes with `inboxes` inboxes each.
fn size(nodes: usize, inboxes: usize) -> usize {
    let inbox = 236 << 10;
    0x3000 + nodes * (0x10000 + inboxes * inbox)
}

/// So many nodes that see each other, with so many inboxes, and a host that none of them is on.
fn few(coherent: bool, nodes: u16, inboxes: usize) -> (Arc<World>, Pool, Few) {
    let count = usize::from(nodes);
    let world = World::new(size(count, inboxes), count + 1, coherent, 5);
    let host = world.host(0);
    let options = FormatOptions {
        format: Format::Inboxes,
        ..FormatOptions::new(nodes, 9)
    };
    let pool = Pool::attach_or_format(&host, &host, &options, |_| true).unwrap();
    assert_eq!(pool.geometry().inboxes().map(usize::from), Some(inboxes));
    let join = |number: usize| {
        let token = number as u64 + 1;
        Station::join(&world.host(number), &pool, &wishes(token, 100 + token))
    };
    let mut all: Few = (0..count).map(join).collect();
    rounds(&world, &mut all, 3);
    (world, pool, all)
}

/// Lets heartbeats pass.
fn rounds(world: &Arc<World>, all: &mut [Station<Host>], count: usize) {
    for _ in 0..count {
        world.pass(HEARTBEAT_US);
        for station in all.iter_mut() {
            assert!(!station.step().evicted);
        }
    }
    sound(all);
}

/// Nothing in the pool contradicts the specification.
fn sound(all: &[Station<Host>]) {
    let host = &all[0].host;
    if host.is_coherent() {
        let mut found = Vec::new();
        check(host, |problem| found.push(problem.to_string()));
        assert_eq!(found, Vec::<String>::new());
    }
}

fn linked(all: &[Station<Host>], one: usize, other: usize) -> bool {
    let open = |own: usize, peer: usize| {
        let (own, peer) = (&all[own], all[peer].id());
        own.links.contains_key(&peer) && own.state(peer) == LinkState::Open
    };
    open(one, other) && open(other, one)
}

/// Both nodes of a link send, and the frames arrive.
fn talk(all: &mut [Station<Host>], one: usize, other: usize) {
    let ids = [all[one].id(), all[other].id()];
    for (from, to) in [(one, other), (other, one)] {
        let peer = all[to].id();
        for len in [60, 5000, 65_557] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + from) as u8).collect();
            all[from].send(peer, &bytes).unwrap();
            all[to].take_all();
            let taken = all[to].taken.pop().unwrap();
            assert!(taken.0 == ids[usize::from(from != one)] && taken.1 == bytes);
        }
        assert!(all[to].taken.is_empty());
    }
}

#[test]
fn a_link_is_made_when_one_asks_for_it() {
    for coherent in [true, false] {
        let (world, _, mut all) = few(coherent, 3, 2);
        assert!(all.iter().all(|station| station.links.is_empty()));
        let host = all[0].host.clone();
        assert_eq!(all[0].member.ask(&host, 1), LinkState::Opening);
        assert_eq!(all[0].member.ask(&host, 7), LinkState::Closed);
        rounds(&world, &mut all, 2);
        assert!(linked(&all, 0, 1) && all[2].links.is_empty());
        talk(&mut all, 0, 1);
        // It is asked for once.
        assert_eq!(all[1].member.ask(&host, 0), LinkState::Open);
        assert!(all[1].member.open(&host, 0).is_none());
    }
}

#[test]
fn two_that_ask_at_the_same_time_have_one_link() {
    for coherent in [true, false] {
        let (world, _, mut all) = few(coherent, 2, 1);
        for node in [0, 1] {
            let host = all[node].host.clone();
            all[node].member.ask(&host, 1 - node as u16);
        }
        rounds(&world, &mut all, 2);
        assert!(linked(&all, 0, 1));
        talk(&mut all, 0, 1);
    }
}

#[test]
fn who_finds_no_inbox_left_is_told_and_has_one_later() {
    for coherent in [true, false] {
        let (world, _, mut all) = few(coherent, 4, 1);
        let hosts: Vec<Host> = all.iter().map(|station| station.host.clone()).collect();
        all[0].member.ask(&hosts[0], 1);
        rounds(&world, &mut all, 2);
        assert!(linked(&all, 0, 1));
        // This one has none left itself, ...
        assert_eq!(all[0].member.ask(&hosts[0], 2), LinkState::NoRoom);
        // ... and here the other has none.
        assert_eq!(all[3].member.ask(&hosts[3], 1), LinkState::Opening);
        rounds(&world, &mut all, 2);
        assert_eq!(all[3].state(1), LinkState::NoRoom);
        // What was lent for that is free again.
        all[3].member.ask(&hosts[3], 2);
        rounds(&world, &mut all, 2);
        assert!(linked(&all, 2, 3) && linked(&all, 0, 1));
        talk(&mut all, 2, 3);
        for (one, other) in [(0, 1), (2, 3)] {
            assert!(all[one].member.withdraw(&hosts[one], other));
        }
        rounds(&world, &mut all, 4);
        assert!(all.iter().all(|station| station.links.is_empty()));
        all[3].member.ask(&hosts[3], 1);
        rounds(&world, &mut all, 3);
        assert!(linked(&all, 1, 3));
        talk(&mut all, 1, 3);
    }
}

#[test]
fn a_link_ends_without_loss_and_is_made_again() {
    for coherent in [true, false] {
        let (world, _, mut all) = few(coherent, 2, 1);
        for round in 0..300 {
            let host = all[0].host.clone();
            all[0].member.ask(&host, 1);
            rounds(&world, &mut all, 2);
            assert!(linked(&all, 0, 1), "round {round}");
            // What was sent before either has heard of the end arrives.
            for (from, to) in [(0, 1), (1, 0)] {
                for number in 0..5 {
                    all[from].send(to, &[number; 100]).unwrap();
                }
            }
            let both = round % 3 == 0;
            for ends in [round % 2, 1 - round % 2]
                .into_iter()
                .take(1 + usize::from(both))
            {
                let host = all[ends].host.clone();
                assert!(all[ends].member.withdraw(&host, 1 - ends as u16));
                assert!(!all[ends].member.withdraw(&host, 1 - ends as u16));
            }
            rounds(&world, &mut all, 4);
            for station in &mut all {
                assert_eq!(station.ended.len(), round + 1);
                let other = 1 - station.id();
                assert_eq!(station.state(other), LinkState::Closed);
                let expected: Vec<_> = (0..5).map(|number| (other, vec![number; 100])).collect();
                assert_eq!(std::mem::take(&mut station.taken), expected);
            }
        }
    }
}

#[test]
fn who_is_not_done_keeps_a_link_from_ending() {
    let (world, _, mut all) = few(true, 2, 1);
    let host = all[0].host.clone();
    all[0].member.ask(&host, 1);
    rounds(&world, &mut all, 2);
    all[1].yields = false;
    assert!(all[0].member.withdraw(&host, 1));
    rounds(&world, &mut all, 5);
    assert_eq!(all[1].state(0), LinkState::Ending);
    assert_eq!(all[0].state(1), LinkState::Withdrawn);
    // It goes on for it, in both directions.
    talk(&mut all, 0, 1);
    all[1].yields = true;
    rounds(&world, &mut all, 4);
    assert!(all.iter().all(|station| station.ended.len() == 1));
}

#[test]
fn what_was_not_taken_out_keeps_an_inbox_from_being_lent_anew() {
    for coherent in [true, false] {
        let (world, _, mut all) = few(coherent, 3, 1);
        let host = all[0].host.clone();
        all[0].member.ask(&host, 1);
        rounds(&world, &mut all, 2);
        all[0].finishes = false;
        all[1].send(0, &[9; 3000]).unwrap();
        assert!(all[0].member.withdraw(&host, 1));
        rounds(&world, &mut all, 4);
        // The other one has no more to do with it.
        assert_eq!(all[1].ended, [0]);
        assert_eq!(all[0].state(1), LinkState::Draining);
        assert_eq!(all[0].member.ask(&host, 2), LinkState::NoRoom);
        all[0].finishes = true;
        rounds(&world, &mut all, 1);
        assert_eq!(all[0].taken, [(1, vec![9; 3000])]);
        all[0].member.ask(&host, 2);
        rounds(&world, &mut all, 2);
        assert!(linked(&all, 0, 2));
    }
}

#[test]
fn an_inbox_of_one_that_died_is_held_until_its_slot_is_taken_again() {
    for coherent in [true, false] {
        let (world, pool, mut all) = few(coherent, 3, 1);
        let host = all[0].host.clone();
        all[0].member.ask(&host, 1);
        rounds(&world, &mut all, 2);
        let dead = all.remove(1);
        rounds(
            &world,
            &mut all,
            2 + (DEAD_AFTER_US / HEARTBEAT_US) as usize,
        );
        assert!(all[0].links.is_empty());
        // It may still write there.
        assert_eq!(all[0].member.ask(&host, 2), LinkState::NoRoom);
        drop(dead);
        let back = Station::join(&world.host(3), &pool, &wishes(7, 102));
        assert_eq!((back.id(), back.member.epoch()), (1, 2));
        all.push(back);
        rounds(&world, &mut all, 3);
        assert_eq!(all[0].member.ask(&host, 2), LinkState::Opening);
        rounds(&world, &mut all, 2);
        assert!(linked(&all, 0, 1));
        talk(&mut all, 0, 1);
    }
}

#[test]
fn who_begins_anew_or_leaves_holds_nothing() {
    for coherent in [true, false] {
        let (world, pool, mut all) = few(coherent, 3, 1);
        let host = all[0].host.clone();
        all[0].member.ask(&host, 1);
        rounds(&world, &mut all, 2);
        all[1].renew();
        rounds(&world, &mut all, 3);
        assert!(all[0].links.is_empty() && all[1].links.is_empty());
        all[0].member.ask(&host, 1);
        rounds(&world, &mut all, 2);
        talk(&mut all, 0, 1);
        // The one that has the inbox begins anew.
        all[0].renew();
        rounds(&world, &mut all, 3);
        all[0].member.ask(&host, 2);
        rounds(&world, &mut all, 2);
        talk(&mut all, 0, 2);
        all[2].leave();
        all.pop();
        rounds(&world, &mut all, 3);
        all[0].member.ask(&host, 1);
        rounds(&world, &mut all, 2);
        talk(&mut all, 0, 1);
        // And one that takes a slot whose inbox somebody else writes to.
        drop(all.remove(0));
        rounds(
            &world,
            &mut all,
            2 + (DEAD_AFTER_US / HEARTBEAT_US) as usize,
        );
        let back = Station::join(&world.host(3), &pool, &wishes(8, 101));
        assert_eq!(back.id(), 0);
        all.insert(0, back);
        rounds(&world, &mut all, 3);
        let host = all[0].host.clone();
        all[0].member.ask(&host, 1);
        rounds(&world, &mut all, 2);
        talk(&mut all, 0, 1);
    }
}

/// Nodes 0 and 2 of three with two inboxes each: node 0 has begun anew, and offers node 1 another inbox than it has, which has not heard of that and dies.
fn offered_another(coherent: bool) -> (Arc<World>, Pool, Few) {
    let (world, pool, mut all) = few(coherent, 3, 2);
    let host = all[0].host.clone();
    all[0].member.ask(&host, 1);
    rounds(&world, &mut all, 2);
    let silent = all.remove(1);
    all[0].renew();
    for _ in 0..3 {
        assert!(silent.member.heartbeat().beat(&silent.host));
        rounds(&world, &mut all, 1);
    }
    assert_eq!(all[0].member.ask(&host, 1), LinkState::Opening);
    (world, pool, all)
}

/// A node that begins anew lends another inbox to one that has not heard of that, and dies.
#[test]
fn an_inbox_that_is_held_from_an_epoch_before_is_not_forgotten() {
    for coherent in [true, false] {
        let (world, pool, mut all) = offered_another(coherent);
        let host = all[0].host.clone();
        rounds(
            &world,
            &mut all,
            2 + (DEAD_AFTER_US / HEARTBEAT_US) as usize,
        );
        // It may write to the first one still, and not to the second one any more.
        assert_eq!(all[0].member.ask(&host, 2), LinkState::Opening);
        assert_eq!(all[0].member.ask(&host, 1), LinkState::Closed);
        rounds(&world, &mut all, 2);
        assert!(linked(&all, 0, 1));
        let back = Station::join(&world.host(3), &pool, &wishes(7, 102));
        assert_eq!(back.id(), 1);
        all.push(back);
        rounds(&world, &mut all, 3);
        assert_eq!(all[0].member.ask(&host, 1), LinkState::Opening);
        rounds(&world, &mut all, 3);
        assert!(linked(&all, 0, 2));
        talk(&mut all, 0, 2);
        talk(&mut all, 0, 1);
    }
}

#[test]
fn who_is_refused_learns_it_and_has_its_inbox_back() {
    for coherent in [true, false] {
        let (world, _, mut all) = few(coherent, 2, 1);
        let hosts: Vec<Host> = all.iter().map(|station| station.host.clone()).collect();
        all[0].member.ask(&hosts[0], 1);
        rounds(&world, &mut all, 2);
        assert!(all[0].member.isolate(&hosts[0], 1));
        all[0].links.clear();
        world.pass(HEARTBEAT_US);
        assert!(all[1].step().refused_by.contains(0));
        all[1].renew();
        rounds(&world, &mut all, 3);
        all[1].member.ask(&hosts[1], 0);
        rounds(&world, &mut all, 3);
        assert!(linked(&all, 0, 1));
        talk(&mut all, 0, 1);
    }
}
