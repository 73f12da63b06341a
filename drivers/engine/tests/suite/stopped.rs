// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A client that stops in the middle of a long SEND into a shared receive queue, and the others on that queue.

use nupa_engine::{
    hal::{Doorbells, SlotWord},
    rings::{Data, Operation},
    NodeTable,
};
use nupa_proto::{admin::*, cqe::Cqe, eqe::EventType, status::WcStatus, wqe::WQE_SIGNALED};
use nupa_testing::{Cq, Eq, Host, Mr, Qp, Srq, World};
use zerocopy::little_endian::U32;

const OK: u8 = WcStatus::Success as u8;
const FLUSHED: u8 = WcStatus::WrFlush as u8;
/// Bytes of the long message: more than rings between hosts take at once.
const LONG: u32 = 900_000;
/// Bytes of each buffer.
const BUFFER: u64 = 1 << 20;
/// log2 of the entries of the shared queue.
const LOG: u8 = 3;
const ENTRIES: u64 = 1 << LOG;
/// One more than there are entries: the one that the long message is in is not to be posted again.
const BUFFERS: u64 = ENTRIES + 1;
/// Node of the queue.
const SERVER: u16 = 2;

struct Client {
    host: Host,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl Client {
    fn new(world: &mut World, id: u16, bytes: u64) -> Self {
        let mut host = world.host(id);
        let eq = host.start(world);
        let cq = host.cq(world, eq.eqn, 6);
        let qp = host.qp(world, QpType::Rc, &cq, 4);
        let mr = host.mr(world, bytes, false);
        Self { host, cq, qp, mr }
    }

    fn post(&mut self, data: Data<'_>) {
        let operation = Operation::Send { imm: None };
        self.qp.submit(0, WQE_SIGNALED, operation, data);
    }

    fn statuses(&mut self) -> Vec<u8> {
        let done = self.cq.drain();
        for cqe in &done {
            let freed = self.qp.send.completed(cqe.queue_index.get());
            freed.expect("it was posted");
        }
        done.iter().map(|cqe| cqe.status).collect()
    }
}

/// Two clients on nodes of their own, and a server that has a queue pair for each, with receive entries in common.
struct Scene {
    world: World,
    slow: Client,
    quick: Client,
    server: Host,
    eq: Eq,
    cq: Cq,
    /// For the slow client and for the quick one.
    qps: [Qp; 2],
    srq: Srq,
    mr: Mr,
    /// Buffers that are not posted.
    unused: Vec<u64>,
}

fn pattern(len: u32) -> Vec<u8> {
    (0..len)
        .map(|i| (i % 251) as u8 ^ (i >> 12) as u8)
        .collect()
}

impl Scene {
    fn new() -> Self {
        let mut world = World::new(*crate::MODE, 3);
        let slow = Client::new(&mut world, 0, BUFFER);
        let quick = Client::new(&mut world, 1, 64);
        slow.host.write(slow.mr.addr, &pattern(LONG));
        let mut server = world.host(SERVER);
        let eq = server.start(&mut world);
        let cq = server.cq(&mut world, eq.eqn, 6);
        let srq = server.srq(&mut world, LOG);
        let mr = server.mr(&mut world, BUFFERS * BUFFER, false);
        let qps = [0; 2].map(|_| server.qp_on(&mut world, QpType::Rc, 0, Some(&srq), &cq, 4));
        for (client, qp) in [&slow, &quick].into_iter().zip(&qps) {
            let (there, own) = (client.host.id, client.qp.qpn);
            client
                .host
                .ready(&mut world, &client.qp, Some((SERVER, qp.qpn, 1)));
            server.ready(&mut world, qp, Some((there, own, 1)));
        }
        let mut scene = Self {
            world,
            slow,
            quick,
            server,
            eq,
            cq,
            qps,
            srq,
            mr,
            unused: (0..BUFFERS).rev().collect(),
        };
        scene.repost();
        scene
    }

    /// Posts as many buffers as there is room for; their numbers are their identification.
    fn repost(&mut self) {
        while self.srq.ring.free() != 0 {
            let Some(buffer) = self.unused.pop() else {
                break;
            };
            let sge = self.mr.sge(buffer * BUFFER, BUFFER as u32);
            self.srq.ring.post(buffer, &[sge]).expect("room");
        }
        self.srq.ring.ring();
        self.world.pump();
    }

    /// Completions at the server. What they say is free is free, and their buffers can be posted again.
    fn received(&mut self) -> Vec<Cqe> {
        let done = self.cq.drain();
        for cqe in &done {
            let freed = self.srq.ring.completed(cqe.queue_index.get());
            freed.expect("it was posted");
            self.unused.push(cqe.wr_id.get());
        }
        done
    }

