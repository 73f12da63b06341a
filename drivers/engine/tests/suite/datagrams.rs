// SPDX-License-Identifier: GPL-2.0 OR MIT
//! UD queue pairs: network header, queue keys, drops, and what stops a sender.

use nupa_engine::{
    rings::{Data, Operation},
    NodeTable,
};
use nupa_proto::{
    admin::*,
    cqe::{CqeOpcode, NetworkHeader, CQE_GRH, CQE_IMM, CQE_VLAN},
    ident::{GSI_QKEY, GSI_QPN},
    status::{AdminStatus, WcStatus},
    wqe::{DatagramSegment, GrhSegment, Sge, MAX_DATAGRAM, MAX_INLINE, WQE_SIGNALED},
};
use nupa_testing::{Cq, Host, Mr, Qp, World};
use zerocopy::little_endian::{U16, U32};

pub(super) const QKEY: u32 = 0x1234;
pub(super) const OK: u8 = WcStatus::Success as u8;

pub(super) struct Side {
    pub(super) host: Host,
    pub(super) cq: Cq,
    pub(super) qp: Qp,
    pub(super) mr: Mr,
}

pub(super) fn ipv4(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 78, 0, last]
}

pub(super) fn side(world: &mut World, id: u16) -> Side {
    let mut host = world.host(id);
    let eq = host.start(world);
    let cq = host.cq(world, eq.eqn, 6);
    let qp = host.qp(world, QpType::Ud, &cq, 4);
    let mr = host.mr(world, 64 * 1024, true);
    host.ready_datagrams(world, &qp, QKEY);
    host.gid(world, 0, [0xfe; 16]);
    host.gid(world, 3, ipv4(id as u8 + 1));
    Side { host, cq, qp, mr }
}

fn pair() -> (World, Side, Side) {
    let mut world = World::new(*crate::MODE, 2);
    let (a, b) = (side(&mut world, 0), side(&mut world, 1));
    (world, a, b)
}

fn to(side: &Side, qkey: u32) -> DatagramSegment {
    DatagramSegment {
        qpn: U32::new(side.qp.qpn),
        qkey: U32::new(qkey),
        node: U16::new(side.host.id),
        ..DatagramSegment::default()
    }
}

fn grh(sgid_index: u16) -> GrhSegment {
    GrhSegment {
        dgid: ipv4(2),
        sgid_index: U16::new(sgid_index),
        hop_limit: 7,
        ..GrhSegment::default()
    }
}

impl Side {
    pub(super) fn post(
        &mut self,
        to: DatagramSegment,
        grh: GrhSegment,
        imm: Option<u32>,
        data: Data<'_>,
    ) {
        let operation = Operation::Datagram { to, grh, imm };
        self.qp.submit(5, WQE_SIGNALED, operation, data);
    }

    pub(super) fn post_receive(&mut self, wr_id: u64, sges: &[Sge]) {
        self.qp.recv.post(wr_id, sges).expect("room");
        self.qp.recv.ring();
    }

    pub(super) fn statuses(&mut self) -> Vec<u8> {
        self.cq.drain().iter().map(|cqe| cqe.status).collect()
    }
}

fn drops(world: &World) -> u64 {
    world.node(1).counters().rx_datagram_drops.get()
}

