// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Senders that say that the receiver's engine takes entries, which it does not.

use std::thread;
use std::time::{Duration, Instant};

use nupa_proto::process_ring::{
    stamp, CONTROL_SIZE, LINES, LINE_SIZE, SECRET, TAKEN, TAKER, TAKER_ENGINE,
};

use super::Hosts;

/// Shorter than what a receiver puts up with.
const HELD_UP: Duration = Duration::from_millis(600);

#[test]
fn a_receiver_gives_up_a_sender_that_holds_it_up() {
    let hosts = Hosts::with_rings();
    let pages = hosts.b.rings.incoming();
    pages.store_wide(TAKER, TAKER_ENGINE);
    hosts.message(1, 8);
    hosts.message(2, 4096);
    hosts.until(|hosts| {
        hosts.b.spin();
        hosts.b.rings.failures() != 0
    });
}

/// Each time there is an entry that the sender takes back, before that has been too long.
#[test]
fn a_receiver_gives_up_a_sender_that_holds_it_up_again_and_again() {
    let hosts = Hosts::with_rings();
    let pages = hosts.b.rings.incoming();
    let line = pages.load(TAKEN);
    let at = CONTROL_SIZE + (line % LINES) as usize * LINE_SIZE;
    let stamp = stamp(pages.load_wide(SECRET), line);
    pages.store_wide(TAKER, TAKER_ENGINE);
    let gives_up = |number| {
        pages.store_wide(at, stamp);
        hosts.message(number, 4096);
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(HELD_UP);
                pages.store_wide(at, 0);
            });
            hosts.until(|hosts| {
                hosts.b.spin();
                start.elapsed() >= HELD_UP
            });
        });
        hosts.b.rings.failures() != 0
    };
    assert!((1..=3).any(gives_up));
}
