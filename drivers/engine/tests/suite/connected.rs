// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Connected queue pairs: two nodes back to back, bytes compared.

mod bypassed;
mod retries;

use nupa_engine::rings::{Data, Head, Operation};
use nupa_proto::{
    admin::{ModifyQp, QpStateCode, QpType, QP_MASK_RNR_RETRY},
    cqe::{CqeOpcode, CQE_IMM},
    eqe::EventType,
    status::{AdminStatus, WcStatus},
    wqe::{Sge, WQE_SIGNALED},
};
use nupa_testing::{Cq, Eq, Host, Mr, Qp, World};
use zerocopy::little_endian::U32;

struct Side {
    host: Host,
    eq: Eq,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

const REGION: u64 = 256 * 1024;

fn side(world: &mut World, id: u16, paged: bool) -> Side {
    let mut host = world.host(id);
    let eq = host.start(world);
    let cq = host.cq(world, eq.eqn, 6);
    let qp = host.qp(world, QpType::Rc, &cq, 4);
    let mr = host.mr(world, REGION, paged);
    Side {
        host,
        eq,
        cq,
        qp,
        mr,
    }
}

fn connect(world: &mut World, a: &Side, b: &Side) {
    let epoch = |id| world.node(id).epoch();
    let (ea, eb) = (epoch(a.host.id), epoch(b.host.id));
    a.host.ready(world, &a.qp, Some((b.host.id, b.qp.qpn, eb)));
    b.host.ready(world, &b.qp, Some((a.host.id, a.qp.qpn, ea)));
}

fn pair(paged: bool) -> (World, Side, Side) {
    let mut world = World::new(*crate::MODE, 2);
    let (a, b) = (side(&mut world, 0, paged), side(&mut world, 1, paged));
    connect(&mut world, &a, &b);
    (world, a, b)
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed)
        .collect()
}

impl Side {
    /// Posts one signaled request and rings.
    fn post(&mut self, operation: Operation, data: Data<'_>) {
        self.qp.submit(7, WQE_SIGNALED, operation, data);
    }

    fn post_receive(&mut self, wr_id: u64, sges: &[Sge]) {
        self.qp.recv.post(wr_id, sges).expect("room");
        self.qp.recv.ring();
    }

    /// Statuses of all completions.
    fn statuses(&mut self) -> Vec<u8> {
        let cqes = self.cq.drain();
        cqes.iter()
            .filter(|cqe| cqe.opcode & 0x80 == 0)
            .for_each(|cqe| {
                self.qp
                    .send
                    .completed(cqe.queue_index.get())
                    .expect("index of what is posted");
            });
        cqes.iter().map(|cqe| cqe.status).collect()
    }

    /// Bytes of the region, through its pages.
    fn region(&self, paged: bool) -> Vec<u8> {
        let bytes = self.host.read(self.mr.addr, REGION as usize);
        if !paged {
            return bytes;
        }
        bytes.chunks(4096).rev().flatten().copied().collect()
    }

    fn fill(&self, paged: bool, bytes: &[u8]) {
        let mut all = bytes.to_vec();
        all.resize(REGION as usize, 0);
        let pages: Vec<u8> = if paged {
            all.chunks(4096).rev().flatten().copied().collect()
        } else {
            all
        };
        self.host.write(self.mr.addr, &pages);
    }
}

const OK: u8 = WcStatus::Success as u8;

#[test]
fn write_and_read_move_bytes_through_pages() {
    for paged in [false, true] {
        let (mut world, mut a, mut b) = pair(paged);
        let bytes = pattern(70_000, 1);
        a.fill(paged, &bytes);
        // Gathered from three pieces, to an odd address.
        let sges = [
            a.mr.sge(0, 1),
            a.mr.sge(1, 4095 + 4096),
            a.mr.sge(8192, 70_000 - 8192),
        ];
        let write = Operation::Write {
            addr: b.mr.iova + 4001,
            rkey: b.mr.key,
            imm: None,
        };
        a.post(write, Data::Sges(&sges));
        world.pump();
        assert_eq!(a.statuses(), [OK]);
        assert_eq!(b.cq.drain().len(), 0);
        let there = b.region(paged);
        assert!(there[4001..4001 + 70_000] == bytes[..], "paged {paged}");
        assert!(there[..4001]
            .iter()
            .chain(&there[74_001..])
            .all(|byte| *byte == 0));

        // And back, scattered.
        let read = Operation::Read {
            addr: b.mr.iova + 4001,
            rkey: b.mr.key,
        };
        let sges = [a.mr.sge(100_000, 33), a.mr.sge(150_000, 69_967)];
        a.post(read, Data::Sges(&sges));
        world.pump();
        let done = a.cq.drain();
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].opcode, CqeOpcode::Read.to_wire());
        assert_eq!(done[0].byte_len.get(), 70_000);
        let here = a.region(paged);
        assert!(here[100_000..100_033] == bytes[..33] && here[150_000..219_967] == bytes[33..]);
    }
}

