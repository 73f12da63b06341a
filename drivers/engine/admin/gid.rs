// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Changes of the GID table.

use crate::{
    hal::Storage,
    node::Node,
    state::gid::{Address, Gid},
};
use nupa_proto::{
    admin::{SetGid, GID_VALID, GID_VLAN, MAX_VLAN_ID},
    status::AdminStatus,
};

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
