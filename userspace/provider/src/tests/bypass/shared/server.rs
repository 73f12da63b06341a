// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A server whose queue pairs share receive entries, and its clients.

use std::collections::HashSet;
use std::sync::Arc;

use nupa_proto::admin::{QpType, ACCESS_ALL, RNR_RETRY_FOREVER};
use nupa_proto::process_ring::{STATE, STATE_OPEN};

use super::super::super::common::World;
use super::super::super::node::{pattern, Kicks, Node, Shape, TestCq, TestQp, TestSrq, LEN};
use super::super::super::rings::Rings;
use super::super::{Sides, BEFORE, SHOWN_AFTER, SIGNALED, STEP};
use crate::ffi::testing::{recv, send, sys, SendExt};

/// Messages that a client has under way at most.
pub(super) const MOST_SENT: u64 = 16;
/// Receive buffers of the server.
pub(super) const BUFFERS: u64 = 64;
/// How the engine is kicked: as on a pool, which is where there are rings.
pub(super) const SHAPE: Shape = Shape {
    requests: 64,
    sge: 4,
    inline: 64,
    qp_type: QpType::Rc,
    signal_all: false,
    more_blocks: 0,
    kicks: Kicks::Called,
};

/// A queue pair of a client, and the one of the server that it is connected to.
pub(super) struct Line {
    pub(super) node: Node,
    pub(super) cq: TestCq,
    pub(super) qp: TestQp,
    pub(super) peer: TestQp,
    /// Keeps what the program has mapped.
    _of_client: Rings,
    pub(super) of_server: Rings,
    /// Number of the next message.
    pub(super) next: u64,
    /// Number of the message that arrives next, and of the one that completes next.
    pub(super) arrives: u64,
    pub(super) completes: u64,
    pub(super) lengths: Vec<usize>,
}

/// A server with shared receive entries, and two clients.
pub(super) struct Server {
    pub(super) node: Node,
    pub(super) srq: TestSrq,
    pub(super) cq: Arc<TestCq>,
    pub(super) lines: Vec<Line>,
    /// Buffers that are posted.
    pub(super) posted: HashSet<u64>,
}

impl Server {
    pub(super) fn new(mixed: bool) -> Self {
        let world = World::new(3);
        let node = Node::kicking(&world, 0, Kicks::Called);
        let srq = node.srq(BUFFERS as u32);
        let cq = Arc::new(node.cq(8));
        let lines = [1, 2].map(|id| {
            let client = Node::kicking(&world, id, Kicks::Called);
            let client_cq = client.cq(8);
            let qp = client.qp(SHAPE, [&client_cq, &client_cq], None);
            let peer = node.qp(SHAPE, [&*cq, &*cq], Some(&srq));
            let at = |node: &Node, qpn| Some((node.guest.node, qpn, node.guest.epoch()));
            node.ready_for(&peer, at(&client, qp.qpn), RNR_RETRY_FOREVER);
            client.ready_for(&qp, at(&node, peer.qpn), RNR_RETRY_FOREVER);
            let memories = [&client, &node].map(|node| &*node.guest.ram);
            let [mut of_client, mut of_server] =
                [0, 1].map(|side| Rings::new(memories, id.into(), side));
            of_client.enable(&client, &qp, mixed);
            of_server.enable(&node, &peer, mixed);
            Line {
                node: client,
                cq: client_cq,
                qp,
                peer,
                _of_client: of_client,
                of_server,
                next: 0,
                arrives: 0,
                completes: 0,
                lengths: Vec::new(),
            }
        });
        Self {
            node,
            srq,
            cq,
            lines: lines.into(),
            posted: HashSet::new(),
        }
    }

    /// A server with rings for all queue pairs, and no receive buffers.
    pub(super) fn with_rings() -> Self {
        let mut server = Self::new(false);
        for line in 0..2 {
            for _ in 0..BEFORE {
                server.post(0);
                server.send(line, 40);
                server.drain();
            }
        }
        assert!(server.posted.is_empty());
        server
    }

    pub(super) fn place(buffer: u64) -> usize {
        buffer as usize * STEP
    }

    pub(super) fn try_post(&mut self, buffer: u64) -> bool {
        let mut sges = [self.node.sge(Self::place(buffer), STEP as u32)];
        let done = self.srq.srq.post(&mut [recv(buffer, &mut sges)]);
        if done.is_ok() {
            assert!(self.posted.insert(buffer), "buffer {buffer} is posted");
        }
        done.is_ok()
    }

    pub(super) fn post(&mut self, buffer: u64) {
        assert!(self.try_post(buffer), "no room for buffer {buffer}");
    }

