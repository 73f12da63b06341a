// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What goes past the engines is counted at both ends, once.

use nupa_proto::process_ring::{STATE, TOTALS_PUT, TOTALS_TAKEN};

use super::hosts::{Host, Hosts};
use super::*;

/// Messages and bytes.
type Count = (u64, u64);

fn sum((messages, bytes): Count, (more, more_bytes): Count) -> Count {
    (messages + more, bytes + more_bytes)
}

/// What the queue pair of a host has counted, as its engine tells: requests and those that it has served.
fn told(host: &Host) -> (Count, Count) {
    let traffic = host.node.traffic(&host.qp);
    (
        (traffic.requests.get(), traffic.sent_bytes.get()),
        (traffic.served.get(), traffic.received_bytes.get()),
    )
}

/// What each side has counted.
#[derive(Debug, PartialEq)]
pub(super) struct Counted {
    /// By the process of `a`.
    put: Count,
    /// By the process of `b`.
    taken: Count,
    /// By the engine of `a`, which cannot reach the ring here.
    requested: Count,
    /// By the engine of `b`, together with what its process has counted.
    served: Count,
}

impl Counted {
    pub(super) fn of(hosts: &Hosts) -> Self {
        // The engine of `a` may have answers to take.
        hosts.run();
        let pages = hosts.b.rings.incoming();
        let totals = |at: usize| (pages.load_wide(at), pages.load_wide(at + 8));
        Self {
            put: totals(TOTALS_PUT),
            taken: totals(TOTALS_TAKEN),
            requested: told(&hosts.a).0,
            served: told(&hosts.b).1,
        }
    }

    /// This much later: what the processes have put and taken, and what the engines have seen themselves, of which both know.
    fn later(&self, put: Count, taken: Count, seen: Count) -> Self {
        Self {
            put: sum(self.put, put),
            taken: sum(self.taken, taken),
            requested: sum(self.requested, seen),
            served: sum(self.served, sum(taken, seen)),
        }
    }

    /// Whether both ends have counted the same.
    fn is_balanced(&self) -> bool {
        sum(self.put, self.requested) == self.served
    }

    /// Whether both have counted as many messages, READs among them.
    pub(super) fn is_counted_once(&self) -> bool {
        self.put.0 + self.requested.0 == self.served.0
    }
}

#[test]
fn messages_and_writes_are_counted() {
    let hosts = Hosts::with_rings();
    let mut before = Counted::of(&hosts);
    assert!(before.put.0 != 0 && before.is_balanced(), "{before:?}");
    for (number, len) in (1..).zip([0, 1, 40, 41, 1000, MAX_PAYLOAD]) {
        hosts.message(number, len);
        assert_eq!(hosts.b.spin().len(), 1, "{len} bytes");
        let one = (1, len.into());
        let expected = before.later(one, one, (0, 0));
        assert_eq!(Counted::of(&hosts), expected, "{len} bytes");
        assert_eq!(hosts.completions(1)[0].0, number);
        before = expected;
    }
    for (number, len) in (10..).zip([1, 24, 25, 1000, MOST]) {
        assert!(past_engine(&hosts, number, len), "{len} bytes");
        let one = (1, len as u64);
        let expected = before.later(one, one, (0, 0));
        assert_eq!(Counted::of(&hosts), expected, "{len} bytes");
        before = expected;
    }
}

#[test]
fn what_goes_through_the_engines_they_count() {
    let hosts = Hosts::with_rings();
    let before = Counted::of(&hosts);
    hosts.message(1, 4096);
    hosts.until(|hosts| hosts.b.spin().len() == 1);
    assert_eq!(hosts.completions(1)[0].0, 1);
    hosts.write(2, 0, MOST + 1, SIGNALED);
    assert_eq!(hosts.completions(1)[0].0, 2);
    let seen = (2, 4096 + MOST as u64 + 1);
    let expected = before.later((0, 0), (0, 0), seen);
    assert_eq!(Counted::of(&hosts), expected);
}

