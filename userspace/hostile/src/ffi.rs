// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Mapped memory, and the system calls that no safe crate has.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::ioctl::{self, opcode, Updater};
use rustix::mm::{madvise, mmap, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};

/// Bytes of a word.
pub(crate) const WORD: usize = size_of::<AtomicU32>();
/// Bytes of a long word, of which a pool consists.
pub(crate) const LONG: usize = size_of::<AtomicU64>();

/// Whole pages that a controller, the kernel and all threads write to at any time; unmapped when dropped.
///
/// # Invariants
///
/// - `base .. base + len` is mapped readable and writable for as long as the value lives; both are multiples of the page size.
/// - No Rust reference to a byte of it exists except shared ones to atomics.
#[derive(Debug)]
pub(crate) struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is process-wide memory with no tie to the thread that made it.
unsafe impl Send for Pages {}
// SAFETY: all access is by atomics.
unsafe impl Sync for Pages {}

impl Pages {
    /// Zeroed memory of this process, at least so many bytes.
    pub(crate) fn anonymous(len: usize) -> Result<Self, Errno> {
        let len = len.max(1).next_multiple_of(rustix::param::page_size());
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose an unused range, so no existing memory changes.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, prot, MapFlags::PRIVATE)? };
        Self::new(base.cast(), len)
    }

    /// Maps `len` bytes of a file or a device, wherever that lets it; a multiple of the page size.
    pub(crate) fn of_file(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above. What the device maps there is not memory of this process.
        let base = unsafe { mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset)? };
        Self::new(base.cast(), len)
    }

    /// The mapping that `mmap()` returned for `len` bytes.
    fn new(base: *mut u8, len: usize) -> Result<Self, Errno> {
        let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.len
    }

    /// Address of the first byte, as the kernel is told it.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// The word at a byte offset, which is rounded down.
    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let at = offset.checked_div(WORD)?.checked_mul(WORD)?;
        if at.checked_add(WORD)? > self.len {
            return None;
        }
        // SAFETY: in range, aligned as a page's start and a multiple of the word are, mapped as long as `self` (invariant), and
        // accessed only atomically by this process.
        Some(unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) })
    }

    /// Loads a word; 0 outside.
    pub(crate) fn load(&self, offset: usize) -> u32 {
        let word = self.word(offset);
        word.map_or(0, |word| u32::from_le(word.load(Ordering::Acquire)))
    }

    /// Stores a word; nothing outside.
    pub(crate) fn store(&self, offset: usize, value: u32) {
        if let Some(word) = self.word(offset) {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// Stores bytes as words; the rest of the last one is zeros.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        for (at, piece) in (offset..).step_by(WORD).zip(bytes.chunks(WORD)) {
            let mut word = [0; WORD];
            word.iter_mut()
                .zip(piece)
                .for_each(|(to, from)| *to = *from);
            self.store(at, u32::from_le_bytes(word));
        }
    }

    /// Gives a page back to the kernel, which has a new one of zeros there at the next access. A controller that knows the old one
    /// goes on with that.
    pub(crate) fn forget(&self, offset: usize) -> Result<(), Errno> {
        let page = rustix::param::page_size();
        let at = offset
            .checked_div(page)
            .and_then(|number| number.checked_mul(page));
        let Some(at) = at.filter(|at| *at < self.len) else {
            return Ok(());
        };
        // SAFETY: a whole page of the mapping (invariant); it stays mapped, and its bytes are nobody's but atomics'.
        unsafe {
            madvise(
                self.base.as_ptr().add(at).cast(),
                page,
                Advice::LinuxDontNeed,
            )
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: what `mmap()` returned and was given; references into it borrow from `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// `RDMA_VERBS_IOCTL` (include/uapi/rdma/rdma_user_ioctl_cmds.h): a header of 24 bytes.
const RDMA_VERBS_IOCTL: ioctl::Opcode = opcode::read_write::<[u8; 24]>(0x1b, 1);

/// Most bytes of a request of the newer interface.
pub(crate) const REQUEST: usize = 1024;

/// Makes a request of the newer interface, which the kernel writes back to. It says its own length, of [`REQUEST`] bytes at most.
pub(crate) fn request(fd: BorrowedFd<'_>, body: &mut [u8; REQUEST]) -> Result<(), Errno> {
    // The kernel reads and writes as many bytes as the first two say.
    let [low, high, ..] = *body;
    if usize::from(u16::from_le_bytes([low, high])) > REQUEST {
        return Err(Errno::INVAL);
    }
    // SAFETY: this request reads and writes inside of the buffer, which is as long as it says, and where its attributes point to:
    // places in `Pages`, which are atomics, or addresses that are not mapped.
    unsafe { ioctl::ioctl(fd, Updater::<RDMA_VERBS_IOCTL, [u8; REQUEST]>::new(body)) }
}

/// The same of long words, of which a pool's memory consists. Words of both sizes in one place would be a race of accesses that overlap
/// in part, which even atomics must not have.
#[derive(Debug)]
pub(crate) struct LongPages(Pages);

impl LongPages {
    /// As [`Pages::anonymous`].
    #[cfg(test)]
    pub(crate) fn anonymous(len: usize) -> Result<Self, Errno> {
        Pages::anonymous(len).map(Self)
    }

    /// As [`Pages::of_file`].
    pub(crate) fn of_file(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        Pages::of_file(fd, offset, len).map(Self)
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The long word at a byte offset, which is rounded down.
    fn long(&self, offset: usize) -> Option<&AtomicU64> {
        let at = offset.checked_div(LONG)?.checked_mul(LONG)?;
        if at.checked_add(LONG)? > self.0.len {
            return None;
        }
        // SAFETY: as in `Pages::word`. The mapping is this type's alone, which has no words of another size.
        Some(unsafe { AtomicU64::from_ptr(self.0.base.as_ptr().add(at).cast()) })
    }

    /// Loads a long word; 0 outside.
    pub(crate) fn load_long(&self, offset: usize) -> u64 {
        let long = self.long(offset);
        long.map_or(0, |long| u64::from_le(long.load(Ordering::Acquire)))
    }

    /// Stores a long word; nothing outside.
    pub(crate) fn store_long(&self, offset: usize, value: u64) {
        if let Some(long) = self.long(offset) {
            long.store(value.to_le(), Ordering::Release);
        }
    }
}
