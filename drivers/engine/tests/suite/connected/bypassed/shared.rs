// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Shared receive queues of queue pairs that have process rings: both the engine and the owner take entries.

mod ends;
mod hostile;
mod late;
mod model;

use super::*;
use nupa_engine::NodeTable;
use nupa_proto::{
    admin::{ModifySrq, QP_MASK_RNR, QP_MASK_RNR_RETRY, RNR_FOREVER},
    doorbell::need_kick,
    wqe::{RecvHeader, MIN_RECV_STRIDE},
};
use nupa_testing::Srq;
use zerocopy::IntoBytes;

/// log2 of the entries of the queue.
const LOG: u8 = 4;
const DEPTH: u32 = 1 << LOG;
/// log2 of the entries of one that lasts for longer.
const LONG_LOG: u8 = 8;
/// Times that the engine tries to take an entry.
const TRIES: u32 = 64;
/// Buffers, which entries use by turns, and the bytes of each.
const BUFFERS: u32 = 17;
const LEN: u32 = 1_000_000;
/// Bytes of a message that takes several turns.
const LONG: u32 = 900_000;
const CLIENT: u16 = 0;
const SERVER: u16 = 1;
const FLUSHED: u8 = WcStatus::WrFlush as u8;

/// One of the client's queue pairs, and the server's that it is connected to.
struct Pair {
    client: Qp,
    server: Qp,
}

/// What a receive completion says: queue pair, first entry and the one behind the last, status. Its `wr_id` is the number of the last entry.
type Filled = (usize, std::ops::Range<u32>, u8);

/// A client, and a server whose queue pairs share a receive queue. The test is the server's program and its provider.
struct Scene {
    world: World,
    client: Host,
    cq: Cq,
    source: Mr,
    server: Host,
    eq: Eq,
    server_cq: Cq,
    srq: Srq,
    /// log2 of the entries of that.
    log: u8,
    mr: Mr,
    pairs: Vec<Pair>,
    /// Entries that were posted.
    posted: u32,
    /// Connections that were made.
    connections: u32,
}

impl Scene {
    /// So many connected queue pairs, the first of which have process rings.
    fn new(count: usize, ringed: usize) -> Self {
        Self::with_entries(LOG, count, ringed)
    }

    /// The same with a queue of as many entries.
    fn with_entries(log: u8, count: usize, ringed: usize) -> Self {
        let mut world = World::new(*crate::MODE, 2);
        let mut client = world.host(CLIENT);
        let eq = client.start(&mut world);
        let cq = client.cq(&mut world, eq.eqn, 8);
        let source = client.mr(&mut world, LEN.into(), false);
        client.write(source.addr, &pattern(LEN as usize, 1));
        let mut server = world.host(SERVER);
        let eq = server.start(&mut world);
        let server_cq = server.cq(&mut world, eq.eqn, 8);
        let srq = server.srq(&mut world, log);
        let mr = server.mr(&mut world, u64::from(BUFFERS * LEN), false);
        let pairs = (0..count).map(|_| Pair {
            client: client.qp(&mut world, QpType::Rc, &cq, 4),
            server: server.qp_on(&mut world, QpType::Rc, 0, Some(&srq), &server_cq, 4),
        });
        let pairs = pairs.collect();
        let mut scene = Self {
            world,
            client,
            cq,
            source,
            server,
            eq,
            server_cq,
            srq,
            log,
            mr,
            pairs,
            posted: 0,
            connections: 0,
        };
        (0..count).for_each(|pair| scene.connect(pair));
        (0..ringed).for_each(|pair| scene.allow(pair));
        scene
    }

    fn connect(&mut self, pair: usize) {
        let Self { world, pairs, .. } = self;
        let Pair { client, server } = &pairs[pair];
        let epoch = |id| world.node(id).epoch();
        let (there, here) = (epoch(SERVER), epoch(CLIENT));
        // What is left of the connection before is not of this one.
        self.connections += 1;
        let psn = self.connections;
        let to_server = Some((SERVER, server.qpn, there));
        self.client.ready_at(world, client, to_server, (psn, 0));
        let to_client = Some((CLIENT, client.qpn, here));
        self.server.ready_at(world, server, to_client, (0, psn));
    }

