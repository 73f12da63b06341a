// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory regions.

use crate::{pages::PageMap, span::Span};

/// A registered memory region.
#[derive(Debug)]
pub(crate) struct Region<P> {
    pub(crate) map: PageMap<P>,
    pub(crate) iova: u64,
    pub(crate) len: u64,
    pub(crate) pd: u32,
    pub(crate) access: u32,
    pub(crate) key: u32,
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> Region<P> {
    /// The span of `len` bytes at `addr`, if they lie inside. `number` is the region's own.
    #[inline]
    pub(crate) fn span(&self, number: u32, addr: u64, len: u32) -> Option<Span> {
        let offset = addr.checked_sub(self.iova)?;
        if u64::from(len) > self.len.checked_sub(offset)? {
            return None;
        }
        Some(match &self.map {
            PageMap::Direct(base) => Span::direct(base.wrapping_add(offset), len),
            PageMap::Paged { .. } => Span::in_region(number, offset, len),
        })
    }
}
