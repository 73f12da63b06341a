// SPDX-License-Identifier: GPL-2.0
//! Physical memory that processes may map.
//!
//! C header: `include/linux/mm.h` (`remap_pfn_range()`).

use crate::{bindings, pci::as_raw};
use kernel::{device::Bound, page::PAGE_SIZE, pci, prelude::*, sync::aref::ARef, sync::Arc};

/// Bytes of a page.
const PAGE: u64 = PAGE_SIZE as u64;

/// What keeps physical memory from being used for anything else.
pub(crate) trait Owner: Send + Sync {}

impl Owner for ARef<pci::Device> {}

/// What memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A device's, not cached.
    Device,
    /// Mapped cached.
    Cached,
    /// As above, and the platform's: this host's devices reach it by its physical address, as they do what the kernel has of such memory.
    Platform,
}

/// Whole pages of physical memory that a process may map, and that nothing else is used for as long as this or a part of it
/// exists. Only what owns such memory makes one: a BAR here, [`Window`](crate::window::Window) and
/// [`RingMemory`](crate::ring::RingMemory).
///
/// # Invariants
///
/// `start` and `len` are multiples of a page, `len` is not 0, the memory is of this `kind`, and `owner` keeps all of it as what it is.
#[derive(Clone)]
pub struct MmapRange {
    start: u64,
    len: u64,
    kind: Kind,
    owner: Arc<dyn Owner>,
}

impl MmapRange {
    /// `len` bytes at the physical address `start`. `None` if they are not whole pages.
    ///
    /// # Safety
    ///
    /// The memory is of this kind, processes and, if it is the platform's, devices may read and write it, and `owner` keeps it from being used
    /// for anything else.
    pub(crate) unsafe fn new(
        start: u64,
        len: u64,
        kind: Kind,
        owner: Arc<dyn Owner>,
    ) -> Option<Self> {
        let whole = start % PAGE == 0 && len % PAGE == 0 && len != 0;
        start.checked_add(len).filter(|_| whole)?;
        // INVARIANT: The pages were checked above; the rest is the caller's guarantee.
        Some(Self {
            start,
            len,
            kind,
            owner,
        })
    }

    /// All whole pages of a memory BAR, not cached. `EINVAL` if it has none or does not begin with one. Sleeps.
    pub fn of_bar(dev: &pci::Device<Bound>, bar: u32) -> Result<Self> {
        // SAFETY: `dev` is valid, and the function checks the number.
        if !unsafe { bindings::nk_is_memory_bar(as_raw(dev), bar) } {
            return Err(EINVAL);
        }
        let (start, len) = (dev.resource_start(bar)?, dev.resource_len(bar)?);
        let owner = Arc::new(ARef::<pci::Device>::from(&**dev), GFP_KERNEL)?;
        // SAFETY: Memory behind a BAR is the device's, never the kernel's. The address space stays the device's while a driver is
        // bound, and the RDMA core, which is who maps it, takes all mappings away before an unbind ends.
        unsafe { Self::new(start, len - len % PAGE, Kind::Device, owner) }.ok_or(EINVAL)
    }

    /// `len` bytes at `offset`; `None` if they are not whole pages, or do not lie inside.
    pub fn slice(&self, offset: u64, len: u64) -> Option<Self> {
        let inside = offset.checked_add(len)? <= self.len;
        let start = self.start.checked_add(offset).filter(|_| inside)?;
        // SAFETY: The memory is part of this range, and has the same owner.
        unsafe { Self::new(start, len, self.kind, self.owner.clone()) }
    }

    /// Physical address of the first byte.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is ordinary memory, which is mapped cached; else it is a device's.
    pub fn is_cached(&self) -> bool {
        self.kind != Kind::Device
    }

    /// Whether it is the platform's, and this host's devices reach it by its physical address.
    pub fn is_platform(&self) -> bool {
        self.kind == Kind::Platform
    }
}
