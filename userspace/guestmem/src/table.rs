// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One guest's memory: a table of regions sorted by IOVA.

use std::cell::Cell;
use std::os::fd::BorrowedFd;

use crate::error::{AccessError, MapError, UnmapError};
use crate::mapping::{Mapping, Refused};

/// As many regions as vfio-user's `max_dma_maps` has for a default.
const MAX_REGIONS: usize = 65535;

/// What the device may do with a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Read only: guest ROM.
    Read,
    /// Read and write.
    ReadWrite,
}

/// Whether the device can get at a region it was told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Mapped.
    Mapped,
    /// The VMM sent no file for it (ROMs, video memory): accesses fail.
    NoFile,
    /// Its file can be truncated under us: accesses fail. Guest RAM should come from a
    /// sealable memfd (QEMU: `memory-backend-memfd,share=on`).
    Unsealable,
}

/// A region to be added, as `DMA_MAP` describes it.
#[derive(Debug, Clone, Copy)]
pub struct MapRequest<'fd> {
    /// First address as the device sees it.
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
    /// The file behind it, if there is one, ...
    pub file: Option<BorrowedFd<'fd>>,
    /// ... and where in it the region starts.
    pub offset: u64,
    /// What the device may do.
    pub rights: Rights,
}

/// How much memory a guest has shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes mapped.
    pub mapped: u64,
    /// Bytes known of but out of reach.
    pub unreachable: u64,
    /// Regions of either kind.
    pub regions: usize,
}

/// A guest's memory as its device sees it.
///
/// Looked up by IOVA with a one-entry cache in front of a binary search. Ranges may
/// straddle adjacent regions. An access is checked in full before its first byte moves,
/// so one that fails has done nothing. It can move to another thread but not be shared
/// (the cache is a [`Cell`]).
#[derive(Debug, Default)]
pub struct GuestMemory {
    /// Sorted by `iova`, never overlapping.
    regions: Vec<Region>,
    /// Index of the region found last; a hint that is checked at each use.
    last: Cell<usize>,
}

#[derive(Debug)]
struct Region {
    iova: u64,
    len: u64,
    reach: Reach,
    mapping: Option<Mapping>,
}

/// A piece of a range that lies in one region.
struct Piece<'a> {
    mapping: &'a Mapping,
    offset: usize,
    len: usize,
}

impl Region {
    /// Distance of `iova` from the start, if it is inside.
    #[inline]
    fn offset_of(&self, iova: u64) -> Option<u64> {
        let offset = iova.wrapping_sub(self.iova);
        (offset < self.len).then_some(offset)
    }

    fn overlaps(&self, iova: u64, len: u64) -> bool {
        // Neither range wraps, so the sums cannot overflow more than to exactly 2^64.
        let (end, own_end) = (iova.wrapping_add(len), self.iova.wrapping_add(self.len));
        iova <= own_end.wrapping_sub(1) && self.iova <= end.wrapping_sub(1)
    }
}

impl GuestMemory {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a region.
    ///
    /// A region without a usable file is recorded all the same, so that the VMM's unmap
    /// finds it and accesses to it say [`AccessError::Unreachable`].
    pub fn map(&mut self, request: &MapRequest<'_>) -> Result<Reach, MapError> {
        let &MapRequest { iova, len, .. } = request;
        let last = len.checked_sub(1).and_then(|l| iova.checked_add(l));
        let size = usize::try_from(len)
            .ok()
            .filter(|&s| isize::try_from(s).is_ok());
        let (Some(_), Some(size)) = (last, size) else {
            return Err(MapError::InvalidRange);
        };
        if self.regions.len() >= MAX_REGIONS {
            return Err(MapError::TooMany);
        }
        let index = self.regions.partition_point(|r| r.iova < iova);
        let before = index.checked_sub(1).and_then(|i| self.regions.get(i));
        let after = self.regions.get(index);
        if before
            .into_iter()
            .chain(after)
            .any(|r| r.overlaps(iova, len))
        {
            return Err(MapError::Overlap);
        }
        let (reach, mapping) = open(request, size)?;
        self.regions.insert(
            index,
            Region {
                iova,
                len,
                reach,
                mapping,
            },
        );
        Ok(reach)
    }

