// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine, from a request posted to its completion polled, against memcpy on the same memory.

#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a benchmark may fail loudly"
)]

use std::hint::black_box;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use guestmem::GuestMemory;
use nupa_bench::{Pair, BUFFERS};
use nupa_engine::client::{Data, Operation, SendRequest};
use nupa_proto::admin::QpType;
use nupa_proto::frame::FrameMeta;
use nupa_proto::ident::DMA_LKEY;
use nupa_proto::wqe::{Sge, WQE_SIGNALED};
use zerocopy::little_endian::{U32, U64};

const SIZES: [u32; 4] = [8, 64, 4096, 65536];

fn sge(len: u32, key: u32) -> Sge {
    Sge {
        addr: U64::new(BUFFERS),
        len: U32::new(len),
        lkey: U32::new(key),
    }
}

fn request<'a>(operation: Operation, data: Data<'a>) -> SendRequest<'a> {
    SendRequest {
        wr_id: 1,
        flags: WQE_SIGNALED,
        operation,
        data,
    }
}

fn round(pair: &mut Pair, request: &SendRequest<'_>, push: bool) {
    assert_eq!(pair.round(black_box(request), push), Some(0));
}

/// One operation at a time: post, ring, kick, poll.
fn operations(c: &mut Criterion) {
    let mut pair = Pair::new(QpType::Rc);
    let [a, b] = &pair.ends;
    let (local, remote) = (a.key, b.key);
    let write = Operation::Write {
        addr: BUFFERS,
        rkey: remote,
        imm: None,
    };
    let read = Operation::Read {
        addr: BUFFERS,
        rkey: remote,
    };
    for (name, operation) in [("write", write), ("read", read)] {
        let mut group = c.benchmark_group(name);
        for size in SIZES {
            let sges = [sge(size, local)];
            let request = request(operation, Data::Sges(&sges));
            group.throughput(Throughput::Bytes(u64::from(size)));
            group.bench_function(BenchmarkId::from_parameter(size), |bench| {
                bench.iter(|| round(&mut pair, &request, false));
            });
        }
        group.finish();
    }
    let inline = request(write, Data::Inline(&[7; 32]));
    c.bench_function("write_inline/32", |bench| {
        bench.iter(|| round(&mut pair, &inline, false));
    });
    c.bench_function("write_push/32", |bench| {
        bench.iter(|| round(&mut pair, &inline, true));
    });
}

/// Many requests to one doorbell: what is left of the cost per operation.
fn batches(c: &mut Criterion) {
    const BATCH: u32 = 32;
    let mut pair = Pair::new(QpType::Rc);
    let [a, b] = &pair.ends;
    let sges = [sge(64, a.key)];
    let operation = Operation::Write {
        addr: BUFFERS,
        rkey: b.key,
        imm: None,
    };
    let request = request(operation, Data::Sges(&sges));
    let mut group = c.benchmark_group("write_batch");
    group.throughput(Throughput::Elements(u64::from(BATCH)));
    group.bench_function("64", |bench| {
        bench.iter(|| {
            let [a, _] = &mut pair.ends;
            for _ in 0..BATCH {
                a.send.post(black_box(&request)).expect("room");
            }
            a.send.ring();
            pair.serve();
            let mut taken = 0;
            while pair.take().is_some() {
                taken += 1;
            }
            assert_eq!(taken, BATCH);
        });
    });
    group.finish();
}

/// Frames into 4 KiB buffers, receive completions and new buffers included.
fn frames(c: &mut Criterion) {
    let mut pair = Pair::new(QpType::Raw);
    pair.fill_receive();
    let mut group = c.benchmark_group("frame");
    for size in [64, 1514, 65549] {
        let sges = [sge(size, DMA_LKEY)];
        let meta = FrameMeta::default();
        let request = request(Operation::Frame { node: 1, meta }, Data::Sges(&sges));
        group.throughput(Throughput::Bytes(u64::from(size)));
        group.bench_function(BenchmarkId::from_parameter(size), |bench| {
            bench.iter(|| {
                round(&mut pair, &request, false);
                pair.receive().expect("frame")
            });
        });
    }
    group.finish();
}

/// The same memory, copied and nothing else.
fn memcpy(c: &mut Criterion) {
    let pair = Pair::new(QpType::Rc);
    let [a, b] = &pair.ends;
    let (from, to) = (a.machine.guest(), b.machine.guest());
    let mut group = c.benchmark_group("memcpy");
    for size in SIZES {
        group.throughput(Throughput::Bytes(u64::from(size)));
        group.bench_function(BenchmarkId::from_parameter(size), |bench| {
            bench.iter(|| {
                let len = black_box(size as usize);
                GuestMemory::copy(from, BUFFERS, to, BUFFERS, len).expect("mapped");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, operations, batches, frames, memcpy);
criterion_main!(benches);
