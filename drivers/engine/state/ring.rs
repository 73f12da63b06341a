// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Ring memory of a queue, as the device reaches it.

use crate::state::pages::PageMap;

/// A ring of `1 << log_entries` entries of `1 << log_size` bytes, each within one page.
#[derive(Debug)]
pub(crate) struct Ring<P> {
    map: PageMap<P>,
    log_entries: u8,
    log_size: u8,
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> Ring<P> {
    /// A ring in memory of just its size.
    pub(crate) fn new(map: PageMap<P>, log_entries: u8, log_size: u8) -> Self {
        Self {
            map,
            log_entries,
            log_size,
        }
    }

    /// Where it lay.
    pub(crate) fn into_map(self) -> PageMap<P> {
        self.map
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
