// SPDX-License-Identifier: GPL-2.0 OR MIT

//! WRITEs that go past the engine, and what the engine takes of them.

mod counted;
mod events;
mod held_up;
mod hosts;
mod lists;
mod mapped;
#[cfg(target_arch = "x86_64")]
mod stopped;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use nupa_engine::rings::QueueMemory;
use nupa_proto::admin::QpStateCode;
use nupa_proto::process_ring::{
    stamp, CONTROL_SIZE, ENTRY_WRITE, LINES, LINE_SIZE, MAX_PAYLOAD, SECRET,
};

use self::hosts::{Hosts, TARGET};
use super::super::node::Shape;
use super::SIGNALED;
use crate::ffi::testing::{recv, send, sys, SendExt};
use crate::queue::Lookup;

/// Bytes of the longest WRITE of a ring.
const MOST: usize = MAX_PAYLOAD as usize - 16;
const WRITTEN: (sys::ibv_wc_status, sys::ibv_wc_opcode) =
    (sys::IBV_WC_SUCCESS, sys::IBV_WC_RDMA_WRITE);

/// Writes, and has the receiver poll while no engine works; whether the WRITE is there then.
fn past_engine(hosts: &Hosts, wr_id: u64, len: usize) -> bool {
    assert!(len == 0 || !hosts.is_written(wr_id, 0, len), "already");
    hosts.write(wr_id, 0, len, SIGNALED);
    assert!(hosts.b.spin().is_empty());
    let there = hosts.is_written(wr_id, 0, len);
    let [(number, status, opcode)] = hosts.completions(1)[..] else {
        panic!("more than one completion");
    };
    assert_eq!((number, (status, opcode)), (wr_id, WRITTEN));
    assert!(hosts.is_written(wr_id, 0, len), "{len} bytes");
    there
}

#[test]
fn short_ones_go_past_the_engine_while_the_receivers_program_polls() {
    let hosts = Hosts::with_rings();
    for (number, len) in (1..).zip([1, 8, 23, 24, 25, 88, 89, 1000, MOST]) {
        assert!(past_engine(&hosts, number, len), "{len} bytes");
    }
    assert!(!past_engine(&hosts, 20, MOST + 1));
    assert!(past_engine(&hosts, 21, 8));
    hosts.write(22, 0, 0, SIGNALED);
    assert!(hosts.b.spin().is_empty());
    assert_eq!(hosts.a.spin().len(), 1, "of no bytes");
}

#[test]
fn they_do_not_before_it_has_polled_for_a_while() {
    let hosts = Hosts::without_writes();
    assert!(!hosts.takes_writes());
    assert!(!past_engine(&hosts, 1, 8));
}

#[test]
fn those_of_all_lengths_wrap_around() {
    let hosts = Hosts::with_rings();
    for number in 1..1000 {
        let len = 1 + number * 37 % 300;
        assert!(past_engine(&hosts, number as u64, len), "number {number}");
    }
}

#[test]
fn as_many_as_there_is_room_for_are_under_way() {
    let hosts = Hosts::with_rings();
    for round in 0..10 {
        for number in 0..64 {
            hosts.write(number, number as usize * 64, 64, SIGNALED);
        }
        // The rest has gone to the engine, which takes what is in the ring before.
        let found = hosts.completions(64);
        let expected = (0..64).map(|number| (number, WRITTEN.0, WRITTEN.1));
        assert!(found.into_iter().eq(expected), "round {round}");
        for number in 0..64 {
            assert!(hosts.is_written(number, number as usize * 64, 64));
        }
        hosts.b.poll();
    }
}

#[test]
fn those_whose_completion_is_not_asked_for_have_none() {
    let hosts = Hosts::with_rings();
    for number in 1..300 {
        hosts.write(number, 0, 8, if number % 100 == 0 { SIGNALED } else { 0 });
        assert!(hosts.b.spin().is_empty());
        assert!(hosts.is_written(number, 0, 8), "{number}");
        let found: Vec<u64> = hosts.a.spin().iter().map(|wc| wc.wr_id).collect();
        let expected: &[u64] = if number % 100 == 0 { &[number] } else { &[] };
        assert_eq!(found, expected);
    }
}

