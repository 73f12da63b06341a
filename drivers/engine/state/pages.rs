// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where a queue or a region lies in DMA address space.

use crate::hal::{Memory, NoMemory, Storage};
use nupa_proto::{
    admin::{PageList, LIST_PAGE_ENTRIES},
    doorbell::PAGE_SIZE,
    status::AdminStatus,
    wqe::{MAX_PAGE_SHIFT, MIN_PAGE_SHIFT},
};
use zerocopy::IntoBytes;

/// Smallest and largest log2 of a page size that a list may have.
const PAGE_SHIFTS: core::ops::RangeInclusive<u8> = MIN_PAGE_SHIFT..=MAX_PAGE_SHIFT;

/// A range of bytes in DMA address space, contiguous or in pages.
#[derive(Debug)]
pub(crate) enum PageMap<P> {
    /// Contiguous from here.
    Direct(u64),
    /// In pages of `1 << shift` bytes, starting `offset` bytes into the first.
    Paged { pages: P, shift: u8, offset: u64 },
}

/// How a range of bytes lies in pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paging {
    /// log2 of the page size.
    pub(crate) shift: u8,
    /// Where in the first page it starts.
    pub(crate) offset: u64,
}

/// Why a list of pages is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadList {
    /// It cannot be read.
    Unreadable,
    /// A page is not aligned, or reaches beyond the end of the address space; or there are too many.
    Page,
}

impl From<BadList> for AdminStatus {
    fn from(bad: BadList) -> Self {
        match bad {
            BadList::Unreadable => Self::BadAddress,
            BadList::Page => Self::InvalidField,
        }
    }
}

impl Paging {
    /// How `len` bytes lie in exactly `count` pages, where the first byte is `start` modulo the page size into the
    /// first page. `None` if the page size is not allowed, or that is not how many pages it takes.
    pub(crate) fn new(shift: u8, start: u64, len: u64, count: u32) -> Option<Self> {
        if !PAGE_SHIFTS.contains(&shift) || len == 0 {
            return None;
        }
        let mask = (1u64 << shift).wrapping_sub(1);
        let offset = start & mask;
        let end = offset.checked_add(len)?.checked_add(mask)?;
        (end >> shift == u64::from(count)).then_some(Self { shift, offset })
    }

    /// Whether all of these can be pages.
    fn fits(&self, pages: &[u64]) -> bool {
        let mask = (1u64 << self.shift).wrapping_sub(1);
        let bad = |page: &u64| page & mask != 0 || page.checked_add(mask).is_none();
        !pages.iter().any(bad)
    }
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> PageMap<P> {
    /// Takes a page list over. The range starts `start` modulo the page size into the first page (if in pages) and is
    /// `len` bytes long; a contiguous one lies at a multiple of `align` (a power of two), and may be empty.
    pub(crate) fn load<S: Storage<Pages = P>>(
        memory: &impl Memory,
        list: &PageList,
        start: u64,
        len: u64,
        align: u64,
    ) -> Result<Self, AdminStatus> {
        let (addr, count) = (list.addr.get(), list.pages.get());
        if list.levels > 1 || list.reserved != [0; 2] {
            return Err(AdminStatus::InvalidField);
        }
        if count == 0 {
            let fits = addr.checked_add(len).is_some() && addr & align.wrapping_sub(1) == 0;
            return if fits && list.page_shift == 0 && list.levels == 0 {
                Ok(Self::Direct(addr))
            } else {
                Err(AdminStatus::InvalidField)
            };
        }
        let paging = Paging::new(list.page_shift, start, len, count);
        let paging = paging.ok_or(AdminStatus::InvalidField)?;
        let mut pages = S::pages(count as usize).map_err(|NoMemory| AdminStatus::NoResources)?;
        match list.levels {
            0 => read_list(memory, addr, pages.as_mut())?,
            _ => read_lists(memory, addr, pages.as_mut())?,
        }
        if !paging.fits(pages.as_ref()) {
            return Err(AdminStatus::InvalidField);
        }
        Ok(Self::from_pages(pages, paging))
    }

    /// The map of pages that were checked.
    fn from_pages(pages: P, paging: Paging) -> Self {
        let Paging { shift, offset } = paging;
        let list = pages.as_ref();
        let mut neighbours = list.iter().zip(list.iter().skip(1));
        let contiguous = neighbours.all(|(page, next)| page.wrapping_add(1 << shift) == *next);
        match list.first() {
            Some(first) if contiguous => Self::Direct(first.wrapping_add(offset)),
            _ => Self::Paged {
                pages,
                shift,
                offset,
            },
        }
    }

    /// A map of nothing yet, with room for as many pages as `pages` is long.
    pub(crate) fn unused(pages: P) -> Self {
        Self::Paged {
            pages,
            shift: *PAGE_SHIFTS.start(),
            offset: 0,
        }
    }

    /// Puts `count` other pages into it, whose list is at `addr`. Neither sleeps nor allocates. After an error its contents
    /// are undefined.
    pub(crate) fn refill(
        &mut self,
        memory: &impl Memory,
        addr: u64,
        paging: Paging,
        count: usize,
    ) -> Result<(), BadList> {
        let Self::Paged {
            pages,
            shift,
            offset,
        } = self
        else {
            return Err(BadList::Page);
        };
        let pages = pages.as_mut().get_mut(..count).ok_or(BadList::Page)?;
        read_list(memory, addr, pages)?;
        if !paging.fits(pages) {
            return Err(BadList::Page);
        }
        (*shift, *offset) = (paging.shift, paging.offset);
        Ok(())
    }

    /// Page addresses that the map keeps.
    pub(crate) fn stored_pages(&self) -> u64 {
        match self {
            Self::Direct(_) => 0,
            Self::Paged { pages, .. } => pages.as_ref().len() as u64,
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
fn read_list(memory: &impl Memory, addr: u64, pages: &mut [u64]) -> Result<(), BadList> {
    let read = memory.read(addr, pages.as_mut_bytes());
    read.map_err(|_| BadList::Unreadable)?;
    for page in pages {
        *page = u64::from_le(*page);
    }
    Ok(())
}

/// Reads a list that lies in pages of its own, whose addresses are at `addr`.
fn read_lists(memory: &impl Memory, addr: u64, pages: &mut [u64]) -> Result<(), BadList> {
    let mut at = addr;
    for chunk in pages.chunks_mut(LIST_PAGE_ENTRIES) {
        let mut page = [0];
        read_list(memory, at, &mut page)?;
        let [page] = page;
        if page & (PAGE_SIZE as u64).wrapping_sub(1) != 0 {
            return Err(BadList::Page);
        }
        read_list(memory, page, chunk)?;
        at = at.wrapping_add(size_of::<u64>() as u64);
    }
    Ok(())
}
