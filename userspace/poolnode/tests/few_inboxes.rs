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
const ROUNDS: u8 = 3;
/// Requests fail before.
const LIMIT: Duration = Duration::from_secs(60);

/// A node, and its end of the connection to each other.
struct Node {
    fabric: Fabric,
    guest: Guest<Fabric>,
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

#[test]
fn all_is_sent_to_more_than_there_are_inboxes_for() {
    let pool = formatted();
    let mut nodes: Vec<Node> = (0..NODES).map(|id| Node::join(&pool, id)).collect();
    let others = |id: u16| (0..NODES).filter(move |other| *other != id);
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
        }
    }
    for round in 0..ROUNDS {
        let mut buffers = Vec::new();
        for id in 0..NODES {
            for other in others(id) {
                let node = &mut nodes[usize::from(id)];
                let addr = iova(node.guest.alloc(LEN as usize));
                let qp = node.pairs[usize::from(other)].as_mut().unwrap();
                qp.recv.post(addr, &[sge(addr, LEN, DMA_LKEY)]).unwrap();
                qp.recv.ring();
                buffers.push((id, other, addr));
                let from = node.guest.put(&letter(id.into(), other.into(), round));
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
        // Of each pair, what was sent and what has come.
        let mut left = 4 * usize::from(NODES) * usize::from(NODES - 1) / 2;
        until(&mut nodes, "all is sent", |nodes| {
            for id in 0..NODES {
                for other in others(id) {
                    let qp = nodes[usize::from(id)].pair(other);
                    while let Some(cqe) = qp.cq.ring.poll() {
                        assert_eq!(
                            cqe.status,
                            WcStatus::Success.to_wire(),
                            "{id} with {other}: {cqe:?}"
                        );
                        left -= 1;
                    }
                }
            }
            left == 0
        });
        for (id, other, addr) in buffers {
            let found = nodes[usize::from(id)].guest.get(addr, LEN as usize);
            assert!(
                found == letter(other.into(), id.into(), round),
                "from {other} to {id}, round {round}"
            );
        }
    }
}
