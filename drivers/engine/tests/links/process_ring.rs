// SPDX-License-Identifier: GPL-2.0 OR MIT
//! WRITEs in process rings, which the receiver's engine takes out where its process does not.

mod counted;
mod known;
mod look;
mod nonsense;

use super::parts::{connect, end, pattern, End, FLUSHED, OK};
use nupa_engine::{
    hal::Clock,
    rings::{Data, Head, Operation},
};
use nupa_proto::{
    admin::*,
    eqe::EventType,
    process_ring::*,
    status::{AdminStatus, WcStatus},
    wqe::WQE_SIGNALED,
};
use nupa_testing::{Host, Mr, World};

const SECRET_WORD: u64 = 0x0123_4567_89ab_cdef;
const REFUSED: u8 = WcStatus::RemoteInvalidRequest as u8;
/// Bytes of a WRITE with as many lines as there may be.
const LONGEST: usize = MAX_PAYLOAD as usize - 16;
/// Time after which the engine looks at a ring again that was held.
const HELD_US: u64 = 100;

/// A process ring, as both of its processes have it.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    /// DMA address at the receiver.
    at: u64,
    /// Line of the next entry.
    line: u32,
}

impl Ring {
    /// One whose first entry is at this line, for what WRITEs may be put into.
    fn new(host: &mut Host, line: u32) -> Self {
        let ring = Self {
            at: host.alloc(RING_SIZE as u64),
            line,
        };
        host.write(ring.at + SECRET as u64, &SECRET_WORD.to_le_bytes());
        ring.set_taken(host, line);
        ring.set_state(host, STATE_OPEN | STATE_WRITES);
        ring
    }

    fn word(&self, host: &Host, offset: usize) -> u32 {
        let bytes = host.read(self.at + offset as u64, 4);
        u32::from_le_bytes(bytes.try_into().expect("four"))
    }

    fn taken(&self, host: &Host) -> u32 {
        self.word(host, TAKEN)
    }

    fn set_taken(&self, host: &Host, line: u32) {
        host.write(self.at + TAKEN as u64, &line.to_le_bytes());
    }

    fn set_state(&self, host: &Host, state: u32) {
        host.write(self.at + STATE as u64, &state.to_le_bytes());
    }

    fn taker(&self, host: &Host) -> u32 {
        self.word(host, TAKER)
    }

    fn set_taker(&self, host: &Host, taker: u64) {
        host.write(self.at + TAKER as u64, &taker.to_le_bytes());
    }

    fn place(&self, line: u32, offset: usize) -> u64 {
        let offset = line as usize % LINES as usize * LINE_SIZE + offset;
        self.at + (CONTROL_SIZE + offset % (LINES as usize * LINE_SIZE)) as u64
    }

    /// Puts an entry into it, and goes on behind it.
    fn put(&mut self, host: &Host, flags: u8, payload: &[u8]) {
        let head = [
            &stamp(SECRET_WORD, self.line).to_le_bytes()[..],
            &(payload.len() as u32).to_le_bytes(),
            &[0; 8],
            &[flags, 0, 0, 0],
        ];
        for (offset, byte) in [&head.concat(), payload].concat().iter().enumerate() {
            host.write(self.place(self.line, offset), &[*byte]);
        }
        self.line = self.line.wrapping_add(lines_for(payload.len() as u32));
    }

    /// Puts a WRITE into it.
    fn write(&mut self, host: &Host, to: &Mr, at: u64, bytes: &[u8]) {
        let target = [
            &(to.iova + at).to_le_bytes()[..],
            &to.key.to_le_bytes(),
            &[0; 4],
        ];
        self.put(host, ENTRY_WRITE, &[&target.concat(), bytes].concat());
    }
}

/// Tells the engine that a queue pair has process rings, and from which it receives.
fn give(world: &mut World, host: &Host, qpn: u32, ring: u64) -> Result<(), AdminStatus> {
    tell(world, host, qpn, QP_MASK_RING, ring)
}

/// The same of the one that it receives from, or sends to.
fn tell(
    world: &mut World,
    host: &Host,
    qpn: u32,
    which: u32,
    ring: u64,
) -> Result<(), AdminStatus> {
    let command = ModifyQp {
        mask: (QP_MASK_PROCESS_RINGS | which).into(),
        ring: ring.into(),
        ..ModifyQp::default()
    };
    host.modify(world, qpn, command)
}

/// Two ends; the ring of the second one begins at this line.
fn pair_at(line: u32) -> (World, End, End, Ring) {
    let (mut world, a, mut b) = super::parts::pair();
    let ring = Ring::new(&mut b.host, line);
    assert_eq!(give(&mut world, &a.host, a.qp.qpn, 0), Ok(()));
    assert_eq!(give(&mut world, &b.host, b.qp.qpn, ring.at), Ok(()));
    (world, a, b, ring)
}