/// The sender counts them, and the engine of the receiver. So do both of the request that it may come for.
#[test]
fn writes_that_the_engine_takes_are_counted_once() {
    let hosts = Hosts::with_rings();
    let before = Counted::of(&hosts);
    for number in 1..10 {
        hosts.write(number, number as usize * 100, 100, SIGNALED);
    }
    assert_eq!(hosts.completions(9).len(), 9);
    let after = Counted::of(&hosts);
    assert_eq!(after.put, sum(before.put, (9, 900)));
    assert_eq!(after.taken, before.taken, "the program does not poll");
    assert!(after.is_balanced(), "{after:?}");
    // The engine finds these itself.
    let hosts = Hosts::with_rings();
    let before = Counted::of(&hosts);
    hosts.write(1, 0, 100, 0);
    hosts.write(2, 100, 100, 0);
    hosts.until(|hosts| hosts.is_written(2, 100, 100));
    let after = Counted::of(&hosts);
    assert_eq!(after.put, sum(before.put, (2, 200)));
    assert_eq!(after.taken, before.taken);
    assert_eq!(after.served, sum(before.served, (2, 200)));
}

#[test]
fn what_finds_its_ring_closed_the_engines_count() {
    let hosts = Hosts::with_rings();
    let before = Counted::of(&hosts);
    hosts.b.rings.incoming().store(STATE, 0);
    hosts.message(1, 8);
    hosts.write(2, 0, 8, SIGNALED);
    assert_eq!(hosts.completions(2).len(), 2);
    let after = Counted::of(&hosts);
    assert_eq!((after.put, after.taken), (before.put, before.taken));
    assert_eq!(after.requested, sum(before.requested, (2, 16)));
}

/// What goes past the engines lies between what does not.
#[test]
fn both_ends_count_the_same() {
    for mixed in [false, true] {
        let hosts = Hosts::new(mixed);
        let mut wanted = (0, 0);
        for number in 0..1500u64 {
            let len = [8, 100, MOST, 2 * MOST][number as usize / 3 % 4];
            match number % 3 {
                0 => {
                    hosts.message(number, len as u32);
                    hosts.until(|hosts| hosts.b.spin().len() == 1);
                }
                _ => {
                    hosts.write(number, 0, len, SIGNALED);
                    if number % 5 == 0 {
                        hosts.b.poll();
                    }
                }
            }
            assert_eq!(hosts.completions(1)[0].0, number);
            wanted = sum(wanted, (1, len as u64));
        }
        let counted = Counted::of(&hosts);
        assert!(counted.is_balanced(), "{counted:?}");
        assert_eq!(counted.served.1, wanted.1, "bytes");
        // And the requests of no bytes that the engine comes for.
        assert!(counted.served.0 >= wanted.0, "{counted:?}");
        assert!(counted.put.0 > 100 && counted.taken.0 > 100, "{counted:?}");
    }
}

/// A connection's next ring begins anew.
#[test]
fn a_queue_pair_that_was_reset_goes_on_counting() {
    let hosts = Hosts::with_rings();
    let before = Counted::of(&hosts);
    for host in [&hosts.a, &hosts.b] {
        host.node.modify(&host.qp, QpStateCode::Reset, |_| ());
        host.qp.qp.pair().reset();
    }
    assert_eq!(told(&hosts.b).1, before.served, "the ring is forgotten");
    hosts.b.rings.close();
    for at in [TOTALS_PUT, TOTALS_TAKEN] {
        // The next one is in memory of zeroes.
        let pages = hosts.b.rings.incoming();
        pages.store_wide(at, 0);
        pages.store_wide(at + 8, 0);
    }
    for host in [&hosts.a, &hosts.b] {
        host.qp.qp.pair().changed(false, false);
        host.node.modify(&host.qp, QpStateCode::Init, |_| ());
    }
    hosts.connect();
    for host in [&hosts.a, &hosts.b] {
        host.rings.allow(&host.node, &host.qp);
    }
    hosts.warm();
    let after = Counted::of(&hosts);
    let seen = sum(after.requested, after.put);
    assert_eq!(sum(seen, before.put), after.served, "{after:?}");
}
