// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where a queue or a region lies in DMA address space.

use crate::{
    hal::Memory,
    storage::{NoMemory, Storage},
};
use nupa_proto::{admin::PageList, status::AdminStatus};

/// Smallest and largest log2 of a page size that a list may have.
const PAGE_SHIFTS: core::ops::RangeInclusive<u8> = 12..=30;
/// Page addresses that are read at a time while a list is taken over.
const CHUNK: usize = 32;

/// A range of bytes in DMA address space, contiguous or in pages.
#[derive(Debug)]
pub(crate) enum PageMap<P> {
    /// Contiguous from here.
    Direct(u64),
    /// In pages of `1 << shift` bytes, starting `offset` bytes into the first.
    Paged { pages: P, shift: u8, offset: u64 },
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> PageMap<P> {
    /// Takes a page list over. The range starts `start` modulo the page size into the first page (if in pages) and is
    /// `len` bytes long; addresses are multiples of `align` (a power of two).
    pub(crate) fn load<S: Storage<Pages = P>>(
        memory: &impl Memory,
        list: &PageList,
        start: u64,
        len: u64,
        align: u64,
    ) -> Result<Self, AdminStatus> {
        let (addr, count) = (list.addr.get(), list.pages.get() as usize);
        let shift = list.page_shift;
        if list.levels != 0 || list.reserved != [0; 2] || len == 0 {
            return Err(AdminStatus::InvalidField);
        }
        if count == 0 {
            let fits = addr.checked_add(len).is_some() && addr & align.wrapping_sub(1) == 0;
            return if fits && shift == 0 {
                Ok(Self::Direct(addr))
            } else {
                Err(AdminStatus::InvalidField)
            };
        }
        if !PAGE_SHIFTS.contains(&shift) {
            return Err(AdminStatus::InvalidField);
        }
        let mask = (1u64 << shift).wrapping_sub(1);
        let offset = start & mask;
        let needed = offset
            .checked_add(len)
            .and_then(|end| end.checked_add(mask))
            .map(|end| end >> shift);
        if needed != u64::try_from(count).ok() {
            return Err(AdminStatus::InvalidField);
        }
        let mut pages = S::pages(count).map_err(|NoMemory| AdminStatus::NoResources)?;
        read_list(memory, addr, pages.as_mut())?;
        Self::from_pages(pages, shift, offset)
    }

    fn from_pages(pages: P, shift: u8, offset: u64) -> Result<Self, AdminStatus> {
        let size = 1u64 << shift;
        let mask = size.wrapping_sub(1);
        let list = pages.as_ref();
        if list
            .iter()
            .any(|page| page & mask != 0 || page.checked_add(mask).is_none())
        {
            return Err(AdminStatus::InvalidField);
        }
        let mut neighbours = list.iter().zip(list.iter().skip(1));
        let contiguous = neighbours.all(|(page, next)| page.wrapping_add(size) == *next);
        match list.first() {
            Some(first) if contiguous => Ok(Self::Direct(first.wrapping_add(offset))),
            _ => Ok(Self::Paged {
                pages,
                shift,
                offset,
            }),
        }
    }

    /// DMA address of the byte at `offset`, and how many bytes are contiguous from there.
    #[inline]
    pub(crate) fn locate(&self, offset: u64) -> Option<(u64, u64)> {
        match self {
            Self::Direct(base) => Some((base.wrapping_add(offset), u64::MAX)),
            Self::Paged {
                pages,
                shift,
                offset: start,
            } => {
                let at = start.checked_add(offset)?;
                let size = 1u64 << shift;
                let within = at & size.wrapping_sub(1);
                let page = pages.as_ref().get(usize::try_from(at >> shift).ok()?)?;
                Some((page.wrapping_add(within), size.wrapping_sub(within)))
            }
        }
    }
}

/// Reads a list of little-endian addresses.
fn read_list(memory: &impl Memory, addr: u64, pages: &mut [u64]) -> Result<(), AdminStatus> {
    let mut at = addr;
    for chunk in pages.chunks_mut(CHUNK) {
        let mut bytes = [0; CHUNK * 8];
        let bytes = bytes
            .get_mut(..chunk.len().wrapping_mul(8))
            .ok_or(AdminStatus::Internal)?;
        memory
            .read(at, bytes)
            .map_err(|_| AdminStatus::BadAddress)?;
        for (page, word) in chunk.iter_mut().zip(bytes.chunks_exact(8)) {
            *page = word
                .try_into()
                .map(u64::from_le_bytes)
                .map_err(|_| AdminStatus::Internal)?;
        }
        at = at.wrapping_add(bytes.len() as u64);
    }
    Ok(())
}
