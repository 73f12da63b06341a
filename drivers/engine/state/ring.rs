// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Ring memory of a queue, as the device reaches it.

use crate::{
    hal::{Memory, Storage},
    state::pages::PageMap,
};
use nupa_proto::{admin::PageList, status::AdminStatus};

/// A ring of `1 << log_entries` entries of `1 << log_size` bytes, each within one page.
#[derive(Debug)]
pub(crate) struct Ring<P> {
    map: PageMap<P>,
    log_entries: u8,
    log_size: u8,
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> Ring<P> {
    pub(crate) fn new<S: Storage<Pages = P>>(
        memory: &impl Memory,
        list: &PageList,
        log_entries: u8,
        log_size: u8,
    ) -> Result<Self, AdminStatus> {
        let (entry, len) = (
            1u64 << log_size.min(31),
            1u64 << log_entries.min(31) << log_size.min(31),
        );
        let map = PageMap::load::<S>(memory, list, 0, len, entry)?;
        Ok(Self {
            map,
            log_entries,
            log_size,
        })
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
