// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One `mmap`ed range and every access to it: the only unsafe code in user space.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{fence, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::fs::fstat;
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

use crate::error::MapError;
use crate::seal::{is_device, seal_shrink};

/// A shared mapping of a sealed file, unmapped when dropped.
///
/// # Invariants
///
/// - `base .. base + len` is mapped for as long as the value lives, readable, and writable
///   if `writable`.
/// - The file is sealed against shrinking and was at least as long as the mapping when
///   sealed, or is a device's memory, so every byte of it is backed.
/// - No Rust reference to a byte of it exists except shared ones to atomics.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping is process-wide memory with no tie to the thread that made it; all
// access to it is by raw copies and atomics, which is what concurrent writers (the guest)
// demand in any case.
unsafe impl Send for Mapping {}

/// Why [`Mapping::new`] gave no mapping.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The file can be truncated at any time, see the crate's documentation.
    Unsealable,
    /// Anything else.
    Error(MapError),
}

impl Mapping {
    /// Maps `len` bytes of `fd` at `offset`. Both are multiples of the page size.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> Result<Self, Refused> {
        if !seal_shrink(fd) {
            return Err(Refused::Unsealable);
        }
        let os = |errno| Refused::Error(MapError::Os(errno));
        let file_len = u64::try_from(fstat(fd).map_err(os)?.st_size).unwrap_or(0);
        let end = u64::try_from(len).ok().and_then(|l| offset.checked_add(l));
        if end.is_none_or(|end| end > file_len) {
            return Err(Refused::Error(MapError::FileTooShort));
        }
        Self::map(fd, offset, len, writable).map_err(Refused::Error)
    }

    /// Maps the first `len` bytes of a device's memory. Its driver checks the length.
    pub(crate) fn of_device(
        fd: BorrowedFd<'_>,
        len: usize,
        writable: bool,
    ) -> Result<Self, MapError> {
        if !is_device(fd)? {
            return Err(MapError::NotADevice);
        }
        Self::map(fd, 0, len, writable)
    }

    /// Maps a file that [`new`](Self::new) or [`of_device`](Self::of_device) found good.
    fn map(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> Result<Self, MapError> {
        let prot = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a null hint lets the kernel choose an unused range, so no existing memory
        // changes; nothing else in this process knows the address that comes back.
        let base = unsafe { mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset) };
        let base = NonNull::new(base?.cast::<u8>()).ok_or(MapError::InvalidRange)?;
        Ok(Self {
            base,
            len,
            writable,
        })
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether [`write`](Self::write) and friends may be used.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// The address of `offset`, if `len` bytes from there are inside.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: `offset <= end <= self.len`, so the result is inside the mapping or one
        // past its end (struct invariant).
        Some(unsafe { self.base.as_ptr().add(offset) })
    }

    /// Copies out. `false` if the range is not inside.
    #[inline]
    pub(crate) fn read(&self, offset: usize, buf: &mut [u8]) -> bool {
        let Some(src) = self.at(offset, buf.len()) else {
            return false;
        };
        // SAFETY: `at` checked the source range; `buf` is a live exclusive slice, which
        // cannot lie in the mapping because no reference into it exists (invariant).
        unsafe { ptr::copy_nonoverlapping(src, buf.as_mut_ptr(), buf.len()) };
        true
    }

    /// Copies in, in the order that [`copy_ordered`] says. `false` if the range is not inside, or the mapping is
    /// read-only.
    #[inline]
    pub(crate) fn write(&self, offset: usize, buf: &[u8]) -> bool {
        if !self.writable {
            return false;
        }
        let Some(dst) = self.at(offset, buf.len()) else {
            return false;
        };
        // SAFETY: `at` checked the destination range and it is mapped for writing; `buf`
        // cannot lie in the mapping because no reference into it exists (invariant).
        unsafe { copy_ordered(buf.as_ptr(), dst, buf.len()) };
        true
    }

    /// Copies between two mappings, which may be the same, ranges overlapping (loopback), in
    /// the order that [`copy_ordered`] says. `false` if a range is not inside, or `dst` is read-only.
    #[inline]
    pub(crate) fn copy(
        src: &Mapping,
        src_offset: usize,
        dst: &Mapping,
        dst_offset: usize,
        len: usize,
    ) -> bool {
        if !dst.writable {
            return false;
        }
        let (Some(from), Some(to)) = (src.at(src_offset, len), dst.at(dst_offset, len)) else {
            return false;
        };
        // SAFETY: `at` checked both ranges, and the destination is mapped for writing.
        unsafe { copy_ordered(from, to, len) };
        true
    }

    /// As [`Mapping::copy`], with non-temporal stores but for the first and last bytes; as ever where ranges overlap, or this machine has no such
    /// instruction.
    pub(crate) fn copy_nontemporal(
        src: &Mapping,
        src_offset: usize,
        dst: &Mapping,
        dst_offset: usize,
        len: usize,
    ) -> bool {
        if !dst.writable {
            return false;
        }
        let (Some(from), Some(to)) = (src.at(src_offset, len), dst.at(dst_offset, len)) else {
            return false;
        };
        let head = to.align_offset(BLOCK).min(len);
        // The last word is stored last.
        let most = len.saturating_sub(head).saturating_sub(WORD);
        let blocks = most.saturating_sub(most % BLOCK);
        let overlap = from.addr().abs_diff(to.addr()) < len;
        // SAFETY: as in `copy`. The blocks lie between head and rest, and the first one is aligned.
        unsafe {
            if blocks == 0
                || overlap
                || !store_blocks_nontemporal(from.add(head), to.add(head), blocks)
            {
                copy_ordered(from, to, len);
                return true;
            }
            copy_bytes(from, to, head);
            let rest = head.saturating_add(blocks);
            copy_ordered(from.add(rest), to.add(rest), len.saturating_sub(rest));
        }
        true
    }

    /// The atomic word at `offset`; none if it is misaligned or not inside.
    #[inline]
    fn atomic_u32(&self, offset: usize) -> Option<&AtomicU32> {
        let p = self.at(offset, size_of::<AtomicU32>())?.cast::<u32>();
        // SAFETY: in range (`at`), aligned (checked here), alive as long as `self`
        // (invariant), and accessed only atomically by this process through it.
        p.is_aligned().then(|| unsafe { AtomicU32::from_ptr(p) })
    }

    /// The atomic double word at `offset`; none if it is misaligned or not inside.
    #[inline]
    fn atomic_u64(&self, offset: usize) -> Option<&AtomicU64> {
        let p = self.at(offset, size_of::<AtomicU64>())?.cast::<u64>();
        // SAFETY: as in `atomic_u32`.
        p.is_aligned().then(|| unsafe { AtomicU64::from_ptr(p) })
    }

    /// Loads with acquire ordering.
    #[inline]
    pub(crate) fn load_u32(&self, offset: usize) -> Option<u32> {
        Some(self.atomic_u32(offset)?.load(Ordering::Acquire))
    }

    /// Loads with acquire ordering.
    #[inline]
    pub(crate) fn load_u64(&self, offset: usize) -> Option<u64> {
        Some(self.atomic_u64(offset)?.load(Ordering::Acquire))
    }

    /// Stores with release ordering.
    #[inline]
    pub(crate) fn store_u32(&self, offset: usize, value: u32) -> Option<()> {
        self.writable.then_some(())?;
        self.atomic_u32(offset)?.store(value, Ordering::Release);
        Some(())
    }

    /// Stores with release ordering.
    #[inline]
    pub(crate) fn store_u64(&self, offset: usize, value: u64) -> Option<()> {
        self.writable.then_some(())?;
        self.atomic_u64(offset)?.store(value, Ordering::Release);
        Some(())
    }

    /// Stores words in any order.
    #[inline(always)]
    pub(crate) fn write_words<const WORDS: usize>(
        &self,
        offset: usize,
        words: [u64; WORDS],
    ) -> Option<()> {
        self.writable.then_some(())?;
        self.at(offset, size_of_val(&words))?;
        let places = (offset..).step_by(size_of::<u64>());
        for (word, place) in words.into_iter().zip(places) {
            self.atomic_u64(place)?.store(word, Ordering::Relaxed);
        }
        Some(())
    }

    /// Adds, wrapping, and returns what was there before. Sequentially consistent.
    #[inline]
    pub(crate) fn fetch_add_u64(&self, offset: usize, value: u64) -> Option<u64> {
        self.writable.then_some(())?;
        Some(self.atomic_u64(offset)?.fetch_add(value, Ordering::SeqCst))
    }

    /// Replaces `current` by `new`; returns what was there before. Sequentially consistent.
    #[inline]
    pub(crate) fn compare_exchange_u64(
        &self,
        offset: usize,
        current: u64,
        new: u64,
    ) -> Option<u64> {
        self.writable.then_some(())?;
        let word = self.atomic_u64(offset)?;
        let old = word.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst);
        Some(old.unwrap_or_else(|seen| seen))
    }

    /// As [`Self::compare_exchange_u64`], of half as many bytes.
    #[inline]
    pub(crate) fn compare_exchange_u32(
        &self,
        offset: usize,
        current: u32,
        new: u32,
    ) -> Option<u32> {
        self.writable.then_some(())?;
        let word = self.atomic_u32(offset)?;
        let old = word.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst);
        Some(old.unwrap_or_else(|seen| seen))
    }

    /// Writes the cache lines of a range back to memory and drops them. `false` if the range is not inside, or this
    /// machine has no such instruction.
    pub(crate) fn flush(&self, offset: usize, len: usize) -> bool {
        let Some(first) = self.at(offset, len) else {
            return false;
        };
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_mm_clflush, _mm_mfence};
            const LINE: usize = 64;
            let misaligned = first.addr() % LINE;
            // SAFETY: every x86-64 processor has these instructions. Each address is in a line that has part in the
            // range, which `at` found inside of the mapping; a flush changes no byte.
            unsafe {
                _mm_mfence();
                for line in (0..len.saturating_add(misaligned)).step_by(LINE) {
                    _mm_clflush(first.wrapping_sub(misaligned).wrapping_add(line));
                }
                _mm_mfence();
            }
            true
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = first;
            false
        }
    }
}