#[test]
fn a_message_behind_them_finds_them_there() {
    let hosts = Hosts::with_rings();
    for number in 1..100 {
        hosts.write(number, 0, 100, 0);
        hosts.message(number, 8);
        let [wc] = hosts.b.spin()[..] else {
            panic!("message {number} did not arrive");
        };
        assert_eq!(wc.wr_id, number);
        assert!(hosts.is_written(number, 0, 100));
        assert_eq!(hosts.completions(1)[0].0, number);
    }
}

/// One behind a message that nobody has received would wait for that, also if the engine takes it.
#[test]
fn those_behind_a_message_go_to_the_engine_until_that_is_received() {
    let hosts = Hosts::with_rings();
    let taken = hosts.taken();
    hosts.message(1, 8);
    hosts.write(2, 0, 8, SIGNALED);
    hosts.until(|hosts| hosts.is_written(2, 0, 8));
    assert_eq!(hosts.taken(), taken, "nobody has polled");
    assert_eq!(hosts.b.poll().len(), 1);
    assert_eq!(hosts.completions(2).len(), 2);
    assert!(past_engine(&hosts, 3, 8));
}

/// Its program polls no more.
#[test]
fn what_the_receiver_leaves_the_engine_takes() {
    let hosts = Hosts::with_rings();
    for number in 1..10 {
        hosts.write(number, number as usize * 100, 100, SIGNALED);
    }
    // The sender's program polls.
    let found = hosts.completions(9);
    assert!(found
        .into_iter()
        .eq((1..10).map(|number| (number, WRITTEN.0, WRITTEN.1))));
    for number in 1..10 {
        assert!(hosts.is_written(number, number as usize * 100, 100));
    }
}

/// The queue pair asks for completions of all that it does, so also of what its program does not know.
#[test]
fn what_is_left_is_complete_where_all_completions_are_asked_for() {
    let hosts = Hosts::shaped(
        Shape {
            signal_all: true,
            ..Shape::default()
        },
        false,
    );
    hosts.warm();
    hosts.write(1, 0, 100, 0);
    assert_eq!(hosts.completions(1)[0].0, 1);
    assert!(hosts.is_written(1, 0, 100));
}

/// Nobody polls.
#[test]
fn what_everybody_leaves_the_receivers_engine_finds() {
    let hosts = Hosts::with_rings();
    hosts.write(1, 0, 100, 0);
    hosts.write(2, 100, 100, SIGNALED);
    hosts.until(|hosts| hosts.is_written(2, 100, 100));
    assert!(hosts.is_written(1, 0, 100));
    assert!(!hosts.takes_writes(), "others go to the engine");
    assert_eq!(hosts.completions(1)[0].0, 2);
    hosts.write(3, 0, 8, SIGNALED);
    assert_eq!(hosts.completions(1)[0].0, 3);
    // When its program polls again they go past the engine.
    for _ in 0..3 {
        hosts.b.poll();
    }
    assert!(past_engine(&hosts, 4, 8));
}

#[test]
fn other_requests_come_behind_them() {
    let hosts = Hosts::with_rings();
    let from = hosts.b.node.memory + TARGET as u64;
    for number in (1..100).step_by(2) {
        hosts.write(number, 0, 64, 0);
        let mut sges = [hosts.a.node.sge(4096, 64)];
        let read = send(number + 1, sys::IBV_WR_RDMA_READ, SIGNALED).with(&mut sges);
        let read = read.remote(from, hosts.b.node.key);
        hosts.a.qp.qp.post_send(&mut [read]).unwrap();
        let found = hosts.completions(1);
        assert_eq!((found[0].0, found[0].1), (number + 1, WRITTEN.0));
        let bytes = hosts.a.node.bytes(4096, 64);
        assert_eq!(bytes, Hosts::bytes(number, 64), "{number}");
        hosts.b.poll();
        hosts.b.poll();
    }
}

