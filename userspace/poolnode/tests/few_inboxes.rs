// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Nodes of a pool that have fewer inboxes than others to talk with: links end when they are idle, and all is sent in the end.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

#[path = "mesh/fabric.rs"]
mod fabric;

use std::rc::Rc;
use std::time::{Duration, Instant};

use guestmem::MmapRegion;
use nupa_engine::rings::{Data, Operation, SendRequest};
use nupa_pool::{Format, FormatOptions, Pool};
use nupa_poolmem::{HostTime, PoolMemory};
use nupa_poolnode::PoolProcess;
use nupa_proto::admin::{ModifyQp, QpStateCode, ACCESS_ALL, QP_MASK_RNR_RETRY};
use nupa_proto::ident::DMA_LKEY;
use nupa_proto::status::WcStatus;
use nupa_proto::wqe::WQE_SIGNALED;
use nupa_testguest::guest::{iova, Guest, Irqs};
use nupa_testguest::queues::{sge, Qp};
use nupa_testguest::DOORBELL_PAGES;

use crate::fabric::Fabric;

const NODES: u16 = 3;
/// Bytes of a pool in which each has one inbox.
const POOL: usize = 0x3000 + NODES as usize * (0x10000 + (236 << 10));
const RAM: usize = 8 << 20;
const LEN: u32 = 40_000;
/// Bytes of a READ: more than there is room for in a ring.
const LONG: u32 = 256 << 10;
const ROUNDS: u8 = 3;
/// Exchanges with pauses between them.
const PAUSES: u8 = 40;
/// In which a request that finds no receive buffer is refused.
const WHILE: Duration = Duration::from_millis(400);
/// Requests fail before.
const LIMIT: Duration = Duration::from_secs(60);

/// A node, and its end of the connection to each other.
struct Node {
    fabric: Fabric,
    guest: Guest<Fabric>,
    pd: u32,
    pairs: Vec<Option<Qp<Fabric>>>,
}

impl Node {
    fn join(pool: &Rc<MmapRegion>, id: u16) -> Self {
        let ram = MmapRegion::new("ram", RAM).unwrap();
        let process = PoolProcess::join(pool, &ram, id, DOORBELL_PAGES).unwrap();
        let fabric = Fabric::new(process);
        let doorbells = Guest::<Fabric>::doorbells_in(&ram);
        let guest = Guest::of(&fabric, id, ram, Irqs::default(), doorbells);
        guest.enable();
        let (pd, eqn) = (guest.pd(), guest.eq(0).eqn);
        let pair = |other| (other != id).then(|| guest.rc(pd, eqn));
        let pairs = (0..NODES).map(pair).collect();
        Self {
            fabric,
            guest,
            pd,
            pairs,
        }
    }

    fn pair(&mut self, other: u16) -> &mut Qp<Fabric> {
        self.pairs[usize::from(other)].as_mut().unwrap()
    }
}

/// What one node sends to another.
fn letter(from: usize, to: usize, round: u8) -> Vec<u8> {
    let byte = |at: u32| (at as u8).wrapping_mul(31) ^ (from as u8 * 64 + to as u8 * 16 + round);
    (0..LEN).map(byte).collect()
}

fn formatted() -> Rc<MmapRegion> {
    let pool = Rc::new(MmapRegion::new("pool", POOL).unwrap());
    let window = PoolMemory::new(Rc::clone(&pool), true);
    let options = FormatOptions {
        format: Format::Inboxes,
        ..FormatOptions::new(NODES, 9)
    };
    let made = Pool::attach_or_format(&window, &HostTime::new(), &options, |_| true).unwrap();
    assert_eq!(made.geometry().inboxes(), Some(1));
    pool
}

/// Has all nodes work until something holds.
fn until(nodes: &mut [Node], what: &str, mut holds: impl FnMut(&mut [Node]) -> bool) {
    let start = Instant::now();
    while !holds(nodes) {
        assert!(start.elapsed() < LIMIT, "{what}: waited {LIMIT:?}");
        for node in nodes.iter() {
            node.fabric.poll();
        }
    }
}

