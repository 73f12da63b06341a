// SPDX-License-Identifier: GPL-2.0
//! The host's memory by DMA address, for a device that is software.
//!
//! C headers: `include/linux/mm.h`, `include/linux/dma-map-ops.h`.

use crate::{bindings, raw, window::Window};
use kernel::{
    device::{Core, Device},
    error::to_result,
    page::Page,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, AtomicType, Full, Release},
        Arc,
    },
};

/// Physical address of a page.
pub fn physical(page: &Page) -> u64 {
    // SAFETY: The page is there.
    unsafe { bindings::nk_page_phys(page.as_ptr()) }
}

/// Memory as a device would reach it: all that the kernel's allocators give out, and a window if there is one.
///
/// Addresses are checked before anything is done: `EFAULT`, and no effect, where there is no such memory or it is not
/// aligned. `EIO` where memory of the window is poisoned. That memory which exists is still the one that its address was made for is up to its owner, as for a device.
/// Any context.
#[derive(Clone)]
pub struct HostMemory {
    window: Option<Arc<Window>>,
}

impl HostMemory {
    /// Memory by the DMA addresses of `device`, which from now on are physical ones of 64 bits; those in `window` are of
    /// the window. `EOPNOTSUPP` if an IOMMU translates addresses of this device, or memory is encrypted. Sleeps.
    ///
    /// To be called in `probe`, before anything is mapped or allocated for DMA.
    pub fn new(device: &Device<Core<'_>>, window: Option<Arc<Window>>) -> Result<Self> {
        // SAFETY: `device` is valid, and no other driver code runs for it in this context.
        to_result(unsafe { bindings::nk_dma_physical(raw::device(device)) })?;
        Ok(Self { window })
    }

    /// Memory by physical address; that in `window` is of the window. For who has no device.
    pub fn of_window(window: Arc<Window>) -> Self {
        Self {
            window: Some(window),
        }
    }

    /// Whether `len` bytes at a physical address, at least one, are memory of the kernel's allocators, and may be written if
    /// `write` says so.
    pub fn is_memory(address: u64, len: usize, write: bool) -> bool {
        // SAFETY: No requirements.
        !unsafe { bindings::nk_host_memory(address, len, write) }.is_null()
    }

    /// Where `len` bytes at an address are, and may be read or written as `write` says.
    #[inline]
    fn at(&self, address: u64, len: usize, write: bool) -> Result<*mut u8> {
        if let Some(window) = &self.window {
            if let Some(offset) = window.offset_of(address, len) {
                return window.at(offset, len).ok_or(EFAULT);
            }
        }
        // SAFETY: No requirements.
        let memory: *mut u8 = unsafe { bindings::nk_host_memory(address, len, write) }.cast();
        if memory.is_null() {
            return Err(EFAULT);
        }
        Ok(memory)
    }

    /// Copies `len` bytes, at least one, from an address to memory. Of what is not the window's there is nothing to fear: what
    /// the page allocator gives out is this host's own.
    ///
    /// # Safety
    ///
    /// `len` bytes can be stored at `to`.
    #[inline]
    unsafe fn copy_out(&self, from: u64, to: *mut u8, len: usize) -> Result {
        let window = self.window.as_ref();
        let place = window.and_then(|window| Some((window, window.offset_of(from, len)?)));
        let Some((window, offset)) = place else {
            let from = self.at(from, len, false)?;
            // SAFETY: `at` found memory that is mapped, and the caller promises the rest; a race with its owner spoils the
            // bytes, as with a device.
            unsafe { bindings::nk_copy(to.cast(), from.cast(), len) };
            return Ok(());
        };
        let from = window.at(offset, len).ok_or(EFAULT)?;
        window.check_poison(offset, len)?;
        // SAFETY: As above.
        match unsafe { bindings::nk_copy_mc(to.cast(), from.cast(), len) } {
            true => Ok(()),
            false => Err(EIO),
        }
    }

    /// A naturally aligned word.
    #[inline]
    fn word<T: AtomicType>(&self, address: u64) -> Result<&Atomic<T>> {
        if address % size_of::<T>() as u64 != 0 {
            return Err(EFAULT);
        }
        let word = self.at(address, size_of::<T>(), true)?;
        // SAFETY: `at` found memory that is mapped, and the address is aligned, as that of every mapping is to a page.
        // Rust code has no reference to memory that devices write.
        Ok(unsafe { Atomic::from_ptr(word.cast()) })
    }

    /// Copies bytes out.
    #[inline]
    pub fn read(&self, address: u64, buf: &mut [u8]) -> Result {
        if buf.is_empty() {
            return Ok(());
        }
        // SAFETY: The buffer is as long.
        unsafe { self.copy_out(address, buf.as_mut_ptr(), buf.len()) }
    }

