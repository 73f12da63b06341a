// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Raw frames: filter, spreading, buffers, flooding, receivers that are not ready.

use nupa_engine::rings::{Data, Operation};
use nupa_proto::{
    admin::QpType,
    cqe::{Cqe, CqeOpcode},
    eqe::EventType,
    frame::{FrameMeta, MAX_FRAME},
    ident::{node_mac, NODE_FLOOD},
    status::WcStatus,
    wqe::WQE_SIGNALED,
};
use nupa_testing::{Cq, Eq, Host, Qp, World, LONGEST_FRAME};
use zerocopy::little_endian::U32;

const OK: u8 = WcStatus::Success as u8;
const BROADCAST: [u8; 6] = [0xff; 6];

/// What a sender has been told: on one host, and when its target is on another. A frame for another host is done for its sender
/// once it was handed over.
fn told<'a>(here: &'a [u8], linked_hosts: &'a [u8]) -> &'a [u8] {
    if crate::MODE.is_linked() {
        linked_hosts
    } else {
        here
    }
}

struct Netdev {
    host: Host,
    eq: Eq,
    cq: Cq,
    qp: Qp,
}

fn netdev(world: &mut World, id: u16) -> Netdev {
    let mut host = world.host(id);
    let eq = host.start(world);
    let cq = host.cq(world, eq.eqn, 7);
    let qp = host.qp(world, QpType::Raw, &cq, 5);
    host.ready(world, &qp, None);
    host.receive_frames(world, &[node_mac(id)], &[qp.qpn]);
    Netdev { host, eq, cq, qp }
}

fn frame(to: [u8; 6], from: u16, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7 + (i >> 8)) as u8).collect();
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&node_mac(from));
    bytes
}

impl Netdev {
    /// Posts `count` buffers of `len` bytes; `wr_id` is the address.
    fn buffers(&mut self, count: usize, len: u32) {
        for _ in 0..count {
            let addr = self.host.alloc(u64::from(len));
            self.qp
                .recv
                .post(addr, &[self.host.dma(addr, len)])
                .expect("room");
        }
        self.qp.recv.ring();
    }

    /// Sends a frame in pieces: 5 bytes, then the rest.
    fn send(&mut self, node: u16, bytes: &[u8], flags: u8, hash: u32) {
        let addr = self.host.alloc(bytes.len() as u64);
        self.host.write(addr, bytes);
        let sges = [
            self.host.dma(addr, 5),
            self.host.dma(addr + 5, bytes.len() as u32 - 5),
        ];
        let meta = FrameMeta {
            hash: U32::new(hash),
            flags: 3,
            ..FrameMeta::default()
        };
        let operation = Operation::Frame { node, meta };
        self.qp.submit(1, flags, operation, Data::Sges(&sges));
    }

    fn statuses(&mut self) -> Vec<u8> {
        self.cq.drain().iter().map(|cqe| cqe.status).collect()
    }

    /// Puts a received frame together; buffers follow each other in memory order.
    fn bytes(&self, cqe: &Cqe, buffer: u32) -> Vec<u8> {
        let mut left = cqe.byte_len.get();
        let mut bytes = Vec::new();
        for i in 0..u64::from(cqe.buffers.get()) {
            let n = left.min(buffer);
            let addr = cqe.wr_id.get() + i * u64::from(buffer.next_multiple_of(4096));
            bytes.extend(self.host.read(addr, n as usize));
            left -= n;
        }
        bytes
    }
}

/// Bytes of a buffer, and buffers, one more than the longest frame takes.
const BUFFER: u32 = 8192;
const BUFFERS: usize = (LONGEST_FRAME / BUFFER) as usize + 1;

