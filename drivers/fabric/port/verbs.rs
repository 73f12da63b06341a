// SPDX-License-Identifier: GPL-2.0
//! The half of the port that RDMA verbs are made of.
//!
//! All objects here sleep when they are made, changed and dropped. What they need (domain, completion queues, doorbell
//! slots) they hold themselves; memory of queues and regions is their owner's, to be freed after them. Once the
//! controller is lost every call fails at once, and dropping them costs nothing.

mod domain;
mod page_array;
mod page_table;
mod posting;
mod qp;
mod region;
mod sharing;
mod srq;

pub use self::{
    domain::Pd,
    page_array::PageArray,
    page_table::PageTable,
    posting::{RecvPoster, SendPoster},
    qp::{KnownRing, MappingMark, Qp, QpParameters, QpQueues, QpSizes, QpWatch},
    region::Mr,
    sharing::{ExportedMemory, GrantedMemory, ImportedMemory},
    srq::Srq,
};

use super::{CqConfig, CqControl, CqHandler, EventHandler, Port};
use crate::{
    controller::State, device_memory::DeviceMemory, doorbell::DoorbellSlot, slots::Wanted,
};
use kernel::{prelude::*, sync::Arc};
use nk::trace;
use nupa_proto::admin::{
    AdminOpcode, AllocKey, CreateMr, KeyKind, PageList, SetGid, GID_VALID, GID_VLAN,
};

/// Memory of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueRing {
    /// Where it is.
    pub list: PageList,
    /// log2 of its entries; those of a send queue are blocks.
    pub log_entries: u8,
    /// log2 of the bytes of an entry.
    pub log_stride: u8,
}

impl Port {
    /// Takes doorbell slots for a queue of the running process, the second for the receive queue of a pair: on a page that the
    /// process has if one has room, else on a new one. `ENOSPC` if none is left for processes, `EDQUOT` if its user has its
    /// share of them.
    pub fn doorbell_slots(&self, wanted: Wanted) -> Result<(DoorbellSlot, Option<DoorbellSlot>)> {
        DoorbellSlot::for_process(self.controller.doorbells(), wanted)
    }

    /// Whether pairs of doorbell pages have a trapped page, which a user context kicks by itself. Does not sleep.
    pub fn has_trapped_pages(&self) -> bool {
        self.controller.doorbells().are_trapped()
    }

    /// Has the function do its work in the caller's time if it has no processor of its own: for a process that waits for
    /// a completion. May sleep.
    pub fn service(&self) {
        self.controller.doorbells().service();
    }

    /// Takes all queue pairs of verbs but the connection manager's to the error state, so that programs get flush errors
    /// for all that they wait for. To be called before their device goes.
    pub fn fail_queue_pairs(&self) {
        self.controller.fail_pairs();
    }

    /// The controller's clock, which timestamps of completions are taken from; it counts [`super::PortInfo::clock_khz`] thousand times
    /// in a second. `ENODEV` if the controller does not run, or has none. May sleep.
    pub fn clock(&self) -> Result<u64> {
        if self.info().clock_khz == 0 {
            return Err(ENODEV);
        }
        // While somebody else resets the function, its registers are not to be read.
        if self.controller.state() != State::Running {
            return Err(ENODEV);
        }
        let doorbells = self.controller.doorbells();
        match doorbells.function().clock()? {
            // What reads of a function that was pulled say.
            u64::MAX => Err(ENODEV),
            clock => Ok(clock),
        }
    }

    /// The controller's own memory, if it has any. Does not sleep.
    pub fn device_memory(&self) -> Option<&Arc<DeviceMemory>> {
        self.controller.device_memory()
    }

    /// Whether that memory is known to outlive a loss of power. Does not sleep.
    pub fn has_persistent_memory(&self) -> bool {
        let doorbells = self.controller.doorbells();
        doorbells.function().is_persistent()
    }

    /// Whether the function can reach `len` bytes of the host's memory at a DMA address, at least one, for writing if `write`
    /// says so; as far as this host knows. Does not sleep.
    pub fn can_reach(&self, address: u64, len: usize, write: bool) -> bool {
        let doorbells = self.controller.doorbells();
        doorbells.function().can_reach(address, len, write)
    }

