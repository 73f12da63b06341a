// SPDX-License-Identifier: GPL-2.0
//! Memory of queues that belong to a process.

use crate::device::Rdma;
use kernel::prelude::*;
use nk_rdma::{error::unsupported, Access, Device, Pins, Umem};
use nupa_fabric::{PageArray, Port, QueueRing};
use nupa_proto::uabi::{InvalidRequest, Ring};

/// Page sizes that the controller knows, a bit each: 4 KiB to 1 GiB.
pub(crate) const PAGE_SIZES: u64 = (1 << 31) - (1 << 12);

/// Tells the controller of pinned memory that it is to know as `iova`. `EOPNOTSUPP` for memory that it cannot reach, such as that of
/// other devices where the controller is software.
pub(crate) fn page_array(port: &Port, umem: &Umem, iova: u64) -> Result<PageArray> {
    let write = umem.is_writable();
    if !umem
        .pieces()
        .all(|(address, len)| port.can_reach(address, len, write))
    {
        return Err(unsupported());
    }
    let mut blocks = umem.blocks(PAGE_SIZES, iova)?;
    let (shift, count) = (blocks.shift(), blocks.total());
    port.page_array(shift, iova, count, &mut blocks)
}

/// The ring of a user queue, pinned.
pub(crate) struct UserRing {
    pages: PageArray,
    ring: Ring,
}

impl UserRing {
    /// Pins a ring of the calling process. `EINVAL` if its request was invalid; `EFAULT`, `ENOMEM` as usual. Sleeps.
    pub(crate) fn pin(
        dev: &Device<Rdma>,
        pins: &Pins,
        ring: Result<Ring, InvalidRequest>,
    ) -> Result<Self> {
        let ring = ring.map_err(|InvalidRequest| EINVAL)?;
        let bytes = usize::try_from(ring.len())?;
        // The controller writes rings only where it completes, but the process writes all of them.
        let umem = pins.pin(dev, ring.addr(), bytes, Access::LOCAL_WRITE)?;
        Ok(Self {
            pages: page_array(dev.port(), umem, 0)?,
            ring,
        })
    }

    /// Entries that it holds.
    pub(crate) fn entries(&self) -> u32 {
        // A `Ring` does not have too many.
        1u32.checked_shl(self.ring.log_entries().into())
            .unwrap_or(0)
    }

    /// For the command that creates the queue, while `self` is there.
    pub(crate) fn queue_ring(&self) -> QueueRing {
        QueueRing {
            list: self.pages.list(),
            log_entries: self.ring.log_entries(),
            log_stride: self.ring.log_stride(),
        }
    }
}