/// What has the engine take them takes no room from the program.
#[test]
fn as_many_requests_as_the_queue_has_room_for_are_under_way() {
    let hosts = Hosts::with_rings();
    let requests = Shape::default().requests as u64;
    for number in 1..requests {
        hosts.write(number, 0, 8, SIGNALED);
    }
    hosts.write(requests, 0, MOST + 1, SIGNALED);
    assert!(hosts.b.spin().is_empty());
    // Each that is complete makes room for another one, while the one behind them is not.
    for number in 1..requests {
        let [wc] = hosts.a.cq.cq.poll(1)[..] else {
            panic!("number {number} is not complete");
        };
        assert_eq!(wc.wr_id, number);
        hosts.write(requests + number, 0, MOST + 1, SIGNALED);
    }
    let numbers = hosts.completions(requests as usize);
    assert!(numbers.iter().map(|wc| wc.0).eq(requests..2 * requests));
    assert!(numbers.iter().all(|wc| wc.1 == WRITTEN.0));
}

#[test]
fn messages_behind_one_that_fails_are_flushed() {
    let hosts = Hosts::with_rings();
    hosts.write_with(1, 0, 8, 0, hosts.b.node.key ^ 1);
    let mut sges = [hosts.a.node.sge(0, 8)];
    let mut recvs = [hosts.b.node.sge(0, 64)];
    hosts.b.qp.qp.post_recv(&mut [recv(1, &mut recvs)]).unwrap();
    let message = send(2, sys::IBV_WR_SEND, 0).with(&mut sges);
    hosts.a.qp.qp.post_send(&mut [message]).unwrap();
    let found: Vec<_> = hosts.completions(2).iter().map(|wc| (wc.0, wc.1)).collect();
    let flushed = sys::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(found, [(1, sys::IBV_WC_REM_ACCESS_ERR), (2, flushed)]);
}

/// It would write older data over newer that another connection brings.
#[test]
fn what_nobody_has_taken_is_taken_back_with_the_queue_pair() {
    let hosts = Hosts::with_rings();
    hosts.write(1, 0, 64, SIGNALED);
    hosts.write(2, 64, 64, SIGNALED);
    hosts.a.node.modify(&hosts.a.qp, QpStateCode::Reset, |_| ());
    hosts.a.qp.qp.pair().reset();
    hosts.b.poll();
    hosts.run();
    assert!(!hosts.is_written(1, 0, 64) && !hosts.is_written(2, 64, 64));
}

#[test]
fn a_batch_comes_behind_them() {
    let hosts = Hosts::with_rings();
    hosts.write(1, 0, 64, SIGNALED);
    let batch = |commit: bool, to: usize| {
        hosts.a.node.fill(0, &Hosts::bytes(2, 64));
        let (sge, key) = (hosts.a.node.sge(0, 64), hosts.b.node.key);
        let at = hosts.b.node.memory + (TARGET + to) as u64;
        let done = hosts.a.qp.qp.batch(commit, |batch| {
            batch.next(7, SIGNALED).write(key, at).sge(sge);
            batch.next(8, SIGNALED).write(key, at + 64).sge(sge);
        });
        assert_eq!(done, 0);
    };
    batch(false, 0);
    batch(true, 0);
    let numbers: Vec<u64> = hosts.completions(3).iter().map(|wc| wc.0).collect();
    assert_eq!(numbers, [1, 7, 8]);
    assert!(hosts.is_written(2, 0, 64) && hosts.is_written(2, 64, 64));
}

