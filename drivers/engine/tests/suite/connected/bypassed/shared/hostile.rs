// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Owners of shared receive queues that store what they like where both sides take entries.

use super::*;

/// Indices of the next entry that cannot be: so many are not posted, or more than there is room for.
#[test]
fn a_queue_whose_next_entry_is_out_of_bounds_ends() {
    for next in [5, 21, 1 << 31, 0u32.wrapping_sub(DEPTH - 3)] {
        let mut s = Scene::new(2, 2);
        s.post(4);
        s.set_next(next);
        s.send(0, 1, b"one");
        let failed = WcStatus::RemoteOperation as u8;
        assert_eq!((s.statuses(), s.filled()), (vec![failed], vec![]), "{next}");
        let fatal = (EventType::SrqFatal as u8, 0, s.srq.srqn);
        assert_eq!(s.eq.drain()[0], fatal);
        // Also if it is a good one again.
        s.set_next(0);
        s.send(1, 0, b"zero");
        assert_eq!((s.statuses(), s.filled()), (vec![failed], vec![]), "{next}");
    }
}

#[test]
fn nonsense_about_messages_that_have_entries_harms_only_its_owner() {
    for said in [4, 255, 1 << 31, 0u32.wrapping_sub(260)] {
        let mut s = Scene::new(2, 2);
        s.post(10);
        s.say(0, said);
        // It has not said anything of these three that can be.
        s.send(0, 3, b"three");
        assert_eq!((s.statuses(), s.filled()), (vec![OK], vec![(0, 0..4, OK)]));
        s.say(0, said.wrapping_add(3));
        s.send(0, 3, b"four");
        s.send(1, 1, b"six");
        assert_eq!(s.statuses(), [OK, OK]);
        assert_eq!(s.filled(), [(0, 4..5, OK), (1, 5..7, OK)]);
    }
}

#[test]
fn an_owner_that_is_always_quicker_holds_up_nobody() {
    let mut s = Scene::with_entries(LONG_LOG, 2, 2);
    s.post(1 << LONG_LOG);
    let machine = s.server.machine.clone();
    machine.overtake_exchanges(TRIES - 1);
    s.send(0, 1, b"one");
    let next = TRIES + 1;
    let expected = vec![(0, next - 2..next, OK)];
    assert_eq!((s.statuses(), s.filled()), (vec![OK], expected));
    machine.overtake_exchanges(TRIES);
    s.send(0, 1, b"two");
    let next = next + TRIES;
    assert_eq!((s.statuses(), s.filled(), s.next()), (vec![], vec![], next));
    // Nothing is posted: there were entries all the time.
    s.world.advance(1000);
    let expected = vec![(0, next..next + 1, OK)];
    assert_eq!((s.statuses(), s.filled()), (vec![OK], expected));
    machine.overtake_exchanges(u32::MAX);
    s.send(1, 0, b"never");
    for _ in 0..10 {
        s.post(s.next() + (1 << LONG_LOG) - s.posted);
        s.world.pump();
    }
    assert_eq!((s.statuses(), s.filled()), (vec![], vec![]));
}

/// Words that move on with each look at them.
#[test]
fn words_that_never_stand_still_harm_only_their_owner() {
    for by in [1, 7, 1 << 16, u32::MAX] {
        let mut s = Scene::new(2, 2);
        s.post(8);
        s.server.machine.move_doorbells(by);
        let send = Operation::Send { imm: None };
        for pair in [0, 1] {
            assert!(s.submit(pair, 2, send, Data::Inline(b"two")));
        }
        for _ in 0..10 {
            s.world.turns(20);
        }
        s.kick();
        s.world.turns(20);
        s.server.machine.move_doorbells(0);
        let statuses = s.statuses();
        assert!(
            !statuses.iter().any(|status| *status == OK) || by == 1,
            "{by}"
        );
    }
}