    fn taken(&self) -> u32 {
        let state = self.world.node(SERVER).query_srq(self.srq.srqn);
        state.expect("exists").index.get()
    }

    /// The slow client begins a long message, of which a part arrives.
    fn begin(&mut self) {
        let sge = self.slow.mr.sge(0, LONG);
        self.slow.post(Data::Sges(&[sge]));
        let before = self.taken();
        for _ in 0..1000 {
            if self.taken() != before {
                break;
            }
            self.world.turns(1);
        }
        assert_eq!(self.taken(), before + 1, "part of it has arrived");
    }

    /// The slow client begins a long message, and stops in the middle.
    fn stop_in_the_middle(&mut self) {
        self.begin();
        self.stop();
        self.world.pump();
        assert_eq!((self.cq.drain().len(), self.slow.statuses()), (0, vec![]));
    }

    /// The slow client does nothing more.
    fn stop(&mut self) {
        match crate::MODE.is_linked() {
            true => self.world.hold(Some(usize::from(self.slow.host.id))),
            false => self.set_slow(QpStateCode::Sqd),
        }
    }

    fn go_on(&mut self) {
        match crate::MODE.is_linked() {
            true => self.world.hold(None),
            false => self.set_slow(QpStateCode::Rts),
        }
        self.world.pump();
    }

    fn set_server(&mut self, state: QpStateCode) {
        let qpn = self.qps[0].qpn;
        self.server
            .set_state(&mut self.world, qpn, state)
            .expect("allowed");
    }

    fn event(&self, kind: EventType, object: u32) -> (u8, u16, u32) {
        (kind as u8, 0, object)
    }

    fn set_slow(&mut self, state: QpStateCode) {
        let Client { host, qp, .. } = &self.slow;
        host.set_state(&mut self.world, qp.qpn, state)
            .expect("allowed");
    }

    /// The quick client sends a message, which must arrive.
    fn send_quick(&mut self, byte: u8) {
        self.quick.post(Data::Inline(&[byte; 16]));
        self.world.pump();
        let done = self.received();
        assert_eq!((self.quick.statuses(), done.len()), (vec![OK], 1), "{byte}");
        assert_eq!((done[0].qpn.get(), done[0].status), (self.qps[1].qpn, OK));
        let at = self.mr.addr + done[0].wr_id.get() * BUFFER;
        assert_eq!(self.server.read(at, 16), [byte; 16]);
    }

    /// As many messages of the quick client as turn the ring over several times.
    fn turn_the_ring_over(&mut self) {
        for byte in 1..=5 * ENTRIES as u8 {
            self.send_quick(byte);
            self.repost();
        }
    }

    /// The entry that the long message began in was given up, and its owner knows.
    fn assert_given_up(&mut self, buffer: u64) {
        let done = self.received();
        assert_eq!((done.len(), self.slow.statuses()), (1, vec![]));
        let cqe = &done[0];
        assert_eq!((cqe.wr_id.get(), cqe.status), (buffer, FLUSHED));
        assert_eq!((cqe.qpn.get(), cqe.buffers.get()), (self.qps[0].qpn, 1));
    }