fn pair() -> (World, End, End, Ring) {
    pair_at(0)
}

/// Posts a WRITE that comes behind what lies before this line.
fn come_behind(end: &mut End, wr_id: u64, until: u32, to: (u64, u32), data: Data<'_>) {
    let (addr, rkey) = to;
    let operation = Operation::Write {
        addr,
        rkey,
        imm: None,
    };
    let mut head = Head::new(wr_id, WQE_SIGNALED, &operation);
    head.set_bypassed(until);
    let posted = end.qp.send.post_and(&mut head, data, true);
    posted.expect("room");
}

/// The same of no bytes, to no address.
fn ask(end: &mut End, wr_id: u64, until: u32) {
    come_behind(end, wr_id, until, (0, 0), Data::Inline(&[]));
}

fn state(world: &World, end: &End) -> u8 {
    let state = world.node(end.host.id).query_qp(end.qp.qpn);
    state.expect("exists").state
}

const READY: u8 = QpStateCode::Rts as u8;
const FAILED: u8 = QpStateCode::Err as u8;

#[test]
fn what_lies_in_a_ring_is_done_before_what_comes_behind_it() {
    for line in [0, 200, 255, 0xffff_ffff, 0x8000_0000] {
        let (mut world, mut a, mut b, mut ring) = pair_at(line);
        // Some wrap around at the ring's end.
        let sizes = [0, 1, 23, 24, 25, 100, LONGEST, 64, LONGEST];
        for (number, len) in sizes.into_iter().enumerate() {
            let bytes = pattern(len, number as u8);
            ring.write(&b.host, &b.mr, 4096 * number as u64, &bytes);
        }
        world.turns(40);
        assert_eq!(ring.taken(&b.host), line, "nobody has asked");
        ask(&mut a, 1, ring.line);
        world.pump();
        assert_eq!(a.done(), [(1, OK)]);
        assert_eq!((ring.taken(&b.host), ring.taker(&b.host)), (ring.line, 0));
        for (number, len) in sizes.into_iter().enumerate() {
            let expected = [pattern(len, number as u8), vec![0; 16]].concat();
            let found = b.bytes(4096 * number as u64, len + 16);
            assert!(found == expected, "{line} {number}");
        }
        assert_eq!((b.done(), state(&world, &b)), (vec![], READY));
        // Their process does not take them, so the next ones come to the engine by themselves.
        assert_eq!(ring.word(&b.host, STATE), STATE_OPEN);
        let counters = world.node(1).counters();
        assert_eq!(counters.rx_messages.get(), sizes.len() as u64 + 1);
    }
}

#[test]
fn a_request_may_have_data_itself_and_come_in_parts() {
    let (mut world, mut a, mut b, mut ring) = pair();
    let len = 200_000;
    a.fill(0, &pattern(len, 1));
    // It writes over what lies in the ring.
    ring.write(&b.host, &b.mr, 0, &[0xee; 100]);
    ring.write(&b.host, &b.mr, 500_000, b"aside");
    let to = (b.mr.iova, b.mr.key);
    let sges = [a.mr.sge(0, len as u32)];
    come_behind(&mut a, 1, ring.line, to, Data::Sges(&sges));
    a.write(2, &b.mr, 300_000, 8);
    world.pump();
    assert_eq!(a.done(), [(1, OK), (2, OK)]);
    assert!(b.bytes(0, len) == pattern(len, 1));
    assert_eq!(b.bytes(500_000, 5), b"aside");
    assert_eq!((ring.taken(&b.host), b.done()), (ring.line, vec![]));
}

#[test]
fn such_a_request_is_not_written_directly() {
    let (mut world, mut a, mut b, mut ring) = pair();
    b.mr = b.host.device_mr(&mut world, 4096);
    a.fill(0, &[7; 8]);
    for number in 1..=2 {
        a.write(number, &b.mr, 0, 8);
        world.pump();
    }
    assert_eq!(a.done(), [(1, OK), (2, OK)]);
    let before = world.node(0).counters().tx_direct_writes.get();
    assert_eq!(before, u64::from(crate::MODE.is_direct()));
    ring.write(&b.host, &b.mr, 64, b"first");
    let to = (b.mr.iova + 64, b.mr.key);
    come_behind(&mut a, 3, ring.line, to, Data::Inline(b"F"));
    world.pump();
    assert_eq!((a.done(), b.bytes(64, 5)), (vec![(3, OK)], b"First".into()));
    assert_eq!(world.node(0).counters().tx_direct_writes.get(), before);
}

