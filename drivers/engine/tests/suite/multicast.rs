// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Multicast groups: who gets a copy, who does not, and how many there can be.

use super::datagrams::{ipv4, side, Side, OK, QKEY};
use nupa_engine::rings::Data;
use nupa_proto::{
    admin::*,
    cqe::{Cqe, CQE_GRH, CQE_IMM},
    ident::{MULTICAST_QPN, NODE_FLOOD},
    status::AdminStatus,
    wqe::{DatagramSegment, GrhSegment, MAX_DATAGRAM},
};
use nupa_testing::{Qp, World};
use zerocopy::little_endian::{U16, U32};

const GRH: usize = 40;
const COPY: u64 = 8192;
const FULL: Result<(), AdminStatus> = Err(AdminStatus::NoResources);
const UNKNOWN: Result<(), AdminStatus> = Err(AdminStatus::NoSuchObject);
const INVALID: Result<(), AdminStatus> = Err(AdminStatus::InvalidField);

/// The GID of IPv4 group 239.1.2.x.
fn group(last: u8) -> [u8; 16] {
    let mut gid = ipv4(last);
    gid[12..15].copy_from_slice(&[239, 1, 2]);
    gid
}

/// An IPv6 group.
fn group6(last: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xff, 0x0e, last);
    gid
}

fn to_all(qkey: u32) -> DatagramSegment {
    DatagramSegment {
        qpn: U32::new(MULTICAST_QPN),
        qkey: U32::new(qkey),
        node: U16::new(NODE_FLOOD),
        ..DatagramSegment::default()
    }
}

fn sides(count: u16) -> (World, Vec<Side>) {
    let mut world = World::new(*crate::MODE, count);
    let sides = (0..count).map(|id| side(&mut world, id)).collect();
    (world, sides)
}

fn drops(world: &World, id: u16) -> u64 {
    world.node(id).counters().rx_datagram_drops.get()
}

impl Side {
    /// Sends to a group from an address of IPv4 (3) or of IPv6 (0), which must succeed.
    fn cast(&mut self, world: &mut World, sgid: u16, dgid: [u8; 16], to: DatagramSegment) {
        let grh = GrhSegment {
            dgid,
            sgid_index: U16::new(sgid),
            ..GrhSegment::default()
        };
        self.post(to, grh, None, Data::Inline(b"to all"));
        world.pump();
    }

    /// Another queue pair on the same completion queue, which can receive.
    fn another(&mut self, world: &mut World) -> Qp {
        let qp = self.host.qp(world, QpType::Ud, &self.cq, 4);
        self.host.ready_datagrams(world, &qp, QKEY);
        qp
    }

    fn join(&self, world: &mut World, gid: [u8; 16]) {
        let joined = self.host.attach(world, self.qp.qpn, gid);
        joined.expect("there is room");
    }

    /// The queue's index in the only completion, a success.
    fn completed_at(&mut self) -> u32 {
        let found = self.cq.drain();
        assert_eq!((found.len(), found[0].status), (1, OK));
        found[0].queue_index.get()
    }

    /// Numbers of queue pairs that received something, in order; sends must have succeeded.
    fn receivers(&mut self) -> Vec<u32> {
        let found = self.cq.drain();
        assert!(found.iter().all(|cqe| cqe.status == OK), "{found:?}");
        let received = found.iter().filter(|cqe| cqe.flags & CQE_GRH != 0);
        let mut qpns: Vec<u32> = received.map(|cqe| cqe.qpn.get()).collect();
        qpns.sort_unstable();
        qpns
    }
}