#[test]
fn send_fills_one_receive_entry() {
    let (mut world, mut a, mut b) = pair(true);
    let bytes = pattern(5000, 2);
    a.fill(true, &bytes);
    b.post_receive(41, &[b.mr.sge(10, 1000), b.mr.sge(20_000, 8000)]);
    b.post_receive(42, &[b.mr.sge(50_000, 100)]);
    a.post(
        Operation::Send { imm: None },
        Data::Sges(&[a.mr.sge(0, 5000)]),
    );
    a.post(
        Operation::Send {
            imm: Some(0xdead_beef),
        },
        Data::Inline(b"hello"),
    );
    world.pump();
    assert_eq!(a.statuses(), [OK, OK]);
    let got = b.cq.drain();
    assert_eq!(got.len(), 2);
    assert_eq!(
        (got[0].wr_id.get(), got[0].byte_len.get(), got[0].flags),
        (41, 5000, 0)
    );
    assert_eq!((got[1].wr_id.get(), got[1].byte_len.get()), (42, 5));
    assert_eq!(
        (got[1].flags, got[1].imm_or_key.get()),
        (CQE_IMM, 0xdead_beef)
    );
    assert_eq!((got[1].src_node.get(), got[1].src_qpn.get()), (0, a.qp.qpn));
    let there = b.region(true);
    assert!(there[10..1010] == bytes[..1000] && there[20_000..24_000] == bytes[1000..]);
    assert_eq!(&there[50_000..50_005], b"hello");
}

#[test]
fn write_with_immediate_takes_an_entry_but_not_its_memory() {
    let (mut world, mut a, mut b) = pair(false);
    // Nor are its keys checked: this is none.
    let nowhere = Sge {
        lkey: (b.mr.key ^ 0x5500).into(),
        ..b.mr.sge(0, 64)
    };
    b.post_receive(9, &[nowhere, b.mr.sge(0, 64)]);
    let write = Operation::Write {
        addr: b.mr.iova + 128,
        rkey: b.mr.key,
        imm: Some(5),
    };
    a.post(write, Data::Inline(&[1, 2, 3]));
    world.pump();
    assert_eq!(a.statuses(), [OK]);
    let got = b.cq.drain();
    assert_eq!(got[0].opcode, CqeOpcode::RecvWriteImm.to_wire());
    assert_eq!(
        (
            got[0].wr_id.get(),
            got[0].byte_len.get(),
            got[0].imm_or_key.get()
        ),
        (9, 3, 5)
    );
    let there = b.region(false);
    assert_eq!(&there[128..132], &[1, 2, 3, 0]);
    assert!(there[..128].iter().all(|byte| *byte == 0));
}

#[test]
fn pushed_descriptors_count_once() {
    let (mut world, mut a, mut b) = pair(false);
    for i in 0..40u8 {
        let write = Operation::Write {
            addr: b.mr.iova,
            rkey: b.mr.key,
            imm: None,
        };
        let bytes = [i; 32];
        let data = Data::Inline(&bytes);
        let mut head = Head::new(u64::from(i), WQE_SIGNALED, &write);
        a.qp.send.post_and(&mut head, data, true).expect("room");
        if i % 3 == 0 {
            // The ring's own copy must do where the slot has not the next descriptor.
            a.qp.send.post_and(&mut head, data, true).expect("room");
        }
        world.pump();
        assert_eq!(b.region(false)[..32], [i; 32]);
        assert!(a.statuses().iter().all(|status| *status == OK));
    }
    assert_eq!(world.node(0).counters().tx_messages.get(), 40 + 14);
    assert_eq!(b.statuses(), []);
}

