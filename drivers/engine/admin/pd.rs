// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Allocation and release of protection domains.

use crate::{hal::Storage, node::Node, state::pd::Pd};
use nupa_proto::status::AdminStatus;

impl<S: Storage> Node<S> {
    /// Allocates a protection domain.
    pub fn alloc_pd(&mut self) -> Result<u32, AdminStatus> {
        self.pds
            .insert(|_| Pd::default())
            .map_err(|_| AdminStatus::NoResources)
    }

    /// Frees a protection domain that nothing uses.
    pub fn dealloc_pd(&mut self, pd: u32) -> Result<(), AdminStatus> {
        match self.pds.get(pd) {
            None => return Err(AdminStatus::NoSuchObject),
            Some(pd) if pd.users != 0 => return Err(AdminStatus::Busy),
            Some(_) => {}
        }
        self.pds.remove(pd);
        Ok(())
    }

    pub(crate) fn use_pd(&mut self, pd: u32) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users = pd.users.saturating_add(1);
        }
    }

    pub(crate) fn release_pd(&mut self, pd: u32) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users = pd.users.saturating_sub(1);
        }
    }
}