/// Bytes of a word that is stored as a whole.
const WORD: usize = size_of::<u64>();

/// Copies bytes that others look at meanwhile. The ranges may overlap.
///
/// All that was copied before is visible before any of it. If the destination ends at a
/// multiple of 8, its last 8 bytes are stored as a whole, after all others: who polls for them
/// finds the rest. Aligned pieces of 1, 2, 4, 8 and 16 bytes consist of whole stores.
///
/// # Safety
///
/// `len` bytes at `from` can be read, and as many at `to` written.
#[inline]
unsafe fn copy_ordered(from: *const u8, to: *mut u8, len: usize) {
    fence(Ordering::AcqRel);
    let end = to.addr().wrapping_add(len);
    let Some(rest) = len.checked_sub(WORD).filter(|_| end % WORD == 0) else {
        // SAFETY: by this function's contract.
        return unsafe { copy_unordered(from, to, len) };
    };
    // Both words are loaded before anything is stored, for the ranges may overlap.
    // SAFETY: the last word of both ranges, by this function's contract; that of the
    // destination is aligned, and it is accessed otherwise only by whole stores and raw copies.
    let (last, flag) = unsafe {
        (
            load_word(from.add(rest)),
            AtomicU64::from_ptr(to.add(rest).cast()),
        )
    };
    if rest == WORD {
        // SAFETY: the first word of both ranges, as above.
        unsafe {
            let first = load_word(from);
            AtomicU64::from_ptr(to.cast()).store(first, Ordering::Relaxed);
        }
    } else {
        // SAFETY: by this function's contract.
        unsafe { copy_bytes(from, to, rest) };
    }
    flag.store(last, Ordering::Release);
}

