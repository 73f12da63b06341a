// SPDX-License-Identifier: GPL-2.0
//! Pinned memory of user space.
//!
//! C headers: `include/rdma/ib_umem.h`, `include/rdma/iter.h`.

use crate::{bindings, device::Device, Access, Driver};
use core::{cell::OnceCell, marker::PhantomData, ptr::NonNull};
use kernel::{
    error::{from_err_ptr, to_result},
    prelude::*,
};

/// Memory of a process, or of a DMA buffer, that is pinned and mapped for the device of an object.
///
/// It counts against the process's memory lock limit (`RLIMIT_MEMLOCK`).
pub struct Umem {
    raw: NonNull<bindings::ib_umem>,
}

// SAFETY: Creation and release may be done by any thread. It is not `Sync`: `blocks` changes it.
unsafe impl Send for Umem {}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: It is ours; by the rules of `Pins` the device is still there and does not use the memory any more.
        unsafe { bindings::ib_umem_release(self.raw.as_ptr()) };
    }
}

impl Umem {
    fn new(raw: *mut bindings::ib_umem) -> Result<Self> {
        let raw = NonNull::new(from_err_ptr(raw)?).ok_or(EINVAL)?;
        Ok(Self { raw })
    }

    /// Pins memory of the calling process.
    fn pin<D: Driver>(dev: &Device<D>, addr: u64, len: usize, access: Access) -> Result<Self> {
        // SAFETY: The device is registered; the function checks everything else.
        Self::new(unsafe { bindings::nk_rdma_umem_get(dev.as_raw(), addr, len, access.to_raw()) })
    }

    /// Pins part of a DMA buffer of the calling process.
    fn pin_dmabuf<D: Driver>(
        dev: &Device<D>,
        fd: i32,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: As in `pin`.
        let dmabuf = from_err_ptr(unsafe {
            bindings::ib_umem_dmabuf_get_pinned(
                dev.as_raw(),
                offset as usize,
                len,
                fd,
                access.to_raw(),
            )
        })?;
        // SAFETY: It is valid; the embedded structure stands for it, also towards `ib_umem_release()`.
        Self::new(unsafe { &raw mut (*dmabuf).umem })
    }

    /// The pieces that it consists of.
    pub fn pieces(&self) -> Pieces<'_> {
        // SAFETY: The memory is pinned, so its list is complete and does not change.
        let list = unsafe { (*self.raw.as_ptr()).sgt_append.sgt };
        Pieces {
            next: list.sgl,
            left: list.nents,
            _umem: PhantomData,
        }
    }

    /// Whether it was pinned for writing.
    pub fn is_writable(&self) -> bool {
        // SAFETY: The memory is pinned, and this does not change any more.
        unsafe { (*self.raw.as_ptr()).writable() != 0 }
    }

    /// The memory as blocks of the largest size out of `sizes` (a bit each) in which its first byte, which the device
    /// is to know as `iova`, is `iova % size` into the first block. `EINVAL` if there is none.
    pub fn blocks(&self, sizes: u64, iova: u64) -> Result<Blocks<'_>> {
        // SAFETY: The memory is pinned. The function writes `iova`, which is read here and nowhere else, by one thread at a
        // time because `Self` is not `Sync`.
        let size =
            unsafe { bindings::ib_umem_find_best_pgsz(self.raw.as_ptr(), sizes as usize, iova) };
        if size == 0 {
            return Err(EINVAL);
        }
        // SAFETY: The size is one that the function above found.
        let total = unsafe { bindings::nk_rdma_umem_blocks(self.raw.as_ptr(), size) };
        let mut iter = bindings::ib_block_iter::default();
        // SAFETY: As above.
        unsafe { bindings::nk_rdma_umem_start(&mut iter, self.raw.as_ptr(), size) };
        Ok(Blocks {
            iter,
            shift: size.trailing_zeros() as u8,
            total,
            _umem: PhantomData,
        })
    }
}

/// Contiguous pieces of [`Umem`], as they are mapped for the device.
pub struct Pieces<'a> {
    next: *mut bindings::scatterlist,
    left: u32,
    _umem: PhantomData<&'a Umem>,
}

impl Iterator for Pieces<'_> {
    /// DMA address and bytes; whole pages.
    type Item = (u64, usize);

    fn next(&mut self) -> Option<(u64, usize)> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let (mut address, mut len) = (0, 0);
        // SAFETY: `next` is an entry of the list of memory that is still pinned; there are `left` more behind it.
        self.next = unsafe { bindings::nk_rdma_umem_piece(self.next, &mut address, &mut len) };
        Some((address, len))
    }
}

/// DMA addresses of the blocks that [`Umem`] consists of.
pub struct Blocks<'a> {
    iter: bindings::ib_block_iter,
    shift: u8,
    total: usize,
    _umem: PhantomData<&'a Umem>,
}

impl Blocks<'_> {
    /// log2 of the bytes of a block.
    pub fn shift(&self) -> u8 {
        self.shift
    }

    /// How many there are in all.
    pub fn total(&self) -> usize {
        self.total
    }
}

impl Iterator for Blocks<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let mut addr = 0;
        // SAFETY: The iterator was started on memory that is still pinned.
        unsafe { bindings::nk_rdma_umem_next(&mut self.iter, &mut addr) }.then_some(addr)
    }
}

/// Most pieces of memory that are pinned for one object.
const MAX_PINS: usize = 2;

/// Pieces of user memory that belong to an object: they are released after its data is dropped.
#[derive(Default)]
pub struct Pins {
    slots: [OnceCell<Umem>; MAX_PINS],
}

impl Pins {
    /// Pins `len` bytes at `addr` of the calling process, for as long as there is the object.
    ///
    /// `EFAULT` or `EINVAL` for memory that is not there or may not be accessed so, `ENOMEM` beyond the memory lock
    /// limit, `ENOSPC` for more pieces than objects have. Sleeps.
    pub fn pin<D: Driver>(
        &self,
        dev: &Device<D>,
        addr: u64,
        len: usize,
        access: Access,
    ) -> Result<&Umem> {
        self.keep(|| Umem::pin(dev, addr, len, access))
    }

    /// As [`Pins::pin`], for part of a DMA buffer. `EBADF` if `fd` is none.
    pub(crate) fn pin_dmabuf<D: Driver>(
        &self,
        dev: &Device<D>,
        fd: i32,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<&Umem> {
        self.keep(|| Umem::pin_dmabuf(dev, fd, offset, len, access))
    }

    /// Refuses new rights to a region that is to keep its memory (`ib_umem_check_rereg()`): `EACCES` for writing to
    /// what was pinned for reading.
    pub(crate) fn check_rereg(&self, flags: i32, access: Access) -> Result {
        for umem in self.slots.iter().filter_map(OnceCell::get) {
            // SAFETY: The memory is pinned; the function only looks at how.
            to_result(unsafe {
                bindings::ib_umem_check_rereg(umem.raw.as_ptr(), flags, access.to_raw())
            })?;
        }
        Ok(())
    }

    /// Whether all of the memory was pinned for writing.
    pub(crate) fn writable(&self) -> bool {
        let mut all = self.slots.iter().filter_map(OnceCell::get);
        all.all(Umem::is_writable)
    }

    fn keep(&self, pin: impl FnOnce() -> Result<Umem>) -> Result<&Umem> {
        let slot = self.slots.iter().find(|slot| slot.get().is_none());
        let slot = slot.ok_or(ENOSPC)?;
        let umem = pin()?;
        Ok(slot.get_or_init(|| umem))
    }
}
