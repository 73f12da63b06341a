// SPDX-License-Identifier: GPL-2.0
//! Physical memory that other hosts read and write too.
//!
//! C headers: `include/linux/io.h` (`memremap()`), `include/linux/ioport.h`.

use crate::{
    bindings, dax,
    mmap::{Kind, MmapRange, Owner},
    pci::as_raw,
};
use core::{
    ops::Range,
    ptr::{self, NonNull},
};
use kernel::{
    device::Bound,
    page::PAGE_SIZE,
    pci,
    prelude::*,
    str::CStr,
    sync::{
        atomic::{Atomic, Full, Relaxed, Release},
        Arc,
    },
};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Offset of no line.
const NO_LINE: u64 = u64::MAX;
/// Where no memory can be: an address that is not canonical.
const NOWHERE: usize = 1 << 62;
/// Bytes of the words that are accessed as a whole.
const WORD: usize = size_of::<u64>();

/// What it takes for other hosts to see what this one stored, and the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coherence {
    /// Nothing but order: the caches of all hosts are kept coherent.
    Coherent,
    /// Cache lines are to be written back and dropped by hand; no operation is atomic across hosts.
    WriteBack,
}

/// How much of a device's memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What it takes to find out whose it is.
    FirstPage,
    /// All of it.
    All,
}

impl Extent {
    /// Bytes of a memory that are mapped.
    fn of(self, len: u64) -> u64 {
        match self {
            Self::FirstPage => len.min(PAGE_SIZE as u64),
            Self::All => len,
        }
    }
}

/// A range of physical memory, reserved and mapped cacheable, that other hosts change at any time.
///
/// All access is by copy or by words of 64 bits, and checked: what does not lie inside of the window, and words that are
/// not aligned, are refused without effect. Any context but for making and drop. For a full fence there is
/// [`crate::barrier::full_fence`].
///
/// Memory can lose what was stored there (it is *poisoned*); reads of it fail with `EIO` then, here and in
/// [`crate::hostmem::HostMemory`], and nothing else happens.
pub struct Window {
    base: NonNull<u8>,
    coherence: Coherence,
    /// Offset of a line that is taken for poisoned, for tests; [`NO_LINE`] if there is none.
    poison: Atomic<u64>,
    /// Nobody shows in it that this host lives, for tests.
    frozen: Atomic<bool>,
    kind: Kind,
    /// Of the memory; held until the mapping is gone.
    region: Region,
}

// SAFETY: The mapping is the kernel's, not of a process; it is accessed by words atomically, and else by C functions that
// copy, whose races with each other spoil the bytes that are copied and nothing else.
unsafe impl Send for Window {}
// SAFETY: As above.
unsafe impl Sync for Window {}

impl Owner for Window {}

/// A range of physical addresses that nobody else may claim.
struct Region {
    start: u64,
    len: usize,
}

impl Region {
    /// `EBUSY` if the range, or a part of it, is in use.
    fn new(start: u64, len: usize, name: &'static CStr) -> Result<Self> {
        // SAFETY: The name is static. A range that is taken, even in part, is refused.
        if !unsafe { bindings::nk_request_memory(start, len, name.as_char_ptr()) } {
            return Err(EBUSY);
        }
        Ok(Self { start, len })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: The range is ours.
        unsafe { bindings::nk_release_memory(self.start, self.len) };
    }
}

impl Window {
    /// Reserves and maps the memory of a DAX device. `name` is what `/proc/iomem` says. `EINVAL` if it is not one range of
    /// whole pages, `EBUSY` if it is in use, `ENOMEM` if it cannot be mapped. Sleeps.
    ///
    /// The memory stays reserved for as long as the window exists, so that nobody else gets it, `kmem` for instance, should
    /// the device go to another driver.
    pub fn of_dax(
        dev: &dax::Device<Bound>,
        name: &'static CStr,
        coherence: Coherence,
        extent: Extent,
    ) -> Result<Self> {
        let memory = dev.memory()?;
        // SAFETY: The range is that of a DAX device, which is memory of the platform that the kernel does not use for itself, and might.
        unsafe {
            let len = extent.of(memory.len);
            Self::new(memory.start, len, name, coherence, Kind::Platform)
        }
    }

    /// As [`Window::of_dax`], for a memory BAR whose memory bears to be cached.
    pub fn of_bar(
        dev: &pci::Device<Bound>,
        bar: u32,
        name: &'static CStr,
        coherence: Coherence,
        extent: Extent,
    ) -> Result<Self> {
        // SAFETY: `dev` is valid, and the function checks the number.
        if !unsafe { bindings::nk_is_memory_bar(as_raw(dev), bar) } {
            return Err(EINVAL);
        }
        // SAFETY: The range is that of a memory BAR.
        unsafe {
            Self::new(
                dev.resource_start(bar)?,
                extent.of(dev.resource_len(bar)?),
                name,
                coherence,
                Kind::Cached,
            )
        }
    }

