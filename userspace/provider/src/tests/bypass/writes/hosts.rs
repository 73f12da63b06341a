// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two hosts of a pool in one process, of which one writes to the memory of the other.

use std::time::{Duration, Instant};

use guestmem::MmapRegion;
use nupa_proto::admin::RNR_RETRY_FOREVER;
use nupa_proto::process_ring::{STATE, STATE_WRITES, TAKEN};

use super::super::super::common::guest::RAM_SIZE;
use super::super::super::node::{pattern, Kicks, Node, Shape, TestCq, TestQp};
use super::super::super::pool_host::{again, Pool};
use super::super::super::rings::Rings;
use super::super::{BEFORE, SHOWN_AFTER, SIGNALED};
use crate::ffi::testing::{recv, send, sys, SendExt};

/// Where the target of WRITEs begins in the memory of the second host.
pub(super) const TARGET: usize = 64 << 10;
/// Where nothing is compared.
const ASIDE: usize = 512 << 10;
/// How long to wait for something that an engine does.
const TIMEOUT: Duration = Duration::from_secs(20);

/// One of them.
pub(super) struct Host {
    pub(super) pool: Pool,
    pub(super) node: Node<Pool>,
    pub(super) cq: TestCq,
    pub(super) qp: TestQp,
    pub(super) rings: Rings,
}

/// Both; `a` writes.
pub(super) struct Hosts {
    pub(super) a: Host,
    pub(super) b: Host,
    /// What they share.
    pub(super) memory: MmapRegion,
}

impl Host {
    /// Does what its program and its engine have to do.
    pub(super) fn run(&self) {
        self.node.run();
        self.pool.poll();
    }

    /// Completions, as a program finds them that polls for a while and has the engine work when there are none.
    pub(super) fn poll(&self) -> Vec<sys::ibv_wc> {
        let mut found = Vec::new();
        for _ in 0..SHOWN_AFTER {
            found.extend(self.spin());
        }
        found
    }

    /// One poll that does not have the engine work.
    pub(super) fn spin(&self) -> Vec<sys::ibv_wc> {
        let polled = self.cq.cq.poll(8);
        if polled.is_empty() {
            self.cq.cq.found_nothing();
        }
        polled
    }
}

impl Hosts {
    /// Connected, and without rings yet.
    pub(super) fn new(mixed: bool) -> Self {
        Self::shaped(Shape::default(), mixed)
    }

    pub(super) fn shaped(shape: Shape, mixed: bool) -> Self {
        let shape = Shape {
            kicks: Kicks::Called,
            more_blocks: 2,
            ..shape
        };
        let pool = Pool::format();
        let memories = [0, 1].map(|_| MmapRegion::new("pool-host-ram", RAM_SIZE).unwrap());
        let hosts = [0u16, 1].map(|id| {
            let ram = again(&memories[usize::from(id)]);
            let pool = Pool::join(again(&pool), &ram, id);
            let node = pool.node(id, ram);
            let cq = node.cq(8);
            let qp = node.qp(shape, [&cq, &cq], None);
            let rings = Rings::new(memories.each_ref(), 0, id);
            Host {
                pool,
                node,
                cq,
                qp,
                rings,
            }
        });
        let [a, b] = hosts;
        let memory = again(&pool);
        let mut hosts = Self { a, b, memory };
        hosts.connect();
        let Self { a, b, .. } = &mut hosts;
        a.rings.enable(&a.node, &a.qp, mixed);
        b.rings.enable(&b.node, &b.qp, mixed);
        hosts
    }

    /// Connects the queue pairs, which are in the INIT state.
    pub(super) fn connect(&self) {
        let Self { a, b, .. } = self;
        let [at_a, at_b] = [a, b].map(|host| (host.qp.qpn, host.node.guest.epoch()));
        self.until(|hosts| {
            hosts.a.pool.epoch_of(1) == Some(at_b.1) && hosts.b.pool.epoch_of(0) == Some(at_a.1)
        });
        let forever = RNR_RETRY_FOREVER;
        a.node.ready_for(&a.qp, Some((1, at_b.0, at_b.1)), forever);
        b.node.ready_for(&b.qp, Some((0, at_a.0, at_a.1)), forever);
    }

