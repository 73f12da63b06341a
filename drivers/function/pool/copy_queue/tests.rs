// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The queue in all orders of its threads, and with threads of the machine.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

extern crate std;

use super::*;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use std::{
    sync::{
        atomic::{AtomicBool, Ordering::*},
        Arc,
    },
    thread,
};

macro_rules! words {
    ($($atomic:ty, $type:ty);*) => {$(
        impl Word<$type> for $atomic {
            fn new(value: $type) -> Self {
                Self::new(value)
            }

            fn load_relaxed(&self) -> $type {
                self.load(Relaxed)
            }

            fn load_acquire(&self) -> $type {
                self.load(Acquire)
            }

            fn store_relaxed(&self, value: $type) {
                self.store(value, Relaxed);
            }

            fn store_release(&self, value: $type) {
                self.store(value, Release);
            }
        }
    )*};
}

words!(AtomicU32, u32; AtomicU64, u64; std::sync::atomic::AtomicU32, u32; std::sync::atomic::AtomicU64, u64);

macro_rules! counters {
    ($($atomic:ty),*) => {$(
        impl Counter for $atomic {
            fn exchange(&self, old: u32, new: u32) -> bool {
                self.compare_exchange(old, new, Acquire, Relaxed).is_ok()
            }

            fn add_release(&self, more: u32) {
                self.fetch_add(more, Release);
            }
        }
    )*};
}

counters!(AtomicU32, std::sync::atomic::AtomicU32);

fn piece(number: u64) -> Piece {
    Piece {
        from: number + 1,
        to: number,
        len: 1,
    }
}

/// What two threads do, in all orders with at most three preemptions: each piece is made once, what was submitted is there after the end, and slots are
/// not used again before. If `lost` is one of the pieces it cannot be copied, and the end says so.
fn in_any_order<const SLOTS: usize, const GROUP: u32>(pieces: u64, lost: u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let queue = loom::sync::Arc::new(CopyQueue::<AtomicU32, AtomicU64, SLOTS, GROUP>::new());
        let memory: loom::sync::Arc<[AtomicU64; 4]> =
            loom::sync::Arc::new(core::array::from_fn(|_| AtomicU64::new(0)));
        let (there, target) = (queue.clone(), memory.clone());
        // By adding, so that nothing is copied twice unseen.
        let copy = move |memory: &[AtomicU64; 4], piece: Piece| {
            memory[piece.to as usize].fetch_add(piece.from, Relaxed);
            piece.to != lost
        };
        let worker = loom::thread::spawn(move || {
            for _ in 0..2 {
                there.work(|piece| copy(&target, piece));
            }
        });
        for number in 0..pieces {
            if queue.is_full() {
                queue.drain(|piece| copy(&memory, piece), loom::thread::yield_now);
            }
            queue.submit(piece(number));
        }
        let copied = queue.finish(|piece| copy(&memory, piece), loom::thread::yield_now);
        assert_eq!(copied, lost >= pieces);
        for (number, word) in (0..pieces).zip(&*memory) {
            assert_eq!(word.load(Relaxed), number + 1);
        }
        worker.join().unwrap();
    });
}

#[test]
fn all_is_copied_once_in_any_order() {
    in_any_order::<2, 1>(3, 9);
    in_any_order::<4, 2>(4, 9);
}

#[test]
fn what_cannot_be_copied_is_told_in_any_order() {
    for lost in 0..3 {
        in_any_order::<2, 1>(3, lost);
    }
}

/// The counts begin where they wrap around soon. Some pieces cannot be copied: their batch says so, and no other.
#[test]
fn batches_that_fail_say_so() {
    type Queue = CopyQueue<std::sync::atomic::AtomicU32, std::sync::atomic::AtomicU64, 64, 4>;
    let queue = Arc::new(Queue::new());
    let start = u32::MAX - 500;
    for count in [
        &queue.own.0.filled,
        &queue.own.0.before,
        &queue.published.0,
        &queue.begun.0,
        &queue.results.0.done,
    ] {
        count.store(start, Relaxed);
    }
    let made = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let ends = Arc::new(AtomicBool::new(false));
    let workers = [(); 2].map(|()| {
        let (queue, made, ends) = (queue.clone(), made.clone(), ends.clone());
        thread::spawn(move || {
            while !ends.load(Relaxed) {
                queue.work(|piece| {
                    made.fetch_add(piece.len, Relaxed);
                    piece.from % 97 != 0
                });
            }
        })
    });
    let copy = |piece: Piece| {
        made.fetch_add(piece.len, Relaxed);
        piece.from % 97 != 0
    };
    let mut number = 0;
    for batch in 1..200 {
        let numbers = number..number + batch;
        for number in numbers.clone() {
            if queue.is_full() {
                queue.drain(copy, thread::yield_now);
            }
            queue.submit(piece(number));
        }
        let good = numbers.clone().all(|number| (number + 1) % 97 != 0);
        assert_eq!(queue.finish(copy, thread::yield_now), good, "{numbers:?}");
        number = numbers.end;
        assert_eq!(made.load(Relaxed), number);
    }
    ends.store(true, Relaxed);
    workers.map(|worker| worker.join().unwrap());
}
