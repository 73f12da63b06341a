// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Allocation and release of protection domains.

use crate::{hal::Storage, node::Node, state::pd::Domain};
use nupa_proto::status::AdminStatus;

impl<S: Storage> Node<S> {
    /// Allocates a protection domain.
    pub fn alloc_pd(&mut self) -> Result<u32, AdminStatus> {
        self.domains
            .insert(|_| Domain::default())
            .map_err(|_| AdminStatus::NoResources)
    }

    /// Frees a protection domain that nothing uses.
    pub fn dealloc_pd(&mut self, pd: u32) -> Result<(), AdminStatus> {
        match self.domains.get(pd) {
            None => return Err(AdminStatus::NoSuchObject),
            Some(domain) if domain.users != 0 => return Err(AdminStatus::Busy),
            Some(_) => {}
        }
        self.domains.remove(pd);
        Ok(())
    }

    pub(crate) fn use_domain(&mut self, pd: u32) {
        if let Some(domain) = self.domains.get_mut(pd) {
            domain.users = domain.users.saturating_add(1);
        }
    }

    pub(crate) fn release_domain(&mut self, pd: u32) {
        if let Some(domain) = self.domains.get_mut(pd) {
            domain.users = domain.users.saturating_sub(1);
        }
    }
}
