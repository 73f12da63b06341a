// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Frames for everybody that find a full ring.

use nupa_engine::rings::{Data, Operation};
use nupa_proto::{
    admin::QpType,
    cqe::CqeOpcode,
    frame::FrameMeta,
    ident::{node_mac, NODE_FLOOD},
    wqe::WQE_SIGNALED,
};
use nupa_testing::World;

/// Bytes of a frame; a thousand of them fit into no ring.
const LEN: u32 = 8000;
/// Frames that are posted at once.
const BATCH: u64 = 16;

#[test]
fn what_a_node_misses_is_counted() {
    let mut world = World::new(*crate::MODE, 2);
    let mut sides = [0, 1].map(|id| {
        let mut host = world.host(id);
        let eq = host.start(&mut world);
        let cq = host.cq(&mut world, eq.eqn, 10);
        let qp = host.qp(&mut world, QpType::Raw, &cq, 9);
        host.ready(&mut world, &qp, None);
        host.receive_all_frames(&mut world, qp.qpn);
        (host, cq, qp)
    });
    let [(a, done, sends), (b, received, recvs)] = &mut sides;
    let buffers = b.alloc(u64::from(LEN));
    for number in 0..500 {
        let sge = b.dma(buffers, LEN);
        recvs.recv.post(number, &[sge]).expect("room");
    }
    recvs.recv.ring();
    world.pump();
    let frame = a.alloc(u64::from(LEN));
    a.write(frame, &[0xff; 6]);
    a.write(frame + 6, &node_mac(0));
    let errors = |world: &World| world.node(0).counters().tx_errors.get();
    // The other host takes nothing out of its ring meanwhile.
    world.hold(Some(1));
    let mut sent = 0;
    while errors(&world) < 3 && sent < 1000 {
        for number in 0..BATCH {
            let (node, meta) = (NODE_FLOOD, FrameMeta::default());
            let sges = [a.dma(frame, LEN)];
            let operation = Operation::Frame { node, meta };
            sends.submit(number, WQE_SIGNALED, operation, Data::Sges(&sges));
        }
        sent += BATCH;
        world.pump();
        let cqes = done.drain();
        assert_eq!(cqes.len() as u64, BATCH, "nobody waits");
        let last = cqes.last().expect("as many as were posted");
        let freed = sends.send.completed(last.queue_index.get());
        freed.expect("it was posted");
    }
    let missed = errors(&world);
    assert!(missed >= 3 && missed < sent, "{missed} of {sent}");
    world.hold(None);
    world.pump();
    let arrived = received.drain();
    let arrived = arrived.iter();
    let frames = arrived.filter(|cqe| cqe.opcode == CqeOpcode::RecvFrame.to_wire());
    assert_eq!(frames.count() as u64 + missed, sent);
    assert_eq!(world.node(1).counters().rx_no_buffer.get(), 0);
}
