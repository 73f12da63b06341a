// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the node has of the process.

use std::cell::Cell;
use std::rc::Rc;

use guestmem::MmapRegion;
use nupa_engine::hal::VecStorage;
use nupa_engine::{Peer, PoolLink};
use nupa_function::pool::{Kicks, Notice, PoolHal, RateLimit};
use nupa_function::Function;
use nupa_pool::{Heartbeat, Membership, Time as _};
use nupa_poolmem::{HostTime, PoolMemory};

use crate::beat::Beating;
use crate::host::ProcessHost;

/// The pool, mapped.
pub(crate) type Window = PoolMemory<Rc<MmapRegion>>;
/// The way to a node of another host.
pub(crate) type Link = PoolLink<Window>;

/// The process.
pub(crate) struct ProcessHal {
    pub(crate) time: HostTime,
    /// The sign that the node lives, until the node leaves.
    pub(crate) heartbeat: Option<Beating>,
}

impl PoolHal for ProcessHal {
    type Window = Window;
    type Storage = VecStorage;
    type Host = ProcessHost;
    type Function = Box<Function<VecStorage, ProcessHost>>;
    type Peers = Vec<Peer<Link>>;
    type Known = Vec<nupa_pool::Peer>;
    type Membership = Box<Membership<Vec<nupa_pool::Peer>>>;
    type Limits = Vec<RateLimit>;

    #[inline]
    fn now_us(&self) -> u64 {
        self.time.now_us()
    }

    fn note(&self, notice: &Notice) {
        tracing::warn!("{notice:?}");
    }

    #[inline]
    fn has_bell(&self) -> bool {
        false
    }

    fn ring(&self, _: u64) {}

    fn set_heartbeat(&self, heartbeat: Heartbeat) {
        if let Some(beating) = &self.heartbeat {
            beating.set(heartbeat);
        }
    }
}

/// Slots of doorbell pages whose driver has kicked, in order.
#[derive(Default)]
pub(crate) struct KickList(Cell<Vec<(u32, u16)>>);

impl KickList {
    pub(crate) fn add(&self, page: u32, slot: u16) {
        let mut list = self.0.take();
        list.push((page, slot));
        self.0.set(list);
    }
}

impl Kicks for KickList {
    #[inline]
    fn take(&self, mut serve: impl FnMut(u32, u16)) -> bool {
        let list = self.0.take();
        for (page, slot) in &list {
            serve(*page, *slot);
        }
        !list.is_empty()
    }
}
