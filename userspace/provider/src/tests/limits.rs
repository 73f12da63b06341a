// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is refused, with which error, and that nothing else comes of it.

use nupa_proto::admin::QpStateCode;
use rustix::io::Errno;

use super::node::{pair, Shape, Side};
use crate::ffi::testing::{recv, send, sys, Send, SendExt};

const SIGNALED: u32 = sys::IBV_SEND_SIGNALED;

fn write(a: &Side, b: &Side, wr_id: u64, flags: u32, sges: &mut [sys::ibv_sge]) -> Send {
    assert!(a.qp.qpn > 0);
    send(wr_id, sys::IBV_WR_RDMA_WRITE, flags)
        .with(sges)
        .remote(b.node.memory, b.node.key)
}

fn refused(error: Errno, at: usize) -> Result<(), (i32, usize)> {
    Err((error.raw_os_error(), at))
}

#[test]
fn a_list_is_posted_up_to_the_request_that_is_refused() {
    let (a, b) = pair(Shape {
        sge: 2,
        ..Shape::default()
    });
    let (mut one, mut many) = ([a.node.sge(0, 8)], [a.node.sge(0, 8); 3]);
    let mut last = one;
    let mut list = [
        write(&a, &b, 1, SIGNALED, &mut one),
        write(&a, &b, 2, SIGNALED, &mut many),
        write(&a, &b, 3, SIGNALED, &mut last),
    ];
    assert_eq!(a.qp.qp.post_send(&mut list), refused(Errno::INVAL, 1));
    a.node.run();
    assert_eq!(a.completion().wr_id, 1);
    let (mut one, mut many) = ([b.node.sge(0, 8)], [b.node.sge(0, 8); 3]);
    let mut list = [recv(1, &mut one), recv(2, &mut many)];
    assert_eq!(b.qp.qp.post_recv(&mut list), refused(Errno::INVAL, 1));
}

#[test]
fn too_much_inline_data_and_unknown_operations_are_invalid() {
    let (a, b) = pair(Shape {
        inline: 16,
        ..Shape::default()
    });
    let mut bytes = [7u8; 17];
    let mut sge = [sys::ibv_sge {
        addr: bytes.as_mut_ptr().expose_provenance() as u64,
        length: 17,
        lkey: 0,
    }];
    let request = write(&a, &b, 1, SIGNALED | sys::IBV_SEND_INLINE, &mut sge);
    assert_eq!(a.qp.qp.post_send(&mut [request]), refused(Errno::INVAL, 0));
    for opcode in [sys::IBV_WR_TSO, sys::IBV_WR_DRIVER1, 99] {
        let request = send(2, opcode, SIGNALED);
        assert_eq!(a.qp.qp.post_send(&mut [request]), refused(Errno::INVAL, 0));
    }
    assert_eq!(a.node.run(), 0);
    assert!(a.cq.cq.poll(1).is_empty());
}

#[test]
fn a_full_queue_has_no_room_until_completions_are_polled() {
    let (a, b) = pair(Shape {
        requests: 64,
        sge: 1,
        inline: 0,
        ..Shape::default()
    });
    let mut sge = [a.node.sge(0, 8)];
    for round in 0..5u64 {
        for n in 0..64 {
            // One completion for all: it says that everything before is done too.
            let flags = if n == 63 { SIGNALED } else { 0 };
            a.qp.qp
                .post_send(&mut [write(&a, &b, round, flags, &mut sge)])
                .unwrap();
        }
        let more = write(&a, &b, 99, SIGNALED, &mut sge);
        assert_eq!(a.qp.qp.post_send(&mut [more]), refused(Errno::NOMEM, 0));
        a.node.run();
        // The controller is done, but a program that does not poll has not heard of it.
        assert_eq!(a.qp.qp.post_send(&mut [more]), refused(Errno::NOMEM, 0));
        let wc = a.completion();
        assert_eq!((wc.wr_id, wc.status), (round, sys::IBV_WC_SUCCESS));
    }
    let mut sge = [b.node.sge(0, 8)];
    for n in 0..64 {
        b.qp.qp.post_recv(&mut [recv(n, &mut sge)]).unwrap();
    }
    assert_eq!(
        b.qp.qp.post_recv(&mut [recv(64, &mut sge)]),
        refused(Errno::NOMEM, 0)
    );
}

#[test]
fn states_that_take_no_requests_refuse_them() {
    let (a, b) = pair(Shape::default());
    let mut sge = [a.node.sge(0, 8)];
    let request = write(&a, &b, 1, SIGNALED, &mut sge);
    a.qp.qp.set_state(sys::IBV_QPS_RTR);
    assert_eq!(a.qp.qp.post_send(&mut [request]), refused(Errno::INVAL, 0));
    a.qp.qp.set_state(sys::IBV_QPS_RESET);
    assert_eq!(
        a.qp.qp.post_recv(&mut [recv(1, &mut sge)]),
        refused(Errno::INVAL, 0)
    );
}

#[test]
fn the_error_state_flushes_what_is_posted() {
    let (a, b) = pair(Shape::default());
    a.node.modify(&a.qp, QpStateCode::Err, |_| ());
    let mut sge = [a.node.sge(0, 8)];
    a.qp.qp.post_recv(&mut [recv(5, &mut sge)]).unwrap();
    a.qp.qp
        .post_send(&mut [write(&a, &b, 6, 0, &mut sge)])
        .unwrap();
    a.node.run();
    let mut seen: Vec<_> =
        a.cq.cq
            .poll(4)
            .iter()
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
    seen.sort_unstable();
    let flushed = sys::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(seen, [(5, flushed), (6, flushed)]);
}
