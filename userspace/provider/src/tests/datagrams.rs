// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Datagrams: addresses, queue keys and the header that the receiver gets.

use nupa_proto::admin::{AdminOpcode, QpType, SetGid, GID_VALID};
use nupa_proto::wqe::GrhSegment;
use rustix::io::Errno;

use super::node::{pair, pattern, Node, Shape, Side, QKEY};
use crate::ffi::testing::{recv, send, sys, Ah, SendExt};

/// An IPv4 address as a GID.
fn gid(last: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, last]);
    gid
}

fn set_gid(node: &Node) {
    let command = SetGid {
        gid: gid(node.guest.node as u8),
        index: 0.into(),
        flags: GID_VALID.into(),
        ..SetGid::default()
    };
    node.guest
        .command::<_, [u8; 0]>(AdminOpcode::SetGid, &command)
        .unwrap();
}

fn datagrams() -> (Side, Side, Ah) {
    let (a, b) = pair(Shape {
        qp_type: QpType::Ud,
        ..Shape::default()
    });
    set_gid(&a.node);
    set_gid(&b.node);
    let grh = GrhSegment {
        dgid: gid(1),
        hop_limit: 64,
        ..GrhSegment::default()
    };
    let ah = Ah::new(b.node.guest.node, grh);
    (a, b, ah)
}

fn receive(b: &Side, wr_id: u64) {
    let mut sge = [b.node.sge(0, 40 + 2048)];
    b.qp.qp.post_recv(&mut [recv(wr_id, &mut sge)]).unwrap();
    b.node.run();
}

fn check(b: &Side, a: &Side, wr_id: u64, bytes: &[u8]) {
    let wc = b.completion();
    assert_eq!(
        (wc.wr_id, wc.status, wc.opcode),
        (wr_id, sys::IBV_WC_SUCCESS, sys::IBV_WC_RECV)
    );
    assert_eq!(
        (wc.byte_len as usize, wc.src_qp),
        (bytes.len() + 40, a.qp.qpn)
    );
    assert_eq!((wc.wc_flags, wc.sl), (sys::IBV_WC_GRH, 2));
    assert_eq!(b.node.bytes(40, bytes.len()), bytes);
    // An IPv4 header in the last 20 bytes, from the sender's address to ours.
    let header = b.node.bytes(20, 20);
    assert_eq!(
        (header[0], &header[12..]),
        (0x45, &[10, 77, 0, 0, 10, 77, 0, 1][..])
    );
}

#[test]
fn a_datagram_arrives_with_its_header() {
    let (a, b, ah) = datagrams();
    let bytes = pattern(1500, 1);
    a.node.fill(0, &bytes);
    receive(&b, 4);
    let mut sges = [a.node.sge(0, 700), a.node.sge(700, 800)];
    let request = send(1, sys::IBV_WR_SEND, sys::IBV_SEND_SIGNALED)
        .with(&mut sges)
        .to(&ah, b.qp.qpn, QKEY);
    a.qp.qp.post_send(&mut [request]).unwrap();
    a.node.run();
    assert_eq!(a.completion().status, sys::IBV_WC_SUCCESS);
    check(&b, &a, 4, &bytes);
}

#[test]
fn a_datagram_made_piece_by_piece_arrives_too() {
    let (a, b, ah) = datagrams();
    let mut bytes = pattern(60, 2);
    receive(&b, 5);
    let sent = a.qp.qp.batch(true, |batch| {
        batch
            .next(2, sys::IBV_SEND_SIGNALED)
            .send()
            .to(&ah, b.qp.qpn, QKEY)
            .inline(&mut bytes);
    });
    assert_eq!(sent, 0);
    a.node.run();
    assert_eq!(a.completion().wr_id, 2);
    check(&b, &a, 5, &bytes);
}

#[test]
fn a_wrong_queue_key_reaches_nobody() {
    let (a, b, ah) = datagrams();
    receive(&b, 6);
    let mut sge = [a.node.sge(0, 10)];
    let request = send(3, sys::IBV_WR_SEND, sys::IBV_SEND_SIGNALED)
        .with(&mut sge)
        .to(&ah, b.qp.qpn, QKEY ^ 1);
    a.qp.qp.post_send(&mut [request]).unwrap();
    a.node.run();
    assert_eq!(a.completion().status, sys::IBV_WC_SUCCESS);
    assert!(b.cq.cq.poll(1).is_empty());
}

#[test]
fn only_sends_with_an_address_are_datagrams() {
    let (a, b, _ah) = datagrams();
    let mut sge = [a.node.sge(0, 10)];
    let invalid = Err((Errno::INVAL.raw_os_error(), 0));
    let write = send(1, sys::IBV_WR_RDMA_WRITE, 0)
        .with(&mut sge)
        .remote(b.node.memory, b.node.key);
    assert_eq!(a.qp.qp.post_send(&mut [write]), invalid);
    let nowhere = send(2, sys::IBV_WR_SEND, 0).with(&mut sge);
    assert_eq!(a.qp.qp.post_send(&mut [nowhere]), invalid);
}
