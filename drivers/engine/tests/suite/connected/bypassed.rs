// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages that went past the engines: the receive entries that the next ones skip, and those that the owner has filled itself.

mod shared;

use super::*;
use nupa_engine::hal::{Doorbells, SlotWord};
use nupa_proto::admin::{ModifyQp, QP_MASK_PROCESS_RINGS};

/// Entries of a receive queue.
const ENTRIES: u32 = 16;
/// Bytes of the buffer of an entry.
const BUFFER: u32 = 64;
const REFUSED: u8 = WcStatus::RemoteInvalidRequest as u8;

/// Two connected sides that have process rings.
fn ringed() -> (World, Side, Side) {
    let (mut world, a, b) = pair(false);
    for side in [&a, &b] {
        allow(&mut world, side, side.qp.qpn);
    }
    (world, a, b)
}

/// A queue pair has process rings.
fn allow(world: &mut World, side: &Side, qpn: u32) {
    let command = ModifyQp {
        qpn: qpn.into(),
        mask: QP_MASK_PROCESS_RINGS.into(),
        ..ModifyQp::default()
    };
    let id = side.host.id;
    let done = world.engine.at(&mut world.nodes, id, |engine, nodes| {
        engine.modify_qp(nodes, id, &command)
    });
    assert_eq!(done, Ok(()));
}

impl Side {
    /// Posts one signaled request, before which so many messages went past the engines.
    fn post_behind(&mut self, bypassed: u32, operation: Operation, data: Data<'_>) {
        let mut head = Head::new(7, WQE_SIGNALED, &operation);
        head.set_bypassed(bypassed);
        let posted = self.qp.send.post_and(&mut head, data, true);
        posted.expect("room");
    }

    fn send_behind(&mut self, bypassed: u32, bytes: &[u8]) {
        let send = Operation::Send { imm: None };
        self.post_behind(bypassed, send, Data::Inline(bytes));
    }

    /// Posts receive entries with these numbers, each with a buffer of its own.
    fn post_entries(&mut self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let at = u64::from(number % ENTRIES * BUFFER);
            let sge = self.mr.sge(at, BUFFER);
            self.qp
                .recv
                .post(number.into(), &[sge])
                .expect("room for it");
        }
        self.qp.recv.ring();
    }

    /// Numbers and statuses of the receive entries that were completed.
    fn filled(&mut self) -> Vec<(u64, u8)> {
        let cqes = self.cq.drain();
        for cqe in &cqes {
            assert_eq!(u64::from(cqe.queue_index.get()), cqe.wr_id.get() + 1);
        }
        cqes.iter()
            .map(|cqe| (cqe.wr_id.get(), cqe.status))
            .collect()
    }

    /// Says how far its owner has filled entries itself.
    fn say_filled(&self, index: u32) {
        let machine = &self.host.machine;
        machine.store(self.host.page, self.qp.slots.1, SlotWord::Arm, index);
    }

    fn buffer(&self, number: u32, len: usize) -> Vec<u8> {
        let at = u64::from(number % ENTRIES * BUFFER);
        self.host.read(self.mr.addr + at, len)
    }
}

fn write_imm(to: &Side) -> Operation {
    Operation::Write {
        addr: to.mr.iova + 8192,
        rkey: to.mr.key,
        imm: Some(5),
    }
}

/// All operations that take a receive entry.
fn receives(to: &Side) -> [Operation; 4] {
    [
        Operation::Send { imm: None },
        Operation::Send { imm: Some(5) },
        Operation::SendInv { key: to.mr.key },
        write_imm(to),
    ]
}

