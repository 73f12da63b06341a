// SPDX-License-Identifier: GPL-2.0 OR MIT

//! WRITEs in a ring, and programs that wait for events.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nupa_engine::hal::SlotWord;
use nupa_engine::rings::Doorbell;
use nupa_proto::process_ring::{STATE, STATE_ARMED, TAKEN, TAKER, TAKER_PROCESS};

use super::super::super::node::Shape;
use super::super::SIGNALED;
use super::hosts::{Host, Hosts};
use super::{past_engine, MOST, WRITTEN};
use crate::ffi::testing::sys;

impl Hosts {
    /// Waits for an event of a host's.
    fn until_event(&self, of: impl Fn(&Self) -> &Host) {
        self.until(|hosts| of(hosts).node.take_events() != 0);
    }
}

/// Its completion makes the event, so the engine makes it.
#[test]
fn who_waits_for_a_completion_is_told() {
    let hosts = Hosts::with_rings();
    hosts.write(1, 0, 64, SIGNALED);
    hosts.a.node.take_events();
    hosts.a.cq.cq.arm(false);
    assert!(hosts.a.cq.cq.poll(1).is_empty());
    hosts.until_event(|hosts| &hosts.a);
    assert_eq!(hosts.completions(1)[0].0, 1);
    // One more while it waits.
    hosts.a.cq.cq.arm(false);
    let taken = hosts.taken();
    hosts.write(2, 0, 64, SIGNALED);
    assert_eq!(hosts.taken(), taken);
    assert!(hosts.b.spin().is_empty() && !hosts.is_written(2, 0, 64));
    hosts.until_event(|hosts| &hosts.a);
    assert_eq!(hosts.completions(1)[0].0, 2);
}

/// The engine was told of the WRITE by a request that comes behind it, of which no completion is asked for.
#[test]
fn who_waits_behind_a_request_without_a_completion_is_told() {
    let hosts = Hosts::with_rings();
    hosts.write(1, 0, 64, SIGNALED);
    hosts.write(2, 64, MOST + 1, 0);
    hosts.a.node.take_events();
    hosts.a.cq.cq.arm(false);
    assert!(hosts.a.cq.cq.poll(1).is_empty());
    hosts.until_event(|hosts| &hosts.a);
    assert_eq!(hosts.completions(1)[0].0, 1);
}

/// The WRITE asks for no completion, and the message behind it does.
#[test]
fn who_waits_for_a_message_behind_a_write_is_told() {
    let hosts = Hosts::with_rings();
    hosts.write(1, 0, 64, 0);
    hosts.message(2, 8);
    hosts.a.node.take_events();
    hosts.a.cq.cq.arm(false);
    assert!(hosts.a.cq.cq.poll(1).is_empty());
    hosts.until_event(|hosts| &hosts.a);
    assert_eq!(hosts.completions(1)[0].0, 2);
}

/// Each time there is one completion more than the program has asked for, if nobody takes care.
#[test]
fn who_begins_to_wait_again_and_again_has_all_its_room() {
    let hosts = Hosts::with_rings();
    let pages = hosts.b.rings.incoming();
    pages.store_wide(TAKER, TAKER_PROCESS);
    hosts.write(1, 0, 64, SIGNALED);
    for _ in 0..500 {
        hosts.a.cq.cq.arm(false);
        assert!(hosts.a.cq.cq.poll(1).is_empty());
        hosts.run();
    }
    let last = Shape::default().requests as u64;
    for number in 2..=last {
        hosts.write(number, 0, MOST + 1, SIGNALED);
    }
    pages.store_wide(TAKER, 0);
    let found = hosts.completions(last as usize);
    let expected = (1..=last).map(|number| (number, WRITTEN.0, WRITTEN.1));
    assert!(found.into_iter().eq(expected));
}

/// The completion queue has one place for the WRITE, which the completion that makes the event has until it is taken.
#[test]
fn a_write_is_not_complete_before_what_makes_its_event() {
    let hosts = Hosts::with_rings();
    hosts.write(1, 0, 64, SIGNALED);
    hosts.a.cq.cq.arm(false);
    assert!(hosts.b.spin().is_empty());
    assert!(hosts.is_written(1, 0, 64));
    assert!(
        hosts.a.cq.cq.poll(1).is_empty(),
        "the engine has done nothing yet"
    );
    hosts.a.node.take_events();
    hosts.until_event(|hosts| &hosts.a);
    let [wc] = hosts.a.cq.cq.poll(1)[..] else {
        panic!("an event for nothing");
    };
    assert_eq!(wc.wr_id, 1);
}

/// The receiver takes back that it was taken.
#[test]
fn what_the_engine_has_said_is_so() {
    let hosts = Hosts::with_rings();
    let (pages, taken) = (hosts.b.rings.incoming(), hosts.taken());
    hosts.write(1, 0, 64, SIGNALED);
    hosts.a.cq.cq.arm(false);
    hosts.until(|hosts| hosts.taken() != taken);
    pages.store(TAKEN, taken);
    assert_eq!(hosts.completions(1)[0].0, 1);
}

#[test]
fn who_waits_in_the_middle_of_a_batch_is_told() {
    for commit in [false, true] {
        let hosts = Hosts::with_rings();
        hosts.write(1, 0, 64, SIGNALED);
        hosts.a.node.take_events();
        hosts.a.qp.qp.batch(commit, |_| hosts.a.cq.cq.arm(false));
        hosts.until_event(|hosts| &hosts.a);
        assert_eq!(hosts.completions(1)[0].0, 1);
    }
}