#[test]
fn what_fails_of_it_is_the_answer() {
    let denied = WcStatus::RemoteAccess as u8;
    for number in 0..3 {
        let (mut world, mut a, mut b, mut ring) = pair();
        ring.write(&b.host, &b.mr, 0, b"one");
        ring.write(&b.host, &b.mr, 64, &[2; 100]);
        let before = ring.line;
        let (key, iova) = (b.mr.key, b.mr.iova);
        let wrong = [
            Mr {
                key: key ^ 1,
                ..b.mr
            },
            // Beyond the end, by a byte.
            Mr {
                iova: iova + super::parts::REGION - 1024 - 4,
                ..b.mr
            },
            Mr {
                iova: u64::MAX - 1026,
                ..b.mr
            },
        ];
        ring.write(&b.host, &wrong[number], 1024, b"three");
        ring.write(&b.host, &b.mr, 2048, b"four");
        ask(&mut a, 1, ring.line);
        ask(&mut a, 2, ring.line);
        world.pump();
        assert_eq!(a.done(), [(1, denied), (2, FLUSHED)]);
        assert_eq!((ring.taken(&b.host), ring.taker(&b.host)), (before, 0));
        assert_eq!(
            (b.bytes(0, 3), b.bytes(64, 100)),
            (b"one".into(), vec![2; 100])
        );
        assert_eq!(
            (b.bytes(1024, 5), b.bytes(2048, 4)),
            (vec![0; 5], vec![0; 4])
        );
        let event = (EventType::QpAccess as u8, 0, b.qp.qpn);
        assert_eq!((b.eq.drain()[0], state(&world, &b)), (event, FAILED));
    }
}

#[test]
fn a_queue_pair_that_may_not_be_written_to_is_not() {
    let (mut world, mut a, mut b, mut ring) = pair();
    let access = ModifyQp {
        mask: QP_MASK_ACCESS.into(),
        ..ModifyQp::default()
    };
    assert_eq!(b.host.modify(&mut world, b.qp.qpn, access), Ok(()));
    ring.write(&b.host, &b.mr, 0, b"one");
    ask(&mut a, 1, ring.line);
    world.pump();
    assert_eq!(a.done(), [(1, WcStatus::RemoteAccess as u8)]);
    assert_eq!((ring.taken(&b.host), b.bytes(0, 3)), (0, vec![0; 3]));
    assert_eq!(b.done(), []);
}

/// A queue pair with a shared receive queue as well.
fn pair_on(shared: bool) -> (World, End, End, Ring) {
    if !shared {
        return pair();
    }
    let mut world = World::new(*crate::MODE, 2);
    let [a, mut b] = [0, 1].map(|id| end(&mut world, id));
    let srq = b.host.srq(&mut world, 3);
    b.qp = b
        .host
        .qp_on(&mut world, QpType::Rc, 0, Some(&srq), &b.cq, 4);
    connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
    let ring = Ring::new(&mut b.host, 0);
    assert_eq!(give(&mut world, &a.host, a.qp.qpn, 0), Ok(()));
    assert_eq!(give(&mut world, &b.host, b.qp.qpn, ring.at), Ok(()));
    (world, a, b, ring)
}

#[test]
fn a_ring_that_is_held_is_tried_again_soon() {
    for shared in [false, true] {
        let (mut world, mut a, b, mut ring) = pair_on(shared);
        ring.write(&b.host, &b.mr, 0, b"one");
        ring.set_taker(&b.host, TAKER_PROCESS);
        ask(&mut a, 1, ring.line);
        ask(&mut a, 2, ring.line);
        world.pump();
        for _ in 0..5 {
            world.advance(HELD_US);
            assert_eq!((a.done(), ring.taken(&b.host)), (vec![], 0));
            assert_eq!(u64::from(ring.taker(&b.host)), TAKER_PROCESS);
        }
        // Nobody kicks. By itself the sender would try again only after 10 ms.
        ring.set_taker(&b.host, 0);
        world.advance(HELD_US);
        assert_eq!(a.done(), [(1, OK), (2, OK)], "{shared}");
        assert_eq!((b.bytes(0, 3), ring.taken(&b.host)), (b"one".into(), 1));
        // And then nothing is due any more.
        for _ in 0..3 {
            world.advance(1_000_000);
        }
        let due = world
            .next
            .map(|due| due.saturating_sub(world.machine(0).now_us()));
        assert!(due.is_none_or(|due| due > HELD_US), "{due:?}");
    }
}