    /// Copies bytes in.
    #[inline]
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result {
        if bytes.is_empty() {
            return Ok(());
        }
        let to = self.at(address, bytes.len(), true)?;
        // SAFETY: As in `read`. Rust code has no reference to memory that devices write.
        unsafe { bindings::nk_copy(to.cast(), bytes.as_ptr().cast(), bytes.len()) };
        Ok(())
    }

    /// Copies `len` bytes from one address to another. The ranges may overlap.
    #[inline]
    pub fn copy(&self, from: u64, to: u64, len: usize) -> Result {
        if len == 0 {
            return Ok(());
        }
        let to = self.at(to, len, true)?;
        // SAFETY: As in `write`.
        unsafe { self.copy_out(from, to, len) }
    }

    /// As [`HostMemory::copy`], with non-temporal stores. What is in the window is [published](Window::publish) then.
    pub fn copy_nontemporal(&self, from: u64, to: u64, len: usize) -> Result {
        if len == 0 {
            return Ok(());
        }
        let window = self.window.as_ref();
        // What may be poisoned is read with care.
        if window.is_some_and(|window| window.offset_of(from, len).is_some()) {
            self.copy(from, to, len)?;
            if let Some(to) = window.and_then(|window| window.offset_of(to, len)) {
                window.and_then(|window| window.publish(to..to.saturating_add(len)));
            }
            return Ok(());
        }
        let (from, to) = (self.at(from, len, false)?, self.at(to, len, true)?);
        // SAFETY: As in `copy_out` and in `write`.
        unsafe { bindings::nk_copy_nontemporal(to.cast(), from.cast(), len) };
        Ok(())
    }

    /// A word for operations that read it. One that is poisoned is found here, and not by an instruction that the kernel would
    /// not survive.
    #[inline]
    fn readable_word(&self, address: u64) -> Result<&Atomic<u64>> {
        let window = self.window.as_ref();
        let place =
            window.and_then(|window| Some((window, window.offset_of(address, size_of::<u64>())?)));
        if let Some((window, offset)) = place {
            window.load_acquire(offset)?;
        }
        self.word(address)
    }

    /// Loads an aligned little-endian word; what its owner stored before it can be read afterwards.
    #[inline]
    pub fn load_acquire(&self, address: u64) -> Result<u32> {
        Ok(u32::from_le(self.word::<u32>(address)?.load(Acquire)))
    }

    /// Checks that `len` bytes, at least one, can be read and written.
    pub fn check(&self, address: u64, len: usize) -> Result {
        self.at(address, len, true).map(|_| ())
    }

    /// Writes the processors' copies of `len` bytes in the window back; nothing for other memory, which all that reaches it
    /// does through these caches.
    pub fn write_back(&self, address: u64, len: usize) -> Result {
        let Some(window) = &self.window else {
            return Ok(());
        };
        match window.offset_of(address, len) {
            Some(offset) => window
                .write_back(offset..offset.saturating_add(len))
                .ok_or(EFAULT),
            None => Ok(()),
        }
    }

    /// Stores an aligned little-endian word, after all that was stored before it.
    #[inline]
    pub fn store_release(&self, address: u64, value: u32) -> Result {
        self.word::<u32>(address)?.store(value.to_le(), Release);
        Ok(())
    }

    /// Stores `value` in an aligned little-endian word if `expected` is there; returns whether it was. A full fence.
    #[inline]
    pub fn compare_exchange(&self, address: u64, expected: u32, value: u32) -> Result<bool> {
        let word = self.word::<u32>(address)?;
        let swapped = word.cmpxchg(expected.to_le(), value.to_le(), Full);
        Ok(swapped.is_ok())
    }

    /// Stores `swap` in an aligned little-endian word if `compare` is there; returns what was there. A full fence.
    #[inline]
    pub fn compare_swap(&self, address: u64, compare: u64, swap: u64) -> Result<u64> {
        let word = self.readable_word(address)?;
        let (Ok(was) | Err(was)) = word.cmpxchg(compare.to_le(), swap.to_le(), Full);
        Ok(u64::from_le(was))
    }

    /// Adds to an aligned little-endian word, wrapping around; returns what was there. A full fence.
    #[inline]
    pub fn fetch_add(&self, address: u64, value: u64) -> Result<u64> {
        // Of words in another order the sum would have to be made by hand; see the assertion below.
        Ok(self.readable_word(address)?.fetch_add(value, Full))
    }

    /// Stores an aligned little-endian word; returns what was there. A full fence.
    #[inline]
    pub fn swap(&self, address: u64, value: u64) -> Result<u64> {
        // What was there is read, too.
        let word = self.readable_word(address)?;
        Ok(u64::from_le(word.xchg(value.to_le(), Full)))
    }
}

const _: () = assert!(cfg!(target_endian = "little"), "for `fetch_add`");
