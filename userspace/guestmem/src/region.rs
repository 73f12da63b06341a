// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that is reached by offset: a device's own, shared with its guest, or that of a device of this machine.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};

use crate::error::{AccessError, MapError};
use crate::mapping::{Mapping, Refused};

/// Memory of a fixed size with its file: a BAR page that the guest maps, or device memory.
///
/// Addresses are byte offsets; errors carry the offset.
#[derive(Debug)]
pub struct MmapRegion {
    mapping: Mapping,
    file: OwnedFd,
}

impl MmapRegion {
    /// Makes a region of `len` bytes, a multiple of the page size: a sealed memfd, zeroed. `name` shows
    /// up in `/proc/PID/maps`.
    pub fn new(name: &str, len: usize) -> Result<Self, MapError> {
        if len == 0 || len.checked_rem(rustix::param::page_size()) != Some(0) {
            return Err(MapError::InvalidRange);
        }
        let size = u64::try_from(len).map_err(|_| MapError::InvalidRange)?;
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, size)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::of_memory(file, len)
    }

    /// Maps the first `len` bytes, a multiple of the page size, of a region that another process has made: a memfd that cannot shrink.
    pub fn of_memory(file: OwnedFd, len: usize) -> Result<Self, MapError> {
        let mapping =
            Mapping::new(file.as_fd(), 0, len, true).map_err(|refused| match refused {
                Refused::Unsealable => MapError::InvalidRange,
                Refused::Error(error) => error,
            })?;
        Ok(Self { mapping, file })
    }

    /// Maps the first `len` bytes, a multiple of the page size, of the memory of a device of this machine:
    /// a character device such as a DAX device's, or a PCI device's `resourceN` in sysfs.
    ///
    /// Like any user of the device, the caller has to end before the device or its driver goes: access to
    /// its memory is a `SIGBUS` afterwards.
    pub fn of_device(file: OwnedFd, len: usize) -> Result<Self, MapError> {
        let mapping = Mapping::of_device(file.as_fd(), len, true)?;
        Ok(Self { mapping, file })
    }

    /// As [`MmapRegion::of_device`], of a file that need not be open for writing: nothing can be written, and what would is an
    /// error.
    pub fn of_device_to_read(file: OwnedFd, len: usize) -> Result<Self, MapError> {
        let mapping = Mapping::of_device(file.as_fd(), len, false)?;
        Ok(Self { mapping, file })
    }

    /// The file to hand to the VMM, which maps it at offset 0.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Copies out. See the crate's documentation on what the guest may do meanwhile.
    #[inline]
    pub fn read(&self, offset: usize, buf: &mut [u8]) -> Result<(), AccessError> {
        self.mapping
            .read(offset, buf)
            .then_some(())
            .ok_or(outside(offset))
    }

    /// Copies in.
    #[inline]
    pub fn write(&self, offset: usize, buf: &[u8]) -> Result<(), AccessError> {
        self.mapping
            .write(offset, buf)
            .then_some(())
            .ok_or(outside(offset))
    }

    /// Stores words at a multiple of 8, in any order.
    #[inline]
    pub fn write_words<const WORDS: usize>(
        &self,
        offset: usize,
        words: [u64; WORDS],
    ) -> Result<(), AccessError> {
        aligned(offset, 8)?;
        self.mapping
            .write_words(offset, words)
            .ok_or(outside(offset))
    }

    /// Copies `len` bytes from one region to another, or within one, where they may overlap.
    #[inline]
    pub fn copy(
        from: &Self,
        from_offset: usize,
        to: &Self,
        to_offset: usize,
        len: usize,
    ) -> Result<(), AccessError> {
        let copied = Mapping::copy(&from.mapping, from_offset, &to.mapping, to_offset, len);
        copied.then_some(()).ok_or(outside(to_offset))
    }

    /// Loads a little-endian host's `u32` with acquire ordering.
    #[inline]
    pub fn load_u32(&self, offset: usize) -> Result<u32, AccessError> {
        aligned(offset, 4)?;
        self.mapping.load_u32(offset).ok_or(outside(offset))
    }

    /// Loads a `u64` with acquire ordering.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64, AccessError> {
        aligned(offset, 8)?;
        self.mapping.load_u64(offset).ok_or(outside(offset))
    }

    /// Stores a `u32` with release ordering.
    #[inline]
    pub fn store_u32(&self, offset: usize, value: u32) -> Result<(), AccessError> {
        aligned(offset, 4)?;
        self.mapping.store_u32(offset, value).ok_or(outside(offset))
    }

    /// Stores a `u64` with release ordering.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), AccessError> {
        aligned(offset, 8)?;
        self.mapping.store_u64(offset, value).ok_or(outside(offset))
    }

    /// Writes the cache lines of a range back to memory and drops them, for hosts whose caches are not coherent. An
    /// error also where the machine cannot.
    pub fn flush(&self, offset: usize, len: usize) -> Result<(), AccessError> {
        let flushed = self.mapping.flush(offset, len);
        flushed.then_some(()).ok_or(outside(offset))
    }

    /// Replaces `current` by `new` and returns what was there before; a full fence.
    pub fn compare_exchange_u64(
        &self,
        offset: usize,
        current: u64,
        new: u64,
    ) -> Result<u64, AccessError> {
        aligned(offset, 8)?;
        let old = self.mapping.compare_exchange_u64(offset, current, new);
        old.ok_or(outside(offset))
    }

    /// As [`Self::compare_exchange_u64`], of half as many bytes.
    pub fn compare_exchange_u32(
        &self,
        offset: usize,
        current: u32,
        new: u32,
    ) -> Result<u32, AccessError> {
        aligned(offset, 4)?;
        let old = self.mapping.compare_exchange_u32(offset, current, new);
        old.ok_or(outside(offset))
    }

    /// Adds, wrapping around, and returns what was there before; a full fence.
    pub fn fetch_add_u64(&self, offset: usize, value: u64) -> Result<u64, AccessError> {
        aligned(offset, 8)?;
        let old = self.mapping.fetch_add_u64(offset, value);
        old.ok_or(outside(offset))
    }
}

/// The error for a range that is not inside the region.
#[cold]
fn outside(offset: usize) -> AccessError {
    AccessError::Unmapped(u64::try_from(offset).unwrap_or(u64::MAX))
}

/// Checks natural alignment; the base is page-aligned.
#[inline]
fn aligned(offset: usize, size: usize) -> Result<(), AccessError> {
    if offset & size.wrapping_sub(1) == 0 {
        Ok(())
    } else {
        Err(AccessError::Misaligned(
            u64::try_from(offset).unwrap_or(u64::MAX),
        ))
    }
}