#[test]
fn datagram_arrives_behind_its_network_header() {
    let (mut world, mut a, mut b) = pair();
    let bytes: Vec<u8> = (0..MAX_DATAGRAM).map(|i| (i * 7) as u8).collect();
    let source = a.host.alloc(8192);
    a.host.write(source, &bytes);
    let mr = a.host.mr(&mut world, 8192, false);
    a.host.write(mr.addr, &bytes);
    // The header ends in the middle of the second entry.
    b.post_receive(1, &[b.mr.sge(100, 13), b.mr.sge(4000, 5000)]);
    b.post_receive(2, &[b.mr.sge(20_000, 4096 + 40)]);
    let sges = [mr.sge(0, 1000), mr.sge(1000, MAX_DATAGRAM - 1000)];
    let address = to(&b, QKEY);
    a.post(address, grh(3), Some(99), Data::Sges(&sges));
    a.post(address, grh(0), None, Data::Inline(&bytes[..MAX_INLINE]));
    world.pump();
    assert_eq!(a.statuses(), [OK, OK]);
    let got = b.cq.drain();
    assert_eq!(got.len(), 2);
    assert_eq!(got[0].opcode, CqeOpcode::Recv.to_wire());
    assert_eq!(got[0].flags, CQE_GRH | CQE_IMM);
    assert_eq!(got[0].network_header, NetworkHeader::Ipv4.to_wire());
    assert_eq!(got[0].byte_len.get(), MAX_DATAGRAM + 40);
    assert_eq!((got[0].wr_id.get(), got[0].imm_or_key.get()), (1, 99));
    let from = (got[0].src_node.get(), got[0].src_qpn.get());
    assert_eq!(from, (0, a.qp.qpn));
    let region: Vec<u8> = {
        let pages = b.host.read(b.mr.addr, 64 * 1024);
        pages.chunks(4096).rev().flatten().copied().collect()
    };
    let mut first = region[100..113].to_vec();
    first.extend(&region[4000..4000 + 27]);
    assert_eq!(first[..20], [0; 20]);
    assert_eq!((first[20], first[28], first[29]), (0x45, 7, 17));
    assert_eq!(first[32..], [10, 78, 0, 1, 10, 78, 0, 2]);
    assert!(region[4027..4027 + 4096] == bytes[..]);
    assert_eq!(region[4027 + 4096], 0);

    assert_eq!(got[1].flags, CQE_GRH);
    let second = &region[20_000..20_040 + MAX_INLINE];
    assert_eq!((second[0] >> 4, second[6], second[7]), (6, 17, 7));
    assert_eq!(second[8..24], [0xfe; 16]);
    assert!(second[40..] == bytes[..MAX_INLINE]);
    assert_eq!(drops(&world), 0);
}

#[test]
fn what_the_target_cannot_take_is_dropped_there() {
    let (mut world, mut a, mut b) = pair();
    let mut count = 0;
    let mut check = |world: &mut World, a: &mut Side, b: &mut Side, to, dropped: u64| {
        a.post(to, grh(3), None, Data::Inline(&[1; 32]));
        world.pump();
        assert_eq!(a.statuses(), [OK]);
        count += dropped;
        assert_eq!(drops(world), count);
        assert_eq!(b.cq.drain().len(), usize::from(dropped == 0));
    };
    let address = to(&b, QKEY);
    // No entry; then one that is too short, and stays.
    check(&mut world, &mut a, &mut b, address, 1);
    b.post_receive(1, &[b.mr.sge(0, 71)]);
    check(&mut world, &mut a, &mut b, address, 1);
    let state = world.node(1).query_qp(b.qp.qpn).expect("exists");
    assert_eq!(
        (state.state, state.rq_index.get()),
        (QpStateCode::Rts.to_wire(), 0)
    );
    b.host
        .set_state(&mut world, b.qp.qpn, QpStateCode::Reset)
        .expect("allowed");
    b.qp.recv.reset();
    check(&mut world, &mut a, &mut b, address, 1);
    b.host.ready_datagrams(&mut world, &b.qp, QKEY);
    b.post_receive(2, &[b.mr.sge(0, 72)]);
    // Wrong key, wrong queue pair.
    let foreign = to(&b, QKEY + 1);
    check(&mut world, &mut a, &mut b, foreign, 1);
    let nobody = DatagramSegment {
        qpn: U32::new(77),
        ..address
    };
    check(&mut world, &mut a, &mut b, nobody, 1);
    assert!(b.host.read(b.mr.addr, 64 * 1024).iter().all(|b| *b == 0));
    check(&mut world, &mut a, &mut b, address, 0);
    // A node that is down, and one that does not exist: nobody is there to count.
    world.engine.set_link(&mut world.nodes, 1, false);
    let nowhere = DatagramSegment {
        node: U16::new(1000),
        ..address
    };
    for to in [address, nowhere] {
        a.post(to, grh(3), None, Data::Inline(&[1]));
        world.pump();
        assert_eq!((a.statuses(), drops(&world)), (vec![OK], 5));
    }
}