fn others(id: u16) -> impl Iterator<Item = u16> {
    (0..NODES).filter(move |other| *other != id)
}

/// Nodes that each are connected to all others.
fn connected() -> Vec<Node> {
    let pool = formatted();
    let mut nodes: Vec<Node> = (0..NODES).map(|id| Node::join(&pool, id)).collect();
    until(&mut nodes, "all see each other", |nodes| {
        let seen = |id: u16| {
            others(id).all(|other| nodes[usize::from(id)].fabric.epoch_of(other).is_some())
        };
        (0..NODES).all(seen)
    });
    for id in 0..NODES {
        for other in others(id) {
            let there = &nodes[usize::from(other)];
            let (epoch, qpn) = (
                there.guest.epoch(),
                there.pairs[usize::from(id)].as_ref().unwrap().qpn,
            );
            let here = &nodes[usize::from(id)];
            let qp = here.pairs[usize::from(other)].as_ref().unwrap();
            here.guest.connect_to(qp, &there.guest, qpn, epoch).unwrap();
            // Whoever finds no receive buffer waits for one.
            let patient = ModifyQp {
                qpn: qp.qpn.into(),
                mask: QP_MASK_RNR_RETRY.into(),
                rnr_retry: 7,
                ..ModifyQp::default()
            };
            here.guest.modify(&patient).unwrap();
        }
    }
    nodes
}

impl Node {
    /// Posts a receive buffer for a letter; its address.
    fn receive(&mut self, from: u16) -> u64 {
        let addr = iova(self.guest.alloc(LEN as usize));
        let qp = self.pair(from);
        qp.recv.post(addr, &[sge(addr, LEN, DMA_LKEY)]).unwrap();
        qp.recv.ring();
        addr
    }

    fn send(&mut self, to: u16, bytes: &[u8]) {
        let from = self.guest.put(bytes);
        let qp = self.pair(to);
        let sent = qp.send.post(&SendRequest {
            wr_id: 1,
            flags: WQE_SIGNALED,
            operation: Operation::Send { imm: None },
            data: Data::Sges(&[sge(from, LEN, DMA_LKEY)]),
        });
        sent.unwrap();
        qp.send.ring();
    }
}

/// Has nodes work until so many requests and receive buffers of pairs are done.
fn await_done(nodes: &mut [Node], pairs: &[(u16, u16)], mut left: usize) {
    until(nodes, "all is sent", |nodes| {
        for (id, other) in pairs {
            let qp = nodes[usize::from(*id)].pair(*other);
            while let Some(cqe) = qp.cq.ring.poll() {
                let success = WcStatus::Success.to_wire();
                assert_eq!(cqe.status, success, "{id} with {other}: {cqe:?}");
                left -= 1;
            }
        }
        left == 0
    });
}

/// Posts a letter and a buffer for each way; the buffers.
fn post(nodes: &mut [Node], ways: &[(u16, u16)], round: u8) -> Vec<u64> {
    let letter_each = |(id, other): &(u16, u16)| {
        let node = &mut nodes[usize::from(*id)];
        let buffer = node.receive(*other);
        node.send(*other, &letter((*id).into(), (*other).into(), round));
        buffer
    };
    ways.iter().map(letter_each).collect()
}

/// Waits for letters that were posted, and compares them.
fn arrive(nodes: &mut [Node], ways: &[(u16, u16)], buffers: Vec<u64>, round: u8) {
    await_done(nodes, ways, 2 * ways.len());
    for ((id, other), addr) in ways.iter().zip(buffers) {
        let found = nodes[usize::from(*id)].guest.get(addr, LEN as usize);
        let expected = letter((*other).into(), (*id).into(), round);
        assert!(found == expected, "from {other} to {id}, round {round}");
    }
}

