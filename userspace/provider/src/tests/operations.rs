// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `ibv_post_send()` and `ibv_post_recv()`: every operation moves its bytes and completes as what it was.

use super::node::{pair, pattern, Shape, Side, LEN};
use crate::ffi::testing::{imm, recv, send, sys, SendExt};

const SIGNALED: u32 = sys::IBV_SEND_SIGNALED;
const INLINE: u32 = sys::IBV_SEND_INLINE;

fn ok(wc: &sys::ibv_wc, wr_id: u64, opcode: sys::ibv_wc_opcode) {
    assert_eq!(
        (wc.wr_id, wc.status, wc.opcode),
        (wr_id, sys::IBV_WC_SUCCESS, opcode)
    );
}

/// Posts a receive of two entries.
fn receive(side: &Side, wr_id: u64, offset: usize, len: u32) {
    let mut sges = [
        side.node.sge(offset, len / 2),
        side.node.sge(offset + len as usize / 2, len - len / 2),
    ];
    side.qp.qp.post_recv(&mut [recv(wr_id, &mut sges)]).unwrap();
    side.node.run();
}

#[test]
fn writes_and_reads_of_all_sizes_and_splits() {
    let (a, b) = pair(Shape {
        sge: 16,
        ..Shape::default()
    });
    for (count, len) in [
        (1, 1),
        (1, 64),
        (2, 65),
        (3, 4096),
        (16, 100_000),
        (1, LEN as u32),
    ] {
        let bytes = pattern(len as usize, count as u8);
        a.node.fill(0, &bytes);
        b.node.fill(0, &vec![0; len as usize]);
        let piece = len / count;
        let mut sges: Vec<_> = (0..count)
            .map(|n| {
                let size = if n + 1 == count {
                    len - piece * n
                } else {
                    piece
                };
                a.node.sge((piece * n) as usize, size)
            })
            .collect();
        let write = send(1, sys::IBV_WR_RDMA_WRITE, SIGNALED)
            .with(&mut sges)
            .remote(b.node.memory, b.node.key);
        a.qp.qp.post_send(&mut [write]).unwrap();
        a.node.run();
        ok(&a.completion(), 1, sys::IBV_WC_RDMA_WRITE);
        assert_eq!(b.node.bytes(0, len as usize), bytes);
        a.node.fill(0, &vec![0; len as usize]);
        let read = send(2, sys::IBV_WR_RDMA_READ, SIGNALED)
            .with(&mut sges)
            .remote(b.node.memory, b.node.key);
        a.qp.qp.post_send(&mut [read]).unwrap();
        a.node.run();
        let wc = a.completion();
        ok(&wc, 2, sys::IBV_WC_RDMA_READ);
        assert_eq!(a.node.bytes(0, len as usize), bytes);
    }
}

#[test]
fn sends_and_immediate_data_arrive() {
    let (a, b) = pair(Shape::default());
    let bytes = pattern(3000, 9);
    a.node.fill(0, &bytes);
    let mut sge = [a.node.sge(0, 3000)];
    receive(&b, 7, 100, 4000);
    let request = send(3, sys::IBV_WR_SEND_WITH_IMM, SIGNALED)
        .with(&mut sge)
        .imm(0x0102_0304);
    a.qp.qp.post_send(&mut [request]).unwrap();
    a.node.run();
    ok(&a.completion(), 3, sys::IBV_WC_SEND);
    let wc = b.completion();
    ok(&wc, 7, sys::IBV_WC_RECV);
    assert_eq!(
        (wc.byte_len, wc.qp_num, wc.wc_flags),
        (3000, b.qp.qpn, sys::IBV_WC_WITH_IMM)
    );
    assert_eq!(imm(&wc), 0x0102_0304);
    assert_eq!(b.node.bytes(100, 3000), bytes);
    // A receive without entries will do for a WRITE.
    b.qp.qp.post_recv(&mut [recv(8, &mut [])]).unwrap();
    b.node.run();
    let request = send(4, sys::IBV_WR_RDMA_WRITE_WITH_IMM, SIGNALED)
        .with(&mut sge)
        .remote(b.node.memory + 8192, b.node.key)
        .imm(5);
    a.qp.qp.post_send(&mut [request]).unwrap();
    a.node.run();
    ok(&a.completion(), 4, sys::IBV_WC_RDMA_WRITE);
    let wc = b.completion();
    ok(&wc, 8, sys::IBV_WC_RECV_RDMA_WITH_IMM);
    assert_eq!((imm(&wc), wc.wc_flags), (5, sys::IBV_WC_WITH_IMM));
    assert_eq!(b.node.bytes(8192, 3000), bytes);
}