#[test]
fn controlled_queue_keys_are_not_the_descriptors_to_give() {
    let (mut world, mut a, mut b) = pair();
    let secret = (1 << 31) | 5;
    b.host.set_qkey(&mut world, &b.qp, secret);
    b.post_receive(1, &[b.mr.sge(0, 100)]);
    a.post(to(&b, secret), grh(3), None, Data::Inline(&[1; 8]));
    world.pump();
    assert_eq!((a.statuses(), drops(&world)), (vec![OK], 1));
    // The sender's own key counts instead, which only its kernel sets.
    a.host.set_qkey(&mut world, &a.qp, secret);
    a.post(to(&b, 1 << 31), grh(3), None, Data::Inline(&[1; 8]));
    world.pump();
    assert_eq!((a.statuses(), b.statuses()), (vec![OK], vec![OK]));
}

#[test]
fn a_wrong_request_stops_sending_but_not_receiving() {
    let (mut world, mut a, mut b) = pair();
    let address = to(&b, QKEY);
    b.post_receive(1, &[b.mr.sge(0, 100)]);
    a.post_receive(2, &[a.mr.sge(0, 100)]);
    a.post(address, grh(77), None, Data::Inline(&[1]));
    a.post(address, grh(3), None, Data::Inline(&[2]));
    world.pump();
    let flushed = WcStatus::WrFlush as u8;
    assert_eq!(a.statuses(), [WcStatus::LocalQpOperation as u8, flushed]);
    let state = |world: &World, qpn| world.node(0).query_qp(qpn).expect("exists").state;
    assert_eq!(state(&world, a.qp.qpn), QpStateCode::Sqe.to_wire());
    a.post(address, grh(3), None, Data::Inline(&[3]));
    b.post(to(&a, QKEY), grh(3), None, Data::Inline(&[4]));
    world.pump();
    assert_eq!(a.statuses(), [flushed, OK]);
    assert_eq!(b.statuses(), [OK]);
    a.host
        .set_state(&mut world, a.qp.qpn, QpStateCode::Rts)
        .expect("allowed");
    a.post(address, grh(3), None, Data::Inline(&[5]));
    world.pump();
    assert_eq!((a.statuses(), b.statuses()), (vec![OK], vec![OK]));

    // Longer than a datagram can be.
    a.post(address, grh(3), None, Data::Sges(&[a.mr.sge(0, 4097)]));
    world.pump();
    assert_eq!(a.statuses(), [WcStatus::LocalLength as u8]);
    // Operations of other kinds of queue pairs.
    a.host
        .set_state(&mut world, a.qp.qpn, QpStateCode::Rts)
        .expect("allowed");
    let write = Operation::Write {
        addr: 0,
        rkey: 0,
        imm: None,
    };
    a.qp.submit(0, 0, write, Data::Inline(&[0; 40]));
    world.pump();
    assert_eq!(a.statuses(), [WcStatus::LocalQpOperation as u8]);
}