#[test]
fn indices_wrap_around_with_descriptors_of_all_sizes() {
    let (mut world, mut a, mut b) = pair(false);
    for round in 0..200u32 {
        let count = 1 + (round % 18) as usize;
        let bytes = pattern(count * 10, round as u8);
        a.fill(false, &bytes);
        let sges: Vec<Sge> = (0..count).map(|i| a.mr.sge(i as u64 * 10, 10)).collect();
        let write = Operation::Write {
            addr: b.mr.iova,
            rkey: b.mr.key,
            imm: None,
        };
        a.post(write, Data::Sges(&sges));
        world.pump();
        assert_eq!(a.statuses(), [OK], "round {round}");
        assert!(b.region(false)[..bytes.len()] == bytes[..]);
    }
    assert!(b.cq.drain().is_empty());
}

#[test]
fn short_receive_buffer_fails_both_sides() {
    let (mut world, mut a, mut b) = pair(false);
    b.post_receive(1, &[b.mr.sge(0, 4)]);
    b.post_receive(2, &[b.mr.sge(0, 400)]);
    a.post(Operation::Send { imm: None }, Data::Inline(b"too long"));
    a.post(Operation::Nop, Data::Inline(&[]));
    world.pump();
    assert_eq!(
        a.statuses(),
        [
            WcStatus::RemoteInvalidRequest as u8,
            WcStatus::WrFlush as u8
        ]
    );
    assert_eq!(
        b.statuses(),
        [WcStatus::LocalLength as u8, WcStatus::WrFlush as u8]
    );
    // What is posted later is flushed too.
    a.post(Operation::Nop, Data::Inline(&[]));
    b.post_receive(3, &[b.mr.sge(0, 4)]);
    world.pump();
    assert_eq!(a.statuses(), [WcStatus::WrFlush as u8]);
    assert_eq!(b.statuses(), [WcStatus::WrFlush as u8]);
}

#[test]
fn responder_checks_key_range_right_and_domain() {
    let wrong = |operation: fn(&Side) -> Operation, prepare: fn(&mut World, &mut Side)| {
        let (mut world, mut a, mut b) = pair(false);
        prepare(&mut world, &mut b);
        a.post(operation(&b), Data::Inline(&[1; 8]));
        world.pump();
        assert_eq!(a.statuses(), [WcStatus::RemoteAccess as u8]);
        assert!(b.region(false).iter().all(|byte| *byte == 0));
        assert_eq!(b.eq.drain(), [(EventType::QpAccess as u8, 0, b.qp.qpn)]);
        assert_eq!(world.node(1).counters().remote_access_errors.get(), 1);
    };
    wrong(
        |b| Operation::Write {
            addr: b.mr.iova,
            rkey: b.mr.key ^ (1 << 20),
            imm: None,
        },
        |_, _| {},
    );
    wrong(
        |b| Operation::Write {
            addr: b.mr.iova + REGION - 7,
            rkey: b.mr.key,
            imm: None,
        },
        |_, _| {},
    );
    wrong(
        |b| Operation::Write {
            addr: b.mr.iova - 1,
            rkey: b.mr.key,
            imm: None,
        },
        |_, _| {},
    );
    wrong(
        |_| Operation::Write {
            addr: u64::MAX,
            rkey: u32::MAX,
            imm: None,
        },
        |_, _| {},
    );
    // Deregistered, and its slot reused: the old key is dead.
    wrong(
        |b| Operation::Write {
            addr: b.mr.iova,
            rkey: b.mr.key,
            imm: None,
        },
        |world, b| {
            let destroyed = world.engine.destroy_mr(&mut world.nodes, 1, b.mr.key);
            destroyed.expect("exists");
            b.host.mr(world, 4096, false);
        },
    );
}

