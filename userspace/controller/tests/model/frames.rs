// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Frames between raw queue pairs.

use nupa_engine::rings::{Data, Operation, SendRequest};
use nupa_proto::admin::{QpStateCode, RX_ALL_MULTICAST, RX_BROADCAST, RX_PROMISC};
use nupa_proto::cqe::CqeOpcode;
use nupa_proto::frame::{FrameMeta, FRAME_NEEDS_CSUM, MAX_FRAME};
use nupa_proto::ident::{node_mac, DMA_LKEY, NODE_FLOOD};
use nupa_proto::status::WcStatus;
use nupa_proto::wqe::{Sge, WQE_SIGNALED};

use crate::common::guest::{Guest, RAM_BASE};
use crate::common::queues::{frame, sge, Qp};
use crate::common::World;

const BROADCAST: [u8; 6] = [0xff; 6];

/// Guests on nodes 0 to `count - 1`, each with an event queue and one raw queue pair that takes its frames.
fn guests(count: u16) -> (World, Vec<(Guest, Qp)>) {
    let world = World::new(count.max(2));
    let guests = (0..count).map(|node| {
        let guest = Guest::up(&world, node);
        let eqn = guest.eq(0).eqn;
        let qp = guest.raw(eqn);
        (guest, qp)
    });
    let guests = guests.collect();
    (world, guests)
}

/// Frame bytes gathered from the buffers of a receive completion; `len` is that of each buffer.
fn gather(guest: &Guest, buffers: &[u64], len: usize, total: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = buffers.iter().flat_map(|&at| guest.get(at, len)).collect();
    bytes.truncate(total);
    bytes
}

#[test]
fn a_frame_arrives_with_its_bytes_and_its_state() {
    let (_world, mut guests) = guests(2);
    let [(a, a_qp), (b, b_qp)] = &mut guests[..] else {
        unreachable!()
    };
    let buffer = b.post_buffer(b_qp, 2048);
    let bytes = frame(node_mac(1), node_mac(0), 1514, 3);
    let meta = FrameMeta {
        flags: FRAME_NEEDS_CSUM,
        csum_start: 34.into(),
        csum_offset: 16.into(),
        hash: 0x1234_5678.into(),
        ..FrameMeta::default()
    };
    let index = a.send_frame(a_qp, 1, &bytes, meta);

    let sent = a_qp.poll();
    assert_eq!(sent.status, WcStatus::Success.to_wire());
    assert_eq!(sent.queue_index.get(), index);
    assert_eq!(sent.wr_id.get(), 0xf00d);
    let got = b_qp.poll();
    assert_eq!(got.opcode, CqeOpcode::RecvFrame.to_wire());
    assert_eq!(got.status, WcStatus::Success.to_wire());
    assert_eq!(
        (got.byte_len.get(), got.buffers.get(), got.src_node.get()),
        (1514, 1, 0)
    );
    assert_eq!(got.frame, meta);
    assert_eq!(got.wr_id.get(), buffer);
    assert_eq!(b.get(buffer, bytes.len()), bytes);
    a_qp.assert_idle();
    b_qp.assert_idle();
}

#[test]
fn the_longest_frame_fills_buffers_in_ring_order() {
    let (world, mut guests) = guests(2);
    let [(a, a_qp), (b, b_qp)] = &mut guests[..] else {
        unreachable!()
    };
    let buffers: Vec<u64> = (0..20).map(|_| b.post_buffer(b_qp, 4096)).collect();
    let bytes = frame(node_mac(1), node_mac(0), MAX_FRAME as usize, 7);
    a.send_frame(a_qp, 1, &bytes, FrameMeta::default());
    let got = b_qp.poll();
    assert_eq!(got.byte_len.get(), MAX_FRAME);
    assert_eq!((got.buffers.get(), got.queue_index.get()), (17, 17));
    assert_eq!(gather(b, &buffers[..17], 4096, bytes.len()), bytes);
    assert_eq!(world.counter(1, "rx_bytes"), u64::from(MAX_FRAME));
    assert_eq!(world.counter(0, "tx_frames"), 1);
}