#[test]
fn there_is_one_queue_pair_of_the_general_services() {
    let (mut world, mut a, mut b) = pair();
    let gsi = |world: &mut World, side: &mut Side| {
        let qp = side
            .host
            .qp_with(world, QpType::Ud, QP_FLAG_GSI, &side.cq, 4);
        assert_eq!(qp.qpn, GSI_QPN);
        for state in [QpStateCode::Init, QpStateCode::Rtr, QpStateCode::Rts] {
            side.host.set_state(world, qp.qpn, state).expect("allowed");
        }
        side.qp = qp;
    };
    gsi(&mut world, &mut a);
    gsi(&mut world, &mut b);
    b.post_receive(1, &[b.mr.sge(0, 400)]);
    a.post(to(&b, GSI_QKEY), grh(3), None, Data::Inline(&[9; 200]));
    world.pump();
    assert_eq!((a.statuses(), b.statuses()), (vec![OK], vec![OK]));

    let body = CreateQp {
        qp_type: QpType::Ud.to_wire(),
        flags: QP_FLAG_GSI,
        pd: U32::new(a.host.pd),
        sq_slot: U16::new(90),
        sq: PageList {
            addr: zerocopy::little_endian::U64::new(a.host.alloc(64)),
            ..PageList::default()
        },
        rq_slot: U16::new(nupa_proto::doorbell::SLOT_NONE),
        send_cqn: U32::new(a.cq.cqn),
        ..CreateQp::default()
    };
    use nupa_engine::NodeTable;
    let (node, machine) = world.nodes.node_mut(0).expect("exists");
    assert_eq!(node.create_qp(machine, &body), Err(AdminStatus::Busy));
    let engine = &mut world.engine;
    engine
        .destroy_qp(&mut world.nodes, 0, GSI_QPN)
        .expect("exists");
    let (node, machine) = world.nodes.node_mut(0).expect("exists");
    assert_eq!(node.create_qp(machine, &body), Ok(GSI_QPN));
}

#[test]
fn a_node_reaches_itself() {
    let mut world = World::new(*crate::MODE, 1);
    let mut a = side(&mut world, 0);
    let address = to(&a, QKEY);
    a.post_receive(1, &[a.mr.sge(0, 48)]);
    a.post(address, grh(3), None, Data::Inline(b"loopback"));
    world.pump();
    assert_eq!(a.statuses(), [OK, OK]);
    assert_eq!(&a.host.read(a.mr.addr + 15 * 4096 + 40, 8), b"loopback");
}

#[test]
fn the_receiver_is_told_the_vlan_of_the_source() {
    let (mut world, mut a, mut b) = pair();
    a.host.gid_in(&mut world, 1, ipv4(9), Some(7));
    a.host.gid_in(&mut world, 2, [0xfd; 16], Some(0));
    let address = to(&b, QKEY);
    for (wr_id, sgid_index) in [(0, 1), (1, 2), (2, 3)] {
        b.post_receive(wr_id, &[b.mr.sge(0, 100)]);
        a.post(address, grh(sgid_index), None, Data::Inline(b"x"));
    }
    world.pump();
    let got: Vec<_> =
        b.cq.drain()
            .iter()
            .map(|cqe| (cqe.flags, cqe.network_header, cqe.vlan_id.get()))
            .collect();
    let [v6, v4] = [NetworkHeader::Ipv6, NetworkHeader::Ipv4].map(NetworkHeader::to_wire);
    assert_eq!(
        got,
        [
            (CQE_GRH | CQE_VLAN, v4, 7),
            (CQE_GRH | CQE_VLAN, v6, 0),
            (CQE_GRH, v4, 0)
        ]
    );
}

#[test]
fn malformed_addresses_are_refused() {
    let mut world = World::new(*crate::MODE, 1);
    let all = GID_VALID | GID_VLAN;
    let cases = [
        (all, MAX_VLAN_ID, 255, true),
        (all, MAX_VLAN_ID + 1, 0, false),
        (all, 0, 256, false),
        (GID_VALID, 1, 0, false),
        (GID_VLAN, 1, 0, false),
        (GID_VALID | 4, 0, 0, false),
        (0, 0, 0, false),
    ];
    for (flags, vlan_id, index, good) in cases {
        let body = SetGid {
            gid: ipv4(1),
            index: U32::new(index),
            flags: U16::new(flags),
            vlan_id: U16::new(vlan_id),
        };
        let (node, _) = world.nodes.node_mut(0).expect("exists");
        let set = node
            .set_gid(&body)
            .map_err(|status| assert_eq!(status, AdminStatus::InvalidField));
        assert_eq!(set.is_ok(), good, "{body:?}");
    }
}
