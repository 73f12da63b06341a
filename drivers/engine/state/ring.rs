// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Ring memory of a queue, as the device reaches it.

use crate::state::pages::PageMap;

/// Size of a ring: `1 << log_entries` entries of `1 << log_size` bytes. [`Limits`](crate::Limits) makes those that a node may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingSize {
    log_entries: u8,
    log_size: u8,
}

impl RingSize {
    /// One of so many entries, far fewer than 2^31, each far smaller than that.
    pub(super) const fn new(log_entries: u8, log_size: u8) -> Self {
        Self {
            log_entries,
            log_size,
        }
    }

    /// Bytes in all.
    pub(crate) fn bytes(self) -> u64 {
        self.align() << self.log_entries.min(31)
    }

    /// What it is aligned to where it is contiguous: the size of an entry.
    pub(crate) fn align(self) -> u64 {
        1 << self.log_size.min(31)
    }
}

/// A ring of `1 << log_entries` entries of `1 << log_size` bytes, each within one page.
#[derive(Debug)]
pub(crate) struct Ring<P> {
    map: PageMap<P>,
    log_entries: u8,
    log_size: u8,
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> Ring<P> {
    /// A ring in memory of just its size.
    pub(crate) fn new(map: PageMap<P>, size: RingSize) -> Self {
        Self {
            map,
            log_entries: size.log_entries,
            log_size: size.log_size,
        }
    }

    /// Where it lay.
    pub(crate) fn into_map(self) -> PageMap<P> {
        self.map
    }

    /// Page addresses that it keeps.
    pub(crate) fn stored_pages(&self) -> u64 {
        self.map.stored_pages()
    }

    #[inline]
    pub(crate) fn entries(&self) -> u32 {
        1 << self.log_entries
    }

    #[inline]
    pub(crate) fn log_entries(&self) -> u32 {
        u32::from(self.log_entries)
    }

    #[inline]
    pub(crate) fn entry_size(&self) -> usize {
        1 << self.log_size
    }

    /// DMA address of the entry that the free-running `index` names.
    #[inline]
    pub(crate) fn addr(&self, index: u32) -> Option<u64> {
        let position = u64::from(index & self.entries().wrapping_sub(1));
        Some(self.map.locate(position << self.log_size)?.0)
    }
}