    /// Writes down `count` pages of `1 << shift` bytes for the next command. What the command is about begins `start`
    /// modulo the page size into the first page. `EINVAL` if there are fewer addresses.
    pub fn page_array(
        &self,
        shift: u8,
        start: u64,
        count: usize,
        addresses: &mut dyn Iterator<Item = u64>,
    ) -> Result<PageArray> {
        PageArray::new(self.controller.bound(), shift, start, count, addresses)
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Result<Arc<Pd>> {
        Ok(Arc::new(Pd::new(&self.controller)?, GFP_KERNEL_ACCOUNT)?)
    }

    /// Registers memory; the field `pd` is filled in here.
    pub fn create_mr(&self, pd: &Arc<Pd>, region: &CreateMr) -> Result<Arc<Mr>> {
        let region = CreateMr {
            pd: pd.number().into(),
            ..*region
        };
        let mr = Mr::create(pd, AdminOpcode::CreateMr, &region)?;
        trace::mr_reg(
            self.controller.device(),
            mr.key(),
            pd.number(),
            region.iova.get(),
            region.len.get(),
            region.access.get(),
        );
        Ok(mr)
    }

    /// Allocates a key that FAST_REG gives at most `max_pages` pages, or that BIND_MW binds (`max_pages` is 0 then).
    pub fn alloc_key(&self, pd: &Arc<Pd>, kind: KeyKind, max_pages: u32) -> Result<Arc<Mr>> {
        let command = AllocKey {
            pd: pd.number().into(),
            max_pages: max_pages.into(),
            kind: kind.to_wire(),
            ..AllocKey::default()
        };
        let mr = Mr::create(pd, AdminOpcode::AllocKey, &command)?;
        trace::mr_alloc(
            self.controller.device(),
            mr.key(),
            pd.number(),
            command.kind,
            max_pages,
        );
        Ok(mr)
    }

    /// Creates a completion queue that its owner polls without the port, in zeroed memory. Events come in on `vector`.
    ///
    /// `EINVAL` for a vector or size that the port does not have.
    pub fn create_user_cq(
        &self,
        ring: &QueueRing,
        slot: DoorbellSlot,
        config: CqConfig,
        handler: Arc<dyn CqHandler>,
    ) -> Result<CqControl> {
        CqControl::for_user(&self.controller, ring, slot, config, handler)
    }

    /// Creates a queue pair of type RC or UD in the reset state, whose rings are its owner's. `ESHUTDOWN` while the controller is drained.
    pub fn create_user_qp(
        &self,
        parameters: QpParameters<'_>,
        queues: QpQueues,
        handler: Arc<dyn EventHandler>,
    ) -> Result<Qp> {
        Qp::for_user(&self.controller, parameters, queues, handler)
    }

    /// As [`Port::create_user_qp`], with rings for the kernel to post to, and while the controller is drained, too; without one for receive requests if they come
    /// from a shared receive queue.
    pub fn create_kernel_qp(
        &self,
        parameters: QpParameters<'_>,
        sizes: &QpSizes,
        handler: Arc<dyn EventHandler>,
    ) -> Result<(Qp, SendPoster, Option<RecvPoster>)> {
        Qp::for_kernel(&self.controller, parameters, sizes, handler)
    }

    /// Creates a shared receive queue whose ring is its owner's.
    pub fn create_user_srq(
        &self,
        pd: &Arc<Pd>,
        ring: &QueueRing,
        slot: DoorbellSlot,
        handler: Arc<dyn EventHandler>,
    ) -> Result<Srq> {
        Srq::for_user(pd, ring, slot, handler)
    }

    /// As [`Port::create_user_srq`], with a ring for the kernel to post to: `1 << log_entries` entries of
    /// `1 << log_stride` bytes.
    pub fn create_kernel_srq(
        &self,
        pd: &Arc<Pd>,
        log_entries: u8,
        log_stride: u8,
        handler: Arc<dyn EventHandler>,
    ) -> Result<(Srq, RecvPoster)> {
        Srq::for_kernel(pd, log_entries, log_stride, handler)
    }

    /// Memory for the page addresses of a fast registration, `count` of them.
    pub fn page_table(&self, count: u32) -> Result<PageTable> {
        PageTable::new(self.controller.bound(), count)
    }

    /// Makes entry `index` of the GID table an address, perhaps one in a VLAN.
    pub fn set_gid(&self, index: u32, gid: [u8; 16], vlan_id: Option<u16>) -> Result {
        self.change_gid(&SetGid {
            gid,
            index: index.into(),
            flags: (GID_VALID | vlan_id.map_or(0, |_| GID_VLAN)).into(),
            vlan_id: vlan_id.unwrap_or(0).into(),
        })
    }

    /// Clears entry `index` of the GID table.
    pub fn clear_gid(&self, index: u32) -> Result {
        self.change_gid(&SetGid {
            index: index.into(),
            ..SetGid::default()
        })
    }

    fn change_gid(&self, command: &SetGid) -> Result {
        let generation = self.controller.running()?;
        self.controller
            .order(generation, AdminOpcode::SetGid, command)
    }

    /// Epoch of a node, this one included. `EHOSTDOWN` if it is not there.
    ///
    /// It may have been reset a moment ago; a queue pair that is connected to an epoch of the past fails at its first
    /// request.
    pub fn peer_epoch(&self, node: u16) -> Result<u32> {
        self.controller.peer_epoch(node)
    }
}
