// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is a pool, what is refused, and who formats it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod rig;

use nupa_pool::{Pool, Refusal, Survey, Time, Window};
use nupa_proto::pool::{state_word, PoolState, Superblock, STATE_OFFSET, VERSION};
use rig::{options, Random, Run, World, MEDIUM, SMALL};
use std::mem::offset_of;

#[test]
fn a_pool_is_formatted_only_when_told_and_once() {
    let world = World::new(SMALL, 2, true, 1);
    let (a, b) = (world.host(0), world.host(1));
    assert_eq!(
        a.attach(&options(false, 2, 1)).unwrap_err(),
        Refusal::Unformatted
    );
    assert_eq!(world.peek::<256>(0), [0; 256]);
    let pool = a.attach(&options(true, 2, 1)).unwrap();
    assert_eq!(pool.geometry().max_nodes(), 2);
    // Somebody else's wishes come too late.
    let again = b.attach(&options(true, 8, 2)).unwrap();
    assert_eq!(again.fabric_id(), pool.fabric_id());
    assert_eq!(again.geometry(), pool.geometry());
    b.attach(&options(false, 2, 3)).unwrap();
}

#[test]
fn memory_that_holds_something_else_is_formatted_only_when_told() {
    let world = World::new(SMALL, 1, true, 1);
    let mut random = Random(11);
    let junk: Vec<u8> = (0..SMALL).map(|_| random.draw() as u8).collect();
    world.poke(0, &junk);
    let host = world.host(0);
    assert_eq!(
        host.attach(&options(false, 2, 1)).unwrap_err(),
        Refusal::Unformatted
    );
    let pool = host.attach(&options(true, 2, 1)).unwrap();
    // Device memory is left as it is.
    let share = pool.device_memory(1);
    assert_eq!(
        world.peek::<16>(share.start),
        junk[share.start as usize..][..16]
    );
    rig::Node::new(&host, 2, 1);
}

#[test]
fn pools_that_do_not_fit_are_refused_with_a_message() {
    let world = World::new(SMALL, 1, true, 1);
    let host = world.host(0);
    host.attach(&options(true, 2, 1)).unwrap();
    let good: [u8; 256] = world.peek(0);
    let try_with = |at: usize, bytes: &[u8]| {
        world.poke(at as u64, bytes);
        let refused = host.attach(&options(false, 2, 1)).unwrap_err();
        world.poke(0, &good);
        refused
    };
    let found = VERSION + 1;
    let refusal = try_with(offset_of!(Superblock, version), &found.to_le_bytes());
    assert_eq!(refusal, Refusal::Version { found });
    let message =
        "the pool has version 2.1, this driver knows 2.0 and 3.0 only; to give it up: nupactl pool discard";
    assert_eq!(refusal.to_string(), message);
    for at in [
        offset_of!(Superblock, rings),
        offset_of!(Superblock, max_nodes),
        0x7f,
    ] {
        assert_eq!(try_with(at, &[0xee]), Refusal::Corrupt);
    }
    assert_eq!(try_with(STATE_OFFSET as usize, &[0]), Refusal::Corrupt);
    // Not even when told to format it: it may be in use by others.
    world.poke(offset_of!(Superblock, version) as u64, &[9]);
    let refusal = host.attach(&options(true, 2, 1)).unwrap_err();
    assert!(matches!(refusal, Refusal::Version { .. }));

    let larger = World::new(2 * SMALL, 1, true, 1);
    larger.poke(0, &good);
    let refusal = larger.host(0).attach(&options(true, 2, 1)).unwrap_err();
    let (formatted, mapped) = (SMALL as u64, 2 * SMALL as u64);
    assert_eq!(refusal, Refusal::Size { formatted, mapped });

    let other = World::new(SMALL, 1, false, 1);
    other.poke(0, &good);
    let refusal = other.host(0).attach(&options(true, 2, 1)).unwrap_err();
    assert_eq!(refusal, Refusal::Coherence { formatted: true });

    let tiny = World::new(4096, 1, true, 1);
    let refusal = tiny.host(0).attach(&options(true, 2, 1)).unwrap_err();
    let (mapped, nodes) = (4096, 2);
    assert_eq!(refusal, Refusal::TooSmall { mapped, nodes });
}

#[test]
fn who_dies_while_formatting_holds_up_nobody_for_long() {
    let world = World::new(SMALL, 1, true, 1);
    let host = world.host(0);
    let dead = state_word(77, PoolState::Formatting);
    world.poke(STATE_OFFSET, &dead.to_le_bytes());
    assert_eq!(
        host.attach(&options(false, 2, 1)).unwrap_err(),
        Refusal::Unformatted
    );
    host.attach(&options(true, 2, 1)).unwrap();
    assert!(host.now_us() < 10_000_000);
}