#[test]
fn each_attached_queue_pair_gets_a_copy() {
    let (mut world, mut all) = sides(3);
    let bytes: Vec<u8> = (0..MAX_DATAGRAM).map(|i| (i * 11) as u8).collect();
    let mut others: Vec<Qp> = all.iter_mut().map(|a| a.another(&mut world)).collect();
    for (a, other) in all.iter_mut().zip(&mut others) {
        // The sender's own as well.
        a.join(&mut world, group(1));
        // The pages of the region lie in reverse order.
        a.mr = a.host.mr(&mut world, 2 * COPY, false);
        a.post_receive(1, &[a.mr.sge(0, GRH as u32 + MAX_DATAGRAM)]);
        let attached = a.host.attach(&mut world, other.qpn, group(1));
        attached.expect("there is room");
        let entry = a.mr.sge(COPY, GRH as u32 + MAX_DATAGRAM);
        other.recv.post(2, &[entry]).expect("room");
        other.recv.ring();
    }
    let source = all[0].host.mr(&mut world, COPY, false);
    all[0].host.write(source.addr, &bytes);
    let grh = GrhSegment {
        dgid: group(1),
        sgid_index: U16::new(3),
        ..GrhSegment::default()
    };
    let sge = [source.sge(0, MAX_DATAGRAM)];
    all[0].post(to_all(QKEY), grh, Some(77), Data::Sges(&sge));
    world.pump();
    let sender = all[0].qp.qpn;
    for (id, (a, other)) in all.iter_mut().zip(&others).enumerate() {
        let found = a.cq.drain();
        let received = found.iter().filter(|cqe| cqe.flags & CQE_GRH != 0);
        let mut got: Vec<&Cqe> = received.collect();
        assert_eq!(found.len() - got.len(), usize::from(id == 0));
        got.sort_unstable_by_key(|cqe| cqe.wr_id.get());
        assert_eq!(got.len(), 2, "node {id}");
        for (cqe, (wr_id, qpn)) in got.iter().zip([(1, a.qp.qpn), (2, other.qpn)]) {
            assert_eq!((cqe.wr_id.get(), cqe.qpn.get()), (wr_id, qpn));
            assert_eq!(cqe.flags, CQE_GRH | CQE_IMM);
            assert_eq!(cqe.byte_len.get(), MAX_DATAGRAM + GRH as u32);
            let from = (cqe.src_node.get(), cqe.src_qpn.get());
            assert_eq!((from, cqe.imm_or_key.get()), ((0, sender), 77));
        }
        for copy in [0, COPY] {
            let copy = a.host.read(a.mr.addr + copy, GRH + MAX_DATAGRAM as usize);
            assert_eq!(copy[32..GRH], [10, 78, 0, 1, 239, 1, 2, 1]);
            assert!(copy[GRH..] == bytes[..], "node {id}");
        }
        let counters = world.node(id as u16).counters();
        assert_eq!(counters.rx_messages.get(), 2);
        assert_eq!(counters.tx_messages.get(), u64::from(id == 0));
    }
}

#[test]
fn what_a_member_cannot_take_is_dropped_there() {
    let (mut world, mut all) = sides(3);
    let mut other = all[1].another(&mut world);
    for qpn in [all[1].qp.qpn, other.qpn] {
        let attached = all[1].host.attach(&mut world, qpn, group(1));
        attached.expect("there is room");
    }
    all[2].join(&mut world, group(2));
    let entry = all[2].mr.sge(0, 100);
    all[2].post_receive(1, &[entry]);
    let entry = all[1].mr.sge(0, 100);
    other.recv.post(1, &[entry]).expect("room");
    other.recv.ring();
    // One of two has no entry, and none of the group's has the key.
    all[0].cast(&mut world, 3, group(1), to_all(QKEY));
    assert_eq!((all[0].statuses(), drops(&world, 1)), (vec![OK], 1));
    assert_eq!(all[1].receivers(), [other.qpn]);
    let entry = all[1].mr.sge(0, 100);
    all[1].post_receive(2, &[entry]);
    all[0].cast(&mut world, 3, group(1), to_all(QKEY + 1));
    assert_eq!((all[0].statuses(), drops(&world, 1)), (vec![OK], 3));
    assert_eq!(all[1].receivers(), []);
    // To one node only, and to all but with a number of no group.
    let one = |node| DatagramSegment {
        node: U16::new(node),
        ..to_all(QKEY)
    };
    all[0].cast(&mut world, 3, group(1), one(2));
    all[0].cast(&mut world, 3, group(1), one(1));
    assert_eq!(all[1].receivers(), [all[1].qp.qpn]);
    assert_eq!(drops(&world, 1), 4);
    let wrong = DatagramSegment {
        qpn: U32::new(other.qpn),
        ..to_all(QKEY)
    };
    all[0].cast(&mut world, 3, group(1), wrong);
    // Those of another group hear nothing of all this, and count nothing.
    assert_eq!((all[2].receivers(), drops(&world, 2)), (vec![], 0));
    all[0].cast(&mut world, 3, group(2), to_all(QKEY));
    assert_eq!(all[2].receivers(), [all[2].qp.qpn]);
    assert_eq!((drops(&world, 0), drops(&world, 1)), (0, 4));
}