    /// The long message arrives whole, in the buffer that it began in.
    fn assert_long_arrives(&mut self, buffer: u64) {
        self.go_on();
        let done = self.received();
        assert_eq!((self.slow.statuses(), done.len()), (vec![OK], 1));
        let cqe = &done[0];
        assert_eq!((cqe.wr_id.get(), cqe.byte_len.get()), (buffer, LONG));
        assert_eq!((cqe.qpn.get(), cqe.status), (self.qps[0].qpn, OK));
        let bytes = self
            .server
            .read(self.mr.addr + buffer * BUFFER, LONG as usize);
        assert!(bytes == pattern(LONG));
    }
}

#[test]
fn one_that_stops_leaves_the_ring_to_the_others() {
    let mut s = Scene::new();
    s.stop_in_the_middle();
    s.turn_the_ring_over();
    s.assert_long_arrives(0);
    // All places of the ring come back.
    s.repost();
    s.turn_the_ring_over();
    assert_eq!(s.srq.ring.free(), 0);
}

/// The last entry of the ring is taken by one that stops: the others wait for another one.
#[test]
fn one_that_stops_with_the_only_entry_leaves_none() {
    let mut s = Scene::new();
    for byte in 1..ENTRIES as u8 {
        s.send_quick(byte);
    }
    s.stop_in_the_middle();
    s.quick.post(Data::Inline(&[99; 16]));
    s.world.pump();
    assert_eq!(s.quick.statuses(), []);
    s.repost();
    assert_eq!((s.quick.statuses(), s.received().len()), (vec![OK], 1));
    s.assert_long_arrives(ENTRIES - 1);
}

/// What its owner writes into the ring meanwhile changes nothing.
#[test]
fn the_rest_of_a_message_goes_where_its_beginning_went() {
    let mut s = Scene::new();
    let ring = s.server.read(s.srq.addr, 64 << LOG);
    s.stop_in_the_middle();
    s.server.write(s.srq.addr, &[0xff; 64]);
    s.assert_long_arrives(0);
    // The others' entries are as they were.
    assert_eq!(s.server.read(s.srq.addr, 64 << LOG)[64..], ring[64..]);
    s.send_quick(1);
}

#[test]
fn what_was_begun_is_flushed_though_its_place_is_in_use_again() {
    let mut s = Scene::new();
    s.stop_in_the_middle();
    s.turn_the_ring_over();
    s.eq.drain();
    s.set_server(QpStateCode::Err);
    let last = s.event(EventType::LastWqe, s.qps[0].qpn);
    assert_eq!(s.eq.drain(), [], "it has an entry yet");
    s.world.pump();
    assert_eq!(s.eq.drain(), [last]);
    let done = s.received();
    assert_eq!((done.len(), done[0].buffers.get()), (1, 1));
    assert_eq!((done[0].wr_id.get(), done[0].status), (0, FLUSHED));
    assert_eq!(done[0].qpn.get(), s.qps[0].qpn);
    s.go_on();
    assert_ne!(s.slow.statuses(), [OK]);
    assert_eq!((s.received().len(), s.eq.drain()), (0, vec![]));
    // All places of the ring come back.
    s.repost();
    s.turn_the_ring_over();
    assert_eq!(s.srq.ring.free(), 0);
}

/// One that the device itself puts into the error state.
#[test]
fn a_region_that_goes_ends_what_was_begun() {
    let mut s = Scene::new();
    s.stop_in_the_middle();
    s.turn_the_ring_over();
    s.eq.drain();
    let destroyed = s
        .world
        .engine
        .destroy_mr(&mut s.world.nodes, SERVER, s.mr.key);
    destroyed.expect("exists");
    s.go_on();
    let done = s.received();
    assert_eq!((done.len(), done[0].wr_id.get()), (1, 0));
    assert_eq!(done[0].status, WcStatus::LocalProtection as u8);
    assert_eq!(s.slow.statuses(), [WcStatus::RemoteOperation as u8]);
    let events = [EventType::QpFatal, EventType::LastWqe].map(|kind| s.event(kind, s.qps[0].qpn));
    assert_eq!(s.eq.drain(), events);
}

#[test]
fn reset_and_destruction_give_up_what_was_begun() {
    let mut s = Scene::new();
    s.stop_in_the_middle();
    s.set_server(QpStateCode::Reset);
    s.assert_given_up(0);
    s.go_on();
    assert_ne!(s.slow.statuses(), [OK]);
    assert_eq!((s.received().len(), s.eq.drain()), (0, vec![]));
    // All places of the ring come back.
    s.repost();
    s.turn_the_ring_over();
    assert_eq!(s.srq.ring.free(), 0);

    let mut s = Scene::new();
    s.stop_in_the_middle();
    for qp in &s.qps {
        let engine = &mut s.world.engine;
        let destroyed = engine.destroy_qp(&mut s.world.nodes, SERVER, qp.qpn);
        destroyed.expect("exists");
    }
    let (node, _) = s.world.nodes.node_mut(SERVER).expect("exists");
    node.destroy_srq(s.srq.srqn).expect("free");
    s.assert_given_up(0);
    s.go_on();
    assert_ne!(s.slow.statuses(), [OK]);
    assert_eq!(s.received().len(), 0);
}

/// A queue pair that gave an entry up takes the next one.
#[test]
fn one_that_was_reset_takes_another_entry() {
    let mut s = Scene::new();
    s.stop_in_the_middle();
    s.set_server(QpStateCode::Reset);
    s.assert_given_up(0);
    s.go_on();
    s.set_slow(QpStateCode::Reset);
    let Client { host, qp, .. } = &s.slow;
    let (ours, theirs) = (s.qps[0].qpn, qp.qpn);
    host.ready(&mut s.world, qp, Some((SERVER, ours, 1)));
    s.server
        .ready(&mut s.world, &s.qps[0], Some((0, theirs, 1)));
    s.slow.qp.send.reset();
    s.slow.cq.drain();
    s.stop_in_the_middle();
    s.assert_long_arrives(1);
}

/// It may be another connection that the rest of a message comes to.
#[test]
fn a_message_starts_anew_after_its_peer_did_not_receive() {
    let mut s = Scene::new();
    s.begin();
    s.set_server(QpStateCode::Reset);
    s.assert_given_up(0);
    s.world.pump();
    assert_eq!((s.received().len(), s.slow.statuses()), (0, vec![]));
    let (peer, theirs) = (s.slow.host.id, s.slow.qp.qpn);
    s.server
        .ready(&mut s.world, &s.qps[0], Some((peer, theirs, 1)));
    s.world.pump();
    // The buffer that it began in was given up.
    s.assert_long_arrives(1);
}

/// The limit counts entries that are left, not messages that are whole.
#[test]
fn an_entry_counts_as_taken_with_the_beginning_of_its_message() {
    let mut s = Scene::new();
    let body = ModifySrq {
        srqn: U32::new(s.srq.srqn),
        limit: U32::new(ENTRIES as u32),
    };
    let (node, machine) = s.world.nodes.node_mut(SERVER).expect("exists");
    node.modify_srq(machine, &body).expect("allowed");
    assert_eq!(s.eq.drain(), []);
    s.stop_in_the_middle();
    let limit = s.event(EventType::SrqLimit, s.srq.srqn);
    assert_eq!(s.eq.drain(), [limit]);
    s.send_quick(1);
    s.assert_long_arrives(0);
    assert_eq!(s.eq.drain(), []);
}

/// A queue that its owner spoils hands out no more; what it has handed out is used.
#[test]
fn a_message_ends_though_its_queue_is_spoiled() {
    let mut s = Scene::new();
    s.stop_in_the_middle();
    for byte in 1..ENTRIES as u8 {
        s.send_quick(byte);
    }
    let slot = s.srq.slot;
    s.server.machine.store(0, slot, SlotWord::Index, 1000);
    s.quick.post(Data::Inline(&[1; 16]));
    s.world.pump();
    let failed = WcStatus::RemoteOperation as u8;
    assert_eq!(s.quick.statuses(), [failed]);
    s.assert_long_arrives(0);
}

/// Two wait for entries, and the one that is told of the next one has stopped: the other one gets it.
#[test]
fn one_that_stops_while_it_waits_leaves_entries_to_the_others() {
    let mut s = Scene::new();
    for byte in 1..=ENTRIES as u8 {
        s.send_quick(byte);
    }
    s.slow.post(Data::Inline(&[1; 16]));
    s.world.pump();
    s.stop();
    s.quick.post(Data::Inline(&[2; 16]));
    s.world.pump();
    assert_eq!((s.slow.statuses(), s.quick.statuses()), (vec![], vec![]));
    let sge = s.mr.sge(0, 64);
    s.srq.ring.post(0, &[sge]).expect("room");
    s.srq.ring.ring();
    s.world.pump();
    // Before the other one's RNR timer is over.
    s.world.advance(500);
    assert_eq!((s.quick.statuses(), s.received().len()), (vec![OK], 1));
}

/// A queue pair that does not receive yet uses no entry, even if a requester waits for it.
#[test]
fn one_that_is_not_ready_is_not_given_the_entries_of_others() {
    let mut s = Scene::new();
    for byte in 1..=ENTRIES as u8 {
        s.send_quick(byte);
    }
    s.set_server(QpStateCode::Reset);
    s.slow.post(Data::Inline(&[1; 16]));
    s.world.pump();
    s.quick.post(Data::Inline(&[2; 16]));
    s.world.pump();
    assert_eq!((s.slow.statuses(), s.quick.statuses()), (vec![], vec![]));
    let sge = s.mr.sge(0, 64);
    s.srq.ring.post(0, &[sge]).expect("room");
    s.srq.ring.ring();
    s.world.pump();
    assert_eq!(s.quick.statuses(), [OK]);
}

/// An owner may go on posting sends while it waits for the last entry.
#[test]
fn what_was_begun_is_flushed_before_sends() {
    let mut s = Scene::new();
    s.stop_in_the_middle();
    let operation = Operation::Send { imm: None };
    s.qps[0].submit(77, WQE_SIGNALED, operation, Data::Inline(&[1; 16]));
    s.world.pump();
    s.set_server(QpStateCode::Err);
    s.world.pump();
    let done = s.cq.drain();
    let ids: Vec<u64> = done.iter().map(|cqe| cqe.wr_id.get()).collect();
    assert_eq!(ids, [0, 77]);
}