    /// Hosts that have a ring from `a` to `b`, into which WRITEs may be put.
    pub(super) fn with_rings() -> Self {
        let hosts = Self::new(false);
        hosts.warm();
        hosts
    }

    /// Hosts that have a ring, into which WRITEs may not be put yet.
    pub(super) fn without_writes() -> Self {
        let hosts = Self::new(false);
        hosts.send_before();
        hosts
    }

    /// Sends so many messages that there is a ring. The engine has seen a WRITE then, so that it need not see one to find out whether its peer grants anything.
    fn send_before(&self) {
        self.write(0, ASIDE, 8, SIGNALED);
        self.until(|hosts| hosts.a.cq.cq.poll(1).len() == 1);
        for number in 0..BEFORE {
            self.message(number, 8);
            self.until(|hosts| hosts.b.cq.cq.poll(1).len() == 1);
            self.until(|hosts| hosts.a.cq.cq.poll(1).len() == 1);
        }
    }

    /// The same, and has WRITEs put there.
    pub(super) fn warm(&self) {
        self.send_before();
        self.b.poll();
        assert!(self.takes_writes(), "its program polls");
    }

    /// Whether WRITEs may be put into the ring.
    pub(super) fn takes_writes(&self) -> bool {
        self.b.rings.incoming().load(STATE) & STATE_WRITES != 0
    }

    /// Line of the ring before which all entries were taken.
    pub(super) fn taken(&self) -> u32 {
        self.b.rings.incoming().load(TAKEN)
    }

    /// Both engines do what they have to do.
    pub(super) fn run(&self) {
        for _ in 0..4 {
            self.a.run();
            self.b.run();
        }
    }

    /// Runs until it is so.
    pub(super) fn until(&self, mut done: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.run();
            assert!(start.elapsed() < TIMEOUT, "waited for nothing");
        }
    }

    /// Sends a message, for which there is a receive buffer.
    pub(super) fn message(&self, wr_id: u64, len: u32) {
        let mut sges = [self.b.node.sge(0, 4096)];
        let posted = self.b.qp.qp.post_recv(&mut [recv(wr_id, &mut sges)]);
        posted.unwrap();
        self.b.node.run();
        let mut sges = [self.a.node.sge(0, len)];
        let message = send(wr_id, sys::IBV_WR_SEND, SIGNALED).with(&mut sges);
        self.a.qp.qp.post_send(&mut [message]).unwrap();
    }

    /// Writes bytes that depend on the number to the second host's memory, `at` bytes behind [`TARGET`].
    pub(super) fn write(&self, wr_id: u64, at: usize, len: usize, flags: u32) {
        self.write_with(wr_id, at, len, flags, self.b.node.key);
    }

    /// The same with another key.
    pub(super) fn write_with(&self, wr_id: u64, at: usize, len: usize, flags: u32, key: u32) {
        // From another place than others that are under way.
        self.a.node.fill(at, &Self::bytes(wr_id, len));
        let mut sges = [self.a.node.sge(at, len as u32)];
        let to = self.b.node.memory + (TARGET + at) as u64;
        let write = send(wr_id, sys::IBV_WR_RDMA_WRITE, flags).with(&mut sges);
        let write = write.remote(to, key);
        self.a.qp.qp.post_send(&mut [write]).unwrap();
    }

    /// What [`Hosts::write`] writes.
    pub(super) fn bytes(wr_id: u64, len: usize) -> Vec<u8> {
        pattern(len, (wr_id % 255) as u8 + 1)
    }

    /// Whether a WRITE is there.
    pub(super) fn is_written(&self, wr_id: u64, at: usize, len: usize) -> bool {
        self.b.node.bytes(TARGET + at, len) == Self::bytes(wr_id, len)
    }

    /// The completions of `a`, when there are so many: numbers, status and opcodes.
    pub(super) fn completions(
        &self,
        count: usize,
    ) -> Vec<(u64, sys::ibv_wc_status, sys::ibv_wc_opcode)> {
        let mut found = Vec::new();
        self.until(|hosts| {
            let polled = hosts.a.spin();
            found.extend(polled.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)));
            found.len() >= count
        });
        found
    }
}