    /// # Safety
    ///
    /// The range is memory of a device, of this kind, and not the kernel's own.
    unsafe fn new(
        start: u64,
        len: u64,
        name: &'static CStr,
        coherence: Coherence,
        kind: Kind,
    ) -> Result<Self> {
        let len = usize::try_from(len)?;
        let end = start.checked_add(len as u64);
        if len == 0 || len % PAGE_SIZE != 0 || start % PAGE_SIZE as u64 != 0 || end.is_none() {
            return Err(EINVAL);
        }
        let region = Region::new(start, len, name)?;
        // SAFETY: By this function's contract; the range is ours as long as `region` exists.
        let base = unsafe { bindings::nk_map_memory(start, len) };
        Ok(Self {
            base: NonNull::new(base.cast()).ok_or(ENOMEM)?,
            coherence,
            poison: Atomic::new(NO_LINE),
            frozen: Atomic::new(false),
            kind,
            region,
        })
    }

    /// Whether the caches of all hosts are kept coherent.
    pub fn is_coherent(&self) -> bool {
        self.coherence == Coherence::Coherent
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.region.len
    }

    /// Physical address of the first byte.
    pub fn start(&self) -> u64 {
        self.region.start
    }

    /// All of it, for processes to map.
    pub fn mmap_range(self: &Arc<Self>) -> Option<MmapRange> {
        // SAFETY: Everybody may change this memory at any time, and it is reserved as long as the window exists, which knows its kind.
        unsafe { MmapRange::new(self.start(), self.len() as u64, self.kind, self.clone()) }
    }

