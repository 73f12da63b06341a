// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Messages that go past the engine, between those that do not.

use guestmem::MmapRegion;
use nupa_engine::hal::SlotWord;
use nupa_engine::rings::{Doorbell, QueueMemory};
use nupa_proto::admin::QpStateCode;
use nupa_proto::doorbell::ARM_SOLICITED;
use nupa_proto::process_ring::{
    stamp, CONTROL_SIZE, LINES, LINE_SIZE, MAX_PAYLOAD, POSTED, SECRET, STATE, STATE_ARMED,
    STATE_OPEN,
};

use super::node::{pair, pattern, Shape, Side};
use super::rings::{Rings, RINGS};
use crate::ffi::testing::{imm, recv, send, sys, SendExt};
use crate::ffi::Pages;

const SIGNALED: u32 = sys::IBV_SEND_SIGNALED;
/// Messages after which both sides have a ring.
const BEFORE: u64 = 64;
/// Bytes of each message's place.
const STEP: usize = 4096;
/// Bytes of the longest message of a ring.
const MOST: usize = MAX_PAYLOAD as usize;
/// Polls that find nothing after which all completions are shown.
const PATIENCE: usize = 65;

/// Two sides whose messages may go past the engine.
struct Sides {
    a: Side,
    b: Side,
    of_a: Rings,
    of_b: Rings,
    next: u64,
}

impl Sides {
    fn new(mixed: bool) -> Self {
        let (a, b) = pair(Shape::default());
        let memory = MmapRegion::new("rings", RINGS).unwrap();
        let (mut of_a, mut of_b) = (Rings::new(&memory, 0), Rings::new(&memory, 1));
        of_a.enable(&a.node, &a.qp, mixed);
        of_b.enable(&b.node, &b.qp, mixed);
        Self {
            a,
            b,
            of_a,
            of_b,
            next: 0,
        }
    }

    /// Sides that have rings, of which `a` sends.
    fn with_rings() -> Self {
        let mut sides = Self::new(false);
        for _ in 0..BEFORE {
            sides.transfer(40);
        }
        assert!(sides.past_engine(40), "no ring");
        sides
    }

    fn receive(&self, wr_id: u64, len: usize) {
        let place = wr_id as usize % 8 * STEP;
        let mut sges = [self.b.node.sge(place, len as u32)];
        let posted = self.b.qp.qp.post_recv(&mut [recv(wr_id, &mut sges)]);
        posted.unwrap();
        self.b.node.run();
    }

    fn post(&self, wr_id: u64, len: usize, flags: u32) {
        let mut sges = [self.a.node.sge(0, len as u32)];
        let message = send(wr_id, sys::IBV_WR_SEND, flags).with(&mut sges);
        self.a.qp.qp.post_send(&mut [message]).unwrap();
    }

    /// All completions of a side that there are now.
    fn poll(side: &Side) -> Vec<sys::ibv_wc> {
        side.node.run();
        let mut found = Vec::new();
        for _ in 0..PATIENCE {
            let polled = side.cq.cq.poll(8);
            if polled.is_empty() {
                side.cq.cq.found_nothing();
            }
            found.extend(polled);
        }
        found
    }

    /// Sends a message, whose bytes and completions are checked.
    fn transfer(&mut self, len: usize) {
        let wr_id = self.next;
        self.next += 1;
        let bytes = pattern(len, wr_id as u8);
        self.a.node.fill(0, &bytes);
        self.receive(wr_id, len);
        self.post(wr_id, len, SIGNALED);
        self.a.node.run();
        let [got] = Self::poll(&self.b)[..] else {
            panic!("message {wr_id} of {len} bytes did not arrive");
        };
        let expected = (wr_id, sys::IBV_WC_SUCCESS, sys::IBV_WC_RECV, len as u32);
        assert_eq!((got.wr_id, got.status, got.opcode, got.byte_len), expected);
        assert_eq!(got.qp_num, self.b.qp.qpn);
        let place = wr_id as usize % 8 * STEP;
        assert_eq!(self.b.node.bytes(place, len), bytes);
        let [done] = Self::poll(&self.a)[..] else {
            panic!("message {wr_id} is not completed");
        };
        let expected = (wr_id, sys::IBV_WC_SUCCESS, sys::IBV_WC_SEND);
        assert_eq!((done.wr_id, done.status, done.opcode), expected);
    }

