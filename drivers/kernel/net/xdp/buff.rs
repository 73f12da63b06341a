// SPDX-License-Identifier: GPL-2.0
//! Received frames that a program sees (`struct xdp_buff`).

use super::{Program, XdpFrame, HEADROOM};
use crate::{
    bindings,
    net::{page_pool::RxBuffer, Device, NapiContext, Operations, RxSkb, MAX_FRAGS},
};
use core::{marker::PhantomData, mem::ManuallyDrop, ptr::NonNull};
use kernel::{error::to_result, prelude::*};

/// Bytes of an Ethernet header up to its type: both addresses.
const ADDRESSES: usize = 12;
/// Bytes of a VLAN tag.
const TAG: usize = 4;
/// Fragments beside the linear part, of which a part may become one when this is made a packet.
const MAX_XDP_FRAGS: u32 = MAX_FRAGS as u32 - 1;

/// A received frame in the poll function of its queue. Dropping it gives its buffers back.
///
/// # Invariants
///
/// `raw` is complete. Its linear part is in `page`, of `size` bytes, and has an Ethernet header; its fragments are in its shared info.
/// This owns a reference to each of these pages, which are of the page pool of the queue whose poll function this is in. That pool is
/// registered as the memory of `raw.rxq`, and neither goes before the poll function ends.
pub struct XdpBuff<'a> {
    raw: bindings::xdp_buff,
    page: NonNull<bindings::page>,
    size: u32,
    context: PhantomData<(&'a (), *mut ())>,
}

impl<'a> XdpBuff<'a> {
    /// A frame whose first `len` bytes are in a buffer.
    ///
    /// # Safety
    ///
    /// `rxq` is that of the buffer's pool, and this is in the poll function of that pool's NAPI, for as long as `'a`. The buffer is a
    /// whole page of `size` bytes, but for the headroom and the tailroom, and has `len` bytes.
    #[inline]
    pub(in crate::net) unsafe fn new(
        rxq: *mut bindings::xdp_rxq_info,
        buffer: RxBuffer,
        size: u32,
        len: u32,
    ) -> Result<Self> {
        if len < bindings::ETH_HLEN {
            return Err(EINVAL);
        }
        let mut raw: bindings::xdp_buff = pin_init::zeroed();
        let (page, _) = buffer.into_raw();
        let page = NonNull::new(page).ok_or(EINVAL)?;
        // SAFETY: By this function's contract.
        unsafe { bindings::nk_xdp_init(&mut raw, rxq, page.as_ptr(), size, HEADROOM, len) };
        // INVARIANT: As above; the reference was the buffer's.
        Ok(Self {
            raw,
            page,
            size,
            context: PhantomData,
        })
    }

    /// Appends `len` bytes of a buffer. `ENOSPC` if there are too many.
    ///
    /// # Safety
    ///
    /// The buffer is of the same pool, and a whole page as the first one is.
    #[inline]
    pub(in crate::net) unsafe fn add(&mut self, buffer: RxBuffer, len: u32) -> Result {
        buffer.bytes(0, len)?;
        // SAFETY: By the type invariants.
        if unsafe { bindings::nk_xdp_frag_count(&self.raw) } >= MAX_XDP_FRAGS {
            return Err(ENOSPC);
        }
        let (page, offset) = buffer.into_raw();
        // SAFETY: By the type invariants and this function's contract; there is room. The reference goes to the frame.
        match unsafe { bindings::nk_xdp_add_frag(&mut self.raw, page, offset, len, self.size) } {
            true => Ok(()),
            false => Err(ENOSPC),
        }
    }

    /// The queue that it came in on.
    #[inline]
    pub(in crate::net) fn queue(&self) -> *mut bindings::xdp_rxq_info {
        self.raw.rxq
    }

    #[inline]
    pub(super) fn as_raw(&mut self) -> *mut bindings::xdp_buff {
        &mut self.raw
    }

    /// Bytes of the linear part.
    #[inline]
    fn linear_len(&self) -> usize {
        (self.raw.data_end as usize).wrapping_sub(self.raw.data as usize)
    }

    /// Bytes of the frame.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "frames are not containers")]
    pub fn len(&self) -> u32 {
        // SAFETY: By the type invariants.
        unsafe { bindings::nk_xdp_len(&self.raw) }
    }

    /// Whether it has fragments beside its linear part.
    #[inline]
    pub fn has_frags(&self) -> bool {
        // SAFETY: By the type invariants.
        unsafe { bindings::nk_xdp_frag_count(&self.raw) != 0 }
    }

    /// Where the frame is, to see later whether a program has moved its ends.
    #[inline]
    pub fn place(&self) -> (usize, u32) {
        (self.raw.data as usize, self.len())
    }