#[test]
fn stale_epoch_and_reset_end_the_connection() {
    let (mut world, mut a, mut b) = pair(false);
    a.post(Operation::Send { imm: None }, Data::Inline(b"waits"));
    world.pump();
    assert_eq!(b.cq.drain().len(), 0);
    world.engine.reset(&mut world.nodes, 1);
    world.pump();
    assert_eq!(world.node(1).epoch(), 2);
    assert_eq!(world.node(1).object_counts(), [0; 6]);
    assert_eq!(a.statuses(), [WcStatus::WrFlush as u8]);
    let events = a.eq.drain();
    assert!(
        events.contains(&(EventType::NodeDown as u8, 1, 1)),
        "{events:?}"
    );
    assert!(events.contains(&(EventType::QpFatal as u8, 0, a.qp.qpn)));
    world.engine.enable(&mut world.nodes, 1);
    world.pump();
    assert_eq!(a.eq.drain(), [(EventType::NodeUp as u8, 1, 2)]);

    // A queue pair that is told the old epoch does not reach the new node.
    let again = side(&mut world, 1, false);
    let old = a.host.qp(&mut world, QpType::Rc, &a.cq, 4);
    a.host.ready(&mut world, &old, Some((1, again.qp.qpn, 1)));
    again
        .host
        .ready(&mut world, &again.qp, Some((0, old.qpn, 1)));
    a.qp = old;
    a.post(
        Operation::Write {
            addr: 0,
            rkey: 0,
            imm: None,
        },
        Data::Inline(b"stale"),
    );
    world.pump();
    assert_eq!(a.statuses(), [WcStatus::RetryExceeded as u8]);
}

#[test]
fn link_down_flushes_both_ends() {
    let (mut world, mut a, mut b) = pair(false);
    a.post(Operation::Send { imm: None }, Data::Inline(b"waits"));
    b.post(Operation::Send { imm: None }, Data::Inline(b"too"));
    world.pump();
    world.engine.set_link(&mut world.nodes, 1, false);
    world.pump();
    assert_eq!(a.statuses(), [WcStatus::WrFlush as u8]);
    assert_eq!(b.statuses(), [WcStatus::WrFlush as u8]);
    assert!(b.eq.drain().contains(&(EventType::LinkDown as u8, 1, 1)));
    assert!(a.eq.drain().contains(&(EventType::NodeDown as u8, 1, 1)));
}

#[test]
fn loopback_works_like_any_other_connection() {
    let mut world = World::new(*crate::MODE, 1);
    let mut a = side(&mut world, 0, true);
    let mut b = Side {
        host: world.host(0),
        eq: a.host.eq(&mut world, 1, 6),
        cq: a.host.cq(&mut world, 0, 6),
        qp: a.host.qp(&mut world, QpType::Rc, &a.cq, 4),
        mr: a.host.mr(&mut world, REGION, true),
    };
    connect(&mut world, &a, &b);
    a.fill(true, &pattern(9000, 3));
    let write = Operation::Write {
        addr: b.mr.iova + 5,
        rkey: b.mr.key,
        imm: None,
    };
    a.post(write, Data::Sges(&[a.mr.sge(0, 9000)]));
    world.pump();
    assert_eq!(a.statuses(), [OK]);
    assert!(b.region(true)[5..9005] == pattern(9000, 3)[..]);
    assert_eq!(b.statuses(), []);
}

#[test]
fn destroying_the_target_ends_a_wait() {
    let (mut world, mut a, b) = pair(false);
    a.post(Operation::Send { imm: None }, Data::Inline(b"waits"));
    world.pump();
    world
        .engine
        .destroy_qp(&mut world.nodes, 1, b.qp.qpn)
        .expect("exists");
    world.pump();
    assert_eq!(a.statuses(), []);
    world.advance(500_000);
    assert_eq!(a.statuses(), [WcStatus::RetryExceeded as u8]);
}

#[test]
fn unknown_descriptors_end_the_queue_pair() {
    let (mut world, mut a, _b) = pair(false);
    // A frame is no operation of a connected queue pair.
    a.post(
        Operation::Frame {
            node: 1,
            meta: Default::default(),
        },
        Data::Inline(&[0; 60]),
    );
    a.post(Operation::Nop, Data::Inline(&[]));
    world.pump();
    assert_eq!(
        a.statuses(),
        [WcStatus::LocalQpOperation as u8, WcStatus::WrFlush as u8]
    );
    assert_eq!(world.node(0).counters().bad_descriptors.get(), 1);
}
