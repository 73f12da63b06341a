// SPDX-License-Identifier: GPL-2.0
//! Memory of queues that belong to a process.

use crate::device::Rdma;
use kernel::{page::PAGE_SIZE, prelude::*};
use nk_rdma::{Access, Device, Pins, Umem};
use nupa_fabric::{PageArray, Port, QueueRing};

/// Page sizes that the controller knows, a bit each: 4 KiB to 1 GiB.
pub(crate) const PAGE_SIZES: u64 = (1 << 31) - (1 << 12);

/// Tells the controller of pinned memory that it is to know as `iova`.
pub(crate) fn page_array(port: &Port, umem: &Umem, iova: u64) -> Result<PageArray> {
    let mut blocks = umem.blocks(PAGE_SIZES, iova)?;
    let (shift, count) = (blocks.shift(), blocks.total());
    port.page_array(shift, iova, count, &mut blocks)
}

/// The ring of a user queue, pinned.
pub(crate) struct UserRing {
    pages: PageArray,
    log_entries: u8,
    log_stride: u8,
}

impl UserRing {
    /// Pins `1 << log_entries` entries of `1 << log_stride` bytes at `addr` of the calling process.
    ///
    /// `EINVAL` for an address that is not at the start of a page, and for more entries than `max_log_entries` says;
    /// `EFAULT`, `ENOMEM` as usual. Sleeps.
    pub(crate) fn pin(
        dev: &Device<Rdma>,
        pins: &Pins,
        addr: u64,
        log_entries: u8,
        log_stride: u8,
        max_log_entries: u8,
    ) -> Result<Self> {
        let aligned = addr != 0 && addr % PAGE_SIZE as u64 == 0;
        if !aligned || log_entries > max_log_entries {
            return Err(EINVAL);
        }
        let bits = u32::from(log_entries) + u32::from(log_stride);
        let bytes = 1usize.checked_shl(bits).ok_or(EINVAL)?;
        // The controller writes rings only where it completes, but the process writes all of them.
        let umem = pins.pin(dev, addr, bytes, Access::LOCAL_WRITE)?;
        Ok(Self {
            pages: page_array(dev.port(), umem, 0)?,
            log_entries,
            log_stride,
        })
    }

    /// Entries that it holds.
    pub(crate) fn entries(&self) -> u32 {
        // As `pin` has checked, there are not too many.
        1u32.checked_shl(self.log_entries.into()).unwrap_or(0)
    }

    /// For the command that creates the queue, while `self` is there.
    pub(crate) fn queue_ring(&self) -> QueueRing {
        QueueRing {
            list: self.pages.list(),
            log_entries: self.log_entries,
            log_stride: self.log_stride,
        }
    }
}
