// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `ibv_wr_*()`: batches, single requests through the push slot, and batches that are taken back.

use nupa_proto::doorbell::PUSH_OFFSET;
use rustix::io::Errno;

use super::node::{pair, pattern, Shape};
use crate::ffi::testing::sys;

const SIGNALED: u32 = sys::IBV_SEND_SIGNALED;

#[test]
fn a_batch_is_handed_over_at_once() {
    let (a, b) = pair(Shape::default());
    let bytes = pattern(4096, 7);
    a.node.fill(0, &bytes);
    b.node.fill(8192, &3u64.to_le_bytes());
    let (rkey, memory) = (b.node.key, b.node.memory);
    let mut inline = *b"inline";
    let result = a.qp.qp.batch(true, |batch| {
        batch
            .next(1, SIGNALED)
            .write(rkey, memory)
            .sges(&[a.node.sge(0, 1000), a.node.sge(1000, 3096)]);
        batch
            .next(2, SIGNALED)
            .write(rkey, memory + 4096)
            .inline(&mut inline);
        batch
            .next(3, SIGNALED)
            .fetch_add(rkey, memory + 8192, 4)
            .sges(&[a.node.sge(16384, 8)]);
        batch
            .next(4, SIGNALED)
            .atomic_write(rkey, memory + 8200, *b"8 bytes.");
    });
    assert_eq!(result, 0);
    assert_eq!(a.node.run(), 1, "one kick for all");
    let seen: Vec<_> =
        a.cq.cq
            .poll(8)
            .iter()
            .map(|wc| (wc.wr_id, wc.status, wc.opcode))
            .collect();
    let ok = sys::IBV_WC_SUCCESS;
    let expected = [
        (1, ok, sys::IBV_WC_RDMA_WRITE),
        (2, ok, sys::IBV_WC_RDMA_WRITE),
        (3, ok, sys::IBV_WC_FETCH_ADD),
        (4, ok, sys::IBV_WC_ATOMIC_WRITE),
    ];
    assert_eq!(seen, expected);
    assert_eq!(b.node.bytes(0, 4096), bytes);
    assert_eq!(b.node.bytes(4096, 6), *b"inline");
    assert_eq!(b.node.bytes(8192, 16), *b"\x07\0\0\0\0\0\0\x008 bytes.");
    assert_eq!(a.node.bytes(16384, 8), 3u64.to_le_bytes());
}

#[test]
fn a_single_short_request_goes_through_the_push_slot() {
    let (a, b) = pair(Shape::default());
    let slots = PUSH_OFFSET..4096;
    let shared = super::common::guest::FIRST_UNUSED - 2 * 4096;
    let used = |node: &super::node::Node| {
        let mut bytes = vec![0; slots.len()];
        node.guest
            .ram
            .read(shared + slots.start, &mut bytes)
            .unwrap();
        bytes.iter().any(|&byte| byte != 0)
    };
    assert!(!used(&a.node));
    let result = a.qp.qp.batch(true, |batch| {
        batch
            .next(1, SIGNALED)
            .write(b.node.key, b.node.memory)
            .sges(&[a.node.sge(0, 64)]);
    });
    assert_eq!(result, 0);
    assert!(used(&a.node));
    a.node.run();
    assert_eq!(a.completion().status, sys::IBV_WC_SUCCESS);
}

#[test]
fn nothing_of_a_batch_that_is_aborted_or_refused_is_posted() {
    let (a, b) = pair(Shape {
        sge: 1,
        inline: 8,
        ..Shape::default()
    });
    let (rkey, memory) = (b.node.key, b.node.memory);
    let aborted = a.qp.qp.batch(false, |batch| {
        batch
            .next(1, SIGNALED)
            .write(rkey, memory)
            .sges(&[a.node.sge(0, 8)]);
        batch
            .next(2, SIGNALED)
            .write(rkey, memory)
            .sges(&[a.node.sge(0, 8)]);
    });
    assert_eq!(aborted, 0);
    let mut long = [0; 9];
    let refused = a.qp.qp.batch(true, |batch| {
        batch
            .next(3, SIGNALED)
            .write(rkey, memory)
            .sges(&[a.node.sge(0, 8)]);
        batch
            .next(4, SIGNALED)
            .write(rkey, memory)
            .inline(&mut long);
        batch
            .next(5, SIGNALED)
            .write(rkey, memory)
            .sges(&[a.node.sge(0, 8)]);
    });
    assert_eq!(refused, Errno::INVAL.raw_os_error());
    let full = a.qp.qp.batch(true, |batch| {
        for n in 0..65 {
            batch
                .next(n, SIGNALED)
                .write(rkey, memory)
                .sges(&[a.node.sge(0, 8)]);
        }
    });
    assert_eq!(full, Errno::NOMEM.raw_os_error());
    assert_eq!(a.node.run(), 0);
    assert!(a.cq.cq.poll(1).is_empty());
    let good = a.qp.qp.batch(true, |batch| {
        batch
            .next(6, SIGNALED)
            .write(rkey, memory)
            .sges(&[a.node.sge(0, 8)]);
    });
    assert_eq!(good, 0);
    a.node.run();
    assert_eq!(a.completion().wr_id, 6);
}
