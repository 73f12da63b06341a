// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs that wait for events.

use super::*;

#[test]
fn messages_for_who_waits_for_an_event_go_to_the_engine() {
    let mut sides = Sides::with_rings();
    sides.b.cq.cq.arm(false);
    let state = Sides::ring_state(&sides.of_b.incoming());
    assert_eq!(state, STATE_OPEN | STATE_ARMED);
    assert!(!sides.past_engine(8), "there has to be an event");
    assert_eq!(Sides::ring_state(&sides.of_b.incoming()), STATE_OPEN);
    assert!(sides.past_engine(8));
    // One that waits for its own completions.
    sides.a.cq.cq.arm(false);
    assert!(!sides.past_engine(8), "there has to be an event");
    assert!(sides.past_engine(8));
    assert_eq!(sides.of_a.kicks(), 0);
}

#[test]
fn who_has_begun_to_wait_meanwhile_is_told_of_a_message() {
    let mut sides = Sides::new(true);
    for _ in 0..BEFORE {
        sides.transfer(40);
    }
    for _ in 0..40 {
        sides.b.cq.cq.arm(false);
        sides.receive(sides.next, 64);
        sides.post(sides.next, 8, 0);
        sides.a.node.run();
        assert_eq!(Sides::poll(&sides.b).len(), 1);
        sides.next += 1;
    }
    assert!(
        (5..=35).contains(&sides.of_a.kicks()),
        "{}",
        sides.of_a.kicks()
    );
}

#[test]
fn a_ring_that_is_made_while_the_program_waits_stays_armed() {
    let mut sides = Sides::new(false);
    for wr_id in 0..40 {
        sides.receive(wr_id, 64);
        sides.post(wr_id, 8, 0);
    }
    sides.a.node.run();
    sides.next = 40;
    // All of these were there before, and make no event.
    sides.b.cq.cq.arm(false);
    assert_eq!(Sides::poll(&sides.b).len(), 40);
    let state = Sides::ring_state(&sides.of_b.incoming());
    assert_eq!(state, STATE_OPEN | STATE_ARMED);
}

#[test]
fn who_is_about_to_wait_sees_all_that_was_sent() {
    let sides = Sides::with_rings();
    for wr_id in 0..3 {
        sides.receive(wr_id, 64);
        sides.post(wr_id, 8, SIGNALED);
    }
    assert!(sides.a.cq.cq.poll(1).is_empty(), "nobody has received it");
    sides.a.cq.cq.arm(false);
    let found = sides.a.cq.cq.poll(8);
    assert!(found.iter().map(|wc| wc.wr_id).eq(0..3), "{}", found.len());
}

#[test]
fn a_solicited_message_behind_one_that_is_not_makes_an_event() {
    let sides = Sides::with_rings();
    let wants_solicited = || sides.b.cq.cq.shared().lock().arm_word() & ARM_SOLICITED != 0;
    for wr_id in 0..2 {
        sides.receive(wr_id, STEP);
    }
    sides.b.cq.cq.arm(true);
    assert!(wants_solicited());
    assert!(!sides.past_engine_to_armed());
    // The first one goes to the engine, and the second one waits for it in the ring.
    sides.receive(2, STEP);
    sides.post(1, STEP, 0);
    sides.post(2, 8, sys::IBV_SEND_SOLICITED);
    sides.b.cq.cq.arm(true);
    assert!(sides.b.cq.cq.poll(1).is_empty());
    assert!(!wants_solicited(), "any message may be the one before it");
    sides.a.node.run();
    assert_eq!(Sides::poll(&sides.b).len(), 2);
}

impl Sides {
    /// Sends a solicited message to a program that waits, whether it goes past the engine.
    fn past_engine_to_armed(&self) -> bool {
        self.post(0, 8, sys::IBV_SEND_SOLICITED);
        let arrived = !self.b.cq.cq.poll(1).is_empty();
        self.a.node.run();
        assert_eq!(Self::poll(&self.b).len(), usize::from(!arrived));
        arrived
    }
}