    /// Offset of a physical address, if it and the `len` bytes from there lie inside.
    #[inline]
    pub fn offset_of(&self, address: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.region.start)?).ok()?;
        (offset.checked_add(len)? <= self.region.len).then_some(offset)
    }

    /// Pointer to `len` bytes at `offset`, if they lie inside.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        if offset.checked_add(len)? > self.region.len {
            return None;
        }
        // SAFETY: `offset` is inside the mapping, or its end, as just checked.
        Some(unsafe { self.base.as_ptr().add(offset) })
    }

    #[inline]
    fn word(&self, offset: usize) -> Option<&Atomic<u64>> {
        let word = self.at(offset, WORD)?;
        if offset % WORD != 0 {
            return None;
        }
        // SAFETY: The word lies inside and is aligned as just checked, for the mapping is to a page; it is mapped as long
        // as `self` lives. This host accesses it otherwise only through C functions.
        Some(unsafe { Atomic::from_ptr(word.cast()) })
    }

    /// Has reads of the line of an offset fail on this host, or of none, as if it were poisoned: for tests. It is not any more once
    /// all of it was written at one go.
    pub fn set_poisoned(&self, offset: Option<u64>) {
        let line = offset.map_or(NO_LINE, |offset| offset / LINE as u64 * LINE as u64);
        self.poison.store(line, Relaxed);
    }

    /// Has nobody show in it that this host lives, or go on with that: for tests.
    pub fn set_frozen(&self, frozen: bool) {
        self.frozen.store(frozen, Relaxed);
    }

    /// Whether that is so.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Relaxed)
    }

    /// `EIO` if some of the range is taken for poisoned.
    #[inline]
    pub(crate) fn check_poison(&self, offset: usize, len: usize) -> Result {
        let line = self.poison.load(Relaxed);
        if line == NO_LINE {
            return Ok(());
        }
        let (start, end) = (offset as u64, (offset as u64).saturating_add(len as u64));
        match line < end && start < line.saturating_add(LINE as u64) {
            true => Self::load_nowhere(),
            false => Ok(()),
        }
    }

    /// What a load of a poisoned line comes to: one that faults, and that the kernel survives in the same way. `EIO`.
    #[cold]
    fn load_nowhere() -> Result {
        let mut value = 0;
        // SAFETY: No processor has memory at this address, which is not canonical. That a load faults is what the function is for.
        match unsafe { bindings::nk_load_mc(ptr::without_provenance(NOWHERE), &mut value) } {
            true => Ok(()),
            false => Err(EIO),
        }
    }

    /// Loads a little-endian word; what its writer stored before it can be read afterwards. `EFAULT` outside, `EIO` if it is
    /// poisoned.
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> Result<u64> {
        let word = self.at(offset, WORD).filter(|_| offset % WORD == 0);
        let word = word.ok_or(EFAULT)?;
        self.check_poison(offset, WORD)?;
        let mut value = 0;
        // SAFETY: The word lies inside and is aligned, as just checked, for the mapping is to a page.
        match unsafe { bindings::nk_load_mc(word.cast(), &mut value) } {
            true => Ok(u64::from_le(value)),
            false => Err(EIO),
        }
    }

    /// Stores a little-endian word, after all that was stored before it. None, without effect, outside.
    #[inline]
    pub fn store_release(&self, offset: usize, value: u64) -> Option<()> {
        self.word(offset)?.store(value.to_le(), Release);
        Some(())
    }

    /// Stores `new` if `old` is there, and returns what was there; ordered as a full fence. Atomic among hosts where
    /// memory is coherent and their locked instructions reach it, which those of an emulated CPU need not. Errors as
    /// [`Window::load_acquire`].
    #[inline]
    pub fn compare_exchange(&self, offset: usize, old: u64, new: u64) -> Result<u64> {
        // What is poisoned is found here, and not by an instruction that the kernel would not survive.
        self.load_acquire(offset)?;
        let word = self.word(offset).ok_or(EFAULT)?;
        let (Ok(was) | Err(was)) = word.cmpxchg(old.to_le(), new.to_le(), Full);
        Ok(u64::from_le(was))
    }

    /// Copies bytes out. `EFAULT` outside, and the buffer is unchanged; `EIO` if some of them are poisoned, and it may be changed
    /// in part.
    #[inline]
    pub fn read(&self, offset: usize, buf: &mut [u8]) -> Result {
        let from = self.at(offset, buf.len()).ok_or(EFAULT)?;
        self.check_poison(offset, buf.len())?;
        // SAFETY: `at` found the bytes inside of the mapping; the buffer is not in it.
        match unsafe { bindings::nk_copy_mc(buf.as_mut_ptr().cast(), from.cast(), buf.len()) } {
            true => Ok(()),
            false => Err(EIO),
        }
    }

    /// Copies bytes in. None, without effect, outside.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Option<()> {
        let to = self.at(offset, bytes.len())?;
        // SAFETY: As in `read`.
        unsafe { bindings::nk_copy(to.cast(), bytes.as_ptr().cast(), bytes.len()) };
        let line = self.poison.load(Relaxed);
        let end = (offset as u64).saturating_add(bytes.len() as u64);
        if line != NO_LINE && offset as u64 <= line && line.saturating_add(LINE as u64) <= end {
            self.set_poisoned(None);
        }
        Some(())
    }

    /// Stores words that lie in memory as they are to lie there, in any order. None, and those outside are not stored, if not all are inside.
    #[inline]
    pub fn write_words<const WORDS: usize>(
        &self,
        offset: usize,
        words: [u64; WORDS],
    ) -> Option<()> {
        let places = (offset..).step_by(WORD);
        for (word, place) in words.into_iter().zip(places) {
            self.word(place)?.store(word, Relaxed);
        }
        Some(())
    }

    /// Zeroes bytes. None, without effect, outside.
    #[inline]
    pub fn clear(&self, range: Range<usize>) -> Option<()> {
        let first = self.at(range.start, range.len())?;
        // SAFETY: `at` found the bytes inside of the mapping.
        unsafe { bindings::nk_clear(first.cast(), range.len()) };
        Some(())
    }

    /// Makes what was stored in the range visible to other hosts before anything that is stored later. None, without
    /// effect, outside.
    #[inline]
    pub fn publish(&self, range: Range<usize>) -> Option<()> {
        let first = self.at(range.start, range.len())?;
        match self.coherence {
            // SAFETY: No requirements.
            Coherence::Coherent => unsafe { bindings::nk_store_fence() },
            // SAFETY: `at` found the bytes inside of the mapping.
            Coherence::WriteBack => unsafe { bindings::nk_write_back(first.cast(), range.len()) },
        }
        Some(())
    }

    /// Writes this host's copies of a range to the memory itself, whether others need that or not: before a loss of power,
    /// where the memory outlives it. None, without effect, outside.
    pub fn write_back(&self, range: Range<usize>) -> Option<()> {
        let first = self.at(range.start, range.len())?;
        // SAFETY: `at` found the bytes inside of the mapping.
        unsafe { bindings::nk_write_back(first.cast(), range.len()) };
        Some(())
    }

    /// Makes loads after it see what other hosts have published in the range. None, without effect, outside.
    ///
    /// Where memory is not coherent, lines of the range that this host has stored to are written back: they must be of its
    /// own alone.
    #[inline]
    pub fn refresh(&self, range: Range<usize>) -> Option<()> {
        let first = self.at(range.start, range.len())?;
        match self.coherence {
            // SAFETY: No requirements.
            Coherence::Coherent => unsafe { bindings::nk_load_fence() },
            // SAFETY: `at` found the bytes inside of the mapping.
            Coherence::WriteBack => unsafe { bindings::nk_invalidate(first.cast(), range.len()) },
        }
        Some(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: The mapping is ours, and nobody has it any more.
        unsafe { bindings::memunmap(self.base.as_ptr().cast()) };
    }
}