/// As [`copy_ordered`], of what does not end with an aligned word.
///
/// # Safety
///
/// As for [`copy_ordered`].
#[inline]
unsafe fn copy_unordered(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: by this function's contract; the alignment is checked. A single access of a
    // type is one of the processor's.
    unsafe {
        match len {
            4 if to.addr() % 4 == 0 => {
                let word = from.cast::<u32>().read_unaligned();
                AtomicU32::from_ptr(to.cast()).store(word, Ordering::Relaxed);
            }
            2 if to.addr() % 2 == 0 => {
                let word = from.cast::<u16>().read_unaligned();
                AtomicU16::from_ptr(to.cast()).store(word, Ordering::Relaxed);
            }
            _ => copy_bytes(from, to, len),
        }
    }
}

/// From so many bytes on `ptr::copy` may be "rep movsb": it is the least bound of the C library's.
const REP_FROM: usize = 2048;
/// Bytes that [`copy_blocks`] moves at one go.
const BLOCK: usize = 64;

/// Copies bytes in any order. The ranges may overlap.
///
/// # Safety
///
/// As for [`copy_ordered`].
#[inline]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    let (from_at, to_at) = (from.addr(), to.addr());
    // Where the destination is 1 to 31 bytes ahead of the source modulo 4096, "rep movsb" takes AMD's Zen 3 nine times as long. One of 128
    // places that a program may receive at is such a one.
    let ahead = to_at.wrapping_sub(from_at) % 4096;
    let slow = len >= REP_FROM && (1..32).contains(&ahead) && from_at.abs_diff(to_at) >= len;
    // SAFETY: by this function's contract; that the ranges do not overlap is checked.
    unsafe {
        match slow {
            true => copy_blocks(from, to, len),
            false => ptr::copy(from, to, len),
        }
    }
}

