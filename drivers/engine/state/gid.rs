// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The GID table: what a node's datagrams may give for their source address.

use crate::hal::{NoMemory, Storage, Table};
use nupa_proto::status::AdminStatus;

/// A GID, in network order.
pub(crate) type Gid = [u8; 16];

/// Begin of a GID that stands for an IPv4 address.
pub(crate) const IPV4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

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

    /// Sets or clears an entry. May allocate.
    pub(crate) fn set(
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
