// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Handing over an entry, waking who sleeps, taking a slot, and sharing memory, in the orders that two hosts may see. Where caches are
//! coherent, loom explores them; for hosts with caches of their own, `caches` does, up to a bound.
//!
//! What is not about the order is set up before the hosts run against each other.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod caches;
mod claims;
mod coherent;
mod cold;
mod demand;
mod epochs;
mod explore;
mod grants;
mod laps;
mod leftovers;
mod rings;
mod sharing;
mod standstill;
mod start;

use cold::{Cold, Steps, SIZE};
use nupa_pool::{FormatOptions, JoinOptions, Link, Membership, Place, Pool, Time, Window};
use nupa_proto::pool::{Class, HEARTBEAT_US};
use std::{cell::Cell, sync::Arc};

/// Two hosts that run against each other in many ways.
trait Hosts {
    /// How one of them sees the pool.
    type Host: Window + Send + Sync + 'static;
    /// Time as one of them has it.
    type Clock: Time + Send + 'static;
    /// The hosts' caches are kept coherent.
    const COHERENT: bool;

    /// Runs `body` in each way.
    fn check(setup: Setup, body: fn(&Setup));

    /// The hosts map the pool, which is set up. `hot`: words whose order matters, where that has to be told.
    fn map(cold: Cold, hot: &[u64]) -> [Arc<Self::Host>; 2];

    fn clock(host: &Arc<Self::Host>) -> Self::Clock;

    /// Has both run at the same time. What follows sees all that they did.
    fn run<A: Send + 'static, B: Send>(
        hosts: &[Arc<Self::Host>; 2],
        one: impl FnOnce(&Self::Host) -> A + Send + 'static,
        other: impl FnOnce(&Self::Host) -> B + Send,
    ) -> (A, B);
}

/// A pool that is formatted.
#[derive(Clone)]
struct Setup {
    bytes: Arc<Vec<u8>>,
    pool: Pool,
    coherent: bool,
    /// How often a run may differ from the plain one: preemptions, or choices of [`caches`].
    bound: usize,
}

/// How often that is, unless a model says something else.
const BOUND: usize = 3;

impl Setup {
    fn new(coherent: bool) -> Self {
        Self::formatted(coherent, &FormatOptions::new(2, 1))
    }

    fn formatted(coherent: bool, options: &FormatOptions) -> Self {
        let cold = Cold::new(Arc::new(vec![0; SIZE]), coherent);
        let time = Steps(Cell::new(0));
        let pool = Pool::attach_or_format(&cold, &time, options, |_| true).unwrap();
        let bytes = Arc::new(cold.bytes());
        Self {
            bytes,
            pool,
            coherent,
            bound: BOUND,
        }
    }

    fn memory(&self) -> Cold {
        Cold::new(self.bytes.clone(), self.coherent)
    }

    /// Two nodes that see each other, and know these things.
    fn joined(&self, memory: &Cold, capabilities: u64) -> [Membership; 2] {
        self.all_joined(memory, capabilities, [1, 2])
    }

    /// The same of so many nodes, with these tokens.
    fn all_joined<const NODES: usize>(
        &self,
        memory: &Cold,
        capabilities: u64,
        tokens: [u64; NODES],
    ) -> [Membership; NODES] {
        let time = Steps(Cell::new(0));
        let mut nodes = tokens.map(|token| {
            let options = JoinOptions {
                capabilities,
                ..JoinOptions::new(token)
            };
            let mut node = self.pool.join(memory, &time, &options).unwrap();
            node.enable(memory);
            node
        });
        for _ in 0..3 {
            time.sleep_us(HEARTBEAT_US);
            for node in &mut nodes {
                node.tick(memory, time.now_us());
            }
        }
        nodes
    }

    /// Two nodes that are linked.
    fn opened(&self, memory: &Cold, capabilities: u64) -> ([Membership; 2], [Link; 2]) {
        let mut nodes = self.joined(memory, capabilities);
        let [a, b] = &mut nodes;
        let mut links = [a.open(memory, 1).unwrap(), b.open(memory, 0).unwrap()];
        // It has seen that the other side is there.
        assert!(links[0].send.frame.reserve(memory, 0).is_ok());
        (nodes, links)
    }

    /// The ring of frames from node 0 to node 1.
    fn frames(&self, in_lines: bool) -> Place {
        let ring = self.pool.geometry().ring(0, 1, Class::Frame);
        if in_lines {
            return ring.in_lines();
        }
        ring
    }
}

/// Runs `body` with a formatted pool in each way.
fn check<H: Hosts>(body: fn(&Setup)) {
    check_within::<H>(BOUND, body);
}

/// The same, in each way that differs no more often from a plain one.
fn check_within<H: Hosts>(bound: usize, body: fn(&Setup)) {
    let setup = Setup {
        bound,
        ..Setup::new(H::COHERENT)
    };
    H::check(setup, body);
}

/// Makes each test, of a function that is generic over the kind of hosts, one for each kind.
macro_rules! of_all_hosts {
    ($(#[test] fn $test:ident() { $body:ident $(::<$lines:literal>)? $(within $bound:literal)? })+) => {
        mod coherent_hosts {
            $(#[test] fn $test() {
                type Kind = $crate::coherent::Coherent<false>;
                let [bound, ..] = [$($bound,)? $crate::BOUND];
                $crate::check_within::<Kind>(bound, super::$body::<Kind $(, $lines)?>);
            })+
        }
        mod hosts_with_caches_of_their_own {
            $(#[test] fn $test() {
                type Kind = $crate::caches::Caches;
                let [bound, ..] = [$($bound,)? $crate::BOUND];
                $crate::check_within::<Kind>(bound, super::$body::<Kind $(, $lines)?>);
            })+
        }
    };
}
use of_all_hosts;