    /// Whether a message goes past the engine, which does nothing meanwhile.
    fn past_engine(&mut self, len: usize) -> bool {
        let wr_id = self.next;
        self.next += 1;
        self.receive(wr_id, len);
        self.post(wr_id, len, SIGNALED);
        let arrived = self.b.cq.cq.poll(1).len() == 1;
        self.a.node.run();
        let expected = usize::from(!arrived);
        assert_eq!(Self::poll(&self.b).len(), expected);
        assert_eq!(Self::poll(&self.a).len(), 1);
        arrived
    }

    /// An entry as the sender could write it, into the line that comes next: it is the first that `with_rings` has not used.
    fn forge(&self, message: u32, len: u32) {
        let pages = self.of_b.incoming();
        let line = pages.load(nupa_proto::process_ring::TAKEN);
        let at = CONTROL_SIZE + (line % LINES) as usize * LINE_SIZE;
        pages.write(at + 8, &len.to_le_bytes());
        pages.write(at + 12, &message.to_le_bytes());
        pages.store_wide(at, stamp(pages.load_wide(SECRET), line));
    }

    fn ring_state(pages: &Pages) -> u32 {
        pages.load(STATE)
    }
}

#[test]
fn messages_of_all_lengths_keep_their_order() {
    for mixed in [false, true] {
        let mut sides = Sides::new(mixed);
        for round in 0..400 {
            let lengths = [1, 40, 41, 104, 105, 0, MOST, MOST + 1, 4096];
            sides.transfer(lengths[round % lengths.len()]);
        }
    }
}

#[test]
fn short_ones_go_past_the_engine_once_there_is_a_ring() {
    let mut sides = Sides::with_rings();
    for len in [0, 1, 40, 41, MOST] {
        assert!(sides.past_engine(len), "{len} bytes");
    }
    for len in [MOST + 1, 4096] {
        assert!(!sides.past_engine(len), "{len} bytes");
    }
    assert!(sides.past_engine(8));
}

#[test]
fn several_under_way_complete_in_order() {
    let mut sides = Sides::with_rings();
    let first = sides.next;
    for wr_id in first..first + 40 {
        sides.receive(wr_id, STEP);
    }
    // Every fifth goes to the engine; of the others, every third asks for no completion.
    for wr_id in first..first + 40 {
        let len = if wr_id % 5 == 0 { STEP } else { 100 };
        sides.post(wr_id, len, if wr_id % 3 == 0 { 0 } else { SIGNALED });
    }
    sides.a.node.run();
    let numbers = |found: Vec<sys::ibv_wc>| -> Vec<u64> {
        assert!(found.iter().all(|wc| wc.status == sys::IBV_WC_SUCCESS));
        found.iter().map(|wc| wc.wr_id).collect()
    };
    let all: Vec<u64> = (first..first + 40).collect();
    assert_eq!(numbers(Sides::poll(&sides.b)), all);
    let signaled: Vec<u64> = all.into_iter().filter(|wr_id| wr_id % 3 != 0).collect();
    assert_eq!(numbers(Sides::poll(&sides.a)), signaled);
    sides.next = first + 40;
    sides.transfer(100);
}

#[test]
fn immediate_data_and_writes_lie_between() {
    let sides = Sides::with_rings();
    for wr_id in 0..30 {
        sides.receive(wr_id, 64);
        let mut sges = [sides.a.node.sge(0, 8)];
        let opcode = match wr_id % 3 {
            0 => sys::IBV_WR_SEND_WITH_IMM,
            1 => sys::IBV_WR_RDMA_WRITE_WITH_IMM,
            _ => sys::IBV_WR_SEND,
        };
        let request = send(wr_id, opcode, SIGNALED)
            .with(&mut sges)
            .imm(wr_id as u32);
        let remote = (sides.b.node.memory + 65536, sides.b.node.key);
        let request = match opcode {
            sys::IBV_WR_RDMA_WRITE_WITH_IMM => request.remote(remote.0, remote.1),
            _ => request,
        };
        sides.a.qp.qp.post_send(&mut [request]).unwrap();
    }
    sides.a.node.run();
    let found = Sides::poll(&sides.b);
    assert!(found.iter().map(|wc| wc.wr_id).eq(0..30));
    for wc in found {
        let (opcode, data) = match wc.wr_id % 3 {
            0 => (sys::IBV_WC_RECV, Some(wc.wr_id as u32)),
            1 => (sys::IBV_WC_RECV_RDMA_WITH_IMM, Some(wc.wr_id as u32)),
            _ => (sys::IBV_WC_RECV, None),
        };
        let with = wc.wc_flags & sys::IBV_WC_WITH_IMM != 0;
        assert_eq!((wc.opcode, with.then(|| imm(&wc))), (opcode, data));
    }
    assert!(Sides::poll(&sides.a).iter().map(|wc| wc.wr_id).eq(0..30));
}