/// Another thread posts when the program begins to wait.
#[test]
fn who_waits_while_another_thread_posts_is_told() {
    let hosts = Hosts::with_rings();
    hosts.write(1, 0, 64, SIGNALED);
    hosts.a.node.take_events();
    let (qp, held) = (&hosts.a.qp.qp, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let queue = qp.pair().send.lock();
            held.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            drop(queue);
        });
        while !held.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        hosts.a.cq.cq.arm(false);
    });
    hosts.until_event(|hosts| &hosts.a);
    assert_eq!(hosts.completions(1)[0].0, 1);
}

/// An error makes an event, also if no completion is asked for.
#[test]
fn who_waits_is_told_of_what_fails() {
    for armed_before in [false, true] {
        let hosts = Hosts::with_rings();
        hosts.a.node.take_events();
        let wrong = hosts.b.node.key ^ 1;
        if armed_before {
            hosts.a.cq.cq.arm(false);
            hosts.write_with(1, 0, 64, 0, wrong);
        } else {
            hosts.write_with(1, 0, 64, 0, wrong);
            hosts.a.cq.cq.arm(false);
            assert!(hosts.a.cq.cq.poll(1).is_empty());
        }
        hosts.until_event(|hosts| &hosts.a);
        let found = hosts.completions(1);
        assert_eq!((found[0].0, found[0].1), (1, sys::IBV_WC_REM_ACCESS_ERR));
    }
}

#[test]
fn a_receiver_that_waits_has_the_engine_take_them() {
    let hosts = Hosts::with_rings();
    hosts.b.cq.cq.arm(false);
    assert!(!hosts.takes_writes());
    let state = hosts.b.rings.incoming().load(STATE);
    assert_eq!(state & STATE_ARMED, STATE_ARMED);
    assert!(!past_engine(&hosts, 1, 64));
    assert!(!hosts.takes_writes());
}

/// When it has looked for the last time, a WRITE that its process does not take lay before the message.
#[test]
fn a_receiver_that_waits_is_told_of_a_message_behind_a_write() {
    let hosts = Hosts::with_rings();
    hosts.b.qp.qp.pair().allow_writes(false);
    hosts.write(1, 0, 64, 0);
    hosts.message(2, 8);
    assert!(hosts.b.cq.cq.poll(1).is_empty());
    hosts.b.node.take_events();
    hosts.b.cq.cq.arm(false);
    assert!(hosts.b.cq.cq.poll(1).is_empty());
    hosts.until_event(|hosts| &hosts.b);
    let [wc] = hosts.b.cq.cq.poll(1)[..] else {
        panic!("an event for nothing");
    };
    assert_eq!(wc.wr_id, 2);
    assert!(hosts.is_written(1, 0, 64));
    let found = hosts.completions(1);
    assert_eq!((found[0].0, found[0].1), (2, WRITTEN.0));
}

/// Those that are in the ring are complete when it is, and nothing goes there any more.
#[test]
fn who_is_to_be_drained_waits_for_them() {
    let hosts = Hosts::with_rings();
    for number in 1..4 {
        hosts.write(number, number as usize * 64, 64, SIGNALED);
    }
    let pair = hosts.a.qp.qp.pair();
    let posted = || hosts.a.qp.send_slot.load(SlotWord::Index);
    let before = posted();
    assert!(pair.begin_drain());
    assert_eq!(pair.drain(), Some(false), "nobody has taken them");
    assert_ne!(posted(), before, "the engine was told");
    hosts.until(|_| pair.drain() == Some(true));
    for number in 1..4 {
        assert!(hosts.is_written(number, number as usize * 64, 64));
        let [wc] = hosts.a.cq.cq.poll(1)[..] else {
            panic!("{number} is not complete");
        };
        assert_eq!((wc.wr_id, (wc.status, wc.opcode)), (number, WRITTEN));
    }
    for _ in 0..3 {
        hosts.b.poll();
    }
    assert!(hosts.takes_writes());
    assert!(!past_engine(&hosts, 4, 8), "it sends by way of its ring");
    pair.end_drain();
    assert!(past_engine(&hosts, 5, 8));
    // Something else becomes of it while it drains.
    assert!(pair.begin_drain());
    pair.changed(false, false);
    pair.end_drain();
    assert!(!pair.begin_drain() && !past_engine(&hosts, 6, 8));
}

/// A message that is sent is complete, whether its receiver polls or not.
#[test]
fn a_message_of_who_is_drained_is_complete() {
    let hosts = Hosts::with_rings();
    hosts.message(1, 8);
    assert!(hosts.a.cq.cq.poll(1).is_empty());
    let pair = hosts.a.qp.qp.pair();
    assert!(pair.begin_drain());
    assert_eq!(pair.drain(), Some(true));
    assert_eq!(hosts.a.cq.cq.poll(1).len(), 1);
}

/// The program is in the middle of a batch, which may be this thread's.
#[test]
fn who_has_a_batch_open_is_not_waited_for() {
    let hosts = Hosts::with_rings();
    let pair = hosts.a.qp.qp.pair();
    let batch = pair.send.lock();
    assert!(pair.begin_drain());
    assert_eq!(pair.drain(), None);
    drop(batch);
    assert_eq!(pair.drain(), Some(true));
}

/// Of a queue pair that has no ring, or nothing in it, nothing is to be taken.
#[test]
fn who_has_written_nothing_is_drained() {
    for hosts in [Hosts::new(false), Hosts::with_rings()] {
        let pair = hosts.a.qp.qp.pair();
        assert!(pair.begin_drain());
        assert_eq!(pair.drain(), Some(true));
    }
}
