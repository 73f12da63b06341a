// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Mapped memory that the controller reads and writes: rings and doorbell pages.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use nupa_engine::hal::SlotWord;
use nupa_engine::rings::{Doorbell, QueueMemory};
use nupa_proto::doorbell::{
    PAGE_SIZE, PUSH_OFFSET, PUSH_SLOTS, PUSH_SLOT_SIZE, SLOTS, SLOT_DRIVER, SLOT_SIZE,
};
#[cfg(test)]
use nupa_proto::uabi::{next_in, SLOT_MAPPINGS};
use nupa_proto::uabi::{SLOT_COPIES, SLOT_FORCED, SLOT_LIVE};
use nupa_proto::wqe::BLOCK_SIZE;
use rustix::io::Errno;
use rustix::mm::{madvise, mmap, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};

use super::process_bytes::ProcessBytes;

/// Bytes that device memory is accessed by.
const WORD: usize = size_of::<u64>();
/// Bytes, and alignment, of a word that both sides access atomically.
const ATOM: usize = size_of::<AtomicU32>();

/// A mapping of whole pages, unmapped when dropped.
///
/// # Invariants
///
/// - `base .. base + len` is mapped readable and writable for as long as the value lives; both are multiples of the
///   page size.
/// - No Rust reference to a byte of it exists except shared ones to atomics, and to an entry while it is shown, which borrows the
///   value exclusively.
#[derive(Debug)]
pub(crate) struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is process-wide memory with no tie to the thread that made it.
unsafe impl Send for Pages {}
// SAFETY: shared access is by raw copies and atomics, which is what a device that writes at any time demands in any case;
// the locks of the queues keep threads apart.
unsafe impl Sync for Pages {}