#[test]
fn with_no_receive_buffer_or_too_short_a_one_the_engine_decides() {
    let sides = Sides::with_rings();
    sides.post(1, 100, SIGNALED);
    sides.a.node.run();
    assert!(sides.a.cq.cq.poll(1).is_empty());
    sides.receive(1, 99);
    sides.a.node.run();
    let [wc] = Sides::poll(&sides.b)[..] else {
        panic!("no completion");
    };
    assert_eq!(wc.status, sys::IBV_WC_LOC_LEN_ERR);
    assert_eq!(Sides::poll(&sides.a)[0].status, sys::IBV_WC_REM_INV_REQ_ERR);
}

#[test]
fn buffers_that_the_process_has_not_mapped_are_the_engines_to_fill() {
    let mut sides = Sides::with_rings();
    sides.of_b.regions.remove(sides.b.node.key);
    for _ in 0..10 {
        assert!(!sides.past_engine(8));
    }
    sides.of_a.regions.remove(sides.a.node.key);
    assert!(!sides.past_engine(8));
}

#[test]
fn a_key_that_goes_after_the_buffer_was_posted_fails_the_queue_pair() {
    let sides = Sides::with_rings();
    sides.receive(1, 64);
    sides.of_b.regions.remove(sides.b.node.key);
    sides.post(1, 8, SIGNALED);
    let [wc] = sides.b.cq.cq.poll(2)[..] else {
        panic!("no completion");
    };
    assert_eq!((wc.wr_id, wc.status), (1, sys::IBV_WC_LOC_PROT_ERR));
    assert_eq!(sides.of_b.failures(), 1);
    assert_eq!(Sides::ring_state(&sides.of_b.incoming()), 0);
}

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
fn what_was_received_before_an_error_is_shown_and_the_rest_is_flushed() {
    let sides = Sides::with_rings();
    for wr_id in 0..6 {
        sides.receive(wr_id, 64);
    }
    for wr_id in 0..3 {
        sides.post(wr_id, 8, SIGNALED);
    }
    sides.b.node.modify(&sides.b.qp, QpStateCode::Err, |_| ());
    sides.of_b.close();
    sides.b.qp.qp.pair().changed(false, true);
    let found = Sides::poll(&sides.b);
    let found: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let (ok, flushed) = (sys::IBV_WC_SUCCESS, sys::IBV_WC_WR_FLUSH_ERR);
    let expected = [
        (0, ok),
        (1, ok),
        (2, ok),
        (3, flushed),
        (4, flushed),
        (5, flushed),
    ];
    assert_eq!(found, expected);
    sides.post(9, 8, SIGNALED);
    let found = Sides::poll(&sides.a);
    assert!(found.iter().map(|wc| wc.wr_id).eq(0..3), "{}", found.len());
}

#[test]
fn a_queue_pair_starts_over_after_a_reset() {
    let mut sides = Sides::with_rings();
    for side in [&sides.a, &sides.b] {
        side.node.modify(&side.qp, QpStateCode::Reset, |_| ());
        // As if another thread had received a message just now.
        let slot = side.qp.recv_slot.as_ref().unwrap();
        slot.store(SlotWord::Arm, 1000);
        side.qp.qp.pair().reset();
        side.qp.qp.pair().changed(false, false);
        let word = side.qp.recv_slot.as_ref().unwrap().load(SlotWord::Arm);
        assert_eq!(word, 0, "what was filled before");
        side.node.modify(&side.qp, QpStateCode::Init, |_| ());
    }
    assert!(!sides.past_engine_after_reset());
    for _ in 0..BEFORE {
        sides.transfer(40);
    }
    assert!(sides.past_engine(40));
}

impl Sides {
    /// Connects the two again; whether the first message goes past the engine.
    fn past_engine_after_reset(&mut self) -> bool {
        self.of_b.close();
        self.a
            .node
            .ready(&self.a.qp, Some((&self.b.node, self.b.qp.qpn)));
        self.b
            .node
            .ready(&self.b.qp, Some((&self.a.node, self.a.qp.qpn)));
        self.of_a.allow(&self.a.node, &self.a.qp);
        self.of_b.allow(&self.b.node, &self.b.qp);
        self.past_engine(40)
    }
}