#[test]
fn a_message_takes_the_entry_behind_those_that_went_past() {
    let (mut world, mut a, mut b) = ringed();
    b.post_entries(0..10);
    a.send_behind(0, b"zero");
    a.send_behind(2, b"three");
    a.post_behind(2, Operation::Send { imm: Some(9) }, Data::Inline(b"four"));
    a.post_behind(3, write_imm(&b), Data::Inline(b"away"));
    a.send_behind(6, b"ten");
    world.pump();
    b.post_entries(10..11);
    world.pump();
    assert_eq!(a.statuses(), [OK; 5]);
    let expected = [(0, OK), (3, OK), (4, OK), (6, OK), (10, OK)];
    assert_eq!(b.filled(), expected);
    for (number, bytes) in [
        (0, &b"zero\0"[..]),
        (3, b"three"),
        (4, b"four\0"),
        (10, b"ten\0"),
    ] {
        assert_eq!(b.buffer(number, bytes.len()), bytes);
    }
    for number in [1, 2, 5, 6, 7, 8, 9] {
        assert_eq!(b.buffer(number, 8), [0; 8]);
    }
    let state = world.node(1).query_qp(b.qp.qpn).expect("exists");
    assert_eq!(state.rq_index.get(), 11);
    // Nothing of that is left when it is reset.
    for side in [&a, &b] {
        let reset = side
            .host
            .set_state(&mut world, side.qp.qpn, QpStateCode::Reset);
        assert_eq!(reset, Ok(()));
    }
    a.qp.send.reset();
    b.qp.recv.reset();
    connect(&mut world, &a, &b);
    b.post_entries(0..1);
    a.send_behind(0, b"anew");
    world.pump();
    assert_eq!((a.statuses(), b.filled()), (vec![OK], vec![(0, OK)]));
}

#[test]
fn all_parts_of_a_message_skip_the_same_entries() {
    let (mut world, mut a, mut b) = ringed();
    let bytes = pattern(200_000, 3);
    a.fill(false, &bytes);
    let long = b.mr.sge(4096, 200_000);
    b.post_entries(0..1);
    b.post_receive(1, &[long]);
    a.post_behind(
        1,
        Operation::Send { imm: None },
        Data::Sges(&[a.mr.sge(0, 200_000)]),
    );
    world.pump();
    b.post_entries(2..3);
    a.send_behind(1, b"two");
    world.pump();
    assert_eq!(a.statuses(), [OK; 2]);
    assert_eq!(b.filled(), [(1, OK), (2, OK)]);
    assert!(b.region(false)[4096..][..200_000] == bytes[..]);
}

#[test]
fn what_skips_too_many_or_goes_back_is_refused() {
    // What was said before, and how many entries are there; and what is said then.
    for (before, count) in [(0, 8), (0, u32::MAX), (2, 1), (2, 0), (2, 10)] {
        for kind in 0..4 {
            let (mut world, mut a, mut b) = ringed();
            b.post_entries(0..8);
            a.send_behind(before, b"before");
            world.pump();
            let first = u64::from(before);
            assert_eq!((a.statuses(), b.filled()), (vec![OK], vec![(first, OK)]));
            let operation = receives(&b)[kind];
            a.post_behind(count, operation, Data::Inline(b"refused"));
            world.pump();
            let name = format!("{operation:?}, {count}");
            assert_eq!(a.statuses(), [REFUSED], "{name}");
            let flushed: Vec<_> = (first + 1..8)
                .map(|number| (number, WcStatus::WrFlush as u8))
                .collect();
            assert_eq!(b.filled(), flushed, "{name}");
            let event = (EventType::QpAccess as u8, 0, b.qp.qpn);
            assert_eq!(b.eq.drain(), [event], "{name}");
            assert!(!b.region(false).windows(7).any(|bytes| bytes == b"refused"));
        }
    }
}

#[test]
fn a_message_that_is_sent_again_skips_no_entry_twice() {
    let (mut world, mut a, mut b) = ringed();
    b.post_entries(0..3);
    a.send_behind(3, b"three");
    a.send_behind(3, b"four");
    world.pump();
    world.advance(10);
    assert_eq!((a.statuses(), b.filled()), (vec![], vec![]));
    assert_ne!(world.node(1).counters().rx_rnr_naks.get(), 0);
    b.post_entries(3..4);
    world.pump();
    assert_eq!((a.statuses(), b.filled()), (vec![OK], vec![(3, OK)]));
    b.post_entries(4..6);
    world.pump();
    assert_eq!((a.statuses(), b.filled()), (vec![OK], vec![(4, OK)]));
    // One that goes past meanwhile, and whose entry the owner has told of, is not counted twice either.
    a.send_behind(4, b"six");
    world.pump();
    assert_eq!((a.statuses(), b.filled()), (vec![], vec![]));
    b.say_filled(6);
    b.post_entries(6..7);
    world.pump();
    assert_eq!((a.statuses(), b.filled()), (vec![OK], vec![(6, OK)]));
}

