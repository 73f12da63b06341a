// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages longer than an entry of a ring, and requests under way: order, what ends them, and who waits for whom.

use nupa_engine::rings::{Data, Operation};
use nupa_proto::{
    admin::*,
    eqe::EventType,
    status::WcStatus,
    wqe::{WQE_FENCE, WQE_SIGNALED},
};
use nupa_testing::{Cq, Eq, Host, Mr, Qp, World};
use zerocopy::little_endian::{U32, U64};

pub const OK: u8 = WcStatus::Success as u8;
pub const FLUSHED: u8 = WcStatus::WrFlush as u8;
/// Bytes of each region.
pub const REGION: u64 = 1 << 20;

pub struct End {
    pub host: Host,
    pub eq: Eq,
    pub cq: Cq,
    pub qp: Qp,
    pub mr: Mr,
}

pub fn end(world: &mut World, id: u16) -> End {
    let mut host = world.host(id);
    let eq = host.start(world);
    let cq = host.cq(world, eq.eqn, 8);
    let qp = host.qp(world, QpType::Rc, &cq, 6);
    let mr = host.mr(world, REGION, false);
    End {
        host,
        eq,
        cq,
        qp,
        mr,
    }
}

pub fn connect(world: &mut World, a: (&Host, &Qp), b: (&Host, &Qp)) {
    for ((host, qp), (peer, remote)) in [(a, b), (b, a)] {
        let epoch = world.node(peer.id).epoch();
        host.ready(world, qp, Some((peer.id, remote.qpn, epoch)));
    }
}

pub fn pair() -> (World, End, End) {
    let mut world = World::new(*crate::MODE, 2);
    let (a, b) = (end(&mut world, 0), end(&mut world, 1));
    connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
    (world, a, b)
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let byte = |i: usize| (i as u8).wrapping_mul(29) ^ (i >> 8) as u8 ^ (i >> 16) as u8 ^ seed;
    (0..len).map(byte).collect()
}

pub fn post(qp: &mut Qp, wr_id: u64, operation: Operation, data: Data<'_>) {
    qp.submit(wr_id, WQE_SIGNALED, operation, data);
}

impl End {
    pub fn write(&mut self, wr_id: u64, to: &Mr, from: u64, len: u32) {
        let sge = self.mr.sge(from, len);
        let (addr, rkey) = (to.iova + from, to.key);
        let imm = None;
        post(
            &mut self.qp,
            wr_id,
            Operation::Write { addr, rkey, imm },
            Data::Sges(&[sge]),
        );
    }

    pub fn read(&mut self, wr_id: u64, from: &Mr, at: u64, len: u32) {
        let sge = self.mr.sge(at, len);
        let (addr, rkey) = (from.iova + at, from.key);
        post(
            &mut self.qp,
            wr_id,
            Operation::Read { addr, rkey },
            Data::Sges(&[sge]),
        );
    }

    pub fn send(&mut self, wr_id: u64, at: u64, len: u32) {
        let sge = self.mr.sge(at, len);
        post(
            &mut self.qp,
            wr_id,
            Operation::Send { imm: None },
            Data::Sges(&[sge]),
        );
    }

    pub fn receive(&mut self, wr_id: u64, at: u64, len: u32) {
        let sge = self.mr.sge(at, len);
        self.qp.recv.post(wr_id, &[sge]).expect("room");
        self.qp.recv.ring();
    }

    pub fn fill(&self, at: u64, bytes: &[u8]) {
        self.host.write(self.mr.addr + at, bytes);
    }

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        self.host.read(self.mr.addr + at, len)
    }

    /// `wr_id` and status of all completions.
    pub fn done(&mut self) -> Vec<(u64, u8)> {
        let cqes = self.cq.drain();
        cqes.iter()
            .map(|cqe| (cqe.wr_id.get(), cqe.status))
            .collect()
    }
}

