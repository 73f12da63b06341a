// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages that fail, and queue pairs that end: what the engine has taken is in one completion.

use super::*;
use nupa_proto::wqe::{DatagramSegment, GrhSegment};

#[test]
fn a_bad_entry_is_blamed_with_those_before_it() {
    for (status, told) in [
        (WcStatus::LocalProtection, WcStatus::RemoteOperation),
        (WcStatus::LocalLength, WcStatus::RemoteInvalidRequest),
    ] {
        let mut s = Scene::new(2, 2);
        s.post(2);
        let good = s.mr.sge(0, 2);
        let lkey = match status {
            WcStatus::LocalProtection => U32::new(!0),
            _ => good.lkey,
        };
        s.post_entry(Sge { lkey, ..good });
        s.post(2);
        s.send(0, 2, b"two");
        assert_eq!(s.statuses(), [told as u8]);
        assert_eq!(s.filled(), [(0, 0..3, status as u8)]);
        let events = [EventType::QpFatal, EventType::LastWqe]
            .map(|kind| (kind as u8, 0, s.pairs[0].server.qpn));
        assert_eq!(s.eq.drain(), events);
        // The others go on.
        s.send(1, 1, b"four");
        assert_eq!((s.statuses(), s.filled()), (vec![OK], vec![(1, 3..5, OK)]));
    }
}

#[test]
fn what_is_refused_after_it_has_taken_entries_flushes_them() {
    for invalidates in [true, false] {
        let mut s = Scene::new(1, 1);
        s.post(4);
        let operation = match invalidates {
            // A region is not to be invalidated.
            true => Operation::SendInv { key: s.mr.key },
            false => Operation::Write {
                addr: 0,
                rkey: s.mr.key,
                imm: Some(1),
            },
        };
        assert!(s.submit(0, 2, operation, Data::Inline(b"two")));
        s.world.pump();
        assert_eq!(s.statuses(), [WcStatus::RemoteAccess as u8]);
        assert_eq!(s.filled(), [(0, 0..3, FLUSHED)]);
        let events = [EventType::QpAccess, EventType::LastWqe]
            .map(|kind| (kind as u8, 0, s.pairs[0].server.qpn));
        assert_eq!(s.eq.drain(), events);
        assert_eq!(s.next(), 3);
    }
}

#[test]
fn an_entry_that_cannot_be_read_is_completed() {
    let mut s = Scene::new(1, 1);
    s.post(1);
    // More entries than it has room for.
    s.server.write(s.srq.addr + 8, &[0xff; 8]);
    s.send(0, 0, b"zero");
    assert_eq!(s.statuses(), [WcStatus::RemoteOperation as u8]);
    let bad = WcStatus::LocalQpOperation as u8;
    assert_eq!((s.filled(), s.next()), (vec![(0, 0..1, bad)], 1));
}

#[test]
fn the_end_of_a_queue_pair_completes_what_it_has_taken() {
    for end in [QpStateCode::Err, QpStateCode::Reset, QpStateCode::Sqe] {
        for taken in [0, 2] {
            let mut s = Scene::new(2, 2);
            s.post(6);
            s.begin_long(0, taken);
            match end {
                // Not a state that one is put into.
                QpStateCode::Sqe => {
                    let (qpn, engine) = (s.pairs[0].server.qpn, &mut s.world.engine);
                    let destroyed = engine.destroy_qp(&mut s.world.nodes, SERVER, qpn);
                    assert_eq!(destroyed, Ok(()));
                    s.pairs[0].server.qpn = 0;
                    let filled = s.filled();
                    assert_eq!(filled, [(usize::MAX, 0..taken + 1, FLUSHED)]);
                }
                _ => {
                    s.set_server(0, end);
                    if end == QpStateCode::Err {
                        s.world.pump();
                    }
                    assert_eq!(s.filled(), [(0, 0..taken + 1, FLUSHED)]);
                }
            }
            s.world.pump();
            s.world.advance(500_000);
            assert_eq!(s.filled(), []);
            s.statuses();
            s.send(1, 1, b"next");
            assert_eq!(s.filled(), [(1, taken + 1..taken + 3, OK)]);
        }
    }
}