#[test]
fn a_bad_entry_is_blamed_where_it_is() {
    let (mut world, mut a, mut b) = ringed();
    b.post_entries(0..2);
    // One that has a wrong key, and one that is too short.
    b.post_receive(
        2,
        &[Sge {
            lkey: U32::new(!0),
            ..b.mr.sge(0, 64)
        }],
    );
    a.send_behind(2, b"two");
    world.pump();
    assert_eq!(a.statuses(), [WcStatus::RemoteOperation as u8]);
    assert_eq!(b.filled(), [(2, WcStatus::LocalProtection as u8)]);

    let (mut world, mut a, mut b) = ringed();
    b.post_entries(0..2);
    b.post_receive(2, &[b.mr.sge(0, 2)]);
    a.send_behind(2, b"two");
    world.pump();
    assert_eq!(a.statuses(), [REFUSED]);
    assert_eq!(b.filled(), [(2, WcStatus::LocalLength as u8)]);
}

#[test]
fn entries_that_the_owner_has_filled_are_not_flushed() {
    for taken in [false, true] {
        let (mut world, mut a, mut b) = ringed();
        b.post_entries(0..6);
        if taken {
            // Then the engine knows how far is posted.
            a.send_behind(0, b"zero");
            world.pump();
            assert_eq!((a.statuses(), b.filled()), (vec![OK], vec![(0, OK)]));
        }
        b.say_filled(4);
        let failed = b.host.set_state(&mut world, b.qp.qpn, QpStateCode::Err);
        assert_eq!(failed, Ok(()));
        world.pump();
        let flushed = WcStatus::WrFlush as u8;
        assert_eq!(b.filled(), [(4, flushed), (5, flushed)]);
        // And what comes later.
        b.post_entries(6..9);
        b.say_filled(8);
        world.engine.kick(&mut world.nodes, 1, 0, b.qp.slots.1);
        world.pump();
        assert_eq!(b.filled(), [(8, flushed)]);
    }
}

#[test]
fn entries_that_the_owner_has_filled_are_free() {
    let (mut world, mut a, mut b) = ringed();
    b.post_entries(0..ENTRIES);
    a.send_behind(0, b"zero");
    world.pump();
    assert_eq!((a.statuses(), b.filled()), (vec![OK], vec![(0, OK)]));
    b.qp.recv.completed(1).expect("was posted");
    b.post_entries(ENTRIES..ENTRIES + 1);
    let mut behind = 1;
    // Whether the engine learns of it from the owner or from the sender.
    for (round, said) in [(1, 8), (2, 15), (3, 16), (4, 1)] {
        // All but this one go past the engine.
        let number = round * ENTRIES;
        for filled in behind..number {
            b.qp.recv.completed(filled + 1).expect("was posted");
            b.say_filled((filled + 1).min(number - ENTRIES + said));
            b.post_entries(filled + ENTRIES..filled + ENTRIES + 1);
        }
        b.say_filled(number);
        a.send_behind(number - round, b"next");
        world.pump();
        let expected = vec![(u64::from(number), OK)];
        assert_eq!((a.statuses(), b.filled()), (vec![OK], expected));
        b.qp.recv.completed(number + 1).expect("was posted");
        b.post_entries(number + ENTRIES..number + ENTRIES + 1);
        behind = number + 1;
    }
}

#[test]
fn nonsense_about_filled_entries_harms_only_its_owner() {
    for filled in [7, 17, 1 << 31, u32::MAX] {
        let (mut world, mut a, mut b) = ringed();
        b.post_entries(0..6);
        b.say_filled(filled);
        a.send_behind(0, b"zero");
        a.send_behind(2, b"three");
        world.pump();
        assert_eq!(a.statuses(), [OK, OK]);
        assert_eq!(b.filled(), [(0, OK), (3, OK)]);
    }
}

#[test]
fn entries_of_a_shared_queue_are_not_skipped() {
    let (mut world, mut a, b) = ringed();
    let Side {
        mut host,
        mut cq,
        mr,
        ..
    } = b;
    let mut srq = host.srq(&mut world, 4);
    let qp = host.qp_on(&mut world, QpType::Rc, 0, Some(&srq), &cq, 4);
    a.qp = a.host.qp(&mut world, QpType::Rc, &a.cq, 4);
    let [ea, eb] = [0, 1].map(|id| world.node(id).epoch());
    a.host.ready(&mut world, &a.qp, Some((1, qp.qpn, eb)));
    host.ready(&mut world, &qp, Some((0, a.qp.qpn, ea)));
    allow(&mut world, &a, a.qp.qpn);
    for number in 0..8 {
        let sge = mr.sge(0, BUFFER);
        srq.ring.post(number, &[sge]).expect("room");
    }
    srq.ring.ring();
    a.send_behind(0, b"zero");
    world.pump();
    assert_eq!(a.statuses(), [OK]);
    assert_eq!(cq.drain().len(), 1);
    a.send_behind(1, b"two");
    world.pump();
    assert_eq!(a.statuses(), [REFUSED]);
    assert_eq!(cq.drain().len(), 0);
}

