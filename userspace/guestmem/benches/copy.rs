// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Guest-to-guest copies against plain `copy_from_slice` on the same sizes.

#![allow(
    missing_docs,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

use std::hint::{black_box, spin_loop};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use guestmem::{GuestMemory, MapRequest, Rights};
use nupa_function::pool::{CopyQueue, Counter, Piece, Word};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

const LEN: u64 = 64 << 20;

fn file() -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("bench", flags).expect("memfd");
    ftruncate(&fd, LEN).expect("size");
    fd
}

/// A mapping of it.
fn mapped(file: &OwnedFd) -> GuestMemory {
    let mut memory = GuestMemory::new();
    let request = MapRequest {
        iova: 1 << 32,
        len: LEN,
        file: Some(file.as_fd()),
        offset: 0,
        rights: Rights::ReadWrite,
    };
    memory.map(&request).expect("map");
    memory
}

fn guest() -> GuestMemory {
    mapped(&file())
}

fn copies(c: &mut Criterion) {
    let (a, b) = (guest(), guest());
    let mut group = c.benchmark_group("copy");
    for size in [64_usize, 1500, 65536] {
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_with_input(BenchmarkId::new("guest", size), &size, |bench, &size| {
            bench.iter(|| GuestMemory::copy(&a, black_box(1 << 32), &b, 1 << 32, black_box(size)));
        });
        let (from, mut to) = (vec![1_u8; size], vec![0_u8; size]);
        group.bench_with_input(BenchmarkId::new("memcpy", size), &size, |bench, _| {
            bench.iter(|| black_box(&mut to).copy_from_slice(black_box(&from)));
        });
    }
    group.finish();
}

/// Bytes that an engine copies at one go.
const SLICE: usize = 65_536;

/// A word that processors share.
struct Shared<T>(T);

macro_rules! words {
    ($($atomic:ty, $type:ty);*) => {$(
        impl Word<$type> for Shared<$atomic> {
            fn new(value: $type) -> Self {
                Self(<$atomic>::new(value))
            }

            fn load_relaxed(&self) -> $type {
                self.0.load(Relaxed)
            }

            fn load_acquire(&self) -> $type {
                self.0.load(Acquire)
            }

            fn store_relaxed(&self, value: $type) {
                self.0.store(value, Relaxed);
            }

            fn store_release(&self, value: $type) {
                self.0.store(value, Release);
            }
        }
    )*};
}

words!(AtomicU32, u32; AtomicU64, u64);

impl Counter for Shared<AtomicU32> {
    fn exchange(&self, old: u32, new: u32) -> bool {
        self.0.compare_exchange(old, new, Acquire, Relaxed).is_ok()
    }

    fn add_release(&self, more: u32) {
        self.0.fetch_add(more, Release);
    }
}

/// As workers of the kernel's do (`copy_workers` of `nupa_fabric`): by slices, each of which two processors copy in pieces of a page.
fn shared_copies(c: &mut Criterion) {
    type Queue = CopyQueue<Shared<AtomicU32>, Shared<AtomicU64>, 32, 4>;
    let files = [file(), file()];
    let (queue, ends) = (Queue::new(), AtomicBool::new(false));
    let copier = || {
        // What is mapped is one thread's.
        let [a, b] = files.each_ref().map(mapped);
        move |piece: Piece| {
            GuestMemory::copy(&a, piece.from, &b, piece.to, piece.len as usize).is_ok()
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let copy = copier();
            while !ends.load(Relaxed) {
                if queue.work(&copy) == 0 {
                    spin_loop();
                }
            }
        });
        let copy = copier();
        let mut group = c.benchmark_group("large copy");
        group.sample_size(20);
        for mib in [1_u64, 4, 8, 16, 64] {
            group.throughput(Throughput::Bytes(mib << 20));
            group.bench_with_input(
                BenchmarkId::new("two processors", mib),
                &mib,
                |bench, &mib| {
                    bench.iter(|| {
                        for slice in (1 << 32..(1 << 32) + (mib << 20)).step_by(SLICE) {
                            for at in (slice..slice + SLICE as u64).step_by(4096) {
                                queue.submit(Piece {
                                    from: at,
                                    to: at,
                                    len: 4096,
                                });
                            }
                            assert!(queue.finish(&copy, spin_loop));
                        }
                    });
                },
            );
        }
        group.finish();
        ends.store(true, Relaxed);
    });
}

/// By slices, as an engine copies: from which length on nothing is gained by what the caches hold.
fn large_copies(c: &mut Criterion) {
    type Copy =
        fn(&GuestMemory, u64, &GuestMemory, u64, usize) -> Result<(), guestmem::AccessError>;
    let copies: [(&str, Copy); 2] = [
        ("ordinary", GuestMemory::copy),
        ("nontemporal", GuestMemory::copy_nontemporal),
    ];
    let (a, b) = (guest(), guest());
    let mut group = c.benchmark_group("large copy");
    group.sample_size(20);
    for mib in [1_u64, 4, 8, 16, 64] {
        group.throughput(Throughput::Bytes(mib << 20));
        for (name, copy) in copies {
            group.bench_with_input(BenchmarkId::new(name, mib), &mib, |bench, &mib| {
                bench.iter(|| {
                    for at in (1 << 32..(1 << 32) + (mib << 20)).step_by(SLICE) {
                        copy(&a, at, &b, at, SLICE).expect("mapped");
                    }
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, copies, large_copies, shared_copies);
criterion_main!(benches);
