// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Node ids that hosts choose.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod rig;

use nupa_pool::{identity, AssignOptions, JoinOptions, NotAssigned, Pool, Time};
use nupa_proto::pool::HEARTBEAT_US;
use rig::{options, Host, Node, Run, World, MEDIUM};
use std::sync::Arc;

fn pool(hosts: usize, coherent: bool) -> (Arc<World>, Pool) {
    let world = World::new(MEDIUM, hosts, coherent, 1);
    let pool = world.host(0).attach(&options(true, 3, 9)).unwrap();
    (world, pool)
}

fn wish(identity: u64, node: u16) -> AssignOptions {
    AssignOptions {
        token: identity + 7,
        identity,
        node,
        force: false,
    }
}

/// Joins as a host, and returns its node id and its place.
fn join(pool: &Pool, host: &Host, identity: u64) -> Node {
    let mut options = JoinOptions::new(identity + 50);
    options.identity = identity;
    Node::join(host, pool, &options)
}

/// Joins, and leaves.
fn visit(pool: &Pool, host: &Host, identity: u64) -> u16 {
    let mut node = join(pool, host, identity);
    node.member.leave(host);
    node.member.node()
}

#[test]
fn a_host_has_the_id_of_its_choice_whenever_it_joins() {
    for coherent in [true, false] {
        let (world, pool) = pool(2, coherent);
        let (a, b) = (world.host(0), world.host(1));
        pool.assign(&a, &a, &wish(100, 2)).unwrap();
        for _ in 0..2 {
            assert_eq!(visit(&pool, &a, 100), 2);
        }
        // Others keep away from it, as long as there is another one.
        assert_eq!(visit(&pool, &b, 200), 0);
    }
}

#[test]
fn another_choice_lets_go_of_the_first() {
    let (world, pool) = pool(2, true);
    let (a, b) = (world.host(0), world.host(1));
    assert_eq!(visit(&pool, &a, 100), 0);
    pool.assign(&a, &a, &wish(100, 1)).unwrap();
    assert_eq!(visit(&pool, &a, 100), 1);
    assert_eq!(visit(&pool, &b, 200), 0, "nobody has 0 any more");
    // Where it has the id already nothing is written, and its epoch stays.
    let before = join(&pool, &a, 100);
    let epoch = before.member.epoch();
    drop(before);
    world.pass(10_000_000);
    let mut again = join(&pool, &a, 100);
    assert_eq!((again.member.node(), again.member.epoch()), (1, epoch + 1));
    again.member.leave(&a);
    pool.assign(&a, &a, &wish(100, 1)).unwrap();
    assert_eq!(join(&pool, &a, 100).member.epoch(), epoch + 2);
}

#[test]
fn a_host_that_died_may_choose() {
    let (world, pool) = pool(1, true);
    let a = world.host(0);
    drop(join(&pool, &a, 100));
    pool.assign(&a, &a, &wish(100, 2)).unwrap();
    assert_eq!(visit(&pool, &a, 100), 2);
}

#[test]
fn what_others_have_is_refused() {
    let (world, pool) = pool(2, true);
    let (a, b) = (world.host(0), world.host(1));
    let none = pool.assign(&a, &a, &wish(100, 3));
    assert_eq!(none, Err(NotAssigned::NoSuchNode { nodes: 3 }));
    assert_eq!(visit(&pool, &b, 200), 0);
    let mut wanted = wish(100, 0);
    let reserved = Err(NotAssigned::Reserved { node: 0 });
    assert_eq!(pool.assign(&a, &a, &wanted), reserved);
    assert_eq!(visit(&pool, &b, 200), 0, "nothing was changed");
    // So is that of a host that died with it.
    drop(join(&pool, &b, 200));
    assert_eq!(pool.assign(&a, &a, &wanted), reserved);
    wanted.force = true;
    pool.assign(&a, &a, &wanted).unwrap();
    assert_eq!(visit(&pool, &a, 100), 0);
    assert_eq!(visit(&pool, &b, 200), 1);
}

#[test]
fn an_id_in_use_is_refused_whatever_is_asked() {
    let (world, pool) = pool(2, true);
    let assign = |wanted: AssignOptions| -> Run<'_, Result<(), NotAssigned>> {
        let pool = &pool;
        Box::new(move |host| {
            host.sleep_us(1_000_000);
            pool.assign(&host, &host, &wanted)
        })
    };
    let live = |identity: u64| -> Run<'_, Result<(), NotAssigned>> {
        let pool = &pool;
        Box::new(move |host| {
            let mut node = join(pool, &host, identity);
            while host.now_us() < 6_000_000 {
                host.sleep_us(HEARTBEAT_US / 2);
                assert!(!node.tick().evicted);
            }
            node.member.leave(&host);
            Ok(())
        })
    };
    let forced = AssignOptions {
        force: true,
        ..wish(100, 0)
    };
    let results = world.run(vec![live(200), assign(forced)]);
    assert_eq!(results, [Ok(()), Err(NotAssigned::Taken { node: 0 })]);
}

#[test]
fn a_host_that_has_joined_keeps_its_id() {
    let (world, pool) = pool(2, true);
    let shared = &pool;
    let live: Run<'_, Result<(), NotAssigned>> = Box::new(move |host| {
        let mut node = join(shared, &host, 100);
        while host.now_us() < 6_000_000 {
            host.sleep_us(HEARTBEAT_US / 2);
            assert!(!node.tick().evicted);
        }
        Ok(())
    });
    let late: Run<'_, Result<(), NotAssigned>> = Box::new(move |host| {
        host.sleep_us(1_000_000);
        shared.assign(&host, &host, &wish(100, 2))
    });
    let results = world.run(vec![live, late]);
    assert_eq!(results[1], Err(NotAssigned::Joined { node: 0 }));
}

#[test]
fn of_hosts_that_want_the_same_id_at_once_one_has_it() {
    for seed in 0..40 {
        let world = World::new(MEDIUM, 2, seed % 2 == 0, seed);
        let pool = world.host(0).attach(&options(true, 3, 9)).unwrap();
        let pool = &pool;
        let want = |identity: u64| -> Run<'_, bool> {
            Box::new(move |host| {
                host.sleep_us(identity * 7 % 40);
                pool.assign(&host, &host, &wish(identity, 1)).is_ok()
            })
        };
        let done = world.run(vec![want(100), want(200)]);
        assert!(done.contains(&true), "seed {seed}");
        // If one was done after the other was, it has found that.
        let host = world.host(0);
        let ids = [100, 200].map(|identity| visit(pool, &host, identity));
        assert_eq!(ids.iter().filter(|id| **id == 1).count(), 1, "seed {seed}");
        let sure = done.iter().zip(ids).filter(|(done, id)| **done && *id == 1);
        assert_eq!(sure.count(), 1, "seed {seed}: {done:?} {ids:?}");
    }
}

#[test]
fn names_make_different_identities() {
    let uuid = b"4c4c4544-0034-4b10-8051-c3c04f4a3232";
    assert_eq!(identity(b""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(identity(uuid), identity(uuid));
    assert_ne!(identity(uuid), identity(b"node1"));
    // The kernel keeps 63 bytes of a name.
    assert_eq!(identity(&[b'x'; 63]), identity(&[b'x'; 70]));
}
