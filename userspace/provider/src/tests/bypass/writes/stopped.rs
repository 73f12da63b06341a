// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A program that stands still between any two instructions. Whatever the others do meanwhile, nothing is written that is older than what is there, and
//! nothing in part.

use nupa_proto::admin::QpStateCode;
use nupa_proto::process_ring::MAX_PAYLOAD;

use super::super::stopped::{at_each_point, FEWEST};
use super::super::SIGNALED;
use super::counted::Counted;
use super::hosts::{Hosts, TARGET};
use crate::ffi::steps::stop_behind;
use crate::ffi::testing::{send, sys, SendExt};

const LEN: usize = 100;
/// Too long for a ring.
const LONG: usize = MAX_PAYLOAD as usize;

impl Hosts {
    /// Has the receiver's program poll until WRITEs may be put into the ring.
    fn poll_until_offered(&self) {
        let polls = (0..1 << 16).find(|_| {
            self.b.poll();
            self.takes_writes()
        });
        assert!(polls.is_some(), "its program polls");
    }

    /// Reads what is at the target.
    fn post_read(&self, wr_id: u64) {
        let mut sges = [self.a.node.sge(8192, LEN as u32)];
        let read = send(wr_id, sys::IBV_WR_RDMA_READ, SIGNALED).with(&mut sges);
        let from = self.b.node.memory + TARGET as u64;
        let read = read.remote(from, self.b.node.key);
        self.a.qp.qp.post_send(&mut [read]).unwrap();
    }
}

#[test]
fn a_receiver_writes_nothing_that_is_older() {
    let hosts = Hosts::with_rings();
    let mut number = 0;
    at_each_point(|point| {
        hosts.poll_until_offered();
        number += 3;
        hosts.write(number, 0, LEN, SIGNALED);
        let cq = &hosts.b.cq.cq;
        let stopped = stop_behind(
            point,
            || {
                cq.poll(1);
            },
            || {
                // The engine writes it, behind what is in the ring.
                hosts.write(number + 1, 0, LONG, SIGNALED);
                hosts.post_read(number + 2);
                hosts.run();
                hosts.run();
            },
        );
        let found: Vec<_> = hosts.completions(3).iter().map(|wc| (wc.0, wc.1)).collect();
        let expected = [0, 1, 2].map(|ahead| (number + ahead, sys::IBV_WC_SUCCESS));
        assert_eq!(found, expected, "behind {point} instructions");
        assert!(hosts.is_written(number + 1, 0, LONG), "{point}");
        let read = hosts.a.node.bytes(8192, LEN);
        assert_eq!(read, Hosts::bytes(number + 1, LONG)[..LEN], "{point}");
        assert!(Counted::of(&hosts).is_counted_once(), "{point}");
        stopped
    });
}

#[test]
fn a_sender_writes_nothing_in_part() {
    let hosts = Hosts::with_rings();
    let mut number = 0;
    at_each_point(|point| {
        hosts.poll_until_offered();
        number += 2;
        hosts.a.node.fill(0, &Hosts::bytes(number, LEN));
        let mut sges = [hosts.a.node.sge(0, LEN as u32)];
        let (to, key) = (hosts.b.node.memory + TARGET as u64, hosts.b.node.key);
        let qp = &hosts.a.qp.qp;
        let stopped = stop_behind(
            point,
            || {
                let write = send(number, sys::IBV_WR_RDMA_WRITE, SIGNALED).with(&mut sges);
                qp.post_send(&mut [write.remote(to, key)]).unwrap();
            },
            || {
                hosts.b.poll();
                hosts.run();
                let there = hosts.b.node.bytes(TARGET, LEN);
                let whole = [number - 2, number].map(|number| Hosts::bytes(number, LEN));
                let first = number == 2 && there == [0; LEN];
                assert!(
                    first || whole.contains(&there),
                    "behind {point} instructions"
                );
            },
        );
        let found: Vec<_> = hosts.completions(1).iter().map(|wc| (wc.0, wc.1)).collect();
        assert_eq!(found, [(number, sys::IBV_WC_SUCCESS)], "{point}");
        assert!(hosts.is_written(number, 0, LEN));
        assert!(Counted::of(&hosts).is_counted_once(), "{point}");
        stopped
    });
}

/// Its queue pair ends, and with it the ring, which its program may be taking entries of.
#[test]
fn a_receiver_that_is_killed_holds_nobody_up() {
    at_each_point(|point| {
        let hosts = Hosts::with_rings();
        hosts.write(1, 0, LEN, SIGNALED);
        let cq = &hosts.b.cq.cq;
        let mut found = Vec::new();
        let stopped = stop_behind(
            point,
            || {
                cq.poll(1);
            },
            || {
                hosts.b.node.modify(&hosts.b.qp, QpStateCode::Reset, |_| ());
                hosts.b.rings.close();
                hosts.write(2, 0, LEN, SIGNALED);
                hosts.a.node.modify(&hosts.a.qp, QpStateCode::Err, |_| ());
                found = hosts.completions(2);
            },
        );
        let found: Vec<_> = found.iter().map(|wc| wc.0).collect();
        assert_eq!(found, [1, 2], "behind {point} instructions");
        // Each of these is a pool of its own.
        stopped && point <= FEWEST
    });
}
