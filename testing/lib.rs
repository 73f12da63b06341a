// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Nodes, hosts and what lies between them in one process: what tests and benchmarks use in place of machines.
//!
//! Memory and doorbell pages are mapped, as those of a guest are; time passes when it is told to. The other host of each step is drawn by lot.

#![allow(
    missing_docs,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail loudly, and is what it says"
)]

pub mod caches;
mod fabric;
mod host;
mod link;
mod machine;
mod memory;
mod mode;
pub mod model;
mod objects;
mod pool;
mod shared;

pub use fabric::{Engines, HostNodes, LocalNodes, Nodes};
pub use guestmem::GuestMemory;
pub use host::Host;
pub use machine::{Kick, Kicks, Machine, RingView, Size, SlotView, Ticks, DOORBELLS};
pub use memory::{Ram, BASE, POOL};
pub use mode::Mode;
pub use objects::{sge, Cq, Eq, Mr, Qp, Srq};

use nupa_engine::{hal::VecStorage, Engine, Limits, Node, NodeConfig, NodeTable};
use nupa_proto::pool::{message::max_frame, MIN_LOG_BULK};
use shared::Shared;
use std::rc::Rc;

/// Bytes of the longest frame: what the smallest rings of a pool take, in all kinds of fabric.
pub const LONGEST_FRAME: u32 = max_frame(MIN_LOG_BULK);

/// What was done in a turn.
enum Turn {
    /// A kick was served, if there was one.
    Kick(bool),
    /// A host has run: whether it found something on its links, and when it is to run again.
    Host {
        host: usize,
        found: bool,
        next: Option<u64>,
    },
}

/// The fabric, its engines and its clock.
pub struct World {
    pub nodes: Nodes,
    pub engine: Engines,
    pub now: Rc<Ticks>,
    pub shared: Rc<Shared>,
    kicks: Kicks,
    /// What [`nupa_engine::Engine::run`] returned last.
    pub next: Option<u64>,
    /// Draws who has its turn.
    seed: u32,
}

/// What lots are drawn with unless a test says: always the same, or what the environment has.
fn first_seed() -> u32 {
    let seed = std::env::var("NUPA_SEED").ok();
    seed.and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

impl World {
    /// `count` nodes, all enabled.
    pub fn new(mode: Mode, count: u16) -> Self {
        Self::sized(mode, count, Size::default())
    }

    /// The same, each with so much.
    pub fn sized(mode: Mode, count: u16, size: Size) -> Self {
        let shared = fabric::shared(mode, count);
        let (now, kicks) = (Rc::<Ticks>::default(), Kicks::default());
        let node = |id| {
            let config = NodeConfig {
                id,
                limits: Limits {
                    max_frame: LONGEST_FRAME,
                    ..Limits::default()
                },
                remote_nodes: if mode.is_linked() { count } else { 0 },
            };
            (
                Node::new(config),
                Machine::new(id, size, Rc::clone(&shared), Rc::clone(&now), kicks.clone()),
            )
        };
        let mut nodes = Nodes::new(mode, (0..count).map(node).collect(), &shared);
        let engine = Engines::new(&mut nodes);
        let mut world = Self {
            nodes,
            engine,
            now: Rc::clone(&now),
            shared,
            kicks,
            next: None,
            seed: 0,
        };
        world.shuffle(first_seed());
        for id in 0..count {
            world.engine.enable(&mut world.nodes, id);
        }
        world
    }

    /// The hosts, to be driven by hand, each when it is its turn, and what their nodes kick. Membership ticks no more.
    pub fn into_hosts(self) -> (Vec<(Box<Engine>, HostNodes)>, Kicks) {
        let hosts = self.engine.into_all().zip(self.nodes.hosts);
        (hosts.collect(), self.kicks)
    }

    /// The driver of a node, without objects.
    pub fn host(&mut self, id: u16) -> Host {
        Host::new(id, self.machine(id).clone())
    }

    pub fn node(&self, id: u16) -> &Node<VecStorage> {
        self.nodes.node(id).expect("node exists").0
    }

    pub fn machine(&self, id: u16) -> &Machine {
        self.nodes.node(id).expect("node exists").1
    }

    /// Serves all kicks that are pending, then what is due, until nothing is left to do. With several hosts, who has its turn is
    /// drawn by lot each time.
    pub fn pump(&mut self) {
        let mut rest: Vec<Option<Option<u64>>> = vec![None; self.nodes.hosts.len()];
        for _ in 0..100_000 {
            let kicked = !self.kicks.is_empty();
            if !kicked && rest.iter().all(Option::is_some) {
                self.next = rest.into_iter().flatten().flatten().min();
                return;
            }
            match self.turn() {
                Turn::Kick(true) => rest.fill(None),
                Turn::Kick(false) => {}
                Turn::Host { found: true, .. } => rest.fill(None),
                Turn::Host { host, next, .. } => rest[host] = (next != Some(0)).then_some(next),
            }
        }
        panic!("the engine does not come to rest");
    }

    /// Lets as many turns pass, if there is something to do or not.
    pub fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
    }

    /// Holds a host still, with all that is in its rings, or lets it go on.
    pub fn hold(&mut self, host: Option<usize>) {
        self.shared.hold(host);
    }

    /// Serves a kick, or runs a host. With one host, kicks come first.
    fn turn(&mut self) -> Turn {
        let hosts = self.nodes.hosts.len();
        let host = self.draw() as usize % (hosts + 1);
        if (host == hosts || hosts == 1) && self.serve_kick() {
            return Turn::Kick(true);
        }
        if host == hosts && hosts > 1 {
            return Turn::Kick(false);
        }
        let host = host % hosts;
        if self.shared.held() == Some(host) {
            let (found, next) = (false, None);
            return Turn::Host { host, found, next };
        }
        let (found, next) = self.engine.run_host(&mut self.nodes, host);
        Turn::Host { host, found, next }
    }

    /// Serves the oldest kick, if there is one.
    fn serve_kick(&mut self) -> bool {
        let kick = self.kicks.take();
        let Some(Kick {
            node,
            page,
            slot,
            pushed,
        }) = kick
        else {
            return false;
        };
        match pushed {
            None => self.engine.kick(&mut self.nodes, node, page, slot),
            Some(index) => self
                .engine
                .push_kick(&mut self.nodes, node, page, slot, index),
        }
        true
    }

    /// What lots are drawn with.
    pub fn shuffle(&mut self, seed: u32) {
        self.seed = seed;
        self.shared.seed(u64::from(seed));
    }

    fn draw(&mut self) -> u32 {
        let next = self.seed.wrapping_mul(1_664_525);
        self.seed = next.wrapping_add(1_013_904_223);
        self.seed >> 16
    }

    /// Lets time pass in which nobody does anything.
    pub fn pass(&self, us: u64) {
        self.now.pass(us);
    }

    /// Lets time pass.
    pub fn advance(&mut self, us: u64) {
        self.pass(us);
        self.pump();
    }
}
