// SPDX-License-Identifier: GPL-2.0
//! What the function's lock protects: the node of the pool, and what it has of the kernel.

use super::{
    heartbeat::HeartbeatTimer,
    host::PoolHost,
    joined::{Joined, Known},
    storage::KernelStorage,
    window::{HostClock, PoolWindow},
};
use kernel::{
    device::Device,
    fmt::Arguments,
    prelude::*,
    sync::{aref::ARef, Arc},
};
use nupa_engine::Peer;
use nupa_function::{
    pool::{Fault, Notice, PoolHal, RateLimit},
    Function,
};
use nupa_pool::Heartbeat;

/// The node at work.
pub(super) type PoolNode = nupa_function::pool::PoolNode<KernelHal>;
/// The fabric as its engine sees it.
pub(super) type Nodes = nupa_function::pool::PoolNodes<KernelHal>;
/// The way to a node of another host.
pub(super) type Link = nupa_engine::PoolLink<PoolWindow>;

/// Interrupts hosts whose function does not poll.
pub(super) trait Bell: Send + Sync {
    /// Interrupts the host that wrote this value to the pool as its bell. Any context.
    fn ring(&self, bell: u64);
}

/// What the node has of the kernel.
pub(super) struct KernelHal {
    pub(super) device: ARef<Device>,
    pub(super) clock: HostClock,
    /// Writes the heartbeat that peers look for.
    pub(super) heartbeat: Arc<HeartbeatTimer>,
    /// Interrupts peers that do not poll, where there is a way to.
    pub(super) bell: Option<Arc<dyn Bell>>,
}

impl KernelHal {
    #[cold]
    fn log_fault(&self, node: u16, fault: Fault) {
        match fault {
            Fault::Refuses => self.log(node, fmt!("has taken this one for dead")),
            Fault::Lost { area, offset, own } => {
                let so = way_back(own);
                self.log(
                    node,
                    fmt!(
                        "is lost to a memory error in the pool: {} (offset {offset:#x}); {so}",
                        format_args!("{area}")
                    ),
                );
            }
            Fault::BreaksRules(violation) => {
                self.log(node, fmt!("breaks the pool's rules: {violation:?}"));
            }
            Fault::Sends => self.log(node, fmt!("sends what no node may send")),
        }
    }

    fn log(&self, node: u16, what: Arguments<'_>) {
        dev_err!(self.device, "node {node} {what}\n");
    }
}

/// What a node has to do whose lines cannot be read.
fn way_back(own: bool) -> &'static str {
    match own {
        true => "it has to join anew",
        false => "it is ignored until it comes back",
    }
}

impl PoolHal for KernelHal {
    type Window = PoolWindow;
    type Storage = KernelStorage;
    type Host = PoolHost;
    /// In a place of its own, which it is moved to from the stack.
    type Function = KBox<Function<KernelStorage, PoolHost>>;
    type Peers = KVVec<Peer<Link>>;
    type Known = Known;
    type Membership = Joined;
    type Limits = KVVec<RateLimit>;

    #[inline]
    fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    #[cold]
    fn note(&self, notice: &Notice) {
        match *notice {
            Notice::Evicted { node } => dev_err!(
                self.device,
                "node {node} of the pool is not this host any more\n"
            ),
            Notice::Fault {
                node,
                fault,
                suppressed,
            } => {
                if suppressed != 0 {
                    dev_err!(
                        self.device,
                        "node {node}: {suppressed} faults before this one are not logged\n"
                    );
                }
                self.log_fault(node, fault);
            }
            Notice::NoInbox { node } => dev_info!(
                self.device,
                "node {node}: no inbox is left for a link to it, here or there\n"
            ),
            Notice::Departed {
                node,
                dead,
                suppressed,
            } => {
                if suppressed != 0 {
                    dev_info!(
                        self.device,
                        "node {node}: {suppressed} departures before this one are not logged\n"
                    );
                }
                match dead {
                    true => dev_info!(self.device, "node {node} is dead: no heartbeat\n"),
                    false => dev_info!(self.device, "node {node} has left\n"),
                }
            }
        }
    }

    #[inline]
    fn has_bell(&self) -> bool {
        self.bell.is_some()
    }

    fn ring(&self, value: u64) {
        if let Some(bell) = &self.bell {
            bell.ring(value);
        }
    }

    fn set_heartbeat(&self, heartbeat: Heartbeat) {
        self.heartbeat.target().set(heartbeat);
    }
}