#[test]
fn only_messages_and_writes_say_what_went_past() {
    let (mut world, mut a, b) = ringed();
    let (addr, rkey) = (b.mr.iova, b.mr.key);
    // The setter knows.
    let read = Operation::Read { addr, rkey };
    a.post_behind(3, read, Data::Sges(&[a.mr.sge(0, 5)]));
    a.post_behind(3, Operation::Nop, Data::Inline(&[]));
    world.pump();
    assert_eq!(a.statuses(), [OK; 2]);
    // And the engine refuses it. Block 3 is the next one; its segment is behind 16 bytes.
    let at = a.qp.send_addr + 64 * u64::from(a.qp.send.index()) + 16;
    let sges = [a.mr.sge(0, 5)];
    let request = nupa_engine::rings::SendRequest {
        wr_id: 7,
        flags: WQE_SIGNALED,
        operation: Operation::Read { addr, rkey },
        data: Data::Sges(&sges),
    };
    a.qp.send.post(&request).expect("room");
    a.host.write(at + 12, &[1]);
    a.qp.send.ring();
    world.pump();
    assert_eq!(a.statuses(), [WcStatus::LocalQpOperation as u8]);
}

#[test]
fn a_write_behind_what_lies_in_no_ring_is_refused() {
    for bytes in [&b""[..], b"write"] {
        let (mut world, mut a, b) = ringed();
        let write = Operation::Write {
            addr: b.mr.iova,
            rkey: b.mr.key,
            imm: None,
        };
        a.post_behind(3, write, Data::Inline(bytes));
        world.pump();
        assert_eq!(a.statuses(), [REFUSED]);
        assert_eq!(b.region(false)[..5], [0; 5]);
        let state = world.node(b.host.id).query_qp(b.qp.qpn);
        assert_eq!(state.expect("exists").state, QpStateCode::Err as u8);
    }
}

#[test]
fn what_the_owner_has_filled_is_not_written_again() {
    for parts in [false, true] {
        let (mut world, mut a, mut b) = ringed();
        b.post_entries(0..8);
        a.send_behind(0, b"zero");
        world.pump();
        assert_eq!((a.statuses(), b.filled()), (vec![OK], vec![(0, OK)]));
        // Messages 1 and 2 went past the engines, and the program has seen them. Whoever sent them sends another one for their buffers.
        b.say_filled(3);
        if parts {
            a.post_behind(
                0,
                Operation::Send { imm: None },
                Data::Sges(&[a.mr.sge(0, 200_000)]),
            );
        } else {
            a.send_behind(0, b"again");
        }
        world.pump();
        assert_eq!(a.statuses(), [REFUSED]);
        assert!(b
            .filled()
            .iter()
            .all(|(_, status)| *status == WcStatus::WrFlush as u8));
        assert_ne!(&b.buffer(1, 5), b"again");
    }
}

#[test]
fn without_rings_nothing_is_skipped() {
    let (mut world, mut a, mut b) = pair(false);
    b.post_entries(0..8);
    // What the owner says of entries that it has filled means nothing.
    b.say_filled(4);
    a.send_behind(0, b"zero");
    world.pump();
    assert_eq!((a.statuses(), b.filled()), (vec![OK], vec![(0, OK)]));
    for kind in 0..4 {
        let (mut world, mut a, b) = pair(false);
        let operation = receives(&b)[kind];
        a.post_behind(1, operation, Data::Inline(b"one"));
        world.pump();
        assert_eq!(
            a.statuses(),
            [WcStatus::LocalQpOperation as u8],
            "{operation:?}"
        );
        // The other end has none, and does not know what is meant.
        let (mut world, mut a, mut b) = pair(false);
        allow(&mut world, &a, a.qp.qpn);
        b.post_entries(0..8);
        a.post_behind(1, operation, Data::Inline(b"one"));
        world.pump();
        assert_eq!(a.statuses(), [REFUSED], "{operation:?}");
    }
}