#[test]
fn a_reset_queue_pair_counts_anew() {
    let mut s = Scene::new(1, 1);
    s.post(10);
    s.say(0, 3);
    s.send(0, 4, b"one");
    assert_eq!(s.filled(), [(0, 0..2, OK)]);
    s.set_server(0, QpStateCode::Reset);
    let qpn = s.pairs[0].client.qpn;
    let reset = s.client.set_state(&mut s.world, qpn, QpStateCode::Reset);
    assert_eq!(reset, Ok(()));
    s.pairs[0].client.send.reset();
    s.cq.drain();
    s.connect(0);
    // What its owner has said before is gone. The queue stays one that its owner takes entries of.
    assert_eq!(s.take(), Some(2));
    s.send(0, 0, b"three");
    assert_eq!((s.statuses(), s.filled()), (vec![OK], vec![(0, 3..4, OK)]));
    s.allow(0);
    assert_eq!(s.next(), 4);
    s.send(0, 2, b"six");
    assert_eq!((s.statuses(), s.filled()), (vec![OK], vec![(0, 4..7, OK)]));
}

#[test]
fn datagrams_take_their_entries_at_once() {
    let mut s = Scene::new(1, 1);
    const QKEY: u32 = 99;
    let (world, srq) = (&mut s.world, Some(&s.srq));
    let from = s.client.qp(world, QpType::Ud, &s.cq, 4);
    let to = s.server.qp_on(world, QpType::Ud, 0, srq, &s.server_cq, 4);
    s.client.ready_datagrams(world, &from, QKEY);
    s.server.ready_datagrams(world, &to, QKEY);
    s.client.gid(world, 0, [0xfe; 16]);
    let operation = Operation::Datagram {
        to: DatagramSegment {
            qpn: to.qpn.into(),
            qkey: QKEY.into(),
            node: SERVER.into(),
            ..DatagramSegment::default()
        },
        grh: GrhSegment::default(),
        imm: None,
    };
    s.pairs.push(Pair {
        client: from,
        server: to,
    });
    let datagram = |s: &mut Scene| {
        let client = &mut s.pairs[1].client;
        client.submit(1, WQE_SIGNALED, operation, Data::Inline(b"datagram"));
        s.world.pump();
        assert_eq!(s.statuses(), [OK]);
        s.filled()
    };
    assert_eq!(datagram(&mut s), []);
    s.post(2);
    assert_eq!(s.take(), Some(0));
    assert_eq!(datagram(&mut s), [(1, 1..2, OK)]);
    assert_eq!(s.buffer(1, 48)[40..], *b"datagram");
    assert_eq!(datagram(&mut s), []);
    // One that is too long is dropped; its queue pair keeps the entry.
    let short = s.mr.sge(0, 44);
    s.post_entry(short);
    assert_eq!((datagram(&mut s), s.next()), (vec![], 3));
    s.post(1);
    assert_eq!((datagram(&mut s), s.take()), (vec![], Some(3)));
    s.set_server(1, QpStateCode::Err);
    s.world.pump();
    assert_eq!(s.filled(), [(1, 2..3, FLUSHED)]);
}

#[test]
fn what_goes_back_or_too_far_is_refused() {
    for (before, said, count) in [
        (5, 5, 4),
        (5, 0, 4),
        (0, 0, 257),
        (2, 1, 260),
        (0, 0, 1 << 31),
        (1, 1, 0),
    ] {
        let mut s = Scene::new(2, 2);
        s.post(10);
        s.send(0, before, b"before");
        let taken = before + 1;
        assert_eq!(
            (s.statuses(), s.filled()),
            (vec![OK], vec![(0, 0..taken, OK)])
        );
        s.say(0, said);
        s.send(0, count, b"refused");
        assert_eq!(s.statuses(), [REFUSED], "{count}");
        assert_eq!((s.filled(), s.next()), (vec![], taken));
        s.send(1, 0, b"next");
        assert_eq!(s.statuses(), [OK]);
        assert_eq!(s.filled(), [(1, taken..taken + 1, OK)]);
    }
}

#[test]
fn a_queue_pair_without_rings_skips_nothing() {
    let mut s = Scene::new(2, 1);
    // The client's alone.
    let qpn = s.pairs[1].client.qpn;
    let body = ModifyQp {
        mask: QP_MASK_PROCESS_RINGS.into(),
        ..ModifyQp::default()
    };
    assert_eq!(s.client.modify(&mut s.world, qpn, body), Ok(()));
    s.post(4);
    s.say(1, 7);
    s.send(1, 0, b"zero");
    assert_eq!((s.statuses(), s.filled()), (vec![OK], vec![(1, 0..1, OK)]));
    s.send(1, 1, b"two");
    assert_eq!((s.statuses(), s.filled()), (vec![REFUSED], vec![]));
}