#[test]
fn who_has_left_gets_nothing() {
    let (mut world, mut all) = sides(2);
    let gone = all[1].another(&mut world);
    let mut stays = all[1].another(&mut world);
    for qpn in [all[1].qp.qpn, gone.qpn, stays.qpn] {
        let attached = all[1].host.attach(&mut world, qpn, group(1));
        attached.expect("there is room");
    }
    for wr_id in 1..4 {
        let entry = all[1].mr.sge(100 * wr_id, 100);
        all[1].post_receive(wr_id, &[entry]);
        stays.recv.post(wr_id, &[entry]).expect("room");
    }
    stays.recv.ring();
    let first = all[1].qp.qpn;
    assert_eq!(all[1].host.detach(&mut world, first, group(1)), Ok(()));
    assert_eq!(all[1].host.detach(&mut world, first, group(1)), UNKNOWN);
    let destroyed = world.engine.destroy_qp(&mut world.nodes, 1, gone.qpn);
    destroyed.expect("exists");
    all[0].cast(&mut world, 3, group(1), to_all(QKEY));
    assert_eq!(all[1].receivers(), [stays.qpn]);
    assert_eq!(all[1].host.detach(&mut world, gone.qpn, group(1)), UNKNOWN);
    // A reset does not end it, as of the InfiniBand specification; but nothing is received meanwhile.
    let all_states = [QpStateCode::Reset, QpStateCode::Init];
    for state in all_states {
        let set = all[1].host.set_state(&mut world, stays.qpn, state);
        set.expect("allowed");
    }
    all[0].cast(&mut world, 3, group(1), to_all(QKEY));
    assert_eq!((all[1].receivers(), drops(&world, 1)), (vec![], 1));
    // A node that is reset has no groups.
    world.engine.reset(&mut world.nodes, 1);
    world.engine.enable(&mut world.nodes, 1);
    all[0].cast(&mut world, 3, group(1), to_all(QKEY));
    assert_eq!((all[0].receivers(), drops(&world, 1)), (vec![], 0));
}

#[test]
fn there_is_room_for_so_many() {
    let (mut world, mut all) = sides(1);
    let a = &mut all[0];
    let pairs: Vec<u32> = (0..=MAX_GROUP_MEMBERS)
        .map(|_| a.host.qp(&mut world, QpType::Ud, &a.cq, 2).qpn)
        .collect();
    let (last, rest) = pairs.split_last().expect("some");
    for qpn in rest {
        assert_eq!(a.host.attach(&mut world, *qpn, group(0)), Ok(()));
    }
    assert_eq!(a.host.attach(&mut world, *last, group(0)), FULL);
    // Again is the same as once.
    assert_eq!(a.host.attach(&mut world, rest[0], group(0)), Ok(()));
    assert_eq!(a.host.detach(&mut world, rest[0], group(0)), Ok(()));
    assert_eq!(a.host.detach(&mut world, rest[0], group(0)), UNKNOWN);
    assert_eq!(a.host.attach(&mut world, *last, group(0)), Ok(()));
    let left = MAX_ATTACHMENTS - MAX_GROUP_MEMBERS;
    for number in 0..left {
        let gid = group6(number as u8);
        assert_eq!(a.host.attach(&mut world, *last, gid), Ok(()));
    }
    assert_eq!(a.host.attach(&mut world, rest[0], group(1)), FULL);
    // With the queue pair goes all that it had.
    let destroyed = world.engine.destroy_qp(&mut world.nodes, 0, *last);
    destroyed.expect("exists");
    for number in 0..=left {
        let gid = group6(number as u8);
        assert_eq!(a.host.attach(&mut world, rest[0], gid), Ok(()));
    }
    assert_eq!(a.host.attach(&mut world, rest[0], group(1)), FULL);
}