#[test]
fn a_frame_is_gathered_from_many_pieces() {
    let (_world, mut guests) = guests(2);
    let [(a, a_qp), (b, b_qp)] = &mut guests[..] else {
        unreachable!()
    };
    let buffer = b.post_buffer(b_qp, 4096);
    let bytes = frame(node_mac(1), node_mac(0), 1800, 9);
    let pieces: Vec<Sge> = bytes
        .chunks(100)
        .map(|piece| sge(a.put(piece), piece.len() as u32, DMA_LKEY))
        .collect();
    assert_eq!(pieces.len(), 18);
    let request = SendRequest {
        wr_id: 1,
        flags: WQE_SIGNALED,
        operation: Operation::Frame {
            node: 1,
            meta: FrameMeta::default(),
        },
        data: Data::Sges(&pieces),
    };
    a_qp.send.post(&request).unwrap();
    a_qp.send.ring();
    assert_eq!(a_qp.poll().status, WcStatus::Success.to_wire());
    assert_eq!(b_qp.poll().byte_len.get(), 1800);
    assert_eq!(b.get(buffer, bytes.len()), bytes);
}

#[test]
fn a_pushed_frame_arrives_like_any_other() {
    let (_world, mut guests) = guests(2);
    let [(_, a_qp), (b, b_qp)] = &mut guests[..] else {
        unreachable!()
    };
    for seed in 0..40 {
        let buffer = b.post_buffer(b_qp, 256);
        let bytes = frame(node_mac(1), node_mac(0), 32, seed);
        let request = SendRequest {
            wr_id: u64::from(seed),
            flags: WQE_SIGNALED,
            operation: Operation::Frame {
                node: 1,
                meta: FrameMeta::default(),
            },
            data: Data::Inline(&bytes),
        };
        let mut head = request.head();
        a_qp.send.post_and(&mut head, request.data, true).unwrap();
        let sent = a_qp.poll();
        assert_eq!(sent.wr_id.get(), u64::from(seed));
        a_qp.send.completed(sent.queue_index.get()).unwrap();
        let got = b_qp.poll();
        b_qp.recv.completed(got.queue_index.get()).unwrap();
        assert_eq!(b.get(buffer, bytes.len()), bytes);
    }
}

#[test]
fn flood_reaches_all_but_the_sender_and_filters_decide() {
    let (world, mut guests) = guests(4);
    for (guest, qp) in &mut guests {
        for _ in 0..4 {
            guest.post_buffer(qp, 2048);
        }
    }
    let multicast = [0x33, 0x33, 0, 0, 0, 1];
    guests[1]
        .0
        .filter(&[node_mac(1), multicast], RX_BROADCAST)
        .unwrap();
    guests[2].0.filter(&[node_mac(2)], RX_PROMISC).unwrap();
    guests[3]
        .0
        .filter(&[node_mac(3)], RX_ALL_MULTICAST)
        .unwrap();
    let foreign = [0x02, 1, 2, 3, 4, 5];
    let cases = [
        (BROADCAST, [true, false, false]),
        (multicast, [true, false, true]),
        (foreign, [false, true, false]),
        (node_mac(3), [false, true, true]),
    ];
    for (to, takers) in cases {
        let bytes = frame(to, node_mac(0), 100, 1);
        let (sender, qp) = &mut guests[0];
        sender.send_frame(qp, NODE_FLOOD, &bytes, FrameMeta::default());
        assert_eq!(qp.poll().status, WcStatus::Success.to_wire());
        qp.assert_idle();
        for (taken, (guest, qp)) in takers.into_iter().zip(&mut guests[1..]) {
            let got = qp.cq.ring.poll();
            assert_eq!(got.is_some(), taken, "node {} and {to:x?}", guest.node);
        }
    }
    assert_eq!(world.counter(1, "rx_frames"), 2);
    assert!(world.counter(1, "rx_filtered") >= 2);
}

