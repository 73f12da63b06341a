// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists of requests: some of them go past the engine, others do not.

use super::stopped::{at_each_point, at_each_point_of, STRIDE};
use super::*;
use crate::ffi::steps::stop_behind;
use crate::ffi::testing::Qp;

/// More messages than are confirmed at a time.
const MANY: usize = 21;
/// In place of a length: a request that is refused.
const REFUSED: usize = u32::MAX as usize;

impl Sides {
    fn entries(&self, lengths: &[usize]) -> Vec<[sys::ibv_sge; 1]> {
        let entry = |len: &usize| [self.a.node.sge(0, *len as u32)];
        lengths.iter().map(entry).collect()
    }

    /// Posts messages of these lengths as a list, from the next number on; all lie at the same place. Stands still behind so many instructions. Returns whether it
    /// did, and which request was refused.
    fn stop_list(
        &self,
        point: usize,
        lengths: &[usize],
        meanwhile: impl FnOnce(),
    ) -> (bool, Result<(), usize>) {
        let (mut entries, mut posted) = (self.entries(lengths), Ok(()));
        let qp = &self.a.qp.qp;
        let first = self.next;
        let work = || posted = post(qp, first, &mut entries);
        (stop_behind(point, work, meanwhile), posted)
    }

    /// The same without a stop. Returns the first number.
    fn post_list(&mut self, lengths: &[usize]) -> u64 {
        let first = self.next;
        let posted = post(&self.a.qp.qp, first, &mut self.entries(lengths));
        assert_eq!(posted, Ok(()));
        self.next += lengths.len() as u64;
        first
    }

    fn receive_all(&self, count: usize) {
        for wr_id in (self.next..).take(count) {
            self.receive(wr_id, STEP);
        }
    }
}

/// Posts messages as a list, from a number on. Returns which was refused.
fn post(qp: &Qp, first: u64, entries: &mut [[sys::ibv_sge; 1]]) -> Result<(), usize> {
    let numbered = (first..).zip(entries);
    let mut list: Vec<_> = numbered
        .map(|(wr_id, sges)| {
            let is_refused = sges[0].length == REFUSED as u32;
            let opcode = if is_refused {
                u32::MAX
            } else {
                sys::IBV_WR_SEND
            };
            send(wr_id, opcode, SIGNALED).with(sges)
        })
        .collect();
    qp.post_send(&mut list).map_err(|(_, at)| at)
}

/// Number and length of each; all were successful.
fn numbers(found: &[sys::ibv_wc]) -> Vec<(u64, usize)> {
    assert!(found.iter().all(|wc| wc.status == sys::IBV_WC_SUCCESS));
    let number = |wc: &sys::ibv_wc| (wc.wr_id, wc.byte_len as usize);
    found.iter().map(number).collect()
}

#[test]
fn lists_go_past_the_engine_as_far_as_they_can() {
    let long = MOST + 1;
    for (lengths, past) in [
        (vec![100; MANY], MANY),
        (vec![100, 8], 2),
        (vec![100, 8, 0, long, 8], 3),
        (vec![long, 8], 0),
        (vec![8, long], 1),
    ] {
        let mut sides = Sides::with_rings();
        sides.receive_all(lengths.len());
        let first = sides.post_list(&lengths);
        let all: Vec<_> = (first..).zip(lengths.iter().copied()).collect();
        let found = numbers(&sides.b.cq.cq.poll(MANY));
        assert_eq!(found, all[..past], "{lengths:?}");
        sides.a.node.run();
        let rest = numbers(&Sides::poll(&sides.b));
        assert_eq!(rest, all[past..], "{lengths:?}");
        assert_eq!(Sides::poll(&sides.a).len(), lengths.len());
        sides.transfer(100);
    }
}

#[test]
fn they_keep_their_order_whichever_way_each_message_goes() {
    let mut sides = Sides::new(true);
    let lengths = [8, 100, 0, MOST, 41, MOST + 1, 104];
    for round in 0..400 {
        let lengths: Vec<_> = (0..1 + round % 8)
            .map(|ahead| lengths[(round + ahead) % 7])
            .collect();
        sides.receive_all(lengths.len());
        let first = sides.post_list(&lengths);
        sides.a.node.run();
        let all: Vec<_> = (first..).zip(lengths.iter().copied()).collect();
        assert_eq!(numbers(&Sides::poll(&sides.b)), all, "round {round}");
        let done = numbers(&Sides::poll(&sides.a));
        assert!(
            done.iter().map(|(number, _)| *number).eq(first..sides.next),
            "round {round}"
        );
    }
}

#[test]
fn what_there_is_no_receive_buffer_for_comes_by_way_of_the_engine() {
    let mut sides = Sides::with_rings();
    sides.receive_all(2);
    let first = sides.post_list(&[8; 4]);
    let found = numbers(&sides.b.cq.cq.poll(MANY));
    assert_eq!(found, [(first, 8), (first + 1, 8)]);
    for wr_id in first + 2..first + 4 {
        sides.receive(wr_id, STEP);
    }
    sides.a.node.run();
    let found = numbers(&Sides::poll(&sides.b));
    assert_eq!(found, [(first + 2, 8), (first + 3, 8)]);
    assert_eq!(Sides::poll(&sides.a).len(), 4);
}