#[test]
fn only_datagram_pairs_join_and_only_groups() {
    let (mut world, mut all) = sides(1);
    let a = &mut all[0];
    let connected = a.host.qp(&mut world, QpType::Rc, &a.cq, 2);
    let raw = a.host.qp(&mut world, QpType::Raw, &a.cq, 2);
    for qp in [connected, raw] {
        assert_eq!(a.host.attach(&mut world, qp.qpn, group(1)), INVALID);
    }
    assert_eq!(a.host.attach(&mut world, 12345, group(1)), UNKNOWN);
    let mut broadcast = ipv4(1);
    broadcast[12] = 240;
    for gid in [[0; 16], [0xfe; 16], ipv4(1), broadcast] {
        assert_eq!(a.host.attach(&mut world, a.qp.qpn, gid), INVALID);
        assert_eq!(a.host.detach(&mut world, a.qp.qpn, gid), INVALID);
    }
    let mut last = group(255);
    last[12] = 239;
    for gid in [last, group6(0), [0xff; 16]] {
        assert_eq!(a.host.attach(&mut world, a.qp.qpn, gid), Ok(()));
    }
    let body = GroupMember {
        gid: group(1),
        qpn: U32::new(a.qp.qpn),
        reserved: U32::new(1),
    };
    let (node, _) = nupa_engine::NodeTable::node_mut(&mut world.nodes, 0).expect("exists");
    assert_eq!(node.attach_multicast(&body), INVALID);
    assert_eq!(node.detach_multicast(&body), INVALID);
}

#[test]
fn source_and_group_are_of_one_version_of_ip() {
    let (mut world, mut all) = sides(2);
    // Its last bytes are those of the IPv4 group.
    let mut alike = group6(1);
    alike[12..].copy_from_slice(&[239, 1, 2, 1]);
    all[1].join(&mut world, group(1));
    all[1].join(&mut world, alike);
    for (sgid, gid, count) in [
        (3, group(1), 1),
        (0, alike, 1),
        (3, alike, 0),
        (0, group(1), 0),
    ] {
        let entry = all[1].mr.sge(0, 100);
        all[1].post_receive(1, &[entry]);
        all[0].cast(&mut world, sgid, gid, to_all(QKEY));
        assert_eq!(all[0].statuses(), [OK]);
        assert_eq!(all[1].receivers().len(), count, "{sgid} to {gid:?}");
    }
    assert_eq!(drops(&world, 1), 0);
}

#[test]
fn many_copies_are_made_in_parts_and_each_once() {
    let (mut world, mut all) = sides(5);
    let mut members = Vec::new();
    for a in &mut all {
        let qps: Vec<Qp> = (0..MAX_GROUP_MEMBERS)
            .map(|_| {
                let mut qp = a.another(&mut world);
                let attached = a.host.attach(&mut world, qp.qpn, group(1));
                attached.expect("there is room");
                for wr_id in 0..4 {
                    qp.recv.post(wr_id, &[a.mr.sge(0, 100)]).expect("room");
                }
                qp.recv.ring();
                qp
            })
            .collect();
        members.push(qps);
    }
    for _ in 0..2 {
        all[3].cast(&mut world, 3, group(1), to_all(QKEY));
        for (a, members) in all.iter_mut().zip(&members) {
            let expected: Vec<u32> = members.iter().map(|qp| qp.qpn).collect();
            assert_eq!(a.receivers(), expected);
        }
    }
}

#[test]
fn a_host_that_takes_nothing_out_keeps_nobody_waiting() {
    if !crate::MODE.is_linked() {
        return;
    }
    let (mut world, mut all) = sides(3);
    for a in &all {
        a.join(&mut world, group(1));
    }
    world.hold(Some(1));
    let mut sent = 0u64;
    while world.node(0).counters().tx_errors.get() < 3 {
        assert!(sent < 10_000, "the ring does not get full");
        let entry = all[2].mr.sge(0, 100);
        all[2].post_receive(sent, &[entry]);
        all[0].cast(&mut world, 3, group(1), to_all(QKEY));
        // The sender goes on, and the others get all of them at once.
        let at = all[0].completed_at();
        all[0].qp.send.completed(at).expect("posted");
        let at = all[2].completed_at();
        all[2].qp.recv.completed(at).expect("posted");
        sent += 1;
    }
    world.hold(None);
    world.pump();
    // The sender itself has no entries, and the one that was held has none either.
    assert_eq!((drops(&world, 0), drops(&world, 1)), (sent, sent - 3));
}