#[test]
fn long_messages_arrive_whole() {
    for len in [65_535, 65_536, 65_537, 131_072, 700_001] {
        let (mut world, mut a, mut b) = pair();
        let bytes = pattern(len, 1);
        a.fill(0, &bytes);
        a.write(1, &b.mr, 0, len as u32);
        world.pump();
        assert_eq!(a.done(), [(1, OK)]);
        assert!(b.bytes(0, len + 1) == [&bytes[..], &[0]].concat(), "{len}");

        let bytes = pattern(len, 2);
        b.fill(0, &bytes);
        a.read(2, &b.mr, 0, len as u32);
        world.pump();
        assert_eq!(a.done(), [(2, OK)]);
        assert!(a.bytes(0, len) == bytes, "{len}");

        b.receive(9, 5, len as u32);
        a.send(3, 0, len as u32);
        world.pump();
        assert_eq!((a.done(), b.done()), (vec![(3, OK)], vec![(9, OK)]));
        assert!(b.bytes(5, len) == bytes, "{len}");
        let counters = world.node(1).counters();
        assert_eq!(counters.rx_messages.get(), 3);
        assert_eq!(counters.rx_message_bytes.get(), 3 * len as u64);
        assert_eq!(counters.rx_read_bytes.get(), len as u64);
    }
}

#[test]
fn requests_under_way_complete_in_order() {
    let (mut world, mut a, mut b) = pair();
    let bytes = pattern(40 * 4096, 3);
    a.fill(0, &bytes);
    b.fill(500_000, &bytes);
    for i in 0..40 {
        match i % 3 {
            0 => a.read(i, &b.mr, 500_000 + i * 4096, 4096),
            _ => a.write(i, &b.mr, i * 4096, 4096),
        }
    }
    world.pump();
    let expected: Vec<_> = (0..40).map(|i| (i, OK)).collect();
    assert_eq!(a.done(), expected);
    for i in 0..40 {
        let at = i * 4096;
        match i % 3 {
            0 => assert!(a.bytes(500_000 + at, 4096) == bytes[at as usize..][..4096]),
            _ => assert!(b.bytes(at, 4096) == bytes[at as usize..][..4096]),
        }
    }
    assert_eq!(b.done(), []);
}

#[test]
fn a_fence_waits_for_what_was_read() {
    let (mut world, mut a, b) = pair();
    b.fill(0, &pattern(4096, 4));
    a.read(1, &b.mr, 0, 4096);
    let sges = [a.mr.sge(0, 4096)];
    a.qp.submit(
        2,
        WQE_SIGNALED | WQE_FENCE,
        Operation::Write {
            addr: b.mr.iova + 8192,
            rkey: b.mr.key,
            imm: None,
        },
        Data::Sges(&sges),
    );
    world.pump();
    assert_eq!(a.done(), [(1, OK), (2, OK)]);
    assert!(b.bytes(8192, 4096) == pattern(4096, 4));
}

#[test]
fn nothing_is_carried_out_behind_what_was_refused() {
    let (mut world, mut a, mut b) = pair();
    a.fill(0, &[7; 64]);
    // Waits for an entry; what is behind it waits with it.
    a.send(1, 0, 8);
    a.write(2, &b.mr, 16, 8);
    world.pump();
    assert_eq!((a.done(), b.bytes(16, 8)), (vec![], vec![0; 8]));
    assert_eq!(world.node(1).counters().rx_rnr_naks.get(), 1);
    b.receive(5, 900, 8);
    world.pump();
    assert_eq!(a.done(), [(1, OK), (2, OK)]);
    assert_eq!((b.bytes(16, 8), b.done()), (vec![7; 8], vec![(5, OK)]));
    // Refused for good.
    let key = b.mr.key ^ 1;
    let wrong = Mr { key, ..b.mr };
    a.write(3, &b.mr, 24, 8);
    a.write(4, &wrong, 32, 8);
    a.write(5, &b.mr, 40, 8);
    world.pump();
    let denied = WcStatus::RemoteAccess as u8;
    assert_eq!(a.done(), [(3, OK), (4, denied), (5, FLUSHED)]);
    assert_eq!(b.bytes(24, 24), [[7; 8], [0; 8], [0; 8]].concat());
}

