// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Atomic operations, atomic writes, flushes, and the limits on what is handed back.

use nupa_engine::rings::{Data, Operation};
use nupa_proto::{
    admin::*,
    cqe::CqeOpcode,
    eqe::EventType,
    status::{AdminStatus, WcStatus},
    wqe::*,
};
use nupa_testing::{Cq, Eq, Host, Mr, Qp, World};
use zerocopy::little_endian::{U32, U64};

const OK: u8 = WcStatus::Success as u8;

struct Side {
    host: Host,
    eq: Eq,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

fn side(world: &mut World, id: u16) -> Side {
    let mut host = world.host(id);
    let eq = host.start(world);
    let cq = host.cq(world, eq.eqn, 6);
    let qp = host.qp(world, QpType::Rc, &cq, 4);
    let mr = host.mr(world, 3 * 4096, true);
    Side {
        host,
        eq,
        cq,
        qp,
        mr,
    }
}

fn pair() -> (World, Side, Side) {
    let mut world = World::new(*crate::MODE, 2);
    let (a, b) = (side(&mut world, 0), side(&mut world, 1));
    a.host.ready(&mut world, &a.qp, Some((1, b.qp.qpn, 1)));
    b.host.ready(&mut world, &b.qp, Some((0, a.qp.qpn, 1)));
    (world, a, b)
}

impl Side {
    fn post(&mut self, operation: Operation, data: Data<'_>) {
        self.qp.submit(7, WQE_SIGNALED | WQE_FENCE, operation, data);
    }