/// Copies bytes by the processor's ordinary loads and stores. The ranges do not overlap.
///
/// # Safety
///
/// As for [`copy_ordered`].
// Cold, so that the ordinary copy stays inline.
#[cold]
unsafe fn copy_blocks(from: *const u8, to: *mut u8, len: usize) {
    let rest = len % BLOCK;
    let whole = len.saturating_sub(rest);
    // SAFETY: by this function's contract; no block ends behind `len`.
    unsafe {
        for at in (0..whole).step_by(BLOCK) {
            let block = from.add(at).cast::<[u8; BLOCK]>().read_unaligned();
            to.add(at).cast::<[u8; BLOCK]>().write_unaligned(block);
        }
        ptr::copy(from.add(whole), to.add(whole), rest);
    }
}

/// Copies blocks with non-temporal stores, which are visible to others before anything that is stored later. `false`, without effect, if this
/// machine has none.
///
/// # Safety
///
/// `len` bytes at `from` can be read, and as many at `to` written; `len` is a multiple of [`BLOCK`], and so is the address `to`. The ranges do
/// not overlap.
unsafe fn store_blocks_nontemporal(from: *const u8, to: *mut u8, len: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        fence(Ordering::AcqRel);
        for at in (0..len).step_by(BLOCK) {
            // SAFETY: by this function's contract; every x86-64 processor has these instructions. The stores are in no order before the fence,
            // and nobody but others looks at what is stored before that.
            unsafe {
                let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
                let loaded = [0, 1, 2, 3].map(|part| _mm_loadu_si128(from.add(part)));
                for (part, value) in loaded.into_iter().enumerate() {
                    _mm_stream_si128(to.add(part), value);
                }
            }
        }
        // SAFETY: as above.
        unsafe { _mm_sfence() };
        true
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (from, to, len);
        false
    }
}

/// Loads a word, as a whole if it is aligned.
///
/// # Safety
///
/// It can be read.
#[inline]
unsafe fn load_word(from: *const u8) -> u64 {
    let word = from.cast::<u64>();
    // SAFETY: by this function's contract.
    unsafe {
        match word.is_aligned() {
            true => word.read_volatile(),
            false => word.read_unaligned(),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are what `mmap` returned and was given; `&mut self` shows
        // that no reference into the mapping is left, since all borrow from `self`.
        let result = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
        debug_assert!(
            result.is_ok(),
            "munmap of an own mapping failed: {result:?}"
        );
    }
}
