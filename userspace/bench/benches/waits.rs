// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How long a WRITE of 8 bytes takes, from its doorbell to its completion, while others have all the work under way that they can.
//!
//! One thread gives each host its turn, one after the other, so what hosts would do at the same time counts as if they waited for
//! each other. Prints a line for each case: its name, the median, the 99th percentile and the longest, in nanoseconds.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a benchmark may fail loudly"
)]

use std::time::Instant;

use nupa_engine::rings::{Data, Operation, SendRequest};
use nupa_engine::Engine;
use nupa_proto::admin::QpType;
use nupa_proto::pool::AREA_NODES;
use nupa_proto::wqe::WQE_SIGNALED;
use nupa_testing::{Cq, Host, HostNodes, Kicks, Mode, Mr, Qp, World};

/// Small WRITEs of each case.
const SAMPLES: usize = 2000;
/// log2 of the entries of all rings.
const LOG: u8 = 4;
/// Bytes of the longest message.
const LONGEST: u32 = 1 << 30;
/// Bytes of what many nodes send.
const LONG: u32 = 4 << 20;

fn main() {
    behind("behind_1_gib_pool", Mode::Pooled);
    behind("behind_1_gib_local", Mode::Local);
    beside_peers("beside_peers_4_mib");
}

/// Hosts that are driven by hand.
struct Hosts {
    all: Vec<(Box<Engine>, HostNodes)>,
    kicks: Kicks,
}

impl Hosts {
    fn new(world: World) -> Self {
        let (all, kicks) = world.into_hosts();
        Self { all, kicks }
    }

    /// Gives each of these hosts a turn, after whatever was kicked at any.
    fn turn(&mut self, hosts: &[usize]) {
        while let Some(kick) = self.kicks.take() {
            let host = usize::from(kick.node).min(self.all.len() - 1);
            let (engine, nodes) = &mut self.all[host];
            engine.kick(nodes, kick.node, kick.page, kick.slot);
        }
        for host in hosts {
            let (engine, nodes) = &mut self.all[*host];
            nodes.run(engine);
        }
    }
}

/// The node that is written to.
struct Target {
    host: Host,
    cq: Cq,
    mr: Mr,
}

impl Target {
    fn new(world: &mut World, id: u16) -> Self {
        let mut host = world.host(id);
        let eq = host.start(world);
        let cq = host.cq(world, eq.eqn, LOG);
        // Doorbells of queue pairs are many.
        host.turn_page();
        let mr = host.repeated_mr(world, LONGEST.into());
        Self { host, cq, mr }
    }
}

/// A queue pair, and where it writes to.
struct Stream {
    qp: Qp,
    cq: Cq,
    from: Mr,
    to: Mr,
}

impl Stream {
    /// From a node that has an event queue: WRITEs of at most `len` bytes.
    fn new(world: &mut World, host: &mut Host, eqn: u32, target: &mut Target, len: u32) -> Self {
        let cq = host.cq(world, eqn, LOG);
        let qp = host.qp(world, QpType::Rc, &cq, LOG);
        let from = host.repeated_mr(world, len.into());
        let there = target.host.qp(world, QpType::Rc, &target.cq, LOG);
        let ends = [(&*host, &qp), (&target.host, &there)];
        for [(host, qp), (peer, other)] in [ends, [ends[1], ends[0]]] {
            let epoch = world.node(peer.id).epoch();
            host.ready(world, qp, Some((peer.id, other.qpn, epoch)));
        }
        Self {
            qp,
            cq,
            from,
            to: target.mr,
        }
    }

    fn write(&mut self, len: u32) {
        let sges = [self.from.sge(0, len)];
        let (addr, rkey, imm) = (self.to.iova, self.to.key, None);
        let request = SendRequest {
            wr_id: 0,
            flags: WQE_SIGNALED,
            operation: Operation::Write { addr, rkey, imm },
            data: Data::Sges(&sges),
        };
        self.qp.send.post(&request).expect("room");
        self.qp.send.ring();
    }

    /// Whether a WRITE is complete that was not before.
    fn is_done(&mut self) -> bool {
        let Some(cqe) = self.cq.ring.poll() else {
            return false;
        };
        assert_eq!(cqe.status, 0, "a WRITE failed");
        self.qp
            .send
            .completed(cqe.queue_index.get())
            .expect("posted");
        true
    }
}

/// Times [`SAMPLES`] small WRITEs; `between` is done before each, `turn` until it is complete.
fn measure(
    name: &str,
    hosts: &mut Hosts,
    small: &mut Stream,
    mut between: impl FnMut(&mut Hosts),
    turn: &[usize],
) {
    let mut waits: Vec<u128> = (0..SAMPLES)
        .map(|_| {
            between(hosts);
            let begun = Instant::now();
            small.write(8);
            while !small.is_done() {
                hosts.turn(turn);
            }
            begun.elapsed().as_nanos()
        })
        .collect();
    waits.sort_unstable();
    let (median, late) = (waits[SAMPLES / 2], waits[SAMPLES * 99 / 100]);
    println!("{name} {median} {late} {}", waits[SAMPLES - 1]);
}

/// Behind WRITEs of 1 GiB of another queue pair, from the same node to the same node.
fn behind(name: &str, mode: Mode) {
    let mut world = World::new(mode, 2);
    let (mut source, mut target) = (world.host(0), Target::new(&mut world, 1));
    let eqn = source.start(&mut world).eqn;
    let mut long = Stream::new(&mut world, &mut source, eqn, &mut target, LONGEST);
    let mut small = Stream::new(&mut world, &mut source, eqn, &mut target, 4096);
    let mut hosts = Hosts::new(world);
    let all: Vec<usize> = (0..hosts.all.len()).collect();
    long.write(LONGEST);
    long.write(LONGEST);
    let mut lot = 1u32;
    let between = |hosts: &mut Hosts| {
        lot = lot.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        for _ in 0..lot >> 28 {
            hosts.turn(&all);
        }
        while long.is_done() {
            long.write(LONGEST);
        }
    };
    measure(name, &mut hosts, &mut small, between, &all);
}

/// Beside all other nodes of a pool, which have filled their rings to the node that it is for. They have no turn meanwhile, as they
/// would not take any of its time either.
fn beside_peers(name: &str) {
    let mut world = World::new(Mode::Pooled, AREA_NODES);
    let mut target = Target::new(&mut world, 0);
    let mut stream = |id, len| {
        let mut source = world.host(id);
        let eqn = source.start(&mut world).eqn;
        Stream::new(&mut world, &mut source, eqn, &mut target, len)
    };
    let mut small = stream(1, 4096);
    let mut streams: Vec<Stream> = (2..AREA_NODES).map(|id| stream(id, LONG)).collect();
    let mut hosts = Hosts::new(world);
    for stream in &mut streams {
        stream.write(LONG);
    }
    let others: Vec<usize> = (2..hosts.all.len()).collect();
    let between = |hosts: &mut Hosts| {
        for _ in 0..2 {
            hosts.turn(&others);
        }
        for stream in &mut streams {
            while stream.is_done() {
                stream.write(LONG);
            }
        }
    };
    measure(name, &mut hosts, &mut small, between, &[1, 0, 1]);
}
