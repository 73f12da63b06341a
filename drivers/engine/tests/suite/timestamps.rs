// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Completions that say when they were written.

use nupa_engine::rings::{Data, Operation};
use nupa_proto::{
    admin::{QpType, CQ_FLAG_IGNORE_OVERRUN, CQ_FLAG_TIMESTAMP},
    cqe::{Cqe, CqeOpcode},
    frame::FrameMeta,
    ident::node_mac,
    wqe::WQE_SIGNALED,
};
use nupa_testing::{Cq, Host, Qp, World};
use zerocopy::little_endian::U32;

struct End {
    host: Host,
    cq: Cq,
    qp: Qp,
}

impl End {
    fn new(world: &mut World, id: u16, kind: QpType, flags: u8) -> Self {
        let mut host = world.host(id);
        let eq = host.start(world);
        let cq = host.cq_with(world, eq.eqn, 6, flags);
        let qp = host.qp(world, kind, &cq, 5);
        Self { host, cq, qp }
    }

    /// Posts a receive buffer.
    fn receive(&mut self, len: u32) {
        let addr = self.host.alloc(u64::from(len));
        let sge = self.host.dma(addr, len);
        self.qp.recv.post(addr, &[sge]).expect("room");
        self.qp.recv.ring();
    }

    fn drain(&mut self) -> Vec<Cqe> {
        let drained = self.cq.drain();
        for cqe in drained.iter().filter(|cqe| cqe.opcode & 0x80 == 0) {
            let completed = self.qp.send.completed(cqe.queue_index.get());
            completed.expect("index of what is posted");
        }
        drained
    }
}

/// Two ends, of which the first one has timestamps.
fn pair() -> (World, End, End) {
    let mut world = World::new(*crate::MODE, 2);
    let a = End::new(&mut world, 0, QpType::Rc, CQ_FLAG_TIMESTAMP);
    let b = End::new(&mut world, 1, QpType::Rc, 0);
    let (ea, eb) = (world.node(0).epoch(), world.node(1).epoch());
    a.host
        .ready(&mut world, &a.qp, Some((b.host.id, b.qp.qpn, eb)));
    b.host
        .ready(&mut world, &b.qp, Some((a.host.id, a.qp.qpn, ea)));
    (world, a, b)
}

fn stamps(cqes: &[Cqe]) -> Vec<u64> {
    cqes.iter().map(Cqe::timestamp).collect()
}

/// The world's clock, which counts microseconds, in the nanoseconds of timestamps.
fn now(world: &World) -> u64 {
    world.now.get() * 1000
}

#[test]
fn a_completion_says_when_it_was_written() {
    let (mut world, mut a, _b) = pair();
    world.advance(1_000_000);
    let mut last = 0;
    for us in [7, 0, 123_456] {
        world.advance(us);
        let before = now(&world);
        a.qp.submit(1, WQE_SIGNALED, Operation::Nop, Data::Inline(&[]));
        world.pump();
        let seen = stamps(&a.drain());
        let [stamp] = seen[..] else {
            panic!("one completion, not {seen:?}");
        };
        assert!((before..=now(&world)).contains(&stamp), "{stamp}");
        assert!(stamp >= last);
        last = stamp;
    }
}

#[test]
fn each_end_has_its_own_choice() {
    let (mut world, mut a, mut b) = pair();
    world.advance(5_000);
    let before = now(&world);
    a.receive(64);
    b.receive(64);
    let send = || Operation::Send { imm: None };
    a.qp.submit(1, WQE_SIGNALED, send(), Data::Inline(&[1; 8]));
    b.qp.submit(2, WQE_SIGNALED, send(), Data::Inline(&[2; 8]));
    world.pump();
    let (first, second) = (a.drain(), b.drain());
    assert_eq!((first.len(), second.len()), (2, 2));
    assert!(stamps(&first).iter().all(|&stamp| stamp >= before));
    assert!(stamps(&first).is_sorted());
    // What nobody asked for is not there.
    assert!(second.iter().all(|cqe| cqe.frame == FrameMeta::default()));
}

#[test]
fn entries_keep_their_timestamps_in_another_ring() {
    let (mut world, mut a, _b) = pair();
    for _ in 0..4 {
        world.advance(1_000);
        a.qp.submit(1, WQE_SIGNALED, Operation::Nop, Data::Inline(&[]));
        world.pump();
    }
    let moved = now(&world);
    world.advance(1_000_000);
    a.host.resize(&mut world, &mut a.cq, 3).expect("room");
    a.qp.submit(1, WQE_SIGNALED, Operation::Nop, Data::Inline(&[]));
    world.pump();
    let seen = stamps(&a.drain());
    assert_eq!(seen.len(), 5);
    assert!(seen.is_sorted() && seen[0] != 0);
    assert!(seen[3] <= moved && seen[4] > moved);
}

#[test]
fn a_frame_keeps_its_offload_state() {
    let mut world = World::new(*crate::MODE, 2);
    let flags = CQ_FLAG_TIMESTAMP | CQ_FLAG_IGNORE_OVERRUN;
    let mut a = End::new(&mut world, 0, QpType::Raw, flags);
    let mut b = End::new(&mut world, 1, QpType::Raw, flags);
    for end in [&mut a, &mut b] {
        end.host.ready(&mut world, &end.qp, None);
        end.host
            .receive_frames(&mut world, &[node_mac(end.host.id)], &[end.qp.qpn]);
    }
    world.advance(5_000);
    b.receive(2048);
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&node_mac(1));
    frame[6..12].copy_from_slice(&node_mac(0));
    let addr = a.host.alloc(64);
    a.host.write(addr, &frame);
    let meta = FrameMeta {
        hash: U32::new(0x1234_5678),
        ..FrameMeta::default()
    };
    let sges = [a.host.dma(addr, 60)];
    let operation = Operation::Frame { node: 1, meta };
    a.qp.submit(1, WQE_SIGNALED, operation, Data::Sges(&sges));
    world.pump();
    let (sent, received) = (a.drain(), b.drain());
    assert_eq!((sent.len(), received.len()), (1, 1));
    assert!(sent[0].timestamp() >= 5_000_000);
    assert_eq!(received[0].opcode, CqeOpcode::RecvFrame.to_wire());
    assert_eq!(received[0].frame, meta);
}
