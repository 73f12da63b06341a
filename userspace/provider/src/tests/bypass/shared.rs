// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Receive entries that several queue pairs share, and that messages of rings take as well as those of the engine.

mod server;
mod stopped;

use std::collections::HashSet;

use nupa_engine::hal::SlotWord;
use nupa_engine::rings::Doorbell;
use nupa_proto::admin::{AdminOpcode, QpStateCode};
use nupa_proto::process_ring::{CONTROL_SIZE, LINES, LINE_SIZE, STATE_EMPTY, STATE_OPEN, TAKEN};

use self::server::{Server, BUFFERS, MOST_SENT};
use super::{BEFORE, MOST, STEP};
use crate::ffi::testing::recv;

/// A random number below `end` (xorshift).
fn draw(state: &mut u32, end: u32) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state % end
}

#[test]
fn messages_of_both_ways_take_every_buffer_once() {
    for (seed, mixed) in [(1, false), (2, true), (3, true), (4, true)] {
        let mut state = seed;
        let mut server = Server::new(mixed);
        let mut free: Vec<u64> = (0..BUFFERS).collect();
        let mut sent = 0;
        while sent < 3000 {
            match draw(&mut state, 8) {
                0..4 => {
                    let line = draw(&mut state, 2) as usize;
                    let long = draw(&mut state, 4) == 0;
                    let len = draw(&mut state, if long { STEP as u32 } else { 200 }) as usize;
                    let there = &server.lines[line];
                    if there.next - there.completes < MOST_SENT {
                        server.send(line, len);
                        sent += 1;
                    }
                }
                4 => {
                    let count = draw(&mut state, 5) as usize;
                    for buffer in free.drain(free.len().saturating_sub(count)..) {
                        server.post(buffer);
                    }
                }
                5 => server.run(),
                6 => free.extend(server.arrived()),
                _ => server.completed(),
            }
        }
        for buffer in free.drain(..) {
            server.post(buffer);
        }
        server.drain();
        server.count_buffers();
        for _ in 0..BUFFERS {
            server.send(0, 30);
            server.drain();
        }
    }
}

#[test]
fn short_ones_go_past_the_engine() {
    let mut server = Server::with_rings();
    for line in [0, 1] {
        for len in [0, 1, 41, MOST] {
            server.post(0);
            assert!(server.past_engine(line, len), "{len} bytes");
        }
        server.post(0);
        assert!(!server.past_engine(line, MOST + 1));
        server.post(0);
        assert!(server.past_engine(line, 8));
    }
}

#[test]
fn with_no_buffer_the_engine_decides() {
    let mut server = Server::with_rings();
    assert_eq!(server.state(0), STATE_OPEN | STATE_EMPTY);
    server.send(0, 8);
    server.run();
    assert!(server.arrived().is_empty());
    server.post(3);
    assert_eq!(server.state(0), STATE_OPEN);
    assert_eq!(server.drain(), [3]);
    assert_eq!(server.state(0), STATE_OPEN | STATE_EMPTY);
    server.post(3);
    assert!(server.past_engine(0, 8));
    assert_eq!(server.state(1), STATE_OPEN | STATE_EMPTY);
}

#[test]
fn a_message_waits_for_a_buffer() {
    let mut server = Server::with_rings();
    server.send_unaware(0, 8);
    assert!(server.arrived().is_empty());
    assert!(server.lines[0].cq.cq.poll(1).is_empty());
    server.post(3);
    assert_eq!(server.arrived(), [3]);
    server.drain();
}

#[test]
fn what_comes_through_the_engine_leaves_a_buffer_for_what_went_before() {
    let mut server = Server::with_rings();
    server.post(0);
    server.send(0, 8);
    server.send(0, STEP);
    server.run();
    // One is for the first message, so there is none for the second.
    assert_eq!(server.arrived(), [0]);
    server.post(1);
    assert_eq!(server.drain(), [1]);
    // The same with two for both, and others' messages before and behind.
    for buffer in 0..4 {
        server.post(buffer);
    }
    server.send(1, STEP);
    server.run();
    server.send(0, 8);
    server.send(0, STEP);
    server.run();
    server.send(1, 8);
    assert_eq!(server.drain().len(), 4);
}