#[test]
fn unicast_stays_between_two_nodes() {
    let (world, mut guests) = guests(3);
    guests[2].0.filter(&[node_mac(2)], RX_PROMISC).unwrap();
    for (guest, qp) in &mut guests {
        guest.post_buffer(qp, 2048);
    }
    let bytes = frame(node_mac(1), node_mac(0), 80, 1);
    let (sender, qp) = &mut guests[0];
    sender.send_frame(qp, 1, &bytes, FrameMeta::default());
    assert_eq!(guests[1].1.poll().byte_len.get(), 80);
    guests[2].1.assert_idle();
    assert_eq!(world.counter(2, "rx_filtered"), 0);
}

#[test]
fn the_target_filters_unicast_too() {
    let (world, mut guests) = guests(2);
    let [(a, a_qp), (b, b_qp)] = &mut guests[..] else {
        unreachable!()
    };
    b.post_buffer(b_qp, 2048);
    let foreign = frame([2, 9, 9, 9, 9, 9], node_mac(0), 80, 1);
    a.send_frame(a_qp, 1, &foreign, FrameMeta::default());
    assert_eq!(a_qp.poll().status, WcStatus::Success.to_wire());
    b_qp.assert_idle();
    assert_eq!(world.counter(1, "rx_filtered"), 1);
}

#[test]
fn the_hash_picks_the_queue() {
    let (_world, mut guests) = guests(2);
    let [(a, a_qp), (b, first)] = &mut guests[..] else {
        unreachable!()
    };
    let mut second = b.raw_quiet(0);
    b.spread(&[first.qpn, second.qpn]).unwrap();
    for hash in 0..8u32 {
        b.post_buffer(first, 512);
        b.post_buffer(&mut second, 512);
        let meta = FrameMeta {
            hash: hash.into(),
            ..FrameMeta::default()
        };
        a.send_frame(a_qp, 1, &frame(node_mac(1), node_mac(0), 60, 0), meta);
        let (hit, miss) = if hash % 2 == 0 {
            (&mut *first, &mut second)
        } else {
            (&mut second, &mut *first)
        };
        assert_eq!(hit.poll().frame.hash.get(), hash);
        miss.assert_idle();
    }
}

#[test]
fn a_sender_waits_for_buffers_and_goes_on_in_order() {
    let (world, mut guests) = guests(2);
    let [(a, a_qp), (b, b_qp)] = &mut guests[..] else {
        unreachable!()
    };
    let frames: Vec<_> = (0..3)
        .map(|i| frame(node_mac(1), node_mac(0), 200, i))
        .collect();
    for bytes in &frames {
        a.send_frame(a_qp, 1, bytes, FrameMeta::default());
    }
    a_qp.assert_idle();
    assert!(world.counter(0, "tx_rnr_waits") >= 1);
    let first = b.post_buffer(b_qp, 512);
    assert_eq!(b.get(first, 200), frames[0]);
    b_qp.poll();
    a_qp.poll();
    a_qp.assert_idle();
    let rest = [b.post_buffer(b_qp, 512), b.post_buffer(b_qp, 512)];
    for (at, bytes) in rest.into_iter().zip(&frames[1..]) {
        assert_eq!(b.get(at, 200), *bytes);
        assert_eq!(a_qp.poll().status, WcStatus::Success.to_wire());
    }
    world.pass(50_000);
    a_qp.assert_idle();
}

#[test]
fn a_frame_without_buffers_is_given_up_and_the_queue_goes_on() {
    let (world, mut guests) = guests(2);
    let [(a, a_qp), (b, b_qp)] = &mut guests[..] else {
        unreachable!()
    };
    a.send_frame(
        a_qp,
        1,
        &frame(node_mac(1), node_mac(0), 200, 1),
        FrameMeta::default(),
    );
    world.pass(19_000);
    a_qp.assert_idle();
    world.pass(2_000);
    assert_eq!(a_qp.poll().status, WcStatus::RnrRetryExceeded.to_wire());
    let buffer = b.post_buffer(b_qp, 512);
    let next = frame(node_mac(1), node_mac(0), 300, 2);
    a.send_frame(a_qp, 1, &next, FrameMeta::default());
    assert_eq!(a_qp.poll().status, WcStatus::Success.to_wire());
    assert_eq!(b.get(buffer, 300), next);
}

