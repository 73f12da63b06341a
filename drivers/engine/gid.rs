// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The GID table: what a node's datagrams may give for their source address.

use crate::{
    node::Node,
    storage::{NoMemory, Storage, Table},
};
use nupa_proto::{
    admin::{SetGid, GID_VALID},
    status::AdminStatus,
};

/// A GID, in network order.
pub(crate) type Gid = [u8; 16];

/// A node's GIDs.
pub(crate) struct GidTable<S: Storage> {
    entries: S::Table<Gid>,
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
    pub(crate) fn get(&self, index: u16) -> Option<&Gid> {
        self.entries.slots().get(usize::from(index))?.as_ref()
    }

    fn set(&mut self, index: usize, gid: Option<Gid>, limit: usize) -> Result<(), AdminStatus> {
        if index >= self.entries.slots().len() {
            let grown = self.entries.grow(limit);
            grown.map_err(|NoMemory| AdminStatus::NoResources)?;
        }
        let slot = self.entries.slots_mut().get_mut(index);
        *slot.ok_or(AdminStatus::NoResources)? = gid;
        Ok(())
    }
}

impl<S: Storage> Node<S> {
    /// Sets or clears an entry of the GID table.
    pub fn set_gid(&mut self, body: &SetGid) -> Result<(), AdminStatus> {
        let (index, flags) = (body.index.get(), body.flags.get());
        let limit = self.limits().max_gids;
        let valid = index < u32::from(limit)
            && match flags {
                GID_VALID => true,
                0 => body.gid == Gid::default(),
                _ => false,
            };
        if !valid {
            return Err(AdminStatus::InvalidField);
        }
        let gid = (flags & GID_VALID != 0).then_some(body.gid);
        self.gids.set(index as usize, gid, usize::from(limit))
    }
}