    /// A queue pair has process rings.
    fn allow(&mut self, pair: usize) {
        let Pair { client, server } = &self.pairs[pair];
        for (host, qp) in [(&self.client, client), (&self.server, server)] {
            let body = ModifyQp {
                mask: QP_MASK_PROCESS_RINGS.into(),
                ..ModifyQp::default()
            };
            assert_eq!(host.modify(&mut self.world, qp.qpn, body), Ok(()));
        }
    }

    /// The client waits for receive entries as long as it takes.
    fn wait_for_ever(&mut self) {
        for pair in &self.pairs {
            let body = ModifyQp {
                mask: QP_MASK_RNR.into(),
                rnr_timeout_us: RNR_FOREVER.into(),
                ..ModifyQp::default()
            };
            let set = self.client.modify(&mut self.world, pair.client.qpn, body);
            assert_eq!(set, Ok(()));
        }
    }

    /// The client waits for no receive entry.
    fn wait_for_none(&mut self) {
        for pair in &self.pairs {
            let body = ModifyQp {
                mask: QP_MASK_RNR_RETRY.into(),
                rnr_retry: 0,
                min_rnr_timer: 1,
                ..ModifyQp::default()
            };
            let set = self.client.modify(&mut self.world, pair.client.qpn, body);
            assert_eq!(set, Ok(()));
        }
    }

    fn set_server(&mut self, pair: usize, state: QpStateCode) {
        let qpn = self.pairs[pair].server.qpn;
        let set = self.server.set_state(&mut self.world, qpn, state);
        assert_eq!(set, Ok(()));
    }

    /// Writes the entry of the next index, whose number is its `wr_id`, without telling of it.
    fn write_entry(&mut self, sge: Sge) {
        let header = RecvHeader {
            wr_id: u64::from(self.posted).into(),
            sge_count: 1.into(),
            ..RecvHeader::default()
        };
        let bytes = [header.as_bytes(), sge.as_bytes()].concat();
        assert_eq!(bytes.len(), MIN_RECV_STRIDE);
        let at = self.srq.addr + 64 * u64::from(self.posted % (1 << self.log));
        self.server.write(at, &bytes);
        self.posted = self.posted.wrapping_add(1);
    }

    /// Posts so many entries.
    fn post(&mut self, count: u32) {
        for _ in 0..count {
            let at = self.posted % BUFFERS * LEN;
            self.post_entry(self.mr.sge(at.into(), LEN));
        }
    }

    /// Posts this entry.
    fn post_entry(&mut self, sge: Sge) {
        self.write_entry(sge);
        let (slot, machine) = (self.srq.slot, &self.server.machine);
        machine.store(0, slot, SlotWord::Index, self.posted);
        let event = machine.load(0, slot, SlotWord::Event);
        if need_kick(event, self.posted, self.posted.wrapping_sub(1)) {
            self.kick();
        }
    }

    fn kick(&mut self) {
        let (engine, nodes) = (&mut self.world.engine, &mut self.world.nodes);
        engine.kick(nodes, SERVER, 0, self.srq.slot);
    }

    /// Index of the next entry.
    fn next(&self) -> u32 {
        let machine = &self.server.machine;
        machine.load(0, self.srq.slot, SlotWord::Arm)
    }

    fn set_next(&self, index: u32) {
        let machine = &self.server.machine;
        machine.store(0, self.srq.slot, SlotWord::Arm, index);
    }

    /// The owner takes an entry. Returns its index, if there is one.
    fn take(&self) -> Option<u32> {
        let next = self.next();
        let (machine, behind) = (&self.server.machine, next.wrapping_add(1));
        let taken = next != self.posted
            && machine.compare_exchange(0, self.srq.slot, SlotWord::Arm, next, behind);
        taken.then_some(next)
    }