    /// The 8 bytes at an offset of the region, whose pages lie in reverse order.
    fn word(&self, offset: u64) -> u64 {
        let at = self.mr.addr + (2 - offset / 4096) * 4096 + offset % 4096;
        let bytes = self.host.read(at, 8);
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn statuses(&mut self) -> Vec<u8> {
        self.cq.drain().iter().map(|cqe| cqe.status).collect()
    }

    fn limit(&self, world: &mut World, requester: u8, responder: u8) -> Result<(), AdminStatus> {
        let body = ModifyQp {
            mask: U32::new(QP_MASK_RD_ATOMIC),
            max_rd_atomic: requester,
            max_dest_rd_atomic: responder,
            ..ModifyQp::default()
        };
        self.host.modify(world, self.qp.qpn, body)
    }
}

#[test]
fn atomics_change_one_word_and_hand_back_what_was_there() {
    let (mut world, mut a, b) = pair();
    let (addr, rkey) = (b.mr.iova + 4096 + 16, b.mr.key);
    let write = Operation::Write {
        addr,
        rkey,
        imm: None,
    };
    // Right behind a WRITE of the same word; the result is split.
    a.post(write, Data::Inline(&40u64.to_le_bytes()));
    let add = Operation::FetchAdd { addr, rkey, add: 2 };
    a.post(add, Data::Sges(&[a.mr.sge(8, 3), a.mr.sge(11, 5)]));
    let swap = |compare, swap| Operation::CompareSwap {
        addr,
        rkey,
        compare,
        swap,
    };
    a.post(swap(41, 1), Data::Sges(&[a.mr.sge(16, 8)]));
    a.post(swap(42, 2), Data::Sges(&[a.mr.sge(24, 8)]));
    let value = 0x1122_3344_5566_7788;
    let store = Operation::AtomicWrite {
        addr: addr + 8,
        rkey,
        value,
    };
    a.post(store, Data::Sges(&[]));
    world.pump();
    let done = a.cq.drain();
    assert!(done.iter().all(|cqe| cqe.status == OK), "{done:?}");
    let opcodes: Vec<u8> = done.iter().map(|cqe| cqe.opcode).collect();
    let expected = [
        CqeOpcode::Write,
        CqeOpcode::FetchAdd,
        CqeOpcode::CompareSwap,
        CqeOpcode::CompareSwap,
        CqeOpcode::AtomicWrite,
    ];
    assert_eq!(opcodes, expected.map(CqeOpcode::to_wire));
    let lengths: Vec<u32> = done.iter().map(|cqe| cqe.byte_len.get()).collect();
    assert_eq!(lengths, [0, 8, 8, 8, 0]);
    assert_eq!([8, 16, 24].map(|at| a.word(at)), [40, 42, 42]);
    assert_eq!([4112, 4120, 4104].map(|at| b.word(at)), [2, value, 0]);
    assert_eq!(world.node(1).counters().rx_atomics.get(), 4);
}

/// Posts one request with entries of these lengths: the requester sees `status`, nothing changes.
fn refused(operation: impl Fn(&Side) -> Operation, data: &[u32], status: WcStatus) {
    let (mut world, mut a, mut b) = pair();
    let sges: Vec<Sge> = data.iter().map(|len| a.mr.sge(0, *len)).collect();
    a.post(operation(&b), Data::Sges(&sges));
    world.pump();
    assert_eq!(a.statuses(), [status as u8]);
    let remote = matches!(
        status,
        WcStatus::RemoteAccess | WcStatus::RemoteInvalidRequest
    );
    let event = (EventType::QpAccess as u8, 0, b.qp.qpn);
    assert_eq!(b.eq.drain(), if remote { vec![event] } else { vec![] });
    assert!(b.host.read(b.mr.addr, 3 * 4096).iter().all(|b| *b == 0));
}

#[test]
fn what_does_not_fit_is_refused_on_both_sides() {
    let add = |b: &Side, at: u64| Operation::FetchAdd {
        addr: b.mr.iova + at,
        rkey: b.mr.key,
        add: 1,
    };
    refused(|b| add(b, 4), &[8], WcStatus::RemoteInvalidRequest);
    refused(|b| add(b, 3 * 4096), &[8], WcStatus::RemoteAccess);
    refused(|b| add(b, 0), &[4], WcStatus::LocalLength);
    refused(|b| add(b, 0), &[8, 8], WcStatus::LocalLength);
    refused(|b| add(b, 0), &[], WcStatus::LocalLength);
    let store = |b: &Side| Operation::AtomicWrite {
        addr: b.mr.iova + 12,
        rkey: b.mr.key,
        value: 1,
    };
    refused(store, &[], WcStatus::RemoteInvalidRequest);
}

#[test]
fn rights_are_those_of_queue_pair_and_region() {
    let (mut world, mut a, b) = pair();
    let body = ModifyQp {
        mask: U32::new(QP_MASK_ACCESS),
        access: U32::new(ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ),
        ..ModifyQp::default()
    };
    b.host.modify(&mut world, b.qp.qpn, body).expect("allowed");
    let (addr, rkey) = (b.mr.iova, b.mr.key);
    let store = Operation::AtomicWrite {
        addr,
        rkey,
        value: 6,
    };
    a.post(store, Data::Sges(&[]));
    let add = Operation::FetchAdd { addr, rkey, add: 1 };
    a.post(add, Data::Sges(&[a.mr.sge(0, 8)]));
    world.pump();
    assert_eq!(a.statuses(), [OK, WcStatus::RemoteAccess as u8]);
    assert_eq!(b.word(0), 6);
}

#[test]
fn flush_checks_kind_range_and_rights() {
    let outcome = |access: u32, segment: FlushSegment, key: bool| {
        let (mut world, mut a, b) = pair();
        let body = ModifyQp {
            mask: U32::new(QP_MASK_ACCESS),
            access: U32::new(access),
            ..ModifyQp::default()
        };
        b.host.modify(&mut world, b.qp.qpn, body).expect("allowed");
        let segment = FlushSegment {
            addr: U64::new(b.mr.iova + segment.addr.get()),
            rkey: U32::new(if key { b.mr.key } else { 0 }),
            ..segment
        };
        a.post(Operation::Flush(segment), Data::Sges(&[]));
        world.pump();
        let done = a.cq.drain();
        assert_eq!(done.len(), 1);
        done[0].status
    };
    let segment = |addr, len, kind, level| FlushSegment {
        addr: U64::new(addr),
        len: U32::new(len),
        kind,
        level,
        ..FlushSegment::default()
    };
    let both = FLUSH_GLOBAL | FLUSH_PERSISTENT;
    let region = segment(u64::MAX / 2, 0, FLUSH_GLOBAL, FLUSH_MR);
    let denied = WcStatus::RemoteAccess as u8;
    let malformed = WcStatus::LocalQpOperation as u8;
    let global = ACCESS_FLUSH_GLOBAL;
    assert_eq!(outcome(ACCESS_ALL, segment(0, 4096, both, 0), true), OK);
    assert_eq!(outcome(global, segment(0, 1, both, 0), true), denied);
    assert_eq!(outcome(global, region, true), OK);
    assert_eq!(outcome(ACCESS_ALL, region, false), denied);
    let beyond = segment(4096, 2 * 4096 + 1, FLUSH_GLOBAL, 0);
    assert_eq!(outcome(ACCESS_ALL, beyond, true), denied);
    assert_eq!(outcome(ACCESS_ALL, segment(0, 1, 0, 0), true), malformed);
    assert_eq!(outcome(ACCESS_ALL, segment(0, 1, 4, 0), true), malformed);
    assert_eq!(outcome(ACCESS_ALL, segment(0, 1, 1, 2), true), malformed);
}

#[test]
fn limits_on_what_is_handed_back_hold_on_both_sides() {
    for (requester, responder, status) in [
        (0, 16, WcStatus::LocalQpOperation),
        (16, 0, WcStatus::RemoteInvalidRequest),
    ] {
        for read in [false, true] {
            let (mut world, mut a, b) = pair();
            a.limit(&mut world, requester, 16).expect("allowed");
            b.limit(&mut world, 16, responder).expect("allowed");
            let (addr, rkey) = (b.mr.iova, b.mr.key);
            let operation = match read {
                true => Operation::Read { addr, rkey },
                false => Operation::FetchAdd { addr, rkey, add: 1 },
            };
            a.post(operation, Data::Sges(&[a.mr.sge(0, 8)]));
            world.pump();
            assert_eq!(a.statuses(), [status as u8]);
            assert_eq!(b.word(0), 0);
        }
    }
    let (mut world, a, _) = pair();
    assert_eq!(a.limit(&mut world, 17, 0), Err(AdminStatus::InvalidField));
}