#[test]
fn a_buffer_that_the_engine_has_taken_for_nothing_is_posted_again() {
    let mut server = Server::with_rings();
    for buffer in 0..4 {
        server.post(buffer);
    }
    server.send(0, 8);
    assert_eq!(server.arrived(), [0]);
    // As if the engine did not know yet that it has arrived.
    let slot = server.lines[0].peer.send_slot.clone();
    let seated = slot.load(SlotWord::Arm);
    slot.store(SlotWord::Arm, seated.wrapping_sub(1));
    server.send(0, STEP);
    server.run();
    slot.store(SlotWord::Arm, seated);
    assert_eq!(
        server.drain(),
        [2],
        "what was taken for the first message is between"
    );
    for expected in [3, 1] {
        server.send(1, 8);
        assert_eq!(server.drain(), [expected]);
    }
}

#[test]
fn the_place_of_a_buffer_that_is_needed_yet_is_used_again() {
    let mut server = Server::with_rings();
    for buffer in 0..BUFFERS {
        server.post(buffer);
    }
    // The engine takes the first two.
    server.send(0, 8);
    server.send(0, STEP);
    server.run();
    // Two more for the second client, which its program has not seen yet; then all the others.
    for _ in 2..BUFFERS {
        server.send(1, 8);
        server.run();
    }
    let buffers = server.drain();
    assert_eq!(buffers.len() as u64, BUFFERS);
    assert_eq!(buffers.iter().collect::<HashSet<_>>().len() as u64, BUFFERS);
}

#[test]
fn who_waits_for_an_event_is_told_when_a_message_has_a_buffer() {
    let mut server = Server::with_rings();
    server.send_unaware(0, 8);
    assert!(server.arrived().is_empty());
    server.cq.cq.arm(false);
    assert!(server.arrived().is_empty());
    assert_eq!(server.lines[0].of_server.events(), 0);
    server.post(0);
    assert_eq!(server.lines[0].of_server.events(), 1);
    assert_eq!(server.lines[1].of_server.events(), 0, "it has no message");
    assert_eq!(server.drain(), [0]);
    // Nobody waits any more.
    server.post(0);
    assert_eq!(server.lines[0].of_server.events(), 1);
}

#[test]
fn buffers_that_the_process_has_not_mapped_end_the_rings() {
    let mut server = Server::with_rings();
    server.post_foreign(0);
    server.post(1);
    // A client that has not learnt of that.
    server.send_unaware(0, 8);
    assert_eq!(server.arrived(), [1]);
    // The first one is posted again, and is for the engine to fill.
    server.send(0, 8);
    assert!(server.arrived().is_empty());
    assert_eq!(server.drain(), [0]);
    server.post(0);
    server.send(0, 8);
    assert_eq!(server.drain(), [0]);
    // The other queue pair's ring ends when a message finds that out.
    server.post(0);
    server.send(1, 8);
    assert_eq!(server.drain(), [0]);
    server.post(0);
    assert!(!server.past_engine(1, 8));
}

#[test]
fn nothing_is_received_twice_when_rings_end() {
    let mut server = Server::new(true);
    for line in 0..2 {
        for _ in 0..BEFORE {
            server.post(0);
            server.send(line, 40);
            server.drain();
        }
    }
    server.post_foreign(0);
    for round in 0..100 {
        for buffer in 1..BUFFERS {
            if !server.posted.contains(&buffer) {
                server.post(buffer);
            }
        }
        for line in [0, 1, 0] {
            server.send(line, if round % 5 == 0 { STEP } else { 8 });
        }
        let first = server.arrived();
        if !first.contains(&0) && server.drain().contains(&0) || first.contains(&0) {
            server.drain();
            server.post_foreign(0);
        }
    }
}