#[test]
fn entries_that_no_sender_makes_end_the_ring_only() {
    for (ahead, len) in [(u32::MAX, 8), (0, MAX_PAYLOAD + 1), (0, u32::MAX)] {
        let sides = Sides::with_rings();
        sides.receive(sides.next, 64);
        let message = (sides.next as u32).wrapping_add(ahead);
        sides.forge(message, len);
        assert!(sides.b.cq.cq.poll(1).is_empty());
        assert_eq!(
            Sides::ring_state(&sides.of_b.incoming()),
            0,
            "{ahead} {len}"
        );
        sides.post(sides.next, 8, SIGNALED);
        sides.a.node.run();
        assert_eq!(Sides::poll(&sides.b).len(), 1, "the engine is there");
    }
}

#[test]
fn a_message_with_a_later_number_waits() {
    let sides = Sides::with_rings();
    let next = sides.next;
    for wr_id in next..next + 2 {
        sides.receive(wr_id, 64);
    }
    sides.forge(next as u32 + 1, 8);
    assert!(sides.b.cq.cq.poll(1).is_empty());
    assert_eq!(Sides::ring_state(&sides.of_b.incoming()), STATE_OPEN);
}

#[test]
fn nonsense_of_a_receiver_is_no_room() {
    for (word, value) in [
        (POSTED, u32::MAX / 2),
        (nupa_proto::process_ring::TAKEN, 0x8000_0000),
    ] {
        let mut sides = Sides::with_rings();
        let pages = sides.of_b.incoming();
        pages.store(word, value);
        for _ in 0..3 {
            let wr_id = sides.next;
            sides.next += 1;
            sides.receive(wr_id, 64);
            pages.store(word, value);
            sides.post(wr_id, 8, SIGNALED);
        }
        sides.a.node.run();
        assert_eq!(Sides::poll(&sides.b).len(), 3);
    }
}

#[test]
fn posting_while_the_completion_queue_is_locked_is_no_deadlock() {
    let mut sides = Sides::new(false);
    for _ in 0..31 {
        sides.transfer(8);
    }
    let shared = sides.a.cq.cq.shared();
    sides.receive(100, 64);
    let locked = shared.lock();
    sides.post(100, 8, SIGNALED);
    drop(locked);
    sides.a.node.run();
    assert_eq!(Sides::poll(&sides.b).len(), 1);
    assert_eq!(Sides::poll(&sides.a).len(), 1);
    sides.next = 32;
    assert!(sides.past_engine(8), "it looks again");
}

