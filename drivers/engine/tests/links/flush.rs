// SPDX-License-Identifier: GPL-2.0 OR MIT
//! FLUSH of device memory: what was written is in the memory itself afterwards, also where caches of hosts are not coherent.

use super::parts::{pair, pattern, post, End, OK};
use nupa_engine::rings::{Data, Operation};
use nupa_proto::wqe::{FlushSegment, FLUSH_GLOBAL, FLUSH_MR, FLUSH_RANGE};
use nupa_testing::{World, POOL};
use zerocopy::little_endian::{U32, U64};

const LEN: u64 = 8192;

/// Asks for bytes of `b`'s region to be flushed, or all of it.
fn post_flush(a: &mut End, b: &End, level: u8, at: u64, len: u32) {
    let segment = FlushSegment {
        addr: U64::new(b.mr.iova + at),
        rkey: U32::new(b.mr.key),
        len: U32::new(len),
        kind: FLUSH_GLOBAL,
        level,
        ..FlushSegment::default()
    };
    post(&mut a.qp, 9, Operation::Flush(segment), Data::Sges(&[]));
}

fn flush(world: &mut World, a: &mut End, b: &End, level: u8, at: u64, len: u32) {
    post_flush(a, b, level, at, len);
    world.pump();
    assert_eq!(a.done(), [(9, OK)]);
}

/// Whether the memory behind all caches holds `bytes` at an offset of the region.
fn holds(world: &World, b: &End, at: usize, bytes: &[u8]) -> bool {
    let first = b.mr.addr - POOL + at as u64;
    let mut words = (first..).step_by(8).zip(bytes.chunks_exact(8));
    words.all(|(word, wanted)| world.shared.peek::<8>(word) == wanted)
}

#[test]
fn flushed_bytes_are_in_the_memory_itself() {
    let (mut world, mut a, mut b) = pair();
    if world.engine.device_memory(1).is_none() {
        return;
    }
    b.mr = b.host.device_mr(&mut world, LEN);
    for (seed, level, at, len) in [(1, FLUSH_RANGE, 64, 4096), (2, FLUSH_MR, 0, LEN as u32)] {
        let bytes = pattern(LEN as usize, seed);
        a.fill(0, &bytes);
        a.write(1, &b.mr, 0, LEN as u32);
        world.pump();
        assert_eq!(a.done(), [(1, OK)]);
        flush(&mut world, &mut a, &b, level, at, len);
        let range = at as usize..at as usize + len as usize;
        assert!(holds(&world, &b, range.start, &bytes[range]));
    }
}

/// What a flush writes back takes time as moving it does, so others get their turns in between.
#[test]
fn flushes_of_regions_take_turns() {
    const FLUSHES: usize = 20;
    /// A turn, and the slice that it may be exceeded by.
    const TURN: usize = 5 << 16;
    // Three slices each, and just one.
    for len in [192 << 10, 64 << 10] {
        let (mut world, mut a, mut b) = pair();
        if world.engine.device_memory(1).is_none() {
            return;
        }
        b.mr = b.host.device_mr(&mut world, len);
        for _ in 0..FLUSHES {
            post_flush(&mut a, &b, FLUSH_MR, 0, 0);
        }
        let mut done = 0;
        while done < FLUSHES {
            world.turns(1);
            for host in &mut world.nodes.hosts {
                let most = host.take_most_moved();
                assert!(most <= TURN, "{most} in one turn");
            }
            done += a.done().len();
        }
        let all = world.machine(1).ram().written_back();
        assert_eq!(all, FLUSHES * len as usize);
    }
}
