// SPDX-License-Identifier: GPL-2.0
//! The port: the only way from `nupa_net` and `nupa_rdma` down to the fabric.
//!
//! `nupa_fabric` publishes one [`Port`] per controller as registration data of the auxiliary devices
//! `nupa_fabric.net` and, if the controller has connected queue pairs, `nupa_fabric.rdma`; a child driver gets it in
//! `probe` with
//! `adev.registration_data::<ForLt!(Port)>()?.get_ref()` and may clone it. Registers, BARs, vectors and coherent memory
//! stay below.
//!
//! # Lifetime
//!
//! Everything made from a port (queues, listener registrations) is one RAII object: dropping it destroys the object in
//! the controller, waits for its callbacks and frees its memory. A child drops all of them before its own `remove`
//! returns; the auxiliary bus sees to it that this happens before the controller goes away.
//!
//! # Loss of the controller
//!
//! When the controller is reset or goes away, its objects are gone at once. All calls then fail fast (`EIO` during
//! recovery, `ENODEV` for good), rings can still be written and rung without effect, queues complete nothing more.
//! Listeners hear [`PortEvent::Resetting`]: they stop their queues and drop every queue object *before they return*;
//! the destruction then costs no command. On [`PortEvent::Ready`] they create new ones. [`PortEvent::Gone`] is for
//! good, unless the PCI function is reset from outside.
//!
//! `nupa_fabric.net` stays through all of that. `nupa_fabric.rdma` is replaced by a new device once the listeners have
//! heard [`PortEvent::Ready`], and taken off the bus after [`PortEvent::Gone`]: programs cannot go on with queue pairs
//! that lost their state. Until then its driver keeps objects that are dead.
//!
//! # Contexts and locks
//!
//! Functions of [`Port`] may sleep for up to the admin timeout (5 s) unless they say otherwise. They may be called with
//! the RTNL held, except [`Port::listen`] and the drop of a [`ListenerRegistration`]: both wait for running callbacks,
//! which may themselves take the RTNL.

mod cq;
mod event;
mod listener;
mod object;
mod qp;
mod verbs;

pub use self::{
    cq::{Cq, CqConfig, CqControl, CqHandler},
    event::{EventHandler, ObjectEvent},
    listener::{Listener, ListenerRegistration, PortEvent},
    qp::{dma_sge, QpConfig, QpControl, QueuePair, RecvQueue, SendQueue, SendReclaim},
    verbs::{
        ExportedMemory, GrantedMemory, ImportedMemory, KnownRing, MappingMark, Mr, PageArray,
        PageTable, Pd, Qp, QpParameters, QpQueues, QpSizes, QpWatch, QueueRing, RecvPoster,
        SendPoster, Srq,
    },
};

use crate::{controller::Controller, registers::Identity, slots::MAX_PAGES};
use kernel::{device, prelude::*, sync::Arc};
use nupa_proto::{
    admin::{DeviceLimits, PortCounters},
    ident::node_mac,
};

/// What a port is, as of the last time the controller became ready.
#[derive(Clone, Copy, Debug)]
pub struct PortInfo {
    /// Id of this node.
    pub node: u16,
    /// Node ids of the fabric are below this.
    pub max_nodes: u16,
    /// EUI-64 of this node.
    pub guid: u64,
    /// MAC address of this node's network interface.
    pub mac: [u8; 6],
    /// Identity of the fabric; nodes with the same one can reach each other.
    pub fabric_id: u64,
    /// Link speed in Mb/s.
    pub link_speed_mbps: u32,
    /// Interrupt vectors for completion queues: `0..vectors`, at least one, at most one per CPU.
    pub vectors: u32,
    /// Pairs of doorbell pages that are used, with [`nupa_proto::doorbell::SLOTS`] queues each.
    pub doorbell_pages: u32,
    /// Most objects of each kind and largest queues.
    pub limits: DeviceLimits,
    /// `CAP_*` of [`nupa_proto::regs`].
    pub caps: u64,
    /// Version of the controller's firmware: major, minor, patch.
    pub firmware: [u16; 3],
    /// kHz of the controller's clock ([`Port::clock`]); 0: it has none, and completions no timestamps.
    pub clock_khz: u32,
}

impl PortInfo {
    /// What the registers alone say.
    pub(crate) fn new(identity: &Identity, vectors: u32) -> Self {
        Self {
            node: identity.node,
            max_nodes: identity.max_nodes,
            guid: identity.guid,
            mac: node_mac(identity.node),
            fabric_id: identity.fabric_id,
            link_speed_mbps: identity.link_speed_mbps,
            vectors,
            doorbell_pages: identity.doorbell_pages.min(MAX_PAGES),
            limits: DeviceLimits::default(),
            caps: identity.caps,
            firmware: [0; 3],
            clock_khz: identity.clock_khz,
        }
    }