    /// Sends a message of the client's, and leaves it to the engine.
    pub(super) fn send(&mut self, line: usize, len: usize) {
        let line = &mut self.lines[line];
        let place = Self::place(line.next % MOST_SENT);
        line.node.fill(place, &pattern(len, line.next as u8));
        let mut sges = [line.node.sge(place, len as u32)];
        let message = send(line.next, sys::IBV_WR_SEND, SIGNALED).with(&mut sges);
        line.qp.qp.post_send(&mut [message]).unwrap();
        line.next += 1;
        line.lengths.push(len);
    }

    /// State of the ring of a queue pair of the server's.
    pub(super) fn state(&self, line: usize) -> u32 {
        Sides::ring_state(&self.lines[line].of_server.incoming())
    }

    /// As [`Server::send`], of a client that has not learnt yet that there are no buffers, or that the program waits for an event.
    pub(super) fn send_unaware(&mut self, line: usize, len: usize) {
        let ring = self.lines[line].of_server.incoming();
        let state = ring.load(STATE);
        ring.store(STATE, STATE_OPEN);
        self.send(line, len);
        ring.store(STATE, state);
    }

    /// Posts a buffer by a key of memory that the process is not known to have mapped.
    pub(super) fn post_foreign(&mut self, buffer: u64) {
        let node = &self.node;
        let key = node
            .guest
            .register(node.pd, node.memory, LEN as u64, ACCESS_ALL);
        let mut sges = [sys::ibv_sge {
            lkey: key.unwrap(),
            ..node.sge(Self::place(buffer), STEP as u32)
        }];
        self.srq.srq.post(&mut [recv(buffer, &mut sges)]).unwrap();
        assert!(self.posted.insert(buffer));
    }

    /// Lets everybody's engine work.
    pub(super) fn run(&self) {
        for line in &self.lines {
            line.node.run();
        }
        self.node.run();
    }

    /// Takes the messages that the server finds, checks each, and returns their buffers.
    pub(super) fn arrived(&mut self) -> Vec<u64> {
        let mut buffers = Vec::new();
        for _ in 0..SHOWN_AFTER {
            let found = self.cq.cq.poll(4);
            buffers.extend(self.check(found));
            self.cq.cq.found_nothing();
        }
        buffers
    }

    /// Checks messages that the server has found, and returns their buffers.
    pub(super) fn check(&mut self, found: Vec<sys::ibv_wc>) -> Vec<u64> {
        let mut buffers = Vec::new();
        for wc in found {
            let numbers = |line: &&mut Line| line.peer.qpn == wc.qp_num;
            let line = self.lines.iter_mut().find(numbers).expect("a queue pair");
            let len = line.lengths[line.arrives as usize];
            assert_eq!(
                (wc.status, wc.byte_len as usize),
                (sys::IBV_WC_SUCCESS, len)
            );
            assert!(self.posted.remove(&wc.wr_id), "buffer {}", wc.wr_id);
            let bytes = self.node.bytes(Self::place(wc.wr_id), len);
            assert_eq!(
                bytes,
                pattern(len, line.arrives as u8),
                "message {}",
                line.arrives
            );
            line.arrives += 1;
            buffers.push(wc.wr_id);
        }
        buffers
    }

    /// Fails if there are not as many buffers as ever, or one is lost.
    pub(super) fn count_buffers(&mut self) {
        let missing: Vec<u64> = (0..BUFFERS)
            .filter(|buffer| !self.posted.contains(buffer))
            .collect();
        for buffer in missing {
            self.post(buffer);
        }
        let mut sges = [self.node.sge(0, 8)];
        let full = self.srq.srq.post(&mut [recv(99, &mut sges)]);
        assert!(full.is_err(), "there are no more than were made");
    }

    /// Takes the completions of what clients have sent.
    pub(super) fn completed(&mut self) {
        for line in &mut self.lines {
            for _ in 0..SHOWN_AFTER {
                for wc in line.cq.cq.poll(4) {
                    assert_eq!((wc.wr_id, wc.status), (line.completes, sys::IBV_WC_SUCCESS));
                    line.completes += 1;
                }
                line.cq.cq.found_nothing();
            }
        }
    }

    /// All that was sent arrives.
    pub(super) fn drain(&mut self) -> Vec<u64> {
        self.run();
        let buffers = self.arrived();
        self.run();
        self.completed();
        for line in &self.lines {
            assert_eq!((line.arrives, line.completes), (line.next, line.next));
        }
        buffers
    }

    /// Whether the next message of a client goes past the engine.
    pub(super) fn past_engine(&mut self, line: usize, len: usize) -> bool {
        self.send(line, len);
        let arrived = self.arrived();
        self.drain();
        arrived.len() == 1
    }
}