#[test]
fn flood_never_waits() {
    let (world, mut guests) = guests(3);
    let [(a, a_qp), (b, b_qp), (_, c_qp)] = &mut guests[..] else {
        unreachable!()
    };
    b.post_buffer(b_qp, 512);
    let bytes = frame(BROADCAST, node_mac(0), 90, 1);
    a.send_frame(a_qp, NODE_FLOOD, &bytes, FrameMeta::default());
    assert_eq!(a_qp.poll().status, WcStatus::Success.to_wire());
    assert_eq!(b_qp.poll().byte_len.get(), 90);
    c_qp.assert_idle();
    assert_eq!(world.counter(2, "rx_no_buffer"), 1);
}

#[test]
fn a_node_that_is_not_there_costs_an_error_not_the_queue() {
    let (world, mut guests) = guests(1);
    let (a, a_qp) = &mut guests[0];
    for node in [1, 2, 1000] {
        a.send_frame(
            a_qp,
            node,
            &frame(node_mac(1), node_mac(0), 60, 1),
            FrameMeta::default(),
        );
        assert_eq!(a_qp.poll().status, WcStatus::RetryExceeded.to_wire());
    }
    assert_eq!(world.counter(0, "tx_errors"), 3);
    assert_eq!(a.set_state(a_qp.qpn, QpStateCode::Rts), Ok(()));
}

#[test]
fn a_malformed_frame_stops_its_queue_only() {
    let (world, mut guests) = guests(2);
    let [(_, a_qp), (b, b_qp)] = &mut guests[..] else {
        unreachable!()
    };
    b.post_buffer(b_qp, 512);
    let outside = [sge(RAM_BASE - 4096, 60, DMA_LKEY)];
    let request = SendRequest {
        wr_id: 5,
        flags: 0,
        operation: Operation::Frame {
            node: 1,
            meta: FrameMeta::default(),
        },
        data: Data::Sges(&outside),
    };
    a_qp.send.post(&request).unwrap();
    a_qp.send.ring();
    let failed = a_qp.poll();
    assert_eq!(failed.wr_id.get(), 5);
    assert_ne!(failed.status, WcStatus::Success.to_wire());
    b_qp.assert_idle();
    assert_eq!(world.counter(1, "rx_frames"), 0);
}

#[test]
fn rings_wrap_many_times() {
    let (world, mut guests) = guests(2);
    let [(a, a_qp), (b, b_qp)] = &mut guests[..] else {
        unreachable!()
    };
    let source = a.alloc(4096);
    let target = b.alloc(4096);
    for round in 0..1000u32 {
        let bytes = frame(node_mac(1), node_mac(0), 60, round as u8);
        a.ram.write(source, &bytes).unwrap();
        let entry = sge(RAM_BASE + target as u64, 4096, DMA_LKEY);
        b_qp.recv.post(u64::from(round), &[entry]).unwrap();
        b_qp.recv.ring();
        let piece = [sge(RAM_BASE + source as u64, 60, DMA_LKEY)];
        let request = SendRequest {
            wr_id: u64::from(round),
            flags: WQE_SIGNALED,
            operation: Operation::Frame {
                node: 1,
                meta: FrameMeta::default(),
            },
            // Every third takes two blocks.
            data: if round % 3 == 0 {
                Data::Inline(&bytes)
            } else {
                Data::Sges(&piece)
            },
        };
        a_qp.send.post(&request).unwrap();
        a_qp.send.ring();
        let sent = a_qp.poll();
        assert_eq!((sent.wr_id.get(), sent.status), (u64::from(round), 0));
        a_qp.send.completed(sent.queue_index.get()).unwrap();
        let got = b_qp.poll();
        assert_eq!(got.wr_id.get(), u64::from(round));
        b_qp.recv.completed(got.queue_index.get()).unwrap();
        assert_eq!(b.get(RAM_BASE + target as u64, 60), bytes);
    }
    assert_eq!(world.counter(1, "rx_frames"), 1000);
}