    /// The owner says for how many messages of a queue pair's ring it has taken entries.
    fn say(&self, pair: usize, count: u32) {
        let slot = self.pairs[pair].server.slots.0;
        let (machine, page) = (&self.server.machine, self.server.page);
        machine.store(page, slot, SlotWord::Arm, count);
    }

    /// Posts a request before which so many messages went past the engines. False if there is no room.
    fn submit(&mut self, pair: usize, bypassed: u32, operation: Operation, data: Data<'_>) -> bool {
        let mut head = Head::new(7, WQE_SIGNALED, &operation);
        head.set_bypassed(bypassed);
        let send = &mut self.pairs[pair].client.send;
        send.post_and(&mut head, data, true).is_ok()
    }

    fn send(&mut self, pair: usize, bypassed: u32, bytes: &[u8]) {
        let send = Operation::Send { imm: None };
        assert!(self.submit(pair, bypassed, send, Data::Inline(bytes)));
        self.world.pump();
    }

    /// Begins a message of which some turns bring a part.
    fn send_long(&mut self, pair: usize, bypassed: u32) {
        let (send, sge) = (Operation::Send { imm: None }, self.source.sge(0, LONG));
        assert!(self.submit(pair, bypassed, send, Data::Sges(&[sge])));
    }

    /// As [`Scene::send_long`], and waits for the first part.
    fn begin_long(&mut self, pair: usize, bypassed: u32) {
        let taken = |scene: &Self| {
            let state = scene.world.node(SERVER).query_srq(scene.srq.srqn);
            state.expect("exists").index.get()
        };
        let before = taken(self);
        self.send_long(pair, bypassed);
        for _ in 0..1000 {
            if taken(self) != before {
                break;
            }
            self.world.turns(1);
        }
        assert_ne!(taken(self), before, "part of it has arrived");
        assert_eq!(self.filled(), []);
    }

    /// Statuses of what was sent.
    fn statuses(&mut self) -> Vec<u8> {
        let done = self.cq.drain();
        for cqe in &done {
            let mut pairs = self.pairs.iter_mut();
            let pair = pairs.find(|pair| pair.client.qpn == cqe.qpn.get());
            let send = &mut pair.expect("one of them").client.send;
            // Of one that was reset meanwhile it says nothing.
            let _ = send.completed(cqe.queue_index.get());
        }
        done.iter().map(|cqe| cqe.status).collect()
    }

    fn filled(&mut self) -> Vec<Filled> {
        let done = self.server_cq.drain();
        let receives = done.iter().filter(|cqe| cqe.opcode & 0x80 != 0);
        let filled = receives.map(|cqe| {
            let (behind, count) = (cqe.queue_index.get(), cqe.buffers.get());
            let (first, last) = (behind.wrapping_sub(count.into()), behind.wrapping_sub(1));
            assert_eq!(cqe.wr_id.get(), u64::from(last));
            let mut pairs = self.pairs.iter();
            let pair = pairs.position(|pair| pair.server.qpn == cqe.qpn.get());
            (pair.unwrap_or(usize::MAX), first..behind, cqe.status)
        });
        filled.collect()
    }

    /// Bytes of the buffer of an entry.
    fn buffer(&self, index: u32, len: usize) -> Vec<u8> {
        let at = u64::from(index % BUFFERS * LEN);
        self.server.read(self.mr.addr + at, len)
    }

    fn set_limit(&mut self, limit: u32) {
        let body = ModifySrq {
            srqn: self.srq.srqn.into(),
            limit: limit.into(),
        };
        let (node, machine) = self.world.nodes.node_mut(SERVER).expect("exists");
        node.modify_srq(machine, &body).expect("allowed");
    }
}

