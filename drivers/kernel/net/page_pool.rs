// SPDX-License-Identifier: GPL-2.0
//! Receive memory: pages that stay mapped for the device and come back when their packets are freed.
//!
//! C header: `include/net/page_pool/helpers.h`, `Documentation/networking/page_pool.rst`

use super::{
    napi::{NapiAnchor, NapiContext},
    skb::SkBuff,
    xdp::{self, XdpBuff},
};
use crate::{bindings, raw};
use core::ptr::NonNull;
use kernel::{
    device,
    dma::DmaAddress,
    error::{from_err_ptr, to_result},
    page::PAGE_SIZE,
    prelude::*,
    sync::{aref::ARef, Arc},
    types::Opaque,
};

/// A page pool of one receive queue.
///
/// Pages that are still out when it is dropped keep the C object alive until they come back. To be dropped when its NAPI is
/// disabled; may sleep.
///
/// # Invariants
///
/// The pointer is to a page pool that this owns.
pub struct PagePool {
    pool: NonNull<bindings::page_pool>,
    /// Bytes of a page.
    page_size: u32,
    /// Of these, a buffer.
    offset: u32,
    size: u32,
    /// The queue as XDP knows it, if programs may see what it receives. It refers to the pool.
    rxq: Option<KBox<Opaque<bindings::xdp_rxq_info>>>,
    /// The pool refers to it until it is destroyed.
    napi: Arc<dyn NapiAnchor>,
    _device: ARef<device::Device>,
}

// SAFETY: The pool may be used from any one thread at a time, which `&mut` and ownership see to.
unsafe impl Send for PagePool {}

impl PagePool {
    /// Creates a pool of pages, each of 2^`order` of the processor's, for a queue of `entries` buffers, mapped for `device`.
    ///
    /// `napi` polls the queue: packets that it frees itself return their pages without a lock. If it is given, programs may see what
    /// the queue of this number receives, and its buffers have [`xdp::room`] for a frame. May sleep.
    pub fn new(
        device: &device::Device,
        napi: Arc<dyn NapiAnchor>,
        entries: u32,
        order: u32,
        xdp: Option<u32>,
    ) -> Result<Self> {
        let size = PAGE_SIZE.checked_shl(order).ok_or(EINVAL)?;
        let page_size = u32::try_from(size)?;
        let (offset, size) = match xdp {
            Some(_) => (xdp::HEADROOM, xdp::room(order)),
            None => (0, page_size),
        };
        let mut params: bindings::page_pool_params = pin_init::zeroed();
        params.__bindgen_anon_1.fast =
            bindings::page_pool_params__bindgen_ty_1_page_pool_params_fast {
                order,
                pool_size: entries,
                nid: bindings::NUMA_NO_NODE,
                dev: raw::device(device),
                napi: napi.as_napi(),
                dma_dir: bindings::dma_data_direction_DMA_FROM_DEVICE,
                max_len: size,
                offset,
            };
        params.__bindgen_anon_2.slow.netdev = napi.as_netdev();
        params.__bindgen_anon_2.slow.flags =
            bindings::nk_const_NK_PP_FLAG_DMA_MAP | bindings::nk_const_NK_PP_FLAG_DMA_SYNC_DEV;
        // SAFETY: The parameters are complete; what they point to is kept alive by the fields of `Self`.
        let pool = from_err_ptr(unsafe { bindings::page_pool_create(&params) })?;
        let mut this = Self {
            // INVARIANT: Just created.
            pool: NonNull::new(pool).ok_or(ENOMEM)?,
            page_size,
            offset,
            size,
            rxq: None,
            napi,
            _device: device.into(),
        };
        if let Some(queue) = xdp {
            this.register(queue)?;
        }
        Ok(this)
    }

    /// Lets XDP know the queue.
    fn register(&mut self, queue: u32) -> Result {
        let rxq = KBox::new(Opaque::new(pin_init::zeroed()), GFP_KERNEL)?;
        // SAFETY: Zeroes are what it begins with; it stays where it is until `drop` undoes this. The device lives as long as the instance.
        to_result(unsafe {
            bindings::nk_xdp_rxq_reg(
                rxq.get(),
                self.napi.as_netdev(),
                queue,
                self.pool.as_ptr(),
                self.page_size,
            )
        })?;
        self.rxq = Some(rxq);
        Ok(())
    }

    /// Whether a buffer is a whole page of this pool.
    #[inline]
    fn owns(&self, buffer: &RxBuffer) -> bool {
        // SAFETY: By the invariants of the buffer.
        let pool = unsafe { bindings::nk_page_pool_of(buffer.page.as_ptr()) };
        core::ptr::eq(pool, self.pool.as_ptr())
            && buffer.offset == self.offset
            && buffer.size == self.size
    }