/// Messages that go to the engine, past which others go, ask for no completion. Those are not overtaken by completions, and their room comes back.
#[test]
fn what_asks_for_no_completion_is_complete_before_what_does() {
    let mut sides = Sides::with_rings();
    for round in 0..100 {
        let first = sides.next;
        sides.next += 4;
        for wr_id in first..first + 4 {
            sides.receive(wr_id, STEP);
        }
        for wr_id in first..first + 3 {
            sides.post(wr_id, STEP, 0);
        }
        sides.post(first + 3, 8, SIGNALED);
        sides.a.cq.cq.arm(false);
        assert!(
            sides.a.cq.cq.poll(1).is_empty(),
            "{round}: the engine has done nothing yet"
        );
        sides.a.node.run();
        assert_eq!(Sides::poll(&sides.b).len(), 4);
        assert_eq!(Sides::poll(&sides.a).len(), 1);
    }
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

#[test]
fn nothing_is_received_behind_a_message_that_failed() {
    let sides = Sides::with_rings();
    // Room for the second one only; the first one goes to the engine.
    sides.receive(0, 64);
    sides.receive(1, 64);
    sides.post(0, 100, SIGNALED);
    sides.post(1, 8, SIGNALED);
    sides.a.node.run();
    let found = Sides::poll(&sides.b);
    let found: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let expected = [(0, sys::IBV_WC_LOC_LEN_ERR), (1, sys::IBV_WC_WR_FLUSH_ERR)];
    assert_eq!(found, expected);
    let found = Sides::poll(&sides.a);
    let found: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let expected = [
        (0, sys::IBV_WC_REM_INV_REQ_ERR),
        (1, sys::IBV_WC_WR_FLUSH_ERR),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_queue_pair_that_has_failed_sends_nothing_into_a_ring() {
    let sides = Sides::with_rings();
    sides.receive(1, 64);
    sides.of_b.regions.remove(sides.b.node.key);
    sides.post(1, 8, SIGNALED);
    assert_eq!(sides.b.cq.cq.poll(2).len(), 1);
    assert_eq!(sides.of_b.failures(), 1);
    // The other way.
    let mut sges = [sides.b.node.sge(0, 8)];
    let before = sides.of_a.incoming().load(nupa_proto::process_ring::TAKEN);
    let message = send(9, sys::IBV_WR_SEND, SIGNALED).with(&mut sges);
    sides.b.qp.qp.post_send(&mut [message]).unwrap();
    assert_eq!(
        sides.of_a.incoming().load(nupa_proto::process_ring::TAKEN),
        before
    );
    assert!(sides.b.cq.cq.poll(1).is_empty(), "it is the engine's");
}

#[test]
fn completions_of_sends_are_not_starved_by_messages() {
    let mut sides = Sides::with_rings();
    for _ in 0..BEFORE {
        sides.transfer_back(8);
    }
    // Nobody receives this one.
    sides.receive(500, 64);
    sides.post(500, 8, SIGNALED);
    let mut shown = false;
    for wr_id in 0..2 * PATIENCE as u64 {
        sides.post_back(wr_id, 8);
        shown |= sides.a.cq.cq.poll(4).iter().any(|wc| wc.wr_id == 500);
    }
    assert!(shown);
}

impl Sides {
    /// `b` sends a message, which has a receive buffer.
    fn post_back(&self, wr_id: u64, len: u32) {
        let mut sges = [self.a.node.sge(8 * STEP, len)];
        self.a
            .qp
            .qp
            .post_recv(&mut [recv(wr_id, &mut sges)])
            .unwrap();
        let mut sges = [self.b.node.sge(0, len)];
        let message = send(wr_id, sys::IBV_WR_SEND, 0).with(&mut sges);
        self.b.qp.qp.post_send(&mut [message]).unwrap();
        self.b.node.run();
    }

    fn transfer_back(&mut self, len: u32) {
        self.post_back(7, len);
        self.a.node.run();
        assert_eq!(Self::poll(&self.a).len(), 1);
    }
}

#[test]
fn a_queue_pair_is_changed_while_its_queues_are_locked() {
    let sides = Sides::with_rings();
    let shared = sides.a.cq.cq.shared();
    let (_completions, _send) = (shared.lock(), sides.a.qp.qp.pair().send.lock());
    sides.a.qp.qp.pair().changed(false, true);
}

#[test]
fn what_was_sent_keeps_its_order_after_the_device_went() {
    let (ok, flushed) = (sys::IBV_WC_SUCCESS, sys::IBV_WC_WR_FLUSH_ERR);
    // Long ones go to the engine; what lies in the ring was sent.
    for (lengths, statuses) in [
        ([STEP, 8, STEP], [flushed, ok, flushed]),
        ([8, STEP, 8], [ok, flushed, ok]),
        ([8, 8, STEP], [ok, ok, flushed]),
    ] {
        let sides = Sides::with_rings();
        for (wr_id, len) in (0..).zip(lengths) {
            sides.receive(wr_id, STEP);
            sides.post(wr_id, len, SIGNALED);
        }
        sides.a.node.lose();
        let found: Vec<_> = std::iter::from_fn(|| sides.a.cq.cq.poll(1).pop())
            .take(70)
            .filter(|wc| wc.opcode == sys::IBV_WC_SEND)
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
        let expected: Vec<_> = (0..).zip(statuses).collect();
        assert_eq!(found, expected, "{lengths:?}");
        // Nothing goes into the ring any more.
        let lines = sides.of_b.incoming();
        let before: Vec<u8> = ring_bytes(&lines);
        sides.post(9, 8, SIGNALED);
        assert!(ring_bytes(&lines) == before);
    }
}

/// What lies in the lines of a ring.
fn ring_bytes(pages: &Pages) -> Vec<u8> {
    let mut bytes = vec![0; LINES as usize * LINE_SIZE];
    pages.read(CONTROL_SIZE, &mut bytes);
    bytes
}

#[test]
fn a_queue_pair_that_fails_before_it_has_a_ring_finds_none() {
    let mut sides = Sides::new(false);
    for _ in 0..20 {
        sides.transfer(8);
    }
    let mut sges = [sides.a.node.sge(0, 8)];
    sges[0].lkey = !sges[0].lkey;
    let bad = send(1, sys::IBV_WR_SEND, SIGNALED).with(&mut sges);
    sides.a.qp.qp.post_send(&mut [bad]).unwrap();
    sides.a.node.run();
    assert_ne!(Sides::poll(&sides.a)[0].status, sys::IBV_WC_SUCCESS);
    for wr_id in 100..150 {
        sides.post(wr_id, 8, SIGNALED);
        sides.a.node.run();
        let found = Sides::poll(&sides.a);
        let found: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(found, [(wr_id, sys::IBV_WC_WR_FLUSH_ERR)]);
    }
}