#[test]
fn a_frame_fills_as_many_buffers_as_it_needs() {
    let mut world = World::new(*crate::MODE, 2);
    let (mut a, mut b) = (netdev(&mut world, 0), netdev(&mut world, 1));
    let lengths = [
        14,
        60,
        1514,
        BUFFER,
        BUFFER + 1,
        65535 + 14,
        MAX_FRAME,
        LONGEST_FRAME,
    ];
    for len in lengths.map(|len| len as usize) {
        b.buffers(BUFFERS, BUFFER);
        let bytes = frame(node_mac(1), 0, len);
        a.send(1, &bytes, WQE_SIGNALED, 0);
        world.pump();
        assert_eq!(a.statuses(), [OK]);
        let got = b.cq.drain();
        assert_eq!(got.len(), 1, "length {len}");
        assert_eq!(got[0].opcode, CqeOpcode::RecvFrame.to_wire());
        assert_eq!(got[0].byte_len.get() as usize, len);
        assert_eq!(
            usize::from(got[0].buffers.get()),
            len.div_ceil(BUFFER as usize)
        );
        assert_eq!((got[0].src_node.get(), got[0].frame.flags), (0, 3));
        assert!(b.bytes(&got[0], BUFFER) == bytes);
        // Hand back what is left: start over with empty rings.
        let index = got[0].queue_index.get();
        b.qp.recv.completed(index).expect("posted");
        let rest = BUFFERS - usize::from(got[0].buffers.get());
        for _ in 0..rest {
            a.send(1, &frame(node_mac(1), 0, 14), 0, 0);
        }
        world.pump();
        for cqe in b.cq.drain() {
            b.qp.recv.completed(cqe.queue_index.get()).expect("posted");
        }
        a.qp.send
            .completed(a.qp.send.index())
            .expect("all are done");
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for len in [13u32, LONGEST_FRAME + 1] {
        let mut world = World::new(*crate::MODE, 2);
        let (mut a, mut b) = (netdev(&mut world, 0), netdev(&mut world, 1));
        b.buffers(20, 4096);
        a.send(1, &vec![0; len as usize], 0, 0);
        world.pump();
        assert_eq!(a.statuses(), [WcStatus::LocalLength as u8]);
        assert_eq!(b.statuses(), []);
    }
}

#[test]
fn filter_and_flood_reach_who_wants_it() {
    let mut world = World::new(*crate::MODE, 4);
    let mut all: Vec<Netdev> = (0..3).map(|id| netdev(&mut world, id)).collect();
    all.iter_mut().for_each(|netdev| netdev.buffers(8, 2048));
    // Broadcast reaches everyone but the sender.
    all[0].send(NODE_FLOOD, &frame(BROADCAST, 0, 60), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(all[0].statuses(), [OK]);
    assert_eq!(all[1].cq.drain().len(), 1);
    assert_eq!(all[2].cq.drain().len(), 1);
    // A flooded unicast address reaches its owner.
    all[0].send(NODE_FLOOD, &frame(node_mac(2), 0, 60), WQE_SIGNALED, 0);
    // A unicast frame for another address is filtered, and that is no error.
    all[0].send(1, &frame(node_mac(2), 0, 60), WQE_SIGNALED, 0);
    // Multicast that nobody listens to.
    all[0].send(
        NODE_FLOOD,
        &frame([1, 0, 0x5e, 0, 0, 1], 0, 60),
        WQE_SIGNALED,
        0,
    );
    world.pump();
    assert_eq!(all[0].statuses(), [OK, OK, OK]);
    assert_eq!(all[1].cq.drain().len(), 0);
    assert_eq!(all[2].cq.drain().len(), 1);
    assert_eq!(world.node(1).counters().rx_filtered.get(), 3);
    // Node 3 is up but has no receive filter, node 9 does not exist.
    all[0].send(3, &frame(node_mac(3), 0, 60), WQE_SIGNALED, 0);
    all[0].send(9, &frame(node_mac(9), 0, 60), 0, 0);
    all[0].send(1, &frame(node_mac(1), 0, 60), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(all[0].statuses(), [OK, WcStatus::RetryExceeded as u8, OK]);
    assert_eq!(all[1].cq.drain().len(), 1);
}

#[test]
fn unsignaled_frames_complete_with_the_next_signaled_one() {
    let mut world = World::new(*crate::MODE, 2);
    let (mut a, mut b) = (netdev(&mut world, 0), netdev(&mut world, 1));
    b.buffers(8, 2048);
    for i in 0..5 {
        a.send(
            1,
            &frame(node_mac(1), 0, 100),
            if i == 4 { WQE_SIGNALED } else { 0 },
            0,
        );
    }
    world.pump();
    let done = a.cq.drain();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].queue_index.get(), a.qp.send.index());
    assert_eq!(a.qp.send.completed(done[0].queue_index.get()), Ok(5));
    assert_eq!(b.cq.drain().len(), 5);
}

#[test]
fn spreading_follows_the_hash() {
    let mut world = World::new(*crate::MODE, 2);
    let (mut a, mut b) = (netdev(&mut world, 0), netdev(&mut world, 1));
    let second = b.host.qp(&mut world, QpType::Raw, &b.cq, 5);
    b.host.ready(&mut world, &second, None);
    b.host.receive_frames(
        &mut world,
        &[node_mac(1)],
        &[b.qp.qpn, second.qpn, b.qp.qpn],
    );
    b.buffers(8, 2048);
    let mut second = Netdev {
        host: b.host,
        eq: b.eq,
        cq: b.cq,
        qp: second,
    };
    second.buffers(8, 2048);
    for hash in [0, 1, 2, 4, 5] {
        a.send(1, &frame(node_mac(1), 0, 100), 0, hash);
    }
    world.pump();
    let queues: Vec<u32> = second.cq.drain().iter().map(|cqe| cqe.qpn.get()).collect();
    assert_eq!(
        queues,
        [b.qp.qpn, second.qp.qpn, b.qp.qpn, second.qp.qpn, b.qp.qpn]
    );
}

#[test]
fn a_sender_waits_for_buffers_and_then_gives_the_frame_up() {
    let mut world = World::new(*crate::MODE, 3);
    let (mut a, mut b) = (netdev(&mut world, 0), netdev(&mut world, 1));
    let mut c = netdev(&mut world, 2);
    let rnr = WcStatus::RnrRetryExceeded as u8;
    b.buffers(1, 2048);
    // The second does not fit in what is posted, and nothing of it is consumed.
    a.send(1, &frame(node_mac(1), 0, 2000), WQE_SIGNALED, 0);
    a.send(1, &frame(node_mac(1), 0, 3000), WQE_SIGNALED, 0);
    a.send(1, &frame(node_mac(1), 0, 70), WQE_SIGNALED, 0);
    c.send(1, &frame(node_mac(1), 2, 80), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(a.statuses(), told(&[OK], &[OK, OK, OK]));
    assert_eq!(c.statuses(), told(&[], &[OK]));
    b.buffers(1, 2048);
    world.pump();
    // One more buffer is enough for the small frame only; the waiting order is kept per sender.
    assert_eq!(a.statuses(), []);
    assert_eq!(c.statuses(), told(&[OK], &[]));
    b.buffers(2, 2048);
    world.pump();
    assert_eq!(a.statuses(), told(&[OK], &[]));
    // The last one times out, the queue pair goes on.
    world.advance(1000);
    assert_eq!(a.statuses(), told(&[rnr], &[]));
    assert_eq!(world.node(1).counters().rx_no_buffer.get(), 1);
    let errors = u64::from(!crate::MODE.is_linked());
    assert_eq!(world.node(0).counters().tx_errors.get(), errors);
    b.buffers(1, 2048);
    a.send(1, &frame(node_mac(1), 0, 60), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(a.statuses(), [OK]);
    let mut lengths: Vec<u32> = b.cq.drain().iter().map(|cqe| cqe.byte_len.get()).collect();
    if crate::MODE.is_linked() {
        // Which of two hosts has the first buffer is a matter of luck.
        lengths[..2].sort_unstable_by_key(|len| *len == 80);
    }
    assert_eq!(lengths, [2000, 80, 3000, 60]);
}

#[test]
fn a_receiver_that_hangs_holds_up_others_only_once() {
    let mut world = World::new(*crate::MODE, 3);
    let (mut a, mut b) = (netdev(&mut world, 0), netdev(&mut world, 1));
    let mut c = netdev(&mut world, 2);
    c.buffers(4, 2048);
    let rnr = WcStatus::RnrRetryExceeded as u8;
    let to = |node: u16| frame(node_mac(node), 0, 60);
    a.send(1, &to(1), WQE_SIGNALED, 0);
    a.send(2, &to(2), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(a.statuses(), told(&[], &[OK, OK]));
    world.advance(1000);
    assert_eq!(a.statuses(), told(&[rnr, OK], &[]));
    // The next frames for it are given up at once, and what is behind them gets through.
    a.send(1, &to(1), WQE_SIGNALED, 0);
    a.send(1, &to(1), WQE_SIGNALED, 0);
    a.send(2, &to(2), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(a.statuses(), told(&[rnr, rnr, OK], &[OK, OK, OK]));
    assert_eq!(world.node(1).counters().rx_no_buffer.get(), 3);
    assert_eq!(c.cq.drain().len(), 2);
    // A buffer now and then does not make anybody wait again so soon.
    b.buffers(1, 2048);
    world.pump();
    a.send(1, &to(1), WQE_SIGNALED, 0);
    a.send(1, &to(1), WQE_SIGNALED, 0);
    a.send(2, &to(2), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(a.statuses(), told(&[OK, rnr, OK], &[OK, OK, OK]));
    assert_eq!((b.cq.drain().len(), c.cq.drain().len()), (1, 1));
    // A second later it is waited for again, once it has buffers.
    world.advance(1_000_000);
    b.buffers(1, 2048);
    world.pump();
    a.send(1, &to(1), WQE_SIGNALED, 0);
    a.send(1, &to(1), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(a.statuses(), told(&[OK], &[OK, OK]));
    assert_eq!(b.cq.drain().len(), 1);
    b.buffers(1, 2048);
    world.pump();
    assert_eq!(a.statuses(), told(&[OK], &[]));
    assert_eq!(b.cq.drain().len(), 1);
}

#[test]
fn flooding_waits_for_nobody() {
    let mut world = World::new(*crate::MODE, 3);
    let mut all: Vec<Netdev> = (0..3).map(|id| netdev(&mut world, id)).collect();
    all[2].buffers(1, 2048);
    all[0].send(NODE_FLOOD, &frame(BROADCAST, 0, 60), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(all[0].statuses(), [OK]);
    assert_eq!(all[1].cq.drain().len(), 0);
    assert_eq!(all[2].cq.drain().len(), 1);
    assert_eq!(world.node(1).counters().rx_no_buffer.get(), 1);
}

#[test]
fn node_that_leaves_ends_the_wait_but_not_the_queue_pair() {
    let mut world = World::new(*crate::MODE, 2);
    let (mut a, _b) = (netdev(&mut world, 0), netdev(&mut world, 1));
    a.send(1, &frame(node_mac(1), 0, 60), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(a.statuses(), told(&[], &[OK]));
    world.engine.reset(&mut world.nodes, 1);
    world.pump();
    assert_eq!(a.statuses(), told(&[WcStatus::RetryExceeded as u8], &[]));
    a.send(0, &frame(BROADCAST, 0, 60), WQE_SIGNALED, 0);
    a.buffers(1, 2048);
    world.pump();
    // Frames to oneself arrive.
    assert_eq!(a.statuses(), [OK, OK]);
}

#[test]
fn bad_receive_descriptor_blames_its_owner() {
    let mut world = World::new(*crate::MODE, 2);
    let (mut a, mut b) = (netdev(&mut world, 0), netdev(&mut world, 1));
    let end = b.host.machine.ram().end();
    // Memory that is not there, then a key that does not exist.
    let gone = b.host.dma(end - 10, 2048);
    b.qp.recv.post(77, &[gone]).expect("room");
    b.qp.recv.ring();
    a.send(1, &frame(node_mac(1), 0, 60), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(
        a.statuses(),
        told(&[WcStatus::RemoteOperation as u8], &[OK])
    );
    let got = b.cq.drain();
    assert_eq!(
        (got[0].wr_id.get(), got[0].status),
        (77, WcStatus::LocalProtection as u8)
    );
    assert_eq!(b.eq.drain(), [(EventType::QpFatal as u8, 0, b.qp.qpn)]);
    // The sender goes on; the target is not there for it any more.
    a.send(1, &frame(node_mac(1), 0, 60), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(a.statuses(), told(&[WcStatus::RetryExceeded as u8], &[OK]));
    assert_eq!(b.cq.drain().len(), 0);
}

#[test]
fn a_full_ring_holds_frames_back_until_there_is_room() {
    let mut world = World::new(*crate::MODE, 3);
    let (mut a, mut b) = (netdev(&mut world, 0), netdev(&mut world, 1));
    let mut c = netdev(&mut world, 2);
    c.buffers(4, 2048);
    for len in 60..72 {
        a.send(1, &frame(node_mac(1), 0, len), WQE_SIGNALED, 0);
    }
    world.pump();
    let mut statuses = a.statuses();
    assert_eq!(statuses.is_empty(), !crate::MODE.is_linked());
    b.buffers(12, 2048);
    world.pump();
    statuses.extend(a.statuses());
    assert_eq!(statuses, [OK; 12]);
    let lengths: Vec<u32> = b.cq.drain().iter().map(|cqe| cqe.byte_len.get()).collect();
    assert!(lengths.into_iter().eq(60..72));
    // Given up one after the other; what is behind them gets through, and so do those behind when there are buffers again.
    for _ in 0..6 {
        a.send(1, &frame(node_mac(1), 0, 60), WQE_SIGNALED, 0);
    }
    a.send(2, &frame(node_mac(2), 0, 60), WQE_SIGNALED, 0);
    world.pump();
    world.advance(1000);
    let statuses = a.statuses();
    assert_eq!((statuses.len(), statuses.last()), (7, Some(&OK)));
    assert_eq!(c.cq.drain().len(), 1);
    b.buffers(2, 2048);
    a.send(1, &frame(node_mac(1), 0, 61), WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(a.statuses(), [OK]);
    assert_eq!(b.cq.drain().len(), 1);
}

/// A host may have its engine run for a kick without a look at what peers sent; it has to be told that a frame can go on.
#[test]
fn buffers_that_are_posted_are_news_for_a_frame_that_waits() {
    let mut world = World::new(*crate::MODE, 2);
    let (mut a, mut b) = (netdev(&mut world, 0), netdev(&mut world, 1));
    let bytes = frame(node_mac(1), 0, 1000);
    a.send(1, &bytes, WQE_SIGNALED, 0);
    world.pump();
    assert_eq!(b.statuses(), []);
    b.buffers(1, BUFFER);
    let (mut hosts, kicks) = world.into_hosts();
    let (engine, nodes) = hosts.last_mut().expect("there is one");
    let kick = kicks.take().expect("buffers were asked for");
    engine.kick(nodes, kick.node, kick.page, kick.slot);
    // The one who waits is served, or the host is to come again at once.
    let next = engine.run(nodes);
    assert!(next == Some(0) || b.statuses() == [OK], "{next:?}");
    nodes.run(engine);
    assert_eq!(b.statuses().len(), usize::from(next == Some(0)));
}