#[test]
fn a_message_that_is_refused_before_all_of_it_was_sent_completes_once() {
    for (len, seed) in [60_000, 300_000, 700_000]
        .map(|len| (0..50).map(move |seed| (len, seed)))
        .into_iter()
        .flatten()
    {
        let (mut world, mut a, mut b) = pair();
        world.shuffle(seed);
        let key = b.mr.key ^ 1;
        let wrong = Mr { key, ..b.mr };
        a.write(1, &b.mr, 0, 8);
        a.write(2, &wrong, 0, len);
        a.write(3, &b.mr, 0, 8);
        world.pump();
        let denied = WcStatus::RemoteAccess as u8;
        assert_eq!(
            a.done(),
            [(1, OK), (2, denied), (3, FLUSHED)],
            "{len} {seed}"
        );
        // The ring is not held up by what was not sent.
        let (mut again, mut there) = (
            a.host.qp(&mut world, QpType::Rc, &a.cq, 4),
            b.host.qp(&mut world, QpType::Rc, &b.cq, 4),
        );
        connect(&mut world, (&a.host, &again), (&b.host, &there));
        let (from, to) = (a.mr.sge(0, len), b.mr.sge(0, len));
        a.fill(0, &pattern(len as usize, 6));
        there.recv.post(8, &[to]).expect("room");
        there.recv.ring();
        post(
            &mut again,
            4,
            Operation::Send { imm: None },
            Data::Sges(&[from]),
        );
        world.pump();
        assert_eq!(a.done(), [(4, OK)]);
        assert!(b.bytes(0, len as usize) == pattern(len as usize, 6));
    }
}

#[test]
fn memory_that_ends_in_the_middle_of_a_message() {
    let (mut world, mut a, mut b) = pair();
    let second = a.host.qp(&mut world, QpType::Rc, &a.cq, 4);
    let there = b.host.qp(&mut world, QpType::Rc, &b.cq, 4);
    connect(&mut world, (&a.host, &second), (&b.host, &there));
    let len = 300_000;
    let body = CreateMr {
        pages: PageList {
            addr: U64::new(a.host.machine.ram().end() - 200_000),
            ..PageList::default()
        },
        len: U64::new(len),
        pd: U32::new(a.host.pd),
        access: U32::new(ACCESS_ALL),
        ..CreateMr::default()
    };
    let key = {
        use nupa_engine::NodeTable;
        let (node, machine) = world.nodes.node_mut(0).expect("exists");
        node.create_mr(machine, &body).expect("region")
    };
    let beyond = nupa_testing::sge(0, len as u32, key);
    let write = |mr: &Mr, at| Operation::Write {
        addr: mr.iova + at,
        rkey: mr.key,
        imm: None,
    };
    a.fill(0, &[3; 8]);
    // One before it, which succeeds.
    a.write(1, &b.mr, 0, 8);
    post(&mut a.qp, 2, write(&b.mr, 4096), Data::Sges(&[beyond]));
    a.write(3, &b.mr, 8, 8);
    a.qp.send.ring();
    let mut second = second;
    post(&mut second, 4, write(&b.mr, 1 << 19), Data::Inline(&[9; 8]));
    world.pump();
    let mut done = a.done();
    done.sort();
    let fault = WcStatus::LocalProtection as u8;
    assert_eq!(done, [(1, OK), (2, fault), (3, FLUSHED), (4, OK)]);
    assert_eq!(b.bytes(0, 16), [[3; 8], [0; 8]].concat());
    assert_eq!(b.bytes(1 << 19, 8), [9; 8]);
    // Not the responder's fault.
    let state = world.node(1).query_qp(b.qp.qpn).expect("exists").state;
    assert_eq!(state, QpStateCode::Rts.to_wire());

    // The responder's memory ends in the middle of a READ.
    let read = Operation::Read {
        addr: b.mr.iova,
        rkey: b.mr.key,
    };
    let key = {
        use nupa_engine::NodeTable;
        let (node, machine) = world.nodes.node_mut(1).expect("exists");
        let pd = U32::new(b.host.pd);
        node.create_mr(machine, &CreateMr { pd, ..body })
            .expect("region")
    };
    let gone = Operation::Read { addr: 0, rkey: key };
    post(&mut second, 5, read, Data::Sges(&[a.mr.sge(0, 300_000)]));
    post(&mut second, 6, gone, Data::Sges(&[a.mr.sge(0, 300_000)]));
    post(&mut second, 7, read, Data::Sges(&[a.mr.sge(0, 8)]));
    world.pump();
    let fault = WcStatus::RemoteOperation as u8;
    assert_eq!(a.done(), [(5, OK), (6, fault), (7, FLUSHED)]);
}