impl Pages {
    /// Zeroed memory for a ring, at least `len` bytes. A child of `fork()` does not get it, so that the pages that the
    /// controller knows stay those of this process.
    pub(crate) fn anonymous(len: usize) -> Result<Self, Errno> {
        let len = len
            .max(1)
            .checked_next_multiple_of(PAGE_SIZE)
            .ok_or(Errno::INVAL)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose an unused range, so no existing memory changes.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, prot, MapFlags::PRIVATE)? };
        let pages = Self::new(base.cast(), len)?;
        // SAFETY: the range was just mapped; the advice changes nothing in this process.
        unsafe { madvise(pages.base.as_ptr().cast(), len, Advice::LinuxDontFork)? };
        Ok(pages)
    }

    /// Maps `len` bytes of a file, at least as long, or of a device. Both numbers are multiples of the page size.
    pub(crate) fn of_file(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let base = unsafe { mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset)? };
        Self::new(base.cast(), len)
    }

    /// The mapping that `mmap()` returned for `len` bytes.
    fn new(base: *mut u8, len: usize) -> Result<Self, Errno> {
        let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// Address of the first byte, as the kernel is told it.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// The address of `offset`, if `len` bytes from there are inside.
    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `offset + len <= self.len`, so the result is inside the mapping or one past its end (invariant).
        Some(unsafe { self.base.as_ptr().add(offset) })
    }

    /// The atomic word at `offset`; none if it is misaligned or not inside.
    #[inline(always)]
    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        if offset % ATOM != 0 {
            return None;
        }
        let word = self.at(offset, size_of::<u32>())?.cast::<u32>();
        // SAFETY: in range (`at`), aligned as the offset is and mapped as long as `self` (invariant), and accessed only
        // atomically by this process through it.
        Some(unsafe { AtomicU32::from_ptr(word) })
    }

    /// Loads a little-endian word with acquire order; 0 outside.
    #[inline(always)]
    pub(crate) fn load(&self, offset: usize) -> u32 {
        self.word(offset)
            .map_or(0, |word| u32::from_le(word.load(Ordering::Acquire)))
    }

    /// Stores a little-endian word with release order; nothing outside.
    #[inline(always)]
    pub(crate) fn store(&self, offset: usize, value: u32) {
        if let Some(word) = self.word(offset) {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// Stores a little-endian word in place of the one that is expected there, in one step. False, and nothing is stored, if it is another one.
    pub(crate) fn compare_exchange(&self, offset: usize, expected: u32, value: u32) -> bool {
        let (expected, value) = (expected.to_le(), value.to_le());
        self.word(offset).is_some_and(|word| {
            word.compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }

    /// The atomic word of 64 bits at `offset`; none if it is misaligned or not inside.
    #[inline(always)]
    fn wide(&self, offset: usize) -> Option<&AtomicU64> {
        if offset % WORD != 0 {
            return None;
        }
        let word = self.at(offset, WORD)?.cast::<u64>();
        // SAFETY: in range (`at`), aligned as the offset is and mapped as long as `self` (invariant), and accessed only
        // atomically, or as bytes by raw copies, by this process through it.
        Some(unsafe { AtomicU64::from_ptr(word) })
    }

    /// As [`Pages::load`], of 64 bits.
    #[inline(always)]
    pub(crate) fn load_wide(&self, offset: usize) -> u64 {
        self.wide(offset)
            .map_or(0, |word| u64::from_le(word.load(Ordering::Acquire)))
    }

    /// As [`Pages::store`], of 64 bits.
    #[inline(always)]
    pub(crate) fn store_wide(&self, offset: usize, value: u64) {
        if let Some(word) = self.wide(offset) {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// As [`Pages::compare_exchange`], of 64 bits.
    #[inline(always)]
    pub(crate) fn compare_exchange_wide(&self, offset: usize, expected: u64, value: u64) -> bool {
        let (expected, value) = (expected.to_le(), value.to_le());
        self.wide(offset).is_some_and(|word| {
            word.compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }

    /// Copies memory of the program here; nothing if that does not fit, or there is none.
    #[inline(always)]
    pub(crate) fn write_from(&self, offset: usize, from: Option<ProcessBytes>) {
        let Some(from) = from else {
            return;
        };
        if let Some(to) = self.at(offset, from.len()) {
            // SAFETY: `at` checked the range here, the other is memory of the program (`ProcessBytes`), which may name this mapping.
            unsafe { ptr::copy(from.pointer(), to, from.len()) };
        }
    }

    /// The other way round.
    #[inline(always)]
    pub(crate) fn read_to(&self, offset: usize, to: Option<ProcessBytes>) {
        let Some(to) = to else {
            return;
        };
        if let Some(from) = self.at(offset, to.len()) {
            // SAFETY: as above; the program receives there.
            unsafe { ptr::copy(from, to.pointer(), to.len()) };
        }
    }

    /// Copies out of device memory, where each access is one on the bus: words where a word is left, else bytes.
    pub(crate) fn read_device(&self, offset: usize, buf: &mut [u8]) {
        let head = buf.len().min(WORD.wrapping_sub(offset % WORD));
        let (head, rest) = buf.split_at_mut(head);
        let mut at = self.read_bytes(offset, head);
        for chunk in rest.chunks_mut(WORD) {
            at = match (<&mut [u8; WORD]>::try_from(&mut *chunk), self.at(at, WORD)) {
                (Ok(word), Some(from)) => {
                    // SAFETY: inside (`at`); aligned, since mappings are and the bytes before led to a multiple.
                    *word = unsafe { from.cast::<u64>().read_volatile() }.to_le_bytes();
                    at.wrapping_add(WORD)
                }
                _ => self.read_bytes(at, chunk),
            };
        }
    }

    fn read_bytes(&self, offset: usize, buf: &mut [u8]) -> usize {
        let mut at = offset;
        for byte in buf {
            if let Some(from) = self.at(at, 1) {
                // SAFETY: inside (`at`).
                *byte = unsafe { from.read_volatile() };
            }
            at = at.wrapping_add(1);
        }
        at
    }

    /// Copies into device memory, as [`Pages::read_device`] does.
    pub(crate) fn write_device(&self, offset: usize, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(WORD.wrapping_sub(offset % WORD)));
        let mut at = self.write_bytes(offset, head);
        for chunk in rest.chunks(WORD) {
            at = match (<[u8; WORD]>::try_from(chunk), self.at(at, WORD)) {
                (Ok(word), Some(to)) => {
                    // SAFETY: as in `read_device`.
                    unsafe { to.cast::<u64>().write_volatile(u64::from_le_bytes(word)) };
                    at.wrapping_add(WORD)
                }
                _ => self.write_bytes(at, chunk),
            };
        }
    }

    fn write_bytes(&self, offset: usize, bytes: &[u8]) -> usize {
        let mut at = offset;
        for &byte in bytes {
            if let Some(to) = self.at(at, 1) {
                // SAFETY: inside (`at`).
                unsafe { to.write_volatile(byte) };
            }
            at = at.wrapping_add(1);
        }
        at
    }
}

impl QueueMemory for Pages {
    #[inline(always)]
    fn read(&self, offset: usize, buf: &mut [u8]) {
        match self.at(offset, buf.len()) {
            // SAFETY: `at` checked the range; `buf` is exclusive, so it is not in the mapping (invariant).
            Some(from) => unsafe { ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) },
            None => buf.fill(0),
        }
    }

    #[inline(always)]
    fn write(&self, offset: usize, bytes: &[u8]) {
        if let Some(to) = self.at(offset, bytes.len()) {
            // SAFETY: `at` checked the range; `bytes` is not in the mapping, to which no reference exists (invariant).
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
    }

    #[inline(always)]
    fn load_acquire(&self, offset: usize) -> u32 {
        self.load(offset)
    }

    /// As the provided one, with one check of the range.
    #[inline(always)]
    fn with_entry<const SIZE: usize, R>(
        &mut self,
        offset: usize,
        is_there: impl FnOnce(u32) -> bool,
        see: impl FnOnce(&[u8; SIZE]) -> R,
    ) -> Option<R> {
        const { assert!(SIZE >= ATOM && SIZE % ATOM == 0) }
        if offset % ATOM != 0 {
            return None;
        }
        let entry = self.at(offset, SIZE)?;
        // SAFETY: the last word of the range that `at` checked, aligned as offset, size and mapping (invariant) are;
        // accessed only atomically by this process.
        let valid = unsafe { AtomicU32::from_ptr(entry.add(const { SIZE - ATOM }).cast()) };
        if !is_there(u32::from_le(valid.load(Ordering::Acquire))) {
            return None;
        }
        // SAFETY: `at` checked the range; bytes have no alignment and any value. Nobody writes there meanwhile: by its contract
        // the controller does not, from the phase bit until it is told that the entry was taken, and this process writes
        // through `self` only, which is borrowed.
        Some(see(unsafe { &*entry.cast::<[u8; SIZE]>() }))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is what was mapped; `&mut self` shows that no reference into it is left.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok(), "munmap of an own mapping failed");
    }
}

/// A doorbell page pair of this context.
#[derive(Debug)]
pub(crate) struct DoorbellPair {
    /// Doorbell and push slots.
    pub(crate) shared: Pages,
    /// Where kicks go; where nobody traps them, zeroed memory of this process.
    pub(crate) trapped: Pages,
    /// Whether the controller looks at push slots.
    pub(crate) push: bool,
}

/// One doorbell slot of a pair.
///
/// # Invariants
///
/// `words` is aligned and points to the words of the slot in `pair.shared`, `kick` to those in `pair.trapped`, `push` to
/// a block of bytes in `pair.shared`; so they can be used for as long as the value lives.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    words: NonNull<AtomicU32>,
    kick: NonNull<AtomicU32>,
    /// The push slot, if there is one.
    push: Option<NonNull<u8>>,
    #[expect(dead_code, reason = "keeps the pages mapped")]
    pair: Arc<DoorbellPair>,
}

// SAFETY: the pointers are to what `pair` holds, which may be sent and shared; see `Pages`.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

/// Index of the push word behind a slot's kick word in the trapped page.
const PUSH_KICK: usize = 1;

impl Slot {
    /// A slot by number, as the kernel gave it.
    pub(crate) fn new(pair: &Arc<DoorbellPair>, number: u16) -> Result<Self, Errno> {
        if number >= SLOTS {
            return Err(Errno::INVAL);
        }
        let slot = usize::from(number);
        let at = slot.saturating_mul(SLOT_SIZE);
        let place = |pages: &Pages, at, len| {
            let address = pages.at(at, len).and_then(NonNull::new);
            address.ok_or(Errno::INVAL)
        };
        let push_at = PUSH_OFFSET.saturating_add(slot.saturating_mul(PUSH_SLOT_SIZE));
        let push = if pair.push && number < PUSH_SLOTS {
            Some(place(&pair.shared, push_at, BLOCK_SIZE)?)
        } else {
            None
        };
        // Pages are aligned, and slots are whole words.
        Ok(Self {
            words: place(&pair.shared, at, SLOT_SIZE)?.cast(),
            kick: place(&pair.trapped, at, SLOT_SIZE)?.cast(),
            push,
            pair: Arc::clone(pair),
        })
    }

    #[inline(always)]
    fn word(&self, word: SlotWord) -> &AtomicU32 {
        let index = word.offset() >> size_of::<u32>().trailing_zeros();
        // SAFETY: the words of a slot (invariant); this process accesses them only atomically.
        unsafe { self.words.add(index).as_ref() }
    }

    /// Whether the device is there: once it is not, no queue of it is written to any more.
    #[inline(always)]
    pub(crate) fn is_live(&self) -> bool {
        // All ones are what is read of a function that was pulled.
        let word = self.drivers_word().load(Ordering::Acquire);
        u32::from_le(word) & SLOT_LIVE != 0 && word != u32::MAX
    }

    /// What to begin copies with to a mapping that is made afterwards, for the queue pair of this send queue. Not during a copy.
    pub(crate) fn mappings(&self) -> u32 {
        // A thread that left a copy by a signal has not ended it.
        let word = self
            .drivers_word()
            .fetch_and(!SLOT_COPIES.to_le(), Ordering::SeqCst);
        u32::from_le(word) & !SLOT_COPIES
    }

    /// Says that there is a copy, unless a mapping was taken away since [`Slot::mappings`] was this. It is not taken away before [`Slot::end_copy`], unless that takes
    /// long. A full fence. One thread at a time.
    #[inline]
    pub(crate) fn begin_copy(&self, mappings: u32) -> bool {
        let (from, to) = (mappings.to_le(), (mappings | SLOT_COPIES).to_le());
        let order = Ordering::SeqCst;
        let begun = self.drivers_word().compare_exchange(from, to, order, order);
        begun.is_ok()
    }

    /// The copy is done. Whether the mapping was there all the time. A full fence.
    #[inline]
    pub(crate) fn end_copy(&self, mappings: u32) -> bool {
        let (from, to) = ((mappings | SLOT_COPIES).to_le(), mappings.to_le());
        let (word, order) = (self.drivers_word(), Ordering::SeqCst);
        if word.compare_exchange(from, to, order, order).is_ok() {
            return true;
        }
        // The kernel waits for this, or has waited long enough.
        let left = u32::from_le(word.fetch_and(!SLOT_COPIES.to_le(), order));
        left & SLOT_LIVE != 0 && (left ^ mappings) & SLOT_FORCED == 0
    }

    /// What the kernel does before it takes a mapping away; `forced`: although there is a copy.
    #[cfg(test)]
    pub(crate) fn change_mappings(&self, forced: bool) {
        let bits = if forced { SLOT_FORCED } else { SLOT_MAPPINGS };
        let word = self.drivers_word();
        let next = next_in(u32::from_le(word.load(Ordering::SeqCst)), bits);
        word.store(next.to_le(), Ordering::SeqCst);
    }

    #[inline(always)]
    fn drivers_word(&self) -> &AtomicU32 {
        const INDEX: usize = SLOT_DRIVER / size_of::<u32>();
        // SAFETY: a word of the slot (invariant); this process accesses them only atomically.
        unsafe { self.words.add(INDEX).as_ref() }
    }

    #[inline(always)]
    fn trap(&self, index: usize, value: u32) {
        // SAFETY: one of the first two words of the slot (invariant).
        let word = unsafe { self.kick.add(index).as_ref() };
        word.store(value.to_le(), Ordering::Release);
    }
}

impl Doorbell for Slot {
    #[inline(always)]
    fn load(&self, word: SlotWord) -> u32 {
        u32::from_le(self.word(word).load(Ordering::Acquire))
    }

    #[inline(always)]
    fn store(&self, word: SlotWord, value: u32) {
        self.word(word).store(value.to_le(), Ordering::Release);
    }

    #[inline]
    fn compare_exchange(&self, word: SlotWord, expected: u32, value: u32) -> bool {
        let (expected, value) = (expected.to_le(), value.to_le());
        let order = Ordering::SeqCst;
        self.word(word)
            .compare_exchange(expected, value, order, order)
            .is_ok()
    }

    #[inline(always)]
    fn fence(&self) {
        // MFENCE, not a locked instruction: QEMU's emulation of a single processor turns the latter into plain accesses,
        // and the controller runs on another one all the same.
        fence(Ordering::SeqCst);
    }

    #[inline(always)]
    fn kick(&self, index: u32) {
        self.trap(0, index);
    }

    #[inline(always)]
    fn push(&self, block: &[u8; BLOCK_SIZE], index: u32) -> bool {
        let Some(to) = self.push else {
            return false;
        };
        // SAFETY: a whole block (invariant); `block` is not in the mapping, to which no reference exists.
        unsafe { ptr::copy_nonoverlapping(block.as_ptr(), to.as_ptr(), BLOCK_SIZE) };
        self.trap(PUSH_KICK, index);
        true
    }
}