#[test]
fn inline_data_is_taken_when_posted() {
    let (a, b) = pair(Shape {
        inline: 224,
        ..Shape::default()
    });
    for len in [0usize, 1, 31, 32, 33, 64, 96, 224] {
        let bytes = pattern(len, 3);
        b.node.fill(0, &[0xee; 256]);
        let (first, second) = bytes.split_at(len / 3);
        let (mut first, mut second) = (first.to_vec(), second.to_vec());
        let entry = |bytes: &mut Vec<u8>| sys::ibv_sge {
            addr: bytes.as_mut_ptr().expose_provenance() as u64,
            length: bytes.len() as u32,
            lkey: 0,
        };
        let mut sges = [entry(&mut first), entry(&mut second)];
        let write = send(1, sys::IBV_WR_RDMA_WRITE, SIGNALED | INLINE)
            .with(&mut sges)
            .remote(b.node.memory, b.node.key);
        a.qp.qp.post_send(&mut [write]).unwrap();
        (first, second) = (vec![1; first.len()], vec![1; second.len()]);
        a.node.run();
        drop((first, second));
        ok(&a.completion(), 1, sys::IBV_WC_RDMA_WRITE);
        assert_eq!(b.node.bytes(0, len), bytes);
        assert!(b
            .node
            .bytes(len, 256 - len)
            .iter()
            .all(|&byte| byte == 0xee));
    }
}

#[test]
fn atomics_return_what_was_there() {
    let (a, b) = pair(Shape::default());
    b.node.fill(64, &10u64.to_le_bytes());
    let mut sge = [a.node.sge(8, 8)];
    let word = |side: &Side, at| u64::from_le_bytes(side.node.bytes(at, 8).try_into().unwrap());
    let remote = b.node.memory + 64;
    let add = send(1, sys::IBV_WR_ATOMIC_FETCH_AND_ADD, SIGNALED)
        .with(&mut sge)
        .atomic(remote, b.node.key, 5, 0);
    a.qp.qp.post_send(&mut [add]).unwrap();
    a.node.run();
    ok(&a.completion(), 1, sys::IBV_WC_FETCH_ADD);
    assert_eq!((word(&a, 8), word(&b, 64)), (10, 15));
    let swap = send(2, sys::IBV_WR_ATOMIC_CMP_AND_SWP, SIGNALED)
        .with(&mut sge)
        .atomic(remote, b.node.key, 15, 99);
    a.qp.qp.post_send(&mut [swap]).unwrap();
    a.node.run();
    ok(&a.completion(), 2, sys::IBV_WC_COMP_SWAP);
    assert_eq!((word(&a, 8), word(&b, 64)), (15, 99));
}

#[test]
fn a_wrong_key_is_an_error_and_the_rest_is_flushed() {
    let (a, b) = pair(Shape::default());
    b.node.fill(0, &[0x55; 64]);
    let mut sge = [a.node.sge(0, 64)];
    let bad = send(1, sys::IBV_WR_RDMA_WRITE, 0)
        .with(&mut sge)
        .remote(b.node.memory, b.node.key ^ 0x100);
    let mut sge = [a.node.sge(0, 64)];
    let next = send(2, sys::IBV_WR_RDMA_WRITE, 0)
        .with(&mut sge)
        .remote(b.node.memory, b.node.key);
    a.qp.qp.post_send(&mut [bad, next]).unwrap();
    a.node.run();
    let polled = a.cq.cq.poll(4);
    let seen: Vec<_> = polled.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(
        seen,
        [
            (1, sys::IBV_WC_REM_ACCESS_ERR),
            (2, sys::IBV_WC_WR_FLUSH_ERR)
        ]
    );
    assert_eq!(b.node.bytes(0, 64), [0x55; 64]);
}