#[test]
fn a_message_takes_entries_for_those_before_it() {
    let mut s = Scene::new(2, 2);
    s.post(12);
    s.send(0, 0, b"zero");
    s.send(0, 3, b"four");
    s.send(1, 1, b"six");
    s.send(0, 3, b"seven");
    s.send(0, 4, b"nine");
    assert_eq!(s.statuses(), [OK; 5]);
    let expected = [
        (0, 0..1, OK),
        (0, 1..5, OK),
        (1, 5..7, OK),
        (0, 7..8, OK),
        (0, 8..10, OK),
    ];
    assert_eq!((s.filled(), s.next()), (expected.to_vec(), 10));
    for (index, bytes) in [
        (0, &b"zero"[..]),
        (4, b"four"),
        (6, b"six"),
        (7, b"seven"),
        (9, b"nine"),
    ] {
        assert_eq!(s.buffer(index, bytes.len()), bytes);
    }
    assert_eq!(s.buffer(5, 4), [0; 4]);
}

#[test]
fn the_owner_takes_entries_as_well() {
    let mut s = Scene::new(2, 2);
    s.post(12);
    assert_eq!((s.take(), s.take()), (Some(0), Some(1)));
    s.say(0, 2);
    // One of the three before it has none.
    s.send(0, 3, b"three");
    assert_eq!(s.filled(), [(0, 2..4, OK)]);
    // What was said before the owner learns of that is behind.
    s.send(0, 3, b"four");
    assert_eq!(s.filled(), [(0, 4..5, OK)]);
    s.say(0, 3);
    assert_eq!(s.take(), Some(5));
    s.say(0, 4);
    // It is no other queue pair's.
    s.send(1, 1, b"seven");
    s.send(0, 4, b"eight");
    assert_eq!(s.filled(), [(1, 6..8, OK), (0, 8..9, OK)]);
    // It may be ahead of what it says: then there are more than it needs.
    assert_eq!(s.take(), Some(9));
    s.send(0, 5, b"eleven");
    assert_eq!(s.filled(), [(0, 10..12, OK)]);
    assert_eq!((s.take(), s.statuses()), (None, vec![OK; 5]));
    assert_eq!(s.buffer(11, 6), b"eleven");
}

#[test]
fn a_queue_turns_over_many_times() {
    let mut s = Scene::new(1, 1);
    let mut bypassed = 0;
    s.set_next(0u32.wrapping_sub(40));
    s.posted = s.next();
    for round in 0..100 {
        s.post(5);
        let first = s.next();
        assert_eq!(s.take(), Some(first));
        s.say(0, bypassed + 1);
        bypassed += 3;
        s.send(0, bypassed, b"more");
        let expected = first.wrapping_add(1)..first.wrapping_add(4);
        assert_eq!(s.filled(), [(0, expected, OK)], "{round}");
        let last = first.wrapping_add(4);
        assert_eq!((s.take(), s.statuses()), (Some(last), vec![OK]));
        s.say(0, bypassed + 1);
        bypassed += 1;
    }
}

#[test]
fn one_with_too_few_entries_waits() {
    let mut s = Scene::new(2, 2);
    s.post(2);
    s.send(0, 2, b"two");
    assert_eq!((s.statuses(), s.filled(), s.next()), (vec![], vec![], 0));
    // The owner may have taken some for those before it, and be about to say so.
    assert_eq!(s.world.node(SERVER).counters().rx_rnr_naks.get(), 0);
    // Others need less.
    s.send(1, 0, b"zero");
    assert_eq!((s.statuses(), s.filled()), (vec![OK], vec![(1, 0..1, OK)]));
    s.post(1);
    s.world.pump();
    assert_eq!((s.statuses(), s.filled()), (vec![], vec![]));
    // One of those before it is put into one by the owner.
    assert_eq!(s.take(), Some(1));
    s.say(0, 1);
    s.post(1);
    s.world.pump();
    assert_eq!((s.statuses(), s.filled()), (vec![OK], vec![(0, 2..4, OK)]));
    assert_eq!(s.buffer(3, 3), b"two");
    s.send(0, 2, b"next");
    s.post(1);
    s.world.pump();
    assert_eq!((s.statuses(), s.filled()), (vec![OK], vec![(0, 4..5, OK)]));
}