/// Of what went past the engine, no more completions are kept than there is room for requests.
#[test]
fn no_completion_is_lost_where_nobody_polls() {
    let mut sides = Sides::with_rings();
    let (first, most) = (sides.next, u64::from(Shape::default().requests));
    for _ in 0..most - 2 {
        sides.receive_all(1);
        sides.post_list(&[8]);
        assert_eq!(sides.b.cq.cq.poll(1).len(), 1);
    }
    sides.receive_all(4);
    sides.post_list(&[8; 4]);
    assert_eq!(
        sides.b.cq.cq.poll(4).len(),
        2,
        "the others go to the engine"
    );
    let done = numbers(&Sides::poll(&sides.a));
    assert!(done
        .iter()
        .map(|(number, _)| *number)
        .eq(first..first + most + 2));
    assert_eq!(Sides::poll(&sides.b).len(), 2);
}

#[test]
fn what_comes_before_a_request_that_is_refused_is_sent() {
    let sides = Sides::with_rings();
    sides.receive_all(3);
    let first = sides.next;
    let posted = post(&sides.a.qp.qp, first, &mut sides.entries(&[8, 8, REFUSED]));
    assert_eq!(posted, Err(2));
    let found = numbers(&sides.b.cq.cq.poll(MANY));
    assert_eq!(found, [(first, 8), (first + 1, 8)]);
    assert_eq!(Sides::poll(&sides.a).len(), 2);
}

/// Who begins to wait in the middle of a list, and finds nothing when it polls once more, is woken once.
#[test]
fn nobody_sleeps_through_a_list() {
    let mut woken = 0;
    at_each_point(|point| {
        let sides = Sides::with_rings();
        sides.receive_all(2);
        let by_engine = || sides.a.node.traffic(&sides.a.qp).requests.get();
        let (mut found, before) = (Vec::new(), by_engine());
        let (stopped, posted) = sides.stop_list(point, &[8, 8], || {
            sides.b.cq.cq.arm(false);
            found = sides.b.cq.cq.poll(2);
        });
        assert_eq!(posted, Ok(()));
        sides.a.node.run();
        let kicks = sides.of_a.kicks();
        assert!(kicks <= 1, "behind {point} instructions: {kicks} times");
        assert!(
            found.len() == 2 || kicks == 1 || by_engine() > before,
            "behind {point} instructions: it sleeps, and nobody wakes it"
        );
        woken += kicks;
        found.extend(Sides::poll(&sides.b));
        assert_eq!(numbers(&found).len(), 2, "behind {point} instructions");
        stopped
    });
    assert_ne!(woken, 0, "nobody was woken");
}

/// What it has in a ring that is closed goes to the engine, all of it, and nothing is there twice.
#[test]
fn a_list_is_there_once_where_its_ring_is_closed() {
    for (lengths, stride) in [
        (&[100, 8, 40][..], 3 * STRIDE),
        (&[8, 0, MOST + 1], 7 * STRIDE),
        (&[MOST + 1, 8, 0], 7 * STRIDE),
        (&[8, 0, REFUSED], 7 * STRIDE),
        (&[8; MANY], 40 * STRIDE),
    ] {
        for polls in [false, true] {
            at_each_point_of(stride, |point| close_behind(point, lengths, polls));
        }
    }
}

/// Closes the ring behind so many instructions of posting a list, after its program has polled or not. Whether there are so many.
fn close_behind(point: usize, lengths: &[usize], polls: bool) -> bool {
    let sides = Sides::with_rings();
    sides.receive_all(lengths.len());
    let mut found = Vec::new();
    let (stopped, posted) = sides.stop_list(point, lengths, || {
        if polls {
            found = sides.b.cq.cq.poll(MANY);
        }
        sides.of_b.close();
    });
    let refused = lengths.iter().position(|len| *len == REFUSED);
    assert_eq!(posted, refused.map_or(Ok(()), Err));
    sides.a.node.run();
    found.extend(Sides::poll(&sides.b));
    let done = Sides::poll(&sides.a);

    let good = lengths.iter().copied().filter(|len| *len != REFUSED);
    let all: Vec<_> = (sides.next..).zip(good).collect();
    assert_eq!(done.len(), all.len(), "behind {point} instructions");
    let is_good = |wc: &&sys::ibv_wc| wc.status == sys::IBV_WC_SUCCESS;
    let sent = done.iter().take_while(is_good).count();
    let found: Vec<_> = found.iter().filter(is_good).copied().collect();
    let received = found.len();
    assert!(
        received >= sent && (polls || received == all.len()),
        "behind {point} instructions of {lengths:?}: {sent} were sent, {received} received"
    );
    assert_eq!(
        numbers(&found),
        all[..received],
        "behind {point} instructions of {lengths:?}"
    );
    stopped
}