/// A process that was stopped while it took entries goes on, or ends.
#[test]
fn who_waits_for_a_ring_that_is_held_waits_for_its_process() {
    for ends in [false, true] {
        let (mut world, mut a, b, mut ring) = pair();
        ring.write(&b.host, &b.mr, 0, b"one");
        ring.set_taker(&b.host, TAKER_PROCESS);
        ask(&mut a, 1, ring.line);
        a.write(2, &b.mr, 64, 8);
        world.pump();
        for _ in 0..1000 {
            world.advance(10_000);
            assert_eq!(a.done(), []);
        }
        // It is not looked at all the time.
        let looks = (0..1000).filter(|_| {
            world.advance(HELD_US);
            let now = world.machine(0).now_us();
            world.next.is_some_and(|due| due <= now + HELD_US)
        });
        let looks = looks.count();
        assert!(looks < 300, "{looks}");
        assert_eq!((ring.taken(&b.host), b.bytes(0, 3)), (0, vec![0; 3]));
        assert_eq!(u64::from(ring.taker(&b.host)), TAKER_PROCESS);
        if ends {
            let reset = QpStateCode::Reset;
            assert_eq!(b.host.set_state(&mut world, b.qp.qpn, reset), Ok(()));
        } else {
            ring.set_taker(&b.host, 0);
        }
        for _ in 0..60 {
            world.advance(10_000);
        }
        let lost = WcStatus::RetryExceeded as u8;
        let expected = match ends {
            true => [(1, lost), (2, FLUSHED)],
            false => [(1, OK), (2, OK)],
        };
        assert_eq!(a.done(), expected);
    }
}

#[test]
fn lines_that_were_taken_already_are_no_error() {
    for line in [100, 0xffff_fff0] {
        let behind = [0, 1, 256, 257, 0x7fff_ffff];
        let ahead = [1u32, 256, 257, 0x7fff_ffff, 0x8000_0000];
        for until in behind.map(|lines| u32::wrapping_sub(line, lines)) {
            let (mut world, mut a, b, ring) = pair_at(line);
            ask(&mut a, 1, until);
            world.pump();
            assert_eq!(a.done(), [(1, OK)], "{until:#x}");
            assert_eq!((ring.taken(&b.host), ring.taker(&b.host)), (line, 0));
        }
        for until in ahead.map(|lines| line.wrapping_add(lines)) {
            let (mut world, mut a, b, ring) = pair_at(line);
            ask(&mut a, 1, until);
            world.pump();
            assert_eq!(a.done(), [(1, REFUSED)], "{until:#x}");
            assert_eq!((ring.taken(&b.host), ring.taker(&b.host)), (line, 0));
            assert_eq!(state(&world, &b), FAILED);
        }
    }
}

#[test]
fn who_has_no_rings_says_nothing_and_is_told_nothing() {
    // Of itself ...
    let (mut world, mut a, b) = super::parts::pair();
    ask(&mut a, 1, 1);
    world.pump();
    assert_eq!(a.done(), [(1, WcStatus::LocalQpOperation as u8)]);
    assert_eq!(state(&world, &b), READY);
    // ... or of its peer, which has none at all, none that it receives from, or none any more.
    for step in 0..3 {
        let (mut world, mut a, b) = super::parts::pair();
        assert_eq!(give(&mut world, &a.host, a.qp.qpn, 0), Ok(()));
        if step > 0 {
            let ring = if step == 1 { 0 } else { b.mr.addr };
            assert_eq!(give(&mut world, &b.host, b.qp.qpn, ring), Ok(()));
            let forget = ModifyQp {
                mask: QP_MASK_RING.into(),
                ..ModifyQp::default()
            };
            assert_eq!(b.host.modify(&mut world, b.qp.qpn, forget), Ok(()));
        }
        ask(&mut a, 1, 1);
        world.pump();
        assert_eq!((a.done(), state(&world, &b)), (vec![(1, REFUSED)], FAILED));
    }
}

#[test]
fn a_ring_that_cannot_be_reached_ends_its_queue_pair() {
    let (mut world, mut a, mut b, _) = pair();
    let nowhere = b.host.machine.ram().end();
    // All of it, or its lines.
    for (round, address) in [nowhere, nowhere - 4096].into_iter().enumerate() {
        if round == 1 {
            for end in [&a, &b] {
                let reset = QpStateCode::Reset;
                assert_eq!(end.host.set_state(&mut world, end.qp.qpn, reset), Ok(()));
            }
            a.qp.send.reset();
            connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
            assert_eq!(give(&mut world, &a.host, a.qp.qpn, 0), Ok(()));
        }
        assert_eq!(give(&mut world, &b.host, b.qp.qpn, address), Ok(()));
        ask(&mut a, 1, 5);
        world.pump();
        assert_eq!(a.done(), [(1, WcStatus::RemoteOperation as u8)]);
        let event = (EventType::QpFatal as u8, 0, b.qp.qpn);
        assert_eq!((b.eq.drain()[0], state(&world, &b)), (event, FAILED));
    }
}
