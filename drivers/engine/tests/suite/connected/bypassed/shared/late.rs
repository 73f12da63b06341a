// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the engine sees between two steps of an honest owner: nobody waits longer for that, or fails.

use super::*;

/// More than the time after which those who wait for entries are given a turn.
const SOON_US: u64 = 600;
/// How long an owner may need to say that it has taken an entry.
const DOUBT_US: u64 = 50_000;

#[test]
fn an_entry_that_was_taken_and_not_said_holds_up_nobody() {
    let mut s = Scene::new(2, 2);
    s.wait_for_none();
    s.post(2);
    assert_eq!(s.take(), Some(0));
    s.send(0, 1, b"one");
    // It seems that the message before it has none, and that there is one too few.
    assert_eq!((s.statuses(), s.filled(), s.next()), (vec![], vec![], 1));
    s.say(0, 1);
    s.world.advance(SOON_US);
    assert_eq!((s.statuses(), s.filled()), (vec![OK], vec![(0, 1..2, OK)]));
    assert_eq!(s.buffer(1, 3), b"one");
    // Nor if that takes longer.
    s.wait_for_ever();
    s.post(2);
    assert_eq!(s.take(), Some(2));
    s.send(0, 2, b"two");
    s.send(1, 1, b"other");
    for _ in 0..5 {
        s.world.advance(SOON_US);
    }
    assert_eq!((s.statuses(), s.filled()), (vec![], vec![]));
    s.say(0, 2);
    // Each in its turn.
    s.world.advance(SOON_US);
    s.world.advance(SOON_US);
    assert_eq!((s.statuses(), s.filled()), (vec![OK], vec![(0, 3..4, OK)]));
}

/// If the owner has not taken one, there are too few, which the sender learns soon.
#[test]
fn doubt_has_an_end() {
    let mut s = Scene::new(1, 1);
    s.wait_for_none();
    s.post(1);
    s.send(0, 1, b"one");
    s.world.advance(DOUBT_US - 1);
    assert_eq!((s.statuses(), s.next()), (vec![], 0));
    s.world.advance(SOON_US);
    let refused = WcStatus::RnrRetryExceeded as u8;
    assert_eq!((s.statuses(), s.next()), (vec![refused], 0));
}

/// Nor does one that waits for ever take that for a peer that does not receive.
#[test]
fn doubt_does_not_end_a_connection_that_waits() {
    let mut s = Scene::new(1, 1);
    s.wait_for_ever();
    s.post(1);
    s.send(0, 1, b"one");
    for _ in 0..3_000 {
        s.world.advance(SOON_US);
    }
    assert_eq!((s.statuses(), s.next()), (vec![], 0));
    s.post(1);
    s.world.pump();
    s.world.advance(SOON_US);
    assert_eq!((s.statuses(), s.filled()), (vec![OK], vec![(0, 0..2, OK)]));
}

/// There are entries all the time, so nothing counts as a retry.
#[test]
fn an_owner_that_is_quicker_fails_nobody() {
    let mut s = Scene::with_entries(LONG_LOG, 1, 1);
    s.wait_for_none();
    s.post(1 << LONG_LOG);
    s.server.machine.overtake_exchanges(TRIES);
    s.send(0, 0, b"zero");
    assert_eq!((s.statuses(), s.next()), (vec![], TRIES));
    s.world.advance(SOON_US);
    let expected = vec![(0, TRIES..TRIES + 1, OK)];
    assert_eq!((s.statuses(), s.filled()), (vec![OK], expected));
    assert_eq!(s.world.node(SERVER).counters().rx_rnr_naks.get(), 0);
}

/// However long there are none in between.
#[test]
fn an_owner_that_is_quicker_twice_fails_nobody() {
    let mut s = Scene::with_entries(LONG_LOG, 1, 1);
    s.wait_for_ever();
    s.post(TRIES);
    s.server.machine.overtake_exchanges(TRIES);
    s.send(0, 0, b"zero");
    s.world.advance(SOON_US);
    s.world.advance(600_000);
    assert_eq!((s.statuses(), s.next()), (vec![], TRIES));
    s.server.machine.overtake_exchanges(TRIES);
    s.post(2 * TRIES);
    s.world.pump();
    s.world.advance(SOON_US);
    let next = s.next();
    assert_eq!(
        (s.statuses(), s.filled()),
        (vec![OK], vec![(0, next - 1..next, OK)])
    );
    assert!(next > 2 * TRIES);
}

#[test]
fn entries_that_come_and_go_between_two_looks_make_no_limit_event() {
    let mut s = Scene::new(1, 1);
    s.post(4);
    s.set_limit(3);
    s.server.machine.pass_entries(2);
    s.kick();
    assert_eq!((s.next(), s.eq.drain()), (2, vec![]));
    s.posted += 2;
    assert_eq!((s.take(), s.take()), (Some(2), Some(3)));
    s.kick();
    let event = (EventType::SrqLimit as u8, 0, s.srq.srqn);
    assert_eq!(s.eq.drain(), [event]);
}