    /// Removes the region that has exactly this address and length, and unmaps it.
    pub fn unmap(&mut self, iova: u64, len: u64) -> Result<(), UnmapError> {
        let found = self.regions.binary_search_by_key(&iova, |r| r.iova);
        let index = found.map_err(|_| UnmapError::NoSuchRegion)?;
        if self.regions.get(index).is_none_or(|r| r.len != len) {
            return Err(UnmapError::NoSuchRegion);
        }
        self.regions.remove(index);
        Ok(())
    }

    /// Removes all regions.
    pub fn clear(&mut self) {
        self.regions.clear();
    }

    /// Counts what is in the table.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            regions: self.regions.len(),
            ..Stats::default()
        };
        for region in &self.regions {
            let sum = match region.reach {
                Reach::Mapped => &mut stats.mapped,
                Reach::NoFile | Reach::Unsealable => &mut stats.unreachable,
            };
            *sum = sum.saturating_add(region.len);
        }
        stats
    }

    /// Copies `buf.len()` bytes at `iova` out.
    #[inline]
    pub fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        match self.piece(iova, Rights::Read) {
            Ok(piece) if piece.mapping.read(piece.offset, buf) => Ok(()),
            _ => self.read_pieces(iova, buf),
        }
    }

    /// [`read`](Self::read) where it is not one piece.
    #[cold]
    fn read_pieces(&self, iova: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        self.check(iova, buf.len(), Rights::Read)?;
        let (mut at, mut rest) = (iova, buf);
        while !rest.is_empty() {
            let piece = self.piece(at, Rights::Read)?;
            let (head, tail) = rest.split_at_mut(piece.len.min(rest.len()));
            done(piece.mapping.read(piece.offset, head), at)?;
            at = advance(at, head.len());
            rest = tail;
        }
        Ok(())
    }

    /// Copies `buf` to `iova`.
    #[inline]
    pub fn write(&self, iova: u64, buf: &[u8]) -> Result<(), AccessError> {
        match self.piece(iova, Rights::ReadWrite) {
            Ok(piece) if piece.mapping.write(piece.offset, buf) => Ok(()),
            _ => self.write_pieces(iova, buf),
        }
    }

    /// [`write`](Self::write) where it is not one piece.
    #[cold]
    fn write_pieces(&self, iova: u64, buf: &[u8]) -> Result<(), AccessError> {
        self.check(iova, buf.len(), Rights::ReadWrite)?;
        let (mut at, mut rest) = (iova, buf);
        while !rest.is_empty() {
            let piece = self.piece(at, Rights::ReadWrite)?;
            let (head, tail) = rest.split_at(piece.len.min(rest.len()));
            done(piece.mapping.write(piece.offset, head), at)?;
            at = advance(at, head.len());
            rest = tail;
        }
        Ok(())
    }

    /// Copies `len` bytes from one guest to another, or within one (overlap is allowed if
    /// both ranges are contiguous in their files): one `memmove` per contiguous piece.
    #[inline]
    pub fn copy(
        src: &GuestMemory,
        src_iova: u64,
        dst: &GuestMemory,
        dst_iova: u64,
        len: usize,
    ) -> Result<(), AccessError> {
        Self::copy_by(src, src_iova, dst, dst_iova, len, Mapping::copy)
    }

    /// As [`GuestMemory::copy`], with non-temporal stores but for the first and last bytes: for more than this machine's caches hold, and for
    /// what nobody here reads soon.
    pub fn copy_nontemporal(
        src: &GuestMemory,
        src_iova: u64,
        dst: &GuestMemory,
        dst_iova: u64,
        len: usize,
    ) -> Result<(), AccessError> {
        Self::copy_by(src, src_iova, dst, dst_iova, len, Mapping::copy_nontemporal)
    }

    #[inline]
    fn copy_by(
        src: &GuestMemory,
        src_iova: u64,
        dst: &GuestMemory,
        dst_iova: u64,
        len: usize,
        copy: impl Fn(&Mapping, usize, &Mapping, usize, usize) -> bool,
    ) -> Result<(), AccessError> {
        if len == 0 {
            return Ok(());
        }
        let from = src.piece(src_iova, Rights::Read)?;
        let to = dst.piece(dst_iova, Rights::ReadWrite)?;
        if from.len >= len && to.len >= len {
            let moved = copy(from.mapping, from.offset, to.mapping, to.offset, len);
            return done(moved, dst_iova);
        }
        src.check(src_iova, len, Rights::Read)?;
        dst.check(dst_iova, len, Rights::ReadWrite)?;
        let (mut from_at, mut to_at, mut left) = (src_iova, dst_iova, len);
        while left > 0 {
            let from = src.piece(from_at, Rights::Read)?;
            let to = dst.piece(to_at, Rights::ReadWrite)?;
            let n = left.min(from.len).min(to.len);
            done(
                copy(from.mapping, from.offset, to.mapping, to.offset, n),
                to_at,
            )?;
            (from_at, to_at) = (advance(from_at, n), advance(to_at, n));
            left = left.saturating_sub(n);
        }
        Ok(())
    }

    /// Checks that `len` bytes at `iova` are mapped with these rights.
    pub fn check(&self, iova: u64, len: usize, rights: Rights) -> Result<(), AccessError> {
        let (mut at, mut left) = (iova, len);
        while left > 0 {
            let n = self.piece(at, rights)?.len.min(left);
            left = left.saturating_sub(n);
            if left > 0 {
                let next = u64::try_from(n).ok().and_then(|n| at.checked_add(n));
                at = next.ok_or(AccessError::Unmapped(u64::MAX))?;
            }
        }
        Ok(())
    }

    /// Loads a `u32` with acquire ordering.
    #[inline]
    pub fn load_u32(&self, iova: u64) -> Result<u32, AccessError> {
        let piece = self.word(iova, 4, Rights::Read)?;
        piece
            .mapping
            .load_u32(piece.offset)
            .ok_or(AccessError::Misaligned(iova))
    }

    /// Loads a `u64` with acquire ordering.
    #[inline]
    pub fn load_u64(&self, iova: u64) -> Result<u64, AccessError> {
        let piece = self.word(iova, 8, Rights::Read)?;
        piece
            .mapping
            .load_u64(piece.offset)
            .ok_or(AccessError::Misaligned(iova))
    }

    /// Stores a `u32` with release ordering.
    #[inline]
    pub fn store_u32(&self, iova: u64, value: u32) -> Result<(), AccessError> {
        let piece = self.word(iova, 4, Rights::ReadWrite)?;
        piece
            .mapping
            .store_u32(piece.offset, value)
            .ok_or(AccessError::Misaligned(iova))
    }

    /// Stores a `u64` with release ordering.
    #[inline]
    pub fn store_u64(&self, iova: u64, value: u64) -> Result<(), AccessError> {
        let piece = self.word(iova, 8, Rights::ReadWrite)?;
        piece
            .mapping
            .store_u64(piece.offset, value)
            .ok_or(AccessError::Misaligned(iova))
    }

    /// Adds to a `u64`, wrapping, and returns its old value. Sequentially consistent, also
    /// against the guest's own atomics.
    pub fn fetch_add_u64(&self, iova: u64, value: u64) -> Result<u64, AccessError> {
        let piece = self.word(iova, 8, Rights::ReadWrite)?;
        let old = piece.mapping.fetch_add_u64(piece.offset, value);
        old.ok_or(AccessError::Misaligned(iova))
    }

    /// Stores `new` if the `u64` equals `current`; returns its old value either way.
    /// Sequentially consistent, also against the guest's own atomics.
    pub fn compare_exchange_u64(
        &self,
        iova: u64,
        current: u64,
        new: u64,
    ) -> Result<u64, AccessError> {
        let piece = self.word(iova, 8, Rights::ReadWrite)?;
        let old = piece
            .mapping
            .compare_exchange_u64(piece.offset, current, new);
        old.ok_or(AccessError::Misaligned(iova))
    }

    /// As [`Self::compare_exchange_u64`], of a `u32`.
    pub fn compare_exchange_u32(
        &self,
        iova: u64,
        current: u32,
        new: u32,
    ) -> Result<u32, AccessError> {
        let piece = self.word(iova, 4, Rights::ReadWrite)?;
        let old = piece
            .mapping
            .compare_exchange_u32(piece.offset, current, new);
        old.ok_or(AccessError::Misaligned(iova))
    }

    /// The region that holds `iova`.
    #[inline]
    fn find(&self, iova: u64) -> Option<(&Region, u64)> {
        if let Some(region) = self.regions.get(self.last.get()) {
            if let Some(offset) = region.offset_of(iova) {
                return Some((region, offset));
            }
        }
        self.search(iova)
    }

    /// [`find`](Self::find) where the cache missed.
    #[cold]
    fn search(&self, iova: u64) -> Option<(&Region, u64)> {
        let index = self
            .regions
            .partition_point(|r| r.iova <= iova)
            .checked_sub(1)?;
        let region = self.regions.get(index)?;
        let offset = region.offset_of(iova)?;
        self.last.set(index);
        Some((region, offset))
    }

    /// What lies at `iova`, up to the end of its region.
    #[inline]
    fn piece(&self, iova: u64, rights: Rights) -> Result<Piece<'_>, AccessError> {
        let (region, offset) = self.find(iova).ok_or(AccessError::Unmapped(iova))?;
        let mapping = region
            .mapping
            .as_ref()
            .ok_or(AccessError::Unreachable(iova))?;
        if rights == Rights::ReadWrite && !mapping.is_writable() {
            return Err(AccessError::Denied(iova));
        }
        let offset = usize::try_from(offset).map_err(|_| AccessError::Unmapped(iova))?;
        Ok(Piece {
            mapping,
            offset,
            len: mapping.len().saturating_sub(offset),
        })
    }

    /// A naturally aligned word of `size` bytes: never straddles a page, let alone a region.
    #[inline]
    fn word(&self, iova: u64, size: u64, rights: Rights) -> Result<Piece<'_>, AccessError> {
        if iova & size.wrapping_sub(1) != 0 {
            return Err(AccessError::Misaligned(iova));
        }
        self.piece(iova, rights)
    }
}

/// Opens the mapping that `request` asks for.
fn open(request: &MapRequest<'_>, size: usize) -> Result<(Reach, Option<Mapping>), MapError> {
    let Some(file) = request.file else {
        return Ok((Reach::NoFile, None));
    };
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    if (request.iova | request.offset | request.len) & page.wrapping_sub(1) != 0 {
        return Err(MapError::InvalidRange);
    }
    let writable = request.rights == Rights::ReadWrite;
    match Mapping::new(file, request.offset, size, writable) {
        Ok(mapping) => Ok((Reach::Mapped, Some(mapping))),
        Err(Refused::Unsealable) => Ok((Reach::Unsealable, None)),
        Err(Refused::Error(error)) => Err(error),
    }
}

/// `iova + n`, for ranges that [`GuestMemory::check`] has passed.
fn advance(iova: u64, n: usize) -> u64 {
    iova.wrapping_add(u64::try_from(n).unwrap_or(0))
}

/// Turns a mapping's verdict on a range that the table had checked into a result.
#[inline]
fn done(moved: bool, iova: u64) -> Result<(), AccessError> {
    if moved {
        Ok(())
    } else {
        Err(AccessError::Unmapped(iova))
    }
}
