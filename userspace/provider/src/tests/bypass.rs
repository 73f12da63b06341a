// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Messages that go past the engine, between those that do not.

mod events;
mod failures;
mod lists;
mod shared;
mod stopped;
mod writes;

use nupa_engine::hal::SlotWord;
use nupa_engine::rings::{Doorbell, QueueMemory};
use nupa_proto::admin::QpStateCode;
use nupa_proto::doorbell::ARM_SOLICITED;
use nupa_proto::process_ring::{
    stamp, CONTROL_SIZE, LINES, LINE_SIZE, MAX_PAYLOAD, POSTED, SECRET, STATE, STATE_ARMED,
    STATE_OPEN, STATE_WRITES,
};

use super::node::{pair, pattern, Shape, Side};
use super::rings::Rings;
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
const SHOWN_AFTER: usize = 65;

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
        let memories = [&a, &b].map(|side| &*side.node.guest.ram);
        let [mut of_a, mut of_b] = [0, 1].map(|id| Rings::new(memories, 0, id));
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
        for _ in 0..SHOWN_AFTER {
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

    /// The state of a ring, but for whether WRITEs may be put there.
    fn ring_state(pages: &Pages) -> u32 {
        pages.load(STATE) & !STATE_WRITES
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
fn completions_of_sends_are_not_starved_by_messages() {
    let mut sides = Sides::with_rings();
    for _ in 0..BEFORE {
        sides.transfer_back(8);
    }
    // Nobody receives this one.
    sides.receive(500, 64);
    sides.post(500, 8, SIGNALED);
    let mut shown = false;
    for wr_id in 0..2 * SHOWN_AFTER as u64 {
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
