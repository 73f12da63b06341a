// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A program that stands still between any two instructions, as one that gets no processor or is killed does. Whatever the others do meanwhile,
//! no message is lost, torn or there twice.

use std::env;

use nupa_proto::process_ring::TOTALS_PUT;

use super::*;
use crate::ffi::steps::stop_behind;

/// Behind every so many instructions; behind each in a long run.
pub(super) const STRIDE: usize = 13;
/// Fewer instructions than anything that is tested here has.
pub(super) const FEWEST: usize = 100;

/// Has something stand still at each point, until there is none.
pub(super) fn at_each_point(stops: impl FnMut(usize) -> bool) {
    at_each_point_of(STRIDE, stops);
}

/// The same with another stride.
pub(super) fn at_each_point_of(stride: usize, mut stops: impl FnMut(usize) -> bool) {
    let long = env::var_os("NUPA_TEST_LONG").is_some_and(|value| value == "1");
    let stride = if long { stride / STRIDE } else { stride };
    let mut point = 1;
    while stops(point) {
        point += stride;
    }
    assert!(point > FEWEST, "only {point} instructions");
}

impl Sides {
    /// What a message of a number has.
    fn content(wr_id: u64, len: usize) -> Vec<u8> {
        pattern(len, wr_id as u8)
    }

    /// Sends a message of a number.
    fn send_number(&self, wr_id: u64, len: usize) {
        self.a.node.fill(0, &Self::content(wr_id, len));
        self.post(wr_id, len, SIGNALED);
        self.a.node.run();
    }

    /// Posts a message, and stands still behind so many instructions. Returns whether it did, and whether the message was posted.
    fn stop_sender(
        &self,
        point: usize,
        wr_id: u64,
        len: usize,
        meanwhile: impl FnOnce(),
    ) -> (bool, bool) {
        self.a.node.fill(0, &Self::content(wr_id, len));
        let mut sges = [self.a.node.sge(0, len as u32)];
        let (qp, mut posted) = (&self.a.qp.qp, false);
        let work = || {
            let message = send(wr_id, sys::IBV_WR_SEND, SIGNALED).with(&mut sges);
            posted = qp.post_send(&mut [message]).is_ok();
        };
        (stop_behind(point, work, meanwhile), posted)
    }

    /// Fails unless these are messages of these lengths, from number `first` on.
    fn compare(&self, found: &[sys::ibv_wc], first: u64, lengths: &[usize]) {
        assert!(found.len() <= lengths.len(), "{} are too many", found.len());
        for ((wc, wr_id), &len) in found.iter().zip(first..).zip(lengths) {
            let got = (wc.wr_id, wc.status, wc.byte_len as usize);
            assert_eq!(got, (wr_id, sys::IBV_WC_SUCCESS, len));
            let place = wr_id as usize % 8 * STEP;
            assert_eq!(self.b.node.bytes(place, len), Self::content(wr_id, len));
        }
    }
}

#[test]
fn a_receiver_loses_nothing() {
    at_each_point(|point| {
        let sides = Sides::with_rings();
        let (first, lengths) = (sides.next, [100, MOST, STEP, 8]);
        for (wr_id, _) in (first..).zip(lengths) {
            sides.receive(wr_id, STEP);
        }
        sides.send_number(first, lengths[0]);
        let cq = &sides.b.cq.cq;
        let mut found = Vec::new();
        let stopped = stop_behind(
            point,
            || found = cq.poll(1),
            || {
                for (wr_id, len) in (first..).zip(lengths).skip(1) {
                    sides.send_number(wr_id, len);
                }
                sides.b.node.run();
            },
        );
        found.extend(Sides::poll(&sides.b));
        assert_eq!(found.len(), lengths.len(), "behind {point} instructions");
        sides.compare(&found, first, &lengths);
        assert_eq!(Sides::poll(&sides.a).len(), lengths.len());
        stopped
    });
}

#[test]
fn a_sender_tears_nothing() {
    at_each_point(|point| {
        let sides = Sides::with_rings();
        let (first, lengths) = (sides.next, [100, STEP, 8]);
        for (wr_id, _) in (first..).zip(lengths) {
            sides.receive(wr_id, STEP);
        }
        let mut found = Vec::new();
        let (stopped, posted) = sides.stop_sender(point, first, lengths[0], || {
            found = Sides::poll(&sides.b);
            sides.compare(&found, first, &lengths[..1]);
        });
        assert!(posted);
        found.extend(Sides::poll(&sides.b));
        assert_eq!(found.len(), 1, "behind {point} instructions");
        for (wr_id, len) in (first..).zip(lengths).skip(1) {
            sides.send_number(wr_id, len);
        }
        found.extend(Sides::poll(&sides.b));
        assert_eq!(found.len(), lengths.len(), "behind {point} instructions");
        sides.compare(&found, first, &lengths);
        assert_eq!(Sides::poll(&sides.a).len(), lengths.len());
        stopped
    });
}

/// One that finds the ring closed when it lies there goes to the engine after all.
#[test]
fn a_message_is_counted_once_where_its_ring_is_closed() {
    at_each_point(|point| {
        let sides = Sides::with_rings();
        let pages = sides.of_b.incoming();
        let counted = || {
            let requests = sides.a.node.traffic(&sides.a.qp).requests.get();
            requests + pages.load_wide(TOTALS_PUT)
        };
        let before = counted();
        sides.receive(sides.next, STEP);
        let (stopped, posted) = sides.stop_sender(point, sides.next, 100, || sides.of_b.close());
        assert!(posted);
        assert_eq!(Sides::poll(&sides.a).len(), 1);
        assert_eq!(counted(), before + 1, "behind {point} instructions");
        stopped
    });
}

/// Its queue pair ends, and the receiver's does not. The process may go on for a moment.
#[test]
fn a_sender_that_is_killed_tears_nothing() {
    at_each_point(|point| {
        let sides = Sides::with_rings();
        let first = sides.next;
        sides.receive(first, STEP);
        let mut found = Vec::new();
        // It may be refused by then.
        let (stopped, _) = sides.stop_sender(point, first, 100, || {
            sides.a.node.modify(&sides.a.qp, QpStateCode::Reset, |_| ());
            found = Sides::poll(&sides.b);
        });
        found.extend(Sides::poll(&sides.b));
        sides.compare(&found, first, &[100]);
        let posted = sides.b.qp.qp.post_recv(&mut [recv(first + 1, &mut [])]);
        assert_eq!(posted, Ok(()), "the receiver goes on");
        stopped
    });
}