#[test]
fn a_sender_that_ends_in_the_middle_of_a_message_lets_others_through() {
    for how in 0..3 {
        let (mut world, mut a, mut b) = pair();
        let mut second = a.host.qp(&mut world, QpType::Rc, &a.cq, 4);
        let there = b.host.qp(&mut world, QpType::Rc, &b.cq, 4);
        connect(&mut world, (&a.host, &second), (&b.host, &there));
        world.hold(Some(1));
        a.write(1, &b.mr, 0, 900_000);
        world.pump();
        let write = Operation::Write {
            addr: b.mr.iova + REGION - 8,
            rkey: b.mr.key,
            imm: None,
        };
        post(&mut second, 2, write, Data::Inline(&[8; 8]));
        world.pump();
        let qpn = a.qp.qpn;
        match how {
            0 => world
                .engine
                .destroy_qp(&mut world.nodes, 0, qpn)
                .expect("exists"),
            1 => a
                .host
                .set_state(&mut world, qpn, QpStateCode::Err)
                .expect("allowed"),
            _ => {
                a.host
                    .set_state(&mut world, qpn, QpStateCode::Reset)
                    .expect("allowed");
                a.qp.send.reset();
                let epoch = world.node(1).epoch();
                a.host.ready(&mut world, &a.qp, Some((1, b.qp.qpn, epoch)));
                a.fill(0, &[6; 16]);
                a.write(3, &b.mr, 0, 8);
            }
        }
        world.hold(None);
        world.pump();
        let mut done = a.done();
        done.sort();
        let expected = [
            vec![(2, OK)],
            vec![(1, FLUSHED), (2, OK)],
            vec![(2, OK), (3, OK)],
        ];
        assert_eq!(done, expected[how]);
        assert_eq!(b.bytes(REGION - 8, 8), [8; 8]);
        if how == 2 {
            assert_eq!(b.bytes(0, 8), [6; 8]);
        }
    }
}

#[test]
fn draining_waits_for_what_is_under_way() {
    let (mut world, mut a, b) = pair();
    a.fill(0, &pattern(900_000, 5));
    world.hold(Some(1));
    a.write(1, &b.mr, 0, 900_000);
    world.pump();
    a.host
        .set_state(&mut world, a.qp.qpn, QpStateCode::Sqd)
        .expect("allowed");
    a.write(2, &b.mr, 0, 8);
    world.pump();
    assert_eq!((a.done(), a.eq.drain()), (vec![], vec![]));
    world.hold(None);
    world.pump();
    let drained = (EventType::SqDrained as u8, 0, a.qp.qpn);
    assert_eq!((a.done(), a.eq.drain()), (vec![(1, OK)], vec![drained]));
    assert!(b.bytes(0, 900_000) == pattern(900_000, 5));
    a.host
        .set_state(&mut world, a.qp.qpn, QpStateCode::Rts)
        .expect("allowed");
    world.pump();
    assert_eq!(a.done(), [(2, OK)]);
}

#[test]
fn a_target_that_starts_anew_goes_on_with_what_is_sent_anew() {
    let (mut world, mut a, mut b) = pair();
    a.fill(0, &[5; 64]);
    world.hold(Some(1));
    for i in 0..3 {
        a.write(i, &b.mr, i * 8, 8);
    }
    world.pump();
    b.host
        .set_state(&mut world, b.qp.qpn, QpStateCode::Reset)
        .expect("allowed");
    b.qp.recv.reset();
    let epoch = world.node(0).epoch();
    b.host.ready(&mut world, &b.qp, Some((0, a.qp.qpn, epoch)));
    world.hold(None);
    world.pump();
    assert_eq!(a.done(), [(0, OK), (1, OK), (2, OK)]);
    assert_eq!(b.bytes(0, 24), [5; 24]);
}

#[test]
fn a_target_that_starts_anew_in_the_middle_of_a_message_gets_all_of_it() {
    for turns in 0..24 {
        let (mut world, mut a, mut b) = pair();
        world.shuffle(turns);
        let len = 450_000;
        a.fill(0, &pattern(len, 6));
        b.receive(7, 0, len as u32);
        a.send(1, 0, len as u32);
        world.turns(turns as usize);
        b.host
            .set_state(&mut world, b.qp.qpn, QpStateCode::Reset)
            .expect("allowed");
        b.qp.recv.reset();
        let epoch = world.node(0).epoch();
        b.host.ready(&mut world, &b.qp, Some((0, a.qp.qpn, epoch)));
        b.receive(8, 500_000, len as u32);
        world.pump();
        assert_eq!(a.done(), [(1, OK)]);
        let at = match b.done()[..] {
            [(7, OK)] => 0,
            [(8, OK)] => 500_000,
            ref other => panic!("{other:?}"),
        };
        assert!(b.bytes(at, len) == pattern(len, 6), "after {turns} turns");
    }
}