#[test]
fn messages_that_are_not_in_the_ring_end_the_connection() {
    let mut server = Server::with_rings();
    // No more may be missing than were in the ring since the last one that was not.
    server.post(0);
    server.send(0, STEP);
    server.drain();
    for buffer in 0..4 {
        server.post(buffer);
    }
    server.send(0, 8);
    let ring = server.lines[0].of_server.incoming();
    let line = ring.load(TAKEN) % LINES;
    ring.store_wide(CONTROL_SIZE + line as usize * LINE_SIZE, 0);
    server.send(0, STEP);
    server.run();
    let [wc] = server.cq.cq.poll(4)[..] else {
        panic!("no message");
    };
    assert_eq!((wc.wr_id, wc.byte_len as usize), (1, STEP));
    assert_eq!(server.lines[0].of_server.failures(), 1);
    // The buffer that was for it is there for others.
    server.posted.remove(&1);
    server.lines.remove(0);
    for expected in [2, 3, 0] {
        server.send(0, 8);
        assert_eq!(server.drain(), [expected]);
    }
}

#[test]
fn who_has_begun_to_wait_before_the_message_came_is_told_as_well() {
    let mut server = Server::with_rings();
    server.cq.cq.arm(false);
    server.send_unaware(0, 8);
    // As the program looks once more after that.
    assert!(server.arrived().is_empty());
    server.post(0);
    assert_eq!(server.lines[0].of_server.events(), 1);
    assert_eq!(server.drain(), [0]);
}

#[test]
fn a_limit_that_was_passed_before_it_was_known_is_heard_of() {
    let mut server = Server::with_rings();
    server.post(0);
    server.run();
    server.send(0, 8);
    assert_eq!(server.arrived(), [0]);
    server.srq.srq.entries().lock().set_limit(1);
    assert_eq!(server.node.run(), 1);
}

#[test]
fn the_engine_hears_when_a_limit_is_passed() {
    let mut server = Server::with_rings();
    for buffer in 0..4 {
        server.post(buffer);
    }
    server.run();
    server.srq.srq.entries().lock().set_limit(3);
    server.send(0, 8);
    assert_eq!(server.arrived().len(), 1);
    assert_eq!(server.node.run(), 0, "three are left");
    server.send(0, 8);
    assert_eq!(server.arrived().len(), 1);
    assert_eq!(server.node.run(), 1);
    server.send(0, 8);
    assert_eq!(server.arrived().len(), 1);
    assert_eq!(server.node.run(), 0, "once");
}

/// There may have been more entries again when it looked.
#[test]
fn the_engine_hears_each_time_that_a_limit_is_passed() {
    let mut server = Server::with_rings();
    for buffer in 0..3 {
        server.post(buffer);
    }
    server.run();
    server.srq.srq.entries().lock().set_limit(3);
    for buffer in 3..6 {
        server.send(0, 8);
        assert_eq!(server.arrived().len(), 1);
        server.post(buffer);
        assert_eq!(server.node.run(), 1, "one was taken, and one posted");
    }
}

/// However many messages the engine takes in between.
#[test]
fn a_ring_is_used_again_after_messages_of_the_engine() {
    let mut server = Server::with_rings();
    for _ in 0..1100 {
        server.post(0);
        server.send(0, STEP);
        server.drain();
    }
    server.post(0);
    assert!(server.past_engine(0, 8));
}

/// What the engine has taken for a queue pair that goes is posted again, or free.
#[test]
fn a_queue_pair_that_goes_takes_no_buffers_along() {
    for destroy in [false, true] {
        let mut server = Server::with_rings();
        for buffer in 0..BUFFERS {
            server.post(buffer);
        }
        server.send(0, 8);
        server.send(0, STEP);
        server.run();
        let peer = server.lines.remove(0).peer;
        if destroy {
            let destroyed = server.node.guest.by_id(AdminOpcode::DestroyQp, peer.qpn);
            destroyed.unwrap();
            drop(peer);
        } else {
            server.node.modify(&peer, QpStateCode::Reset, |_| ());
            peer.qp.pair().reset();
        }
        assert!(server.cq.cq.poll(4).is_empty());
        // The one of the message is lost with it; the other one is there.
        server.posted.clear();
        let mut sges = [server.node.sge(0, 8)];
        let mut post = |wr_id| server.srq.srq.post(&mut [recv(wr_id, &mut sges)]);
        assert!(post(100).is_ok());
        assert!(post(101).is_err(), "more than were made");
    }
}
