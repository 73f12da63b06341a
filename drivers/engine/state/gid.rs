// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The GID table: what a node's datagrams may give for their source address.

use crate::{
    node::Node,
    storage::{NoMemory, Storage, Table},
};
use nupa_proto::{
    admin::{SetGid, GID_VALID, GID_VLAN, MAX_VLAN_ID},
    status::AdminStatus,
};

/// A GID, in network order.
pub(crate) type Gid = [u8; 16];

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) gid: Gid,
    /// VLAN that it is an address in.
    pub(crate) vlan_id: Option<u16>,
}

/// A node's GIDs.
pub(crate) struct GidTable<S: Storage> {
    entries: S::Table<Address>,
}

impl<S: Storage> Default for GidTable<S> {
    fn default() -> Self {
        Self {
            entries: S::Table::default(),
        }
    }
}

impl<S: Storage> GidTable<S> {
    /// The entry of this index, if it is in use.
    pub(crate) fn get(&self, index: u16) -> Option<&Address> {
        self.entries.slots().get(usize::from(index))?.as_ref()
    }

    fn set(
        &mut self,
        index: usize,
        address: Option<Address>,
        limit: usize,
    ) -> Result<(), AdminStatus> {
        if index >= self.entries.slots().len() {
            let grown = self.entries.grow(limit);
            grown.map_err(|NoMemory| AdminStatus::NoResources)?;
        }
        let slot = self.entries.slots_mut().get_mut(index);
        *slot.ok_or(AdminStatus::NoResources)? = address;
        Ok(())
    }
}

impl<S: Storage> Node<S> {
    /// Sets or clears an entry of the GID table.
    pub fn set_gid(&mut self, body: &SetGid) -> Result<(), AdminStatus> {
        const IN_VLAN: u16 = GID_VALID | GID_VLAN;
        let (index, vlan_id) = (body.index.get(), body.vlan_id.get());
        let limit = self.limits().max_gids;
        let gid = body.gid;
        let address = match body.flags.get() {
            IN_VLAN if vlan_id <= MAX_VLAN_ID => Some(Address {
                gid,
                vlan_id: Some(vlan_id),
            }),
            GID_VALID if vlan_id == 0 => Some(Address { gid, vlan_id: None }),
            0 if vlan_id == 0 && gid == Gid::default() => None,
            _ => return Err(AdminStatus::InvalidField),
        };
        if index >= u32::from(limit) {
            return Err(AdminStatus::InvalidField);
        }
        self.gids.set(index as usize, address, usize::from(limit))
    }
}
