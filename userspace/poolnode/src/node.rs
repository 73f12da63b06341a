// SPDX-License-Identifier: GPL-2.0 OR MIT

//! From a pool of memory to a node that takes part.

use std::ops::Range;
use std::rc::Rc;

use guestmem::{GuestMemory, MapError, MapRequest, MmapRegion, Rights};
use nupa_engine::node::NodeConfig;
use nupa_engine::{Limits, MappedGrant, Peer};
use nupa_function::pool::{NodeState, PoolNode, PoolNodes, RateLimit, Turn, DEPARTURES, FAULTS};
use nupa_function::{Function, FunctionConfig, Model, CAPS};
use nupa_pool::{JoinOptions, Pool, Refusal, Sharing};
use nupa_poolmem::{HostTime, PoolMemory};
use nupa_proto::doorbell::{PAGE_SIZE, PAIR_SIZE, SLOT_SIZE};
use nupa_proto::pool::CAP_POOL_LINES;
use nupa_proto::regs::{self, CAP_HOST_DOORBELLS, CAP_PUSH, DEVICE_MEMORY_BASE};
use thiserror::Error;

use crate::beat::Beating;
use crate::hal::{KickList, Link, ProcessHal, Window};
use crate::host::{random, ProcessHost, POOL_BASE, RAM_BASE};
use crate::memory::NodeMemory;

/// Why a process does not join a pool.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The pool cannot be used.
    #[error("{0}")]
    Pool(Refusal),
    /// Its memory, or the driver's, cannot be mapped.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The pool cannot be mapped once more, or no thread can be started.
    #[error(transparent)]
    System(#[from] std::io::Error),
}

impl From<Refusal> for JoinError {
    fn from(refusal: Refusal) -> Self {
        Self::Pool(refusal)
    }
}

/// Memory of another node that this process may map.
pub struct MappedRegion {
    hold: u16,
    grant: MappedGrant,
}

impl MappedRegion {
    /// Where it is in the pool.
    pub fn offset(&self) -> u64 {
        self.grant.offset()
    }

    /// Addresses that requests name it by.
    pub fn place(&self) -> Range<u64> {
        let start = self.grant.addr();
        start..start.saturating_add(self.grant.len())
    }
}

/// A node of a pool, and its function, which a driver of this process reaches by BAR accesses.
pub struct PoolProcess {
    node: PoolNode<ProcessHal>,
    kicks: KickList,
}

impl PoolProcess {
    /// Joins the pool that a region holds, as the node of that id if it can be had. The driver's memory is `ram`, from [`RAM_BASE`] on; its
    /// function has so many doorbell pages. Sleeps.
    ///
    /// # Errors
    ///
    /// If there is no pool, or no slot is free.
    pub fn join(
        pool: &Rc<MmapRegion>,
        ram: &MmapRegion,
        prefer: u16,
        doorbell_pages: u32,
    ) -> Result<Self, JoinError> {
        let (time, window) = (HostTime::new(), PoolMemory::new(Rc::clone(pool), true));
        let found = Pool::attach(&window, &time)?;
        let options = JoinOptions {
            prefer: Some(prefer),
            capabilities: (CAPS & !CAP_PUSH) | CAP_POOL_LINES,
            ..JoinOptions::new(random())
        };
        let max_nodes = found.geometry().max_nodes();
        let known = vec![nupa_pool::Peer::UNKNOWN; max_nodes.into()];
        let membership = found.join_with(&window, &time, &options, known)?;
        let (id, range) = (membership.node(), found.device_memory(membership.node()));
        let device_memory = range.end.saturating_sub(range.start);
        let config = FunctionConfig {
            node: NodeConfig {
                id,
                limits: Limits {
                    max_frame: found.geometry().max_frame(),
                    ..Limits::default()
                },
                remote_nodes: max_nodes,
            },
            max_nodes,
            fabric_id: found.fabric_id(),
            link_speed_mbps: 256_000,
            caps: CAPS & !CAP_PUSH | CAP_HOST_DOORBELLS,
            doorbell_pages,
            device_memory,
            firmware: [0, 1, 0],
        };
        let mut mapped = GuestMemory::new();
        for (iova, region, offset, len) in [
            (RAM_BASE, ram, 0, ram.len() as u64),
            (POOL_BASE, &**pool, 0, pool.len() as u64),
            (DEVICE_MEMORY_BASE, &**pool, range.start, device_memory),
        ] {
            // A pool need not have device memory.
            if len == 0 {
                continue;
            }
            mapped.map(&MapRequest {
                iova,
                len,
                file: Some(region.file()),
                offset,
                rights: Rights::ReadWrite,
            })?;
        }
        let host = ProcessHost::new(NodeMemory::new(mapped), doorbell_pages, time);
        let mut own = Box::new(Function::new(&config, host));
        own.node.set_epoch(membership.epoch());
        let hal = ProcessHal {
            time,
            heartbeat: Some(Beating::new(again(pool)?, membership.heartbeat())?),
        };
        let limits = |burst| (0..max_nodes).map(|_| RateLimit::new(burst)).collect();
        let node = PoolNode {
            hal,
            membership: Box::new(membership),
            sharing: Sharing::new(),
            model: Model::new(PoolNodes {
                own,
                peers: (0..max_nodes)
                    .map(|_| peer(id, &window, found.geometry().piece()))
                    .collect(),
            }),
            state: NodeState::new(limits(FAULTS), limits(DEPARTURES)),
            window,
        };
        Ok(Self {
            node,
            kicks: KickList::default(),
        })
    }