/// Sends a letter each way.
fn exchange(nodes: &mut [Node], pairs: &[(u16, u16)], round: u8) {
    let both = |(a, b): &(u16, u16)| [(*a, *b), (*b, *a)];
    let ways: Vec<_> = pairs.iter().flat_map(both).collect();
    let buffers = post(nodes, &ways, round);
    arrive(nodes, &ways, buffers, round);
}

#[test]
fn all_is_sent_to_more_than_there_are_inboxes_for() {
    let mut nodes = connected();
    for round in 0..ROUNDS {
        exchange(&mut nodes, &[(0, 1), (0, 2), (1, 2)], round);
    }
}

/// Who waits for a receive buffer keeps no link from others, and has the buffer once it is there.
#[test]
fn who_is_not_ready_keeps_no_link() {
    let mut nodes = connected();
    nodes[0].send(1, &letter(0, 1, 0));
    // It was refused by then, or else the others come first.
    let start = Instant::now();
    until(&mut nodes, "a while", |_| start.elapsed() > WHILE);
    exchange(&mut nodes, &[(0, 2)], 1);
    exchange(&mut nodes, &[(1, 2)], 2);
    exchange(&mut nodes, &[(0, 2), (1, 2)], 3);
    let addr = nodes[1].receive(0);
    await_done(&mut nodes, &[(0, 1), (1, 0)], 2);
    assert!(nodes[1].guest.get(addr, LEN as usize) == letter(0, 1, 0));
}

/// READs of a queue pair that fails lie in the other node's inbox: there is room for their answers until they are taken out.
#[test]
fn who_forgets_requests_takes_their_answers() {
    let mut nodes = connected();
    exchange(&mut nodes, &[(0, 1)], 0);
    let there = &nodes[1];
    let addr = iova(there.guest.alloc(LONG as usize));
    let rkey = there
        .guest
        .register(there.pd, addr, LONG.into(), ACCESS_ALL);
    let (node, rkey) = (&mut nodes[0], rkey.unwrap());
    let to = [sge(iova(node.guest.alloc(LONG as usize)), LONG, DMA_LKEY)];
    let qp = node.pair(1);
    for wr_id in 0..4 {
        let read = SendRequest {
            wr_id,
            flags: WQE_SIGNALED,
            operation: Operation::Read { addr, rkey },
            data: Data::Sges(&to),
        };
        qp.send.post(&read).unwrap();
    }
    qp.send.ring();
    let qpn = qp.qpn;
    // The other node does nothing meanwhile.
    for _ in 0..100 {
        node.fabric.poll();
    }
    node.guest.set_state(qpn, QpStateCode::Err).unwrap();
    let start = Instant::now();
    while start.elapsed() < WHILE {
        nodes[0].fabric.poll();
        nodes[2].fabric.poll();
    }
    // The link is idle. The other node does little at a time while it ends.
    let ways = [(0, 2), (2, 0)];
    let buffers = post(&mut nodes, &ways, 1);
    let start = Instant::now();
    let mut slow = start;
    while start.elapsed() < 4 * WHILE {
        nodes[0].fabric.poll();
        nodes[2].fabric.poll();
        if slow.elapsed() > WHILE / 20 {
            slow = Instant::now();
            nodes[1].fabric.poll();
        }
    }
    arrive(&mut nodes, &ways, buffers, 1);
    exchange(&mut nodes, &[(1, 2)], 2);
    exchange(&mut nodes, &[(0, 2)], 3);
}

/// Pauses of all lengths: a link may be about to end when something is to be sent, or have just ended.
#[test]
fn whatever_the_pauses_all_is_sent() {
    let mut nodes = connected();
    for round in 0..PAUSES {
        let pairs = [[(0, 1)], [(0, 2)], [(1, 2)]];
        exchange(&mut nodes, &pairs[usize::from(round % 3)], round);
        let pause = Duration::from_millis(u64::from(round % 3) * 60 + u64::from(round));
        let start = Instant::now();
        until(&mut nodes, "a pause", |_| start.elapsed() > pause);
    }
}