    /// The same with what the controller said when it was asked.
    pub(crate) fn with_limits(self, limits: DeviceLimits) -> Self {
        Self {
            limits,
            firmware: limits.firmware.map(|part| part.get()),
            ..self
        }
    }
}

/// Another node as this one sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// EUI-64 of the node.
    pub guid: u64,
    /// Goes up with each reset of the node's controller.
    pub epoch: u32,
}

/// Handle to a controller's port. Cloning it is cheap.
#[derive(Clone)]
pub struct Port {
    pub(crate) controller: Arc<Controller>,
}

impl Port {
    /// What the port is. Does not sleep.
    pub fn info(&self) -> PortInfo {
        self.controller.info()
    }

    /// Whether the link of this node is up. Does not sleep; any context.
    pub fn link_up(&self) -> bool {
        self.controller.link_up()
    }

    /// Whether the controller is being taken out of service: processes get no new queue pairs. Does not sleep; any context.
    pub fn is_draining(&self) -> bool {
        self.controller.service().is_draining()
    }

    /// Whether `node` is up. Does not sleep; any context.
    pub fn peer_up(&self, node: u16) -> bool {
        self.controller.peers().is_up(node)
    }

    /// Asks the controller about another node. `ENODEV` or `EIO` as explained above, `EHOSTDOWN` if it is not there.
    pub fn peer(&self, node: u16) -> Result<Peer> {
        self.controller.query_peer(node)
    }

    /// Starts to report events to `listener`, beginning with the next one.
    ///
    /// Read the state once after this has returned ([`Port::link_up`]) to miss nothing. Not with the RTNL held, and not
    /// from a listener.
    pub fn listen(&self, listener: Arc<dyn Listener>) -> Result<ListenerRegistration> {
        ListenerRegistration::new(self.controller.clone(), listener)
    }

    /// Number of the interrupt (`/proc/interrupts`) that tells of completion queues of `vector`; `None` where a function has no
    /// interrupts, and for a vector that there is not. Does not sleep.
    pub fn interrupt(&self, vector: u32) -> Option<u32> {
        self.controller.completion_vector(vector).ok()?.interrupt()
    }

    /// Creates a completion queue of `1 << log_entries` entries whose events come in on `vector` and call `handler`.
    ///
    /// It is not armed. `EINVAL` for a vector or size that the port does not have, `ENOSPC` if the controller or the
    /// doorbell pages are full.
    pub fn create_cq(
        &self,
        log_entries: u8,
        vector: u32,
        handler: Arc<dyn CqHandler>,
    ) -> Result<Cq> {
        Cq::new(&self.controller, log_entries, vector, handler)
    }

    /// Creates a queue pair for Ethernet frames, ready to send and to take receive buffers.
    ///
    /// Frames arrive once it is in the table of [`Port::set_rss`] and [`Port::set_rx_filter`] lets them in.
    pub fn create_qp(&self, config: &QpConfig<'_>) -> Result<QueuePair> {
        QueuePair::new(&self.controller, config)
    }

    /// Replaces the receive filter: unicast and multicast addresses, and `RX_*` of [`nupa_proto::admin`].
    ///
    /// `ENOSPC` if there are more addresses than [`DeviceLimits::max_rx_addresses`]; the filter is then unchanged.
    pub fn set_rx_filter(&self, addresses: &[[u8; 6]], flags: u32) -> Result {
        self.controller.set_rx_filter(addresses, flags)
    }

    /// Spreads incoming frames over queue pairs: one with hash `h` goes to `table[h % table.len()]`.
    ///
    /// An empty table stops reception; do that before the queue pairs in it are dropped.
    pub fn set_rss(&self, table: &[u32]) -> Result {
        self.controller.set_rss(table)
    }

    /// Reads the port's counters; they restart from zero when the controller is reset.
    pub fn counters(&self) -> Result<PortCounters> {
        self.controller.counters()
    }

    /// The port of the controller's devlink instance, for the network interface. May sleep.
    pub fn devlink_port(&self) -> Option<nk::devlink::Port> {
        self.controller.reporter.port()
    }

    /// The device that reads and writes buffers: map them for this one. Does not sleep.
    pub fn dma_device(&self) -> &device::Device {
        self.controller.device()
    }
}
