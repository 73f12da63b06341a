// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a node says while another one does not look, or before it has heard of something.

use super::{few, linked, offered_another, rounds, talk, Station};
use crate::station::wishes;
use nupa_pool::{Area, Grant, LinkState, Pool};
use nupa_proto::pool::{inbox::AnswerState, Slot, DEAD_AFTER_US, HEARTBEAT_US};
use std::mem::offset_of;

#[test]
fn a_link_that_ends_before_the_caller_has_heard_of_it_ends() {
    for coherent in [true, false] {
        for ends_at_once in [true, false] {
            let (world, _, mut all) = few(coherent, 2, 1);
            let hosts = [all[0].host.clone(), all[1].host.clone()];
            all[0].member.ask(&hosts[0], 1);
            world.pass(HEARTBEAT_US);
            all[1].step();
            assert_eq!(all[1].state(0), LinkState::Open);
            assert!(all[1].member.withdraw(&hosts[1], 0));
            all[0].yields = ends_at_once;
            rounds(&world, &mut all, 4);
            if !ends_at_once {
                assert_eq!(all[0].state(1), LinkState::Ending);
                all[0].yields = true;
                rounds(&world, &mut all, 4);
            }
            for station in &all {
                assert_eq!(station.ended, [1 - station.id()]);
                assert_eq!(station.state(1 - station.id()), LinkState::Closed);
            }
            all[0].member.ask(&hosts[0], 1);
            rounds(&world, &mut all, 2);
            assert!(linked(&all, 0, 1));
            talk(&mut all, 0, 1);
        }
    }
}

/// A node that is not allowed to begin anew at once has to be told again later.
#[test]
fn who_is_refused_is_told_until_it_begins_anew_also_under_the_next_epoch() {
    for coherent in [true, false] {
        let (world, _, mut all) = few(coherent, 2, 1);
        let host = all[0].host.clone();
        assert!(all[0].member.isolate(&host, 1));
        all[0].renew();
        let mut told = Vec::new();
        for _ in 0..6 {
            world.pass(HEARTBEAT_US);
            all[0].step();
            told.push(all[1].step().refused_by.contains(0));
        }
        assert_eq!(told[3..], [true; 3], "{told:?}");
        all[1].renew();
        rounds(&world, &mut all, 3);
        all[0].member.ask(&host, 1);
        rounds(&world, &mut all, 2);
        talk(&mut all, 0, 1);
    }
}

#[test]
fn no_grant_of_a_slots_former_owner_counts_once_the_slot_is_taken() {
    let (world, pool, mut all) = few(true, 2, 1);
    let host = all[0].host.clone();
    all[0].member.ask(&host, 1);
    rounds(&world, &mut all, 2);
    let here = all[0].links[&1].grants.clone().unwrap();
    let there = all[1].links[&0].grants.clone().unwrap();
    let grant = Grant {
        slot: 2,
        serial: 77,
        offset: there.memory().start,
        addr: 0,
        len: 64,
        key: 9,
        reads: true,
    };
    there.give(&host, grant.slot, grant.serial);
    assert_eq!(here.begin(&host, &grant), Ok(true));
    here.end(&host);
    // Nobody looks at it for so long, and then another has the slot.
    drop(all.remove(1));
    world.pass(DEAD_AFTER_US);
    let back = Station::join(&world.host(2), &pool, &wishes(7, 102));
    assert_eq!(back.id(), 1);
    assert_eq!(here.begin(&host, &grant), Ok(false));
}

/// Offset of what node 1 says about node 0.
fn said_about_the_first(pool: &Pool) -> u64 {
    let geometry = pool.geometry();
    let about = |offset: &u64| geometry.area(*offset) == Area::Pair { node: 1, other: 0 };
    (0..geometry.size()).step_by(16).find(about).unwrap()
}

/// A node has an inbox since an epoch before, and is offered another one; then it dies, and what it says cannot be read.
#[test]
fn neither_of_two_inboxes_is_forgotten_that_a_node_may_have() {
    for coherent in [true, false] {
        let (world, pool, mut all) = offered_another(coherent);
        let host = all[0].host.clone();
        world.poison(said_about_the_first(&pool));
        for _ in 0..2 + DEAD_AFTER_US / HEARTBEAT_US {
            world.pass(HEARTBEAT_US);
            for station in &mut all {
                station.step();
            }
        }
        assert_eq!(all[0].member.ask(&host, 2), LinkState::NoRoom);
        // What it says can be read again.
        all.push(Station::join(&world.host(3), &pool, &wishes(7, 102)));
        rounds(&world, &mut all, 3);
        for node in [1, 2] {
            all[0].member.ask(&host, node);
            rounds(&world, &mut all, 2);
            assert_eq!(all[0].state(node), LinkState::Open, "node {node}");
            assert!(linked(&all, 0, if node == 2 { 1 } else { 2 }));
        }
    }
}

/// A node has a link, and says then that it has no room for one.
#[test]
fn who_has_a_link_does_not_give_its_inbox_back_for_want_of_room() {
    let (world, pool, mut all) = few(true, 3, 1);
    let host = all[0].host.clone();
    all[0].member.ask(&host, 1);
    rounds(&world, &mut all, 2);
    let answer = said_about_the_first(&pool) + 8;
    let mut word = world.peek::<8>(answer);
    assert_eq!(word[0], AnswerState::Uses.to_wire());
    word[0] = AnswerState::NoRoom.to_wire();
    world.poke(answer, &word);
    let changes = pool.geometry().slot(1) + offset_of!(Slot, changes) as u64;
    let told = u64::from_le_bytes(world.peek::<8>(changes)) + 1;
    world.poke(changes, &told.to_le_bytes());
    for _ in 0..2 {
        world.pass(HEARTBEAT_US);
        all[0].step();
    }
    assert_eq!(all[0].state(1), LinkState::Open);
    assert_eq!(all[0].member.ask(&host, 2), LinkState::NoRoom);
}