#[test]
fn a_survey_that_is_out_of_date_formats_nothing() {
    let world = World::new(SMALL, 2, true, 1);
    let (a, b) = (world.host(0), world.host(1));
    let format = |host: &rig::Host, survey: &Survey, token| {
        let options = options(true, 2, token).pool;
        survey
            .format(host, host, &options)
            .map(|pool| pool.fabric_id())
    };
    let (first, second) = (Survey::new(&a, &a), Survey::new(&b, &b));
    assert_eq!(first.pool().unwrap_err(), Refusal::Unformatted);
    assert_eq!(format(&a, &first, 1), Ok(1));
    assert_eq!(format(&b, &second, 2), Err(Refusal::Busy));
    assert_eq!(a.attach(&options(false, 2, 3)).unwrap().fabric_id(), 1);
    // One that holds still formats a pool anew, and whoever is in it is evicted.
    let mut node = rig::Node::new(&a, 2, 1);
    let third = Survey::new(&b, &b);
    assert_eq!(format(&b, &third, 4), Ok(4));
    world.pass(1_000_000);
    assert!(node.tick().evicted);
}

#[test]
fn a_pool_that_is_discarded_is_none() {
    for coherent in [true, false] {
        let world = World::new(SMALL, 2, coherent, 1);
        let (a, b) = (world.host(0), world.host(1));
        let none = Survey::new(&a, &a);
        assert_eq!(none.discard(&a, &a, 5), Err(Refusal::Unformatted));
        let mut node = rig::Node::new(&a, 2, 1);
        let survey = Survey::new(&b, &b);
        assert_eq!(survey.discard(&b, &b, 5), Ok(()));
        assert_eq!(world.peek::<4096>(0), [0; 4096]);
        assert_eq!(
            Survey::new(&a, &a).pool().unwrap_err(),
            Refusal::Unformatted
        );
        world.pass(1_000_000);
        assert!(node.tick().evicted);
        // One that is out of date changes nothing.
        a.attach(&options(true, 2, 7)).unwrap();
        assert_eq!(survey.discard(&b, &b, 8), Err(Refusal::Busy));
        assert_eq!(a.attach(&options(false, 2, 9)).unwrap().fabric_id(), 7);
    }
    // Of any version, and any size.
    let world = World::new(SMALL, 1, true, 1);
    let host = world.host(0);
    for at in [
        offset_of!(Superblock, version),
        offset_of!(Superblock, max_nodes),
    ] {
        host.attach(&options(true, 2, 1)).unwrap();
        world.poke(at as u64, &[9]);
        assert_eq!(Survey::new(&host, &host).discard(&host, &host, 5), Ok(()));
        assert_eq!(world.peek::<4096>(0), [0; 4096]);
    }
}

#[test]
fn who_lives_in_a_pool_is_seen_without_joining_it() {
    let world = World::new(MEDIUM, 3, true, 1);
    let pool = world.host(0).attach(&options(true, 3, 1)).unwrap();
    let host = world.host(2);
    assert_eq!(pool.nodes(&host, &host), Default::default());
    rig::Node::new(&world.host(0), 3, 1);
    let (live, silent) = pool.nodes(&host, &host);
    assert!(live.is_empty() && silent.contains(0) && !silent.contains(1));
    let beats: Run<'_, bool> = Box::new(|host| {
        let mut node = rig::Node::new(&host, 3, 2);
        for _ in 0..60 {
            host.sleep_us(50_000);
            node.tick();
        }
        true
    });
    let looks: Run<'_, bool> = Box::new(|host| {
        host.sleep_us(2_600_000);
        let (live, silent) = pool.nodes(&host, &host);
        live.contains(1) && silent.contains(0) && !silent.contains(1)
    });
    assert_eq!(world.run(vec![beats, looks]), [true, true]);
}

#[test]
fn of_hosts_that_format_at_once_one_wins() {
    for seed in 0..60 {
        let coherent = seed % 2 == 0;
        let world = World::new(SMALL, 3, coherent, seed);
        let attach = |token: u64| -> Run<'_, u64> {
            Box::new(move |host| {
                // At about the same time.
                host.sleep_us(token * 13 % 50);
                let pool = host.attach(&options(true, 2, token)).unwrap();
                host.sleep_us(1_000_000);
                let later = host.attach(&options(false, 2, token)).unwrap();
                assert_eq!(later.fabric_id(), pool.fabric_id());
                pool.fabric_id()
            })
        };
        let ids = world.run(vec![attach(seed + 1), attach(seed + 5), attach(seed + 9)]);
        assert!(ids.iter().all(|id| *id == ids[0]), "seed {seed}: {ids:?}");
    }
}

#[test]
fn what_another_host_formats_meanwhile_is_taken() {
    let world = World::new(SMALL, 2, true, 1);
    let (a, b) = (world.host(0), world.host(1));
    // Who looks whether the memory is blank finds what the other has written there.
    let is_blank = |_: &Refusal| {
        b.attach(&options(true, 2, 2)).unwrap();
        false
    };
    let pool = Pool::attach_or_format(&a, &a, &options(true, 2, 1).pool, is_blank);
    assert_eq!(pool.map(|pool| pool.fabric_id()), Ok(2));
    // What stays as it is and may not be formatted is not looked at for ever.
    let world = World::new(SMALL, 1, true, 1);
    let host = world.host(0);
    let refused = host.attach(&options(false, 2, 1)).unwrap_err();
    assert_eq!(refused, Refusal::Unformatted);
}

#[test]
fn a_window_that_ends_early_reads_as_zero() {
    let world = World::new(4096, 1, true, 1);
    let host = world.host(0);
    host.store(1 << 40, 5);
    assert_eq!(host.load(1 << 40), Ok(0));
}
