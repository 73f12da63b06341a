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

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use guestmem::MmapRegion;
use nupa_bench::{Pair, RECV_BUFFER};
use nupa_engine::rings::{Data, Operation, SendRequest};
use nupa_proto::admin::QpType;
use nupa_proto::frame::FrameMeta;
use nupa_proto::wqe::WQE_SIGNALED;
use nupa_testing::BASE;

fn request(operation: Operation, data: Data<'_>) -> SendRequest<'_> {
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

/// One group per operation and size: the engine, and a copy of the same memory and nothing else.
fn compare(
    c: &mut Criterion,
    name: &str,
    size: u32,
    pair: Pair,
    mut engine: impl FnMut(&mut Pair),
) {
    let mut pair = pair;
    let mut group = c.benchmark_group(format!("{name}_{size}"));
    group.throughput(Throughput::Bytes(u64::from(size)));
    group.bench_function("engine", |bench| bench.iter(|| engine(&mut pair)));
    let [a, b] = &pair.ends;
    let (from, to) = (a.machine.ram().own(), b.machine.ram().own());
    let [source, target] = [&a.mr, &b.mr].map(|mr| (mr.addr - BASE) as usize);
    group.bench_function("memcpy", |bench| {
        bench.iter(|| {
            let len = black_box(size as usize);
            MmapRegion::copy(from, source, to, target, len).expect("mapped");
        });
    });
    group.finish();
}

/// One operation at a time: post, ring, kick, poll.
fn operations(c: &mut Criterion) {
    for size in [8, 64, 4096, 65536] {
        let pair = Pair::new(QpType::Rc);
        let [a, b] = &pair.ends;
        let (sges, addr, rkey) = ([a.mr.sge(0, size)], b.mr.iova, b.mr.key);
        let imm = None;
        let write = request(Operation::Write { addr, rkey, imm }, Data::Sges(&sges));
        compare(c, "write", size, pair, |pair| round(pair, &write, false));
        let pair = Pair::new(QpType::Rc);
        let read = request(Operation::Read { addr, rkey }, Data::Sges(&sges));
        compare(c, "read", size, pair, |pair| round(pair, &read, false));
        let mut pair = Pair::new(QpType::Rc);
        if size <= RECV_BUFFER {
            pair.fill_receive();
            let send = request(Operation::Send { imm }, Data::Sges(&sges));
            compare(c, "send", size, pair, |pair| {
                round(pair, &send, false);
                pair.receive().expect("message");
            });
        }
    }
}

/// Small data in the descriptor, fetched from the ring and taken from the push slot.
fn inline(c: &mut Criterion) {
    let mut pair = Pair::new(QpType::Rc);
    let [_, b] = &pair.ends;
    let (addr, rkey, imm) = (b.mr.iova, b.mr.key, None);
    let write = request(Operation::Write { addr, rkey, imm }, Data::Inline(&[7; 32]));
    let mut group = c.benchmark_group("write_inline_32");
    group.bench_function("fetched", |bench| {
        bench.iter(|| round(&mut pair, &write, false))
    });
    group.bench_function("pushed", |bench| {
        bench.iter(|| round(&mut pair, &write, true))
    });
    group.finish();
}

/// Many requests to one doorbell: what is left of the cost per operation.
fn batches(c: &mut Criterion) {
    const BATCH: u32 = 32;
    let mut pair = Pair::new(QpType::Rc);
    let [a, b] = &pair.ends;
    let sges = [a.mr.sge(0, 64)];
    let operation = Operation::Write {
        addr: b.mr.iova,
        rkey: b.mr.key,
        imm: None,
    };
    let request = request(operation, Data::Sges(&sges));
    let mut group = c.benchmark_group("write_batch_64");
    group.throughput(Throughput::Elements(u64::from(BATCH)));
    group.bench_function("engine", |bench| {
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

/// One at a time, while many other queue pairs wait for receive buffers.
fn beside_waiting(c: &mut Criterion) {
    let mut group = c.benchmark_group("write_beside_10000");
    for (name, waiting) in [("alone", 0), ("engine", 10_000)] {
        let mut pair = Pair::beside(QpType::Rc, waiting);
        let [a, b] = &pair.ends;
        let (sges, addr, rkey, imm) = ([a.mr.sge(0, 64)], b.mr.iova, b.mr.key, None);
        let write = request(Operation::Write { addr, rkey, imm }, Data::Sges(&sges));
        group.bench_function(name, |bench| bench.iter(|| round(&mut pair, &write, false)));
    }
    group.finish();
}

/// Frames into 4 KiB buffers, receive completions and new buffers included.
fn frames(c: &mut Criterion) {
    for size in [64, 1514, 65549] {
        let mut pair = Pair::new(QpType::Raw);
        pair.fill_receive();
        let [a, _] = &pair.ends;
        let sges = [a.mr.dma(0, size)];
        let meta = FrameMeta::default();
        let frame = request(Operation::Frame { node: 1, meta }, Data::Sges(&sges));
        compare(c, "frame", size, pair, |pair| {
            round(pair, &frame, false);
            pair.receive().expect("frame");
        });
    }
}

criterion_group!(benches, operations, inline, batches, beside_waiting, frames);
criterion_main!(benches);