    /// Copies the first bytes of the frame, which the device cannot change then. Returns what there is of them.
    #[inline]
    pub fn copy_head<'b>(&self, to: &'b mut [u8]) -> &'b [u8] {
        let len = self.linear_len().min(to.len());
        // SAFETY: So much is there of both; a raw copy tolerates that it changes.
        unsafe { core::ptr::copy_nonoverlapping(self.raw.data.cast(), to.as_mut_ptr(), len) };
        to.get(..len).unwrap_or_default()
    }

    /// Puts an 802.1Q tag into the frame, before the program sees it.
    pub fn insert_tag(&mut self, tag: u16) {
        let old: *mut u8 = self.raw.data.cast();
        let room = (old as usize).wrapping_sub(self.raw.data_hard_start as usize);
        let has_metadata = !core::ptr::eq(self.raw.data, self.raw.data_meta);
        if room < TAG.wrapping_add(size_of::<bindings::xdp_frame>()) || has_metadata {
            return;
        }
        let new = old.wrapping_sub(TAG);
        let [first, second] = tag.to_be_bytes();
        let tag: [u8; TAG] = [0x81, 0x00, first, second];
        // SAFETY: There is room in front of the frame, which has its addresses in the linear part by the type invariants.
        unsafe {
            core::ptr::copy(old, new, ADDRESSES);
            core::ptr::copy_nonoverlapping(tag.as_ptr(), new.add(ADDRESSES), TAG);
        }
        self.raw.data = new.cast();
        self.raw.data_meta = new.cast();
    }

    /// Fills in a checksum over everything from `start`, at `start + offset`. `EINVAL` if that is not within the linear part.
    #[inline]
    pub fn fill_checksum(&mut self, start: u16, offset: u16) -> Result {
        let at = usize::from(start).wrapping_add(offset.into());
        if at.wrapping_add(size_of::<u16>()) > self.linear_len() {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariants; the range was checked.
        unsafe { bindings::nk_xdp_checksum(&mut self.raw, start.into(), offset.into()) };
        Ok(())
    }

    /// Makes a packet of it, with at most `linear` bytes copied to its linear part, and what programs have left for others in front
    /// of it. Returns a buffer as well, if the packet takes nothing more of it. `ENOMEM` drops the frame.
    #[inline]
    pub fn into_packet(
        self,
        context: &NapiContext<'_>,
        linear: u32,
    ) -> Result<(RxSkb, Option<RxBuffer>)> {
        let here = u32::try_from(self.linear_len())?;
        let copied = here.min(linear);
        // SAFETY: By the type invariants.
        let metadata = unsafe { bindings::nk_xdp_metadata(&self.raw) };
        let packet = context.alloc(copied.wrapping_add(metadata)).ok_or(ENOMEM)?;
        let this = ManuallyDrop::new(self);
        let start = (this.raw.data as usize).wrapping_sub(this.raw.data_hard_start as usize);
        let skb = packet.as_raw();
        // SAFETY: The packet has room for as much and no fragments; the linear part has these bytes.
        unsafe { bindings::nk_xdp_copy_head(skb, &this.raw, copied) };
        let left = if copied == here {
            // SAFETY: The reference is ours, and nobody else has these bytes: the packet has copies.
            let buffer = unsafe { RxBuffer::whole(this.page, this.size) };
            // It may be posted again, without its pool, and programs write to it.
            buffer.sync_for_device();
            Some(buffer)
        } else {
            let offset = u32::try_from(start)?.wrapping_add(copied);
            let rest = here.wrapping_sub(copied);
            // SAFETY: The rest is within the page, whose reference goes to the packet.
            unsafe {
                bindings::nk_skb_add_page(skb, this.page.as_ptr(), offset, rest, this.size);
            };
            None
        };
        // SAFETY: The packet has room for all of them, see `MAX_XDP_FRAGS`; their references go to it.
        unsafe { bindings::nk_xdp_move_frags(skb, &this.raw, this.size) };
        Ok((packet, left))
    }

    /// Makes a frame to send of it; `None` drops it, for want of room in front of it.
    #[inline]
    pub fn into_frame(self) -> Option<XdpFrame> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: By the type invariants.
        let frame = unsafe { bindings::nk_xdp_to_frame(&mut this.raw) };
        match NonNull::new(frame) {
            // SAFETY: The references go to the frame.
            Some(frame) => Some(unsafe { XdpFrame::from_raw(frame) }),
            None => {
                drop(ManuallyDrop::into_inner(this));
                None
            }
        }
    }

    /// Sends it to where the program that was run last has said. On failure it is dropped. What was sent is to be flushed
    /// ([`NapiContext::flush_redirected`]).
    #[inline]
    pub fn redirect<T: Operations>(self, dev: &Device<T>, program: &Program) -> Result {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: By the type invariants; this is in a poll function. The frame is given away if this succeeds.
        let done = to_result(unsafe {
            bindings::xdp_do_redirect(dev.as_raw(), &mut this.raw, program.as_raw())
        });
        if done.is_err() {
            drop(ManuallyDrop::into_inner(this));
        }
        done
    }
}

impl Drop for XdpBuff<'_> {
    fn drop(&mut self) {
        // SAFETY: The references are ours by the type invariants, and this is in the poll function of their pool.
        unsafe { bindings::xdp_return_buff(&mut self.raw) };
    }
}
