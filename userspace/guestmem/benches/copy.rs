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

use std::hint::black_box;
use std::os::fd::AsFd;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use guestmem::{GuestMemory, MapRequest, Rights};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

const LEN: u64 = 64 << 20;

fn guest() -> GuestMemory {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("bench", flags).expect("memfd");
    ftruncate(&fd, LEN).expect("size");
    let mut memory = GuestMemory::new();
    let request = MapRequest {
        iova: 1 << 32,
        len: LEN,
        file: Some(fd.as_fd()),
        offset: 0,
        rights: Rights::ReadWrite,
    };
    memory.map(&request).expect("map");
    memory
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

/// By slices, as an engine copies: from which length on nothing is gained by what the caches hold.
fn large_copies(c: &mut Criterion) {
    const SLICE: usize = 65_536;
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

criterion_group!(benches, copies, large_copies);
criterion_main!(benches);