    /// Makes a frame for programs of one whose first `len` bytes are in `buffer`. `EINVAL` if the pool is not for that, is another's, or
    /// the buffer is not one of it as they come.
    #[inline]
    pub fn frame<'a>(
        &self,
        context: &'a NapiContext<'_>,
        buffer: RxBuffer,
        len: u32,
    ) -> Result<XdpBuff<'a>> {
        let rxq = self.rxq.as_ref().ok_or(EINVAL)?;
        let ours = core::ptr::eq(context.as_napi(), self.napi.as_napi());
        if !ours || !self.owns(&buffer) || len > self.size {
            return Err(EINVAL);
        }
        // SAFETY: As checked. While polling is enabled, as it is now, neither pool nor queue go, see `drop`.
        unsafe { XdpBuff::new(rxq.get(), buffer, self.page_size, len) }
    }

    /// Appends the first `len` bytes of a buffer to such a frame. Fails as above, and with `ENOSPC` if there are too many.
    #[inline]
    pub fn extend(&self, frame: &mut XdpBuff<'_>, buffer: RxBuffer, len: u32) -> Result {
        let rxq = self.rxq.as_ref().ok_or(EINVAL)?;
        if !core::ptr::eq(frame.queue(), rxq.get()) || !self.owns(&buffer) {
            return Err(EINVAL);
        }
        // SAFETY: The frame is of this queue, and the buffer of its pool.
        unsafe { frame.add(buffer, len) }
    }

    /// Takes a page in the poll function of the pool's NAPI. `None` if there is no memory, or if it is another's.
    #[inline]
    pub fn alloc(&mut self, context: &NapiContext<'_>) -> Option<RxBuffer> {
        if !core::ptr::eq(context.as_napi(), self.napi.as_napi()) {
            return None;
        }
        // SAFETY: We are in the poll function of the pool's NAPI.
        unsafe { self.take() }
    }

    /// Takes up to `count` pages before polling starts, as many as there are memory and room in `pages` for. `EBUSY` if the
    /// pool's NAPI is enabled. May sleep.
    pub fn fill(&mut self, count: u32, pages: &mut KVVec<RxBuffer>) -> Result {
        let napi = self.napi.clone();
        let disabled = napi.while_disabled(&mut || {
            for _ in 0..count {
                // SAFETY: The pool's NAPI is disabled.
                let Some(page) = (unsafe { self.take() }) else {
                    break;
                };
                if pages.push_within_capacity(page).is_err() {
                    break;
                }
            }
        });
        disabled.then_some(()).ok_or(EBUSY)
    }

    /// # Safety
    ///
    /// This is in the poll function of the pool's NAPI, which returns pages without a lock, or that is disabled.
    #[inline]
    unsafe fn take(&mut self) -> Option<RxBuffer> {
        // SAFETY: The pool is ours, and `&mut` excludes other allocators; by this function's contract nobody returns a page
        // without a lock meanwhile.
        let page = unsafe { bindings::page_pool_alloc_pages(self.pool.as_ptr(), GFP_RX) };
        // INVARIANT: The pool gives a page with one reference, whose bytes nobody else has.
        NonNull::new(page).map(|page| RxBuffer {
            page,
            offset: self.offset,
            size: self.size,
        })
    }
}

/// `GFP_ATOMIC | __GFP_NOWARN`: the queue is refilled at the next chance.
const GFP_RX: bindings::gfp_t = bindings::nk_const_NK_GFP_RX;
/// Bytes: no processor that the driver is for has longer cache lines. What the device writes and what packets hold are never in one.
const CACHE_LINE: u32 = 128;

impl Drop for PagePool {
    fn drop(&mut self) {
        let destroyed = self.napi.while_disabled(&mut || {
            // SAFETY: Owned by the type invariants; nobody returns a page without a lock meanwhile. The queue was registered by
            // `register`, nobody polls it, and it has a reference to the pool of its own.
            unsafe {
                if let Some(rxq) = &self.rxq {
                    bindings::xdp_rxq_info_unreg(rxq.get());
                }
                bindings::page_pool_destroy(self.pool.as_ptr());
            }
        });
        if kernel::warn_on!(!destroyed) {
            // Packets that are freed in the poll function may just be returning pages: rather leak it.
            // Frames may refer to the queue.
            core::mem::forget((self.napi.clone(), self._device.clone(), self.rxq.take()));
        }
    }
}

