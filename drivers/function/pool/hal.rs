// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the node of a pool needs of its host, beyond what its function does.
//!
//! A kernel calls it with the node held, in softirq context too: nothing may sleep or allocate there. In a process it may.

use super::rate_limit::RateLimit;
use crate::{function::Function, host::Host};
use core::{borrow::BorrowMut, ops::DerefMut};
use nupa_engine::{hal::Storage, Peer, PoolLink};
use nupa_pool::{Area, Heartbeat, Membership, Violation, Window};

/// Vectors of a function that were raised and not yet run, one bit each.
pub trait Vectors {
    /// Those that were raised since they were last taken.
    fn raised(&self) -> u64;

    /// The same, and takes them.
    fn take_raised(&self) -> u64;
}

/// Doorbells that were rung and not yet looked at.
pub trait Kicks {
    /// Calls `serve` with page and slot of all that were kicked, each once, and tells whether there was one. `serve` may be kicked
    /// meanwhile.
    fn take(&self, serve: impl FnMut(u32, u16)) -> bool;
}

/// What is wrong with another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It has taken this node for dead.
    Refuses,
    /// Memory that it wrote to cannot be read.
    Lost {
        /// What lies there.
        area: Area,
        /// Where, in the pool.
        offset: u64,
        /// Whether that is this node itself, or something of it.
        own: bool,
    },
    /// It broke a rule of the pool.
    BreaksRules(Violation),
    /// It sent what no node may send.
    Sends,
}

/// Something worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The slot of this node is another host's, or the pool was formatted anew.
    Evicted {
        /// The node.
        node: u16,
    },
    /// Something is wrong with a node.
    Fault {
        /// The node.
        node: u16,
        /// What.
        fault: Fault,
        /// Faults of it that were left out before this one.
        suppressed: u32,
    },
    /// There is no link to a node that something is to be sent to: it has no inbox left for this one, or this one none for it. That is tried again.
    NoInbox {
        /// The node.
        node: u16,
    },
    /// A node went.
    Departed {
        /// The node.
        node: u16,
        /// It died: it has not left by itself.
        dead: bool,
        /// Departures of it that were left out before this one.
        suppressed: u32,
    },
}

/// The host of a pool's node.
pub trait PoolHal: Sized {
    /// The pool, mapped.
    type Window: Window + Clone;
    /// Containers of the engine.
    type Storage: Storage;
    /// The machine below the function.
    type Host: Host + Vectors;
    /// The function, wherever it is kept.
    type Function: DerefMut<Target = Function<Self::Storage, Self::Host>>;
    /// Links to all nodes of the pool, by their ids.
    type Peers: DerefMut<Target = [Peer<PoolLink<Self::Window>>]>;
    /// What the membership knows of other nodes.
    type Known: BorrowMut<[nupa_pool::Peer]>;
    /// The membership, wherever it is kept.
    type Membership: DerefMut<Target = Membership<Self::Known>>;
    /// A limit for each node of the pool.
    type Limits: DerefMut<Target = [RateLimit]>;

    /// Microseconds since some start; never goes back. The same clock as that of [`PoolHal::Host`].
    fn now_us(&self) -> u64;

    /// Writes a line to the log.
    fn note(&self, notice: &Notice);

    /// Whether hosts can be interrupted.
    fn has_bell(&self) -> bool;

    /// Interrupts the host that wrote this value to the pool as its bell.
    fn ring(&self, bell: u64);

    /// From now on this is the sign that the node lives: it has another epoch.
    fn set_heartbeat(&self, heartbeat: Heartbeat);
}