#[test]
fn errors_are_those_of_the_engine() {
    for polls in [true, false] {
        let hosts = Hosts::with_rings();
        hosts.write(1, 0, 64, SIGNALED);
        hosts.write(2, 64, 64, 0);
        hosts.write_with(3, 128, 64, 0, hosts.b.node.key ^ 1);
        hosts.write(4, 192, 64, SIGNALED);
        hosts.write(5, 256, 64, 0);
        if polls {
            assert!(hosts.b.poll().is_empty());
        }
        let found = hosts.completions(4);
        let (write, flushed) = (sys::IBV_WC_RDMA_WRITE, sys::IBV_WC_WR_FLUSH_ERR);
        let refused = sys::IBV_WC_REM_ACCESS_ERR;
        let found: Vec<_> = found.iter().map(|wc| (wc.0, wc.1)).collect();
        let expected = [(1, WRITTEN.0), (3, refused), (4, flushed), (5, flushed)];
        assert_eq!(found, expected, "the receiver polls: {polls}, {write}");
        assert!(hosts.is_written(1, 0, 64) && hosts.is_written(2, 64, 64));
        assert!(!hosts.is_written(4, 192, 64), "behind the one that failed");
        hosts.write(6, 0, 8, SIGNALED);
        assert_eq!(hosts.completions(1)[0].1, flushed);
    }
}

/// What fails behind WRITEs that were all taken has its own error, although the request before it, of which the program does not know, has that.
#[test]
fn a_request_behind_them_has_its_own_error() {
    let hosts = Hosts::with_rings();
    hosts.write(1, 0, 64, SIGNALED);
    hosts.write_with(2, 0, MOST + 1, SIGNALED, hosts.b.node.key ^ 1);
    let found: Vec<_> = hosts.completions(2).iter().map(|wc| (wc.0, wc.1)).collect();
    assert_eq!(found, [(1, WRITTEN.0), (2, sys::IBV_WC_REM_ACCESS_ERR)]);
}

#[test]
fn memory_that_the_process_does_not_know_is_the_engines_to_write() {
    let hosts = Hosts::with_rings();
    hosts.b.rings.regions.remove(hosts.b.node.key);
    assert!(!past_engine(&hosts, 1, 64));
}

/// A region of another protection domain, one that peers may not write to, and a part of one.
#[test]
fn other_memory_is_the_engines_to_write() {
    type Change = fn(&mut crate::queue::Region);
    let changes: [Change; 3] = [
        |region| region.domain += 1,
        |region| region.remote_writable = false,
        |region| region.memory = region.memory.part(0, TARGET + 63).unwrap(),
    ];
    for change in changes {
        let hosts = Hosts::with_rings();
        let (regions, key) = (&hosts.b.rings.regions, hosts.b.node.key);
        let mut region = regions.remove(key).unwrap();
        change(&mut region);
        regions.insert(key, region);
        assert!(!past_engine(&hosts, 1, 64));
        assert_eq!(hosts.b.node.bytes(TARGET, 64), Hosts::bytes(1, 64));
    }
}

/// The receiver writes the secret, and can tell neither what the sender's program knows its requests by nor those that it knows nothing of.
#[test]
fn a_receiver_can_hide_no_completion_and_make_none_up() {
    let hosts = Hosts::with_rings();
    let pages = hosts.b.rings.incoming();
    for number in 1..6 {
        pages.store_wide(SECRET, number);
        hosts.write(number, 0, MOST + 1, SIGNALED);
        assert_eq!(hosts.completions(1)[0].0, number);
    }
    let hosts = Hosts::with_rings();
    hosts.write(1, 0, 8, SIGNALED);
    hosts.write(2, 0, MOST + 1, SIGNALED);
    let pages = hosts.b.rings.incoming();
    let secret = pages.load_wide(SECRET);
    hosts.until(|hosts| hosts.is_written(2, 0, MOST + 1));
    pages.store_wide(SECRET, secret ^ 1);
    let numbers: Vec<u64> = hosts.completions(2).iter().map(|wc| wc.0).collect();
    assert_eq!(numbers, [1, 2]);
    assert!(hosts.a.poll().is_empty());
}