#[test]
fn a_message_in_parts_takes_its_entries_with_the_first_one() {
    let mut s = Scene::new(2, 2);
    s.post(5);
    s.begin_long(0, 2);
    assert_eq!(s.next(), 3);
    s.send(1, 1, b"between");
    s.world.pump();
    assert_eq!(s.statuses(), [OK; 2]);
    let mut filled = s.filled();
    filled.sort_by_key(|(pair, ..)| *pair);
    assert_eq!(filled, [(0, 0..3, OK), (1, 3..5, OK)]);
    assert!(s.buffer(2, LONG as usize) == pattern(LEN as usize, 1)[..LONG as usize]);
}

#[test]
fn a_write_with_immediate_data_takes_entries_with_its_last_part() {
    let mut s = Scene::new(1, 1);
    s.post(4);
    let write = Operation::Write {
        addr: s.mr.iova + u64::from(16 * LEN),
        rkey: s.mr.key,
        imm: Some(5),
    };
    let sge = s.source.sge(0, LONG);
    assert!(s.submit(0, 1, write, Data::Sges(&[sge])));
    s.world.pump();
    assert!(s.submit(0, 2, write, Data::Inline(b"short")));
    s.world.pump();
    assert_eq!(s.statuses(), [OK; 2]);
    assert_eq!(s.filled(), [(0, 0..2, OK), (0, 2..4, OK)]);
    assert_eq!(s.buffer(1, 8), [0; 8]);
    assert_eq!(s.buffer(16, 5), b"short");
}

#[test]
fn entries_that_were_taken_before_count_as_taken() {
    let mut s = Scene::new(2, 0);
    s.post(4);
    s.send(1, 0, b"zero");
    assert_eq!((s.filled(), s.next()), (vec![(1, 0..1, OK)], 0));
    s.begin_long(0, 0);
    assert_eq!(s.next(), 0);
    // Which queue pair of it has rings does not matter; nor does it if another one has, later.
    s.allow(1);
    assert_eq!(s.next(), 2);
    assert_eq!(s.take(), Some(2));
    s.allow(0);
    assert_eq!(s.next(), 3);
    s.send(1, 0, b"three");
    s.world.pump();
    let mut filled = s.filled();
    filled.sort_by_key(|(_, entries, _)| entries.start);
    assert_eq!(filled, [(0, 1..2, OK), (1, 3..4, OK)]);
    assert!(s.buffer(1, LONG as usize) == pattern(LEN as usize, 1)[..LONG as usize]);
}

#[test]
fn the_owner_who_takes_the_last_entries_makes_the_limit_event() {
    let mut s = Scene::new(1, 1);
    let event = (EventType::SrqLimit as u8, 0, s.srq.srqn);
    s.post(4);
    s.set_limit(3);
    assert_eq!(s.take(), Some(0));
    s.kick();
    assert_eq!(s.eq.drain(), []);
    assert_eq!(s.take(), Some(1));
    s.kick();
    assert_eq!(s.eq.drain(), [event]);
    s.kick();
    assert_eq!(s.eq.drain(), []);
    // One that the engine takes, too, which sees what the owner has taken.
    s.post(4);
    s.set_limit(4);
    assert_eq!((s.take(), s.eq.drain()), (Some(2), vec![]));
    s.say(0, 1);
    s.send(0, 2, b"two");
    assert_eq!(s.filled(), [(0, 3..5, OK)]);
    assert_eq!(s.eq.drain(), [event]);
    // An event at once says how many there are.
    s.set_limit(3);
    assert_eq!((s.take(), s.eq.drain()), (Some(5), vec![]));
    s.set_limit(3);
    assert_eq!(s.eq.drain(), [event]);
}