/// A receive buffer: a page of a pool, or a part of one. Dropping it gives it back; the page goes to its pool when all its
/// parts have come back. Any context.
///
/// # Invariants
///
/// `page` is the first page of an allocation of a page pool that has at least `offset + size` bytes. This owns one reference
/// (`pp_ref_count`) to it, and these bytes are nobody else's.
pub struct RxBuffer {
    page: NonNull<bindings::page>,
    offset: u32,
    size: u32,
}

// SAFETY: A page has no ties to a thread; returning it is allowed from any context.
unsafe impl Send for RxBuffer {}

impl RxBuffer {
    /// A page of a pool for XDP, as such a pool gives them.
    ///
    /// # Safety
    ///
    /// The caller gives up a reference to the first page of an allocation of `page_size` bytes of such a pool, of which nobody else has
    /// a byte.
    #[inline]
    pub(super) unsafe fn whole(page: NonNull<bindings::page>, page_size: u32) -> Self {
        // INVARIANT: By this function's contract.
        Self {
            page,
            offset: xdp::HEADROOM,
            size: page_size.saturating_sub(xdp::RESERVED),
        }
    }

    /// Fills the first `len` bytes with those at `offset` of a packet. `EINVAL` if there are not as many.
    #[inline]
    pub fn fill(&mut self, skb: &SkBuff, offset: u32, len: u32) -> Result {
        let to = self.bytes(0, len)?.cast_mut();
        let (offset, len) = (c_int::try_from(offset)?, c_int::try_from(len)?);
        // SAFETY: So much is there, and ours alone by the type invariants; the function checks the packet's length.
        match unsafe { bindings::skb_copy_bits(skb.as_raw(), offset, to.cast(), len) } {
            0 => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// Bytes.
    #[inline]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Where the device sees the buffer.
    #[inline]
    pub fn dma_address(&self) -> DmaAddress {
        // SAFETY: By the type invariants; the pool mapped the page.
        let page = unsafe { bindings::nk_page_pool_dma_addr(self.page.as_ptr()) };
        page.wrapping_add(self.offset.into())
    }

    /// Makes what the device wrote to the first `len` bytes visible to the CPU.
    #[inline]
    pub fn sync_for_cpu(&self, len: u32) {
        let len = len.min(self.size);
        // SAFETY: By the type invariants; the range lies in the page.
        unsafe { bindings::nk_page_pool_sync_for_cpu(self.page.as_ptr(), self.offset, len) };
    }

    /// Hands a buffer to the device again that the CPU has written to.
    #[inline]
    pub(super) fn sync_for_device(&self) {
        // SAFETY: By the type invariants; the range lies in the page.
        unsafe {
            bindings::nk_page_pool_sync_for_device(self.page.as_ptr(), self.offset, self.size);
        }
    }

    /// Cuts off what lies behind the first `used` bytes, for another frame, if that is `least` bytes or more. The device may write
    /// there at once: the cut is at a multiple of a cache line.
    #[inline]
    pub fn split_off(&mut self, used: u32, least: u32) -> Option<Self> {
        let used = used.checked_next_multiple_of(CACHE_LINE)?;
        let rest = self.size.checked_sub(used).filter(|rest| *rest >= least)?;
        // SAFETY: We have a reference to the page by the type invariants, so it is out of its pool.
        unsafe { bindings::nk_page_pool_get(self.page.as_ptr()) };
        // INVARIANT: These bytes are cut off below, so that they have one owner, with the reference just taken.
        let rest = Self {
            page: self.page,
            offset: self.offset.wrapping_add(used),
            size: rest,
        };
        self.size = used;
        Some(rest)
    }

    /// Start of a range of the buffer, `EINVAL` if it is not within.
    #[inline]
    pub(super) fn bytes(&self, offset: u32, len: u32) -> Result<*const u8> {
        match offset.checked_add(len) {
            // SAFETY: By the type invariants; low memory is always mapped, and the offset lies within the page.
            Some(end) if end <= self.size => Ok(unsafe {
                bindings::nk_page_address(self.page.as_ptr())
                    .cast::<u8>()
                    .cast_const()
                    .add(self.offset as usize)
                    .add(offset as usize)
            }),
            _ => Err(EINVAL),
        }
    }

    /// Gives up the reference without returning the page; returns that, and where the buffer begins in it.
    #[inline]
    pub(super) fn into_raw(self) -> (*mut bindings::page, u32) {
        let this = core::mem::ManuallyDrop::new(self);
        (this.page.as_ptr(), this.offset)
    }
}

impl Drop for RxBuffer {
    fn drop(&mut self) {
        // SAFETY: The reference is ours by the type invariants; the pool outlives its pages.
        unsafe { bindings::nk_page_pool_put(self.page.as_ptr()) };
    }
}