    /// This node.
    pub fn id(&self) -> u16 {
        self.node.id()
    }

    /// Where in the pool its device memory begins.
    pub fn device_memory(&self) -> u64 {
        let pool = self.node.membership.pool();
        pool.device_memory(self.id()).start
    }

    /// Epoch of another node, if that is up as seen from here.
    pub fn epoch_of(&self, node: u16) -> Option<u32> {
        let peer = self.node.model.functions.peers.get(usize::from(node));
        peer.and_then(Peer::epoch)
    }

    /// Reads a control register; what cannot be read is zero.
    pub fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if bar == regs::BAR_CONTROL {
            self.node.model.functions.own.read_control(offset, data);
        }
    }

    /// Writes a control register and does what that sets off, or kicks. What is neither is ignored. Admin commands are executed, which may sleep.
    pub fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        let Ok(offset) = usize::try_from(offset) else {
            return;
        };
        match bar {
            regs::BAR_CONTROL => {
                self.node.write_register(offset, data);
                let id = self.id();
                self.node.model.run_admin(id);
            }
            regs::BAR_DOORBELL => self.kick(offset),
            _ => {}
        }
    }

    /// A store to the trapped page of a pair.
    fn kick(&self, offset: usize) {
        let page = offset.checked_div(PAIR_SIZE).map(u32::try_from);
        let within = (offset % PAIR_SIZE).checked_sub(PAGE_SIZE);
        let slot = within.map(|within| u16::try_from(within / SLOT_SIZE));
        if let (Some(Ok(page)), Some(Ok(slot))) = (page, slot) {
            self.kicks.add(page, slot);
        }
    }

    /// Lets this process map the memory that a queue pair has a grant for, by its key, until [`PoolProcess::unmap_grant`]. None if there is no grant (yet), or its
    /// memory cannot be mapped.
    pub fn map_grant(&mut self, qpn: u32, key: u32) -> Option<MappedRegion> {
        let (hold, grant) = self.node.map_grant(qpn, key).ok()?;
        Some(MappedRegion { hold, grant })
    }

    /// Whether it may be mapped still.
    pub fn is_granted(&mut self, region: &MappedRegion) -> bool {
        self.node.is_granted(&region.grant)
    }

    /// It is not mapped any more.
    pub fn unmap_grant(&mut self, region: &MappedRegion) {
        self.node.unmap_grant(region.hold, &region.grant);
    }

    /// Does all work that is due, and polls the doorbells.
    #[inline]
    pub fn poll(&mut self) -> Turn {
        self.node.turn(&self.kicks, true, true)
    }
}

impl Drop for PoolProcess {
    /// Leaves the pool. The heartbeat ends first: then the slot may be another's.
    fn drop(&mut self) {
        self.node.hal.heartbeat = None;
        self.node.leave();
    }
}

/// Another mapping of a region.
fn again(region: &MmapRegion) -> Result<MmapRegion, JoinError> {
    let file = region.file().try_clone_to_owned()?;
    Ok(MmapRegion::of_memory(file, region.len())?)
}

/// A link to nobody, in a pool where parts of messages are no longer than `piece`.
fn peer(own: u16, window: &Window, piece: u32) -> Peer<Link> {
    let link = Link::new(window.clone(), POOL_BASE, DEVICE_MEMORY_BASE, piece);
    Peer::new(own, link)
}
