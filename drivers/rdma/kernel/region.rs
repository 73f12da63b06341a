// SPDX-License-Identifier: GPL-2.0
//! Regions of kernel users: fast registration, and all memory.

use crate::{
    device::Rdma,
    region::{Layout, Region},
};
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};
use nk_rdma::{Device, Pd};
use nupa_fabric::PageTable;
use nupa_proto::{
    admin::KeyKind,
    wqe::{page_shift, MIN_PAGE_SHIFT},
};

/// Pages that the next fast registration of a region is to give it.
///
/// Its user maps and posts in turn, and maps again only once the registration has completed; so there are no locks.
pub(crate) struct FastRegion {
    table: PageTable,
    count: Atomic<u32>,
    /// log2 of their size.
    shift: Atomic<u32>,
}

impl FastRegion {
    /// Forgets all pages; the next ones have `size` bytes. `EINVAL` if pages cannot. Any context.
    pub(super) fn start(&self, size: u32) -> Result {
        let shift = page_shift(size).ok_or(EINVAL)?;
        self.shift.store(shift.into(), Relaxed);
        self.count.store(0, Relaxed);
        Ok(())
    }

    /// Adds a page. `ENOMEM` if there is no room. Any context.
    pub(super) fn add(&self, page: u64) -> Result {
        let count = self.count.load(Relaxed);
        if count >= self.table.room() {
            return Err(ENOMEM);
        }
        self.table.set(count, page);
        self.count.store(count.wrapping_add(1), Relaxed);
        Ok(())
    }

    /// Where the addresses of the pages are, how many, and log2 of their size.
    pub(super) fn pages(&self) -> (u64, u32, u8) {
        let shift = self.shift.load(Relaxed) as u8;
        (self.table.address(), self.count.load(Relaxed), shift)
    }
}

impl Region {
    /// The region of all memory.
    pub(super) fn all_memory(dev: &Device<Rdma>) -> Self {
        Self {
            port: dev.port().clone(),
            object: None,
            fast: None,
            layout: Layout::default(),
            _charge: None,
            mapped: None,
        }
    }

    /// What fast registration needs; none for a region that is not for it.
    pub(super) fn fast(&self) -> Option<&FastRegion> {
        self.fast.as_ref()
    }

    /// Makes a region for fast registration.
    pub(super) fn for_fast_registration(
        dev: &Device<Rdma>,
        pd: &Pd<Rdma>,
        max_pages: u32,
    ) -> Result<Self> {
        if max_pages == 0 || max_pages > dev.port().info().limits.max_fast_reg_pages.get() {
            return Err(EINVAL);
        }
        let fast = FastRegion {
            table: dev.port().page_table(max_pages)?,
            count: Atomic::new(0),
            shift: Atomic::new(MIN_PAGE_SHIFT.into()),
        };
        let charge = dev.limits().keys.charge_kernel();
        let object = dev.port().alloc_key(pd, KeyKind::FastReg, max_pages)?;
        Ok(Self {
            port: dev.port().clone(),
            object: Some(object),
            fast: Some(fast),
            layout: Layout::default(),
            _charge: Some(charge),
            mapped: None,
        })
    }
}
