// SPDX-License-Identifier: GPL-2.0
//! What the port asks of the controller.

use crate::{admin::Failure, controller::Controller, memory::QueueMemory, port::Peer};
use kernel::{prelude::*, sync::Arc};
use nk::trace;
use nupa_engine::rings::QueueMemory as _;
use nupa_proto::{
    admin::{
        AdminOpcode, BufferRef, ById, ModifyQp, NodeInfo, PortCounters, SetRss, SetRxFilter,
        QP_MASK_STATE,
    },
    status::AdminStatus,
};
use zerocopy::{FromBytes, IntoBytes};

/// Most of it is documented at [`crate::port::Port`].
impl Controller {
    pub(crate) fn query_peer(self: &Arc<Self>, node: u16) -> Result<Peer> {
        let body = ById {
            id: u32::from(node).into(),
            reserved: 0.into(),
        };
        let info: NodeInfo = self.command(self.running()?, AdminOpcode::QueryNode, &body)?;
        if info.up.get() == 0 {
            return Err(Failure::Refused(AdminStatus::NodeDown).into());
        }
        Ok(Peer {
            guid: info.guid.get(),
            epoch: info.epoch.get(),
        })
    }

    pub(crate) fn peer_epoch(self: &Arc<Self>, node: u16) -> Result<u32> {
        if node == self.info().node {
            return self.registers.epoch();
        }
        if let Some(epoch) = self.peers().epoch(node) {
            return Ok(epoch);
        }
        let epoch = self.query_peer(node)?.epoch;
        self.peers().add_epoch(node, epoch);
        Ok(epoch)
    }

    /// Changes state and attributes of a queue pair of `generation`. Sleeps.
    pub(crate) fn modify_pair(self: &Arc<Self>, generation: u32, command: &ModifyQp) -> Result {
        self.order(generation, AdminOpcode::ModifyQp, command)?;
        if command.mask.get() & QP_MASK_STATE != 0 {
            trace::qp_modify(self.device(), command.qpn.get(), command.state);
        }
        Ok(())
    }

    pub(crate) fn set_rx_filter(self: &Arc<Self>, addresses: &[[u8; 6]], flags: u32) -> Result {
        if addresses.len() > usize::from(self.info().limits.max_rx_addresses.get()) {
            return Err(ENOSPC);
        }
        let buffer = self.argument(addresses.as_bytes())?;
        let body = SetRxFilter {
            addresses: buffer.as_ref().map_or(0, QueueMemory::address).into(),
            count: u32::try_from(addresses.len())?.into(),
            flags: flags.into(),
        };
        self.order(self.running()?, AdminOpcode::SetRxFilter, &body)
    }

    pub(crate) fn set_rss(self: &Arc<Self>, table: &[u32]) -> Result {
        self.store_rss(self.running()?, table)
    }

    /// Stops reception if a queue pair that is about to be destroyed takes part in it.
    pub(crate) fn forget_rss(self: &Arc<Self>, generation: u32, qpn: u32) {
        if self.rss.lock().contains(&qpn) {
            // Should this fail, so will the destruction, which does what is needed then.
            let _ = self.store_rss(generation, &[]);
        }
    }

    fn store_rss(self: &Arc<Self>, generation: u32, table: &[u32]) -> Result {
        if table.len() > usize::from(self.info().limits.rss_entries.get()) {
            return Err(ENOSPC);
        }
        let mut copy = KVec::with_capacity(table.len(), GFP_KERNEL)?;
        copy.extend_from_slice(table, GFP_KERNEL)?;
        let mut bytes = KVec::with_capacity(size_of_val(table), GFP_KERNEL)?;
        for entry in table {
            bytes.extend_from_slice(&entry.to_le_bytes(), GFP_KERNEL)?;
        }
        let buffer = self.argument(&bytes)?;
        let body = SetRss {
            table: buffer.as_ref().map_or(0, QueueMemory::address).into(),
            count: u32::try_from(table.len())?.into(),
            reserved: 0.into(),
        };
        let mut rss = self.rss.lock();
        self.order(generation, AdminOpcode::SetRss, &body)?;
        *rss = copy;
        Ok(())
    }

    pub(crate) fn counters(self: &Arc<Self>) -> Result<PortCounters> {
        let mut bytes = [0; size_of::<PortCounters>()];
        self.read_into(self.running()?, AdminOpcode::QueryCounters, &mut bytes)?;
        PortCounters::read_from_bytes(&bytes).map_err(|_| EINVAL)
    }

    /// Executes a command that writes to a buffer, and copies that out.
    pub(crate) fn read_into(
        self: &Arc<Self>,
        generation: u32,
        opcode: AdminOpcode,
        bytes: &mut [u8],
    ) -> Result {
        let memory = QueueMemory::new(self.bound(), bytes.len())?;
        let body: BufferRef = memory.buffer(u32::try_from(bytes.len())?);
        self.order(generation, opcode, &body)?;
        memory.read(0, bytes);
        Ok(())
    }

    /// Memory that holds the bytes of an argument; none if there are none.
    fn argument(&self, bytes: &[u8]) -> Result<Option<QueueMemory>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        QueueMemory::copy_of(self.bound(), bytes).map(Some)
    }
}