#[test]
fn a_region_is_not_forgotten_while_it_is_written_to() {
    let hosts = Hosts::with_rings();
    let (regions, key) = (&hosts.b.rings.regions, hosts.b.node.key);
    let lookup = Lookup::new(Arc::clone(regions), 0);
    let (copies, forgotten) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !copies.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            regions.remove(key);
            forgotten.store(true, Ordering::SeqCst);
        });
        let addr = hosts.b.node.memory;
        let written = lookup.write(
            key,
            addr,
            8,
            || true,
            |_| {
                copies.store(true, Ordering::SeqCst);
                // Long enough for a thread that does not wait.
                std::thread::sleep(Duration::from_millis(50));
                assert!(!forgotten.load(Ordering::SeqCst));
            },
        );
        assert!(written);
    });
    assert!(!lookup.write(
        key,
        hosts.b.node.memory,
        8,
        || true,
        |_| panic!("it is forgotten")
    ));
}

#[test]
fn they_need_leave_of_the_queue_pair() {
    let hosts = Hosts::with_rings();
    hosts.b.qp.qp.pair().allow_writes(false);
    hosts.write(1, 0, 64, SIGNALED);
    assert!(hosts.b.spin().is_empty());
    assert!(!hosts.is_written(1, 0, 64), "left to the engine");
    assert_eq!(hosts.completions(1)[0].0, 1);
    let hosts = Hosts::without_writes();
    hosts.b.qp.qp.pair().allow_writes(false);
    hosts.b.poll();
    assert!(!hosts.takes_writes());
}

#[test]
fn what_nobody_has_taken_is_flushed_when_the_device_goes() {
    let hosts = Hosts::with_rings();
    hosts.write(1, 0, 64, SIGNALED);
    assert!(hosts.b.spin().is_empty());
    hosts.write(2, 0, 64, 0);
    hosts.write(3, 0, 64, SIGNALED);
    hosts.a.node.lose();
    let found: Vec<_> = hosts
        .a
        .poll()
        .iter()
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    let flushed = sys::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(found, [(1, WRITTEN.0), (2, flushed), (3, flushed)]);
}

/// A connection's next ring is another one.
#[test]
fn some_go_past_the_engine_at_random() {
    let hosts = Hosts::new(true);
    for number in 0..2000u64 {
        match number % 3 {
            0 => {
                hosts.message(number, 8);
                hosts.until(|hosts| hosts.b.spin().len() == 1);
            }
            _ => {
                hosts.write(number, 0, 64, SIGNALED);
                if number % 5 == 0 {
                    hosts.b.poll();
                }
            }
        }
        assert_eq!(hosts.completions(1)[0].0, number);
        assert!(number % 3 == 0 || hosts.is_written(number, 0, 64));
    }
}

/// Any bytes may lie in the ring.
#[test]
fn entries_that_no_sender_makes_are_left_to_the_engine() {
    let mut random = 1u64;
    let mut draw = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..40 {
        let hosts = Hosts::with_rings();
        let pages = hosts.b.rings.incoming();
        let line = hosts.taken();
        let at = CONTROL_SIZE + (line % LINES) as usize * LINE_SIZE;
        for word in 1..8 {
            pages.store_wide(at + word * 8, draw());
        }
        if draw() % 2 == 0 {
            pages.write(at + 8, &(draw() as u32 % 3000).to_le_bytes());
            pages.write(
                at + 24,
                &(hosts.b.node.memory + draw() % (1 << 22)).to_le_bytes(),
            );
        }
        if draw() % 2 == 0 {
            pages.write(at + 32, &hosts.b.node.key.to_le_bytes());
        }
        pages.write(at + 20, &[ENTRY_WRITE | draw() as u8 & 4, 0, 0, 0]);
        pages.store_wide(at, stamp(pages.load_wide(SECRET), line));
        hosts.b.poll();
        hosts.run();
        hosts.write(1, 0, 64, SIGNALED);
        hosts.b.poll();
        // It is done, or the connection has failed.
        assert_eq!(hosts.completions(1)[0].0, 1);
    }
}
