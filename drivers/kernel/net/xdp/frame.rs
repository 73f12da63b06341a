// SPDX-License-Identifier: GPL-2.0
//! Frames that XDP sends (`struct xdp_frame`).

use crate::{
    bindings,
    net::{Device, Operations},
};
use core::{marker::PhantomData, mem::ManuallyDrop, ptr::NonNull};
use kernel::dma::DmaAddress;

/// A frame to send. Dropping it gives its memory back; with interrupts off, [`try_free`](Self::try_free) is to be tried first.
///
/// # Invariants
///
/// The pointer is to a frame that this owns. It lies before the data, so it is not aligned where a device begins its data anywhere, as veth does.
pub struct XdpFrame(NonNull<bindings::xdp_frame>);

// SAFETY: A frame has no ties to a thread.
unsafe impl Send for XdpFrame {}

impl XdpFrame {
    /// # Safety
    ///
    /// The frame is the caller's, who gives it up.
    #[inline]
    pub(in crate::net) unsafe fn from_raw(frame: NonNull<bindings::xdp_frame>) -> Self {
        // INVARIANT: By this function's contract.
        Self(frame)
    }

    #[inline]
    fn as_raw(&self) -> *mut bindings::xdp_frame {
        self.0.as_ptr()
    }

    /// Bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "frames are not containers")]
    pub fn len(&self) -> u32 {
        // SAFETY: By the type invariants.
        unsafe { bindings::nk_xdp_frame_len(self.as_raw()) }
    }

    /// The first bytes, if the linear part has so many.
    #[inline]
    pub fn head<const N: usize>(&self) -> Option<[u8; N]> {
        let frame = self.as_raw();
        // SAFETY: By the type invariants. It may be unaligned.
        let (data, len) = unsafe {
            (
                (&raw const (*frame).data).read_unaligned(),
                (&raw const (*frame).len).read_unaligned(),
            )
        };
        // SAFETY: They are there, and a copy is made of what may be changed by a device.
        (N <= len as usize).then(|| unsafe { data.cast::<[u8; N]>().read_volatile() })
    }

    /// The hash of its flow, and whether that covers the transport header; 0 if it has none.
    pub fn hash<T: Operations>(&self, dev: &Device<T>) -> (u32, bool) {
        let mut l4 = false;
        // SAFETY: By the type invariants; the device is alive.
        let hash = unsafe { bindings::nk_xdp_frame_hash(dev.as_raw(), self.as_raw(), &mut l4) };
        (hash, l4)
    }

    /// Gives its memory back, unless interrupts are off.
    #[inline]
    pub fn try_free(self) -> Result<(), Self> {
        // SAFETY: By the type invariants; it is freed if this says so.
        match unsafe { bindings::nk_xdp_return_frame(self.as_raw()) } {
            true => {
                core::mem::forget(self);
                Ok(())
            }
            false => Err(self),
        }
    }

    /// Fragments behind the linear part.
    #[inline]
    pub(in crate::net) fn frags(&self) -> usize {
        // SAFETY: By the type invariants.
        unsafe { bindings::nk_xdp_frame_frags(self.as_raw()) as usize }
    }

    /// Maps the linear part, or a fragment, for reading by a device.
    ///
    /// # Safety
    ///
    /// The device is alive; there is such a fragment.
    #[inline]
    pub(in crate::net) unsafe fn map(
        &self,
        device: *mut bindings::device,
        frag: Option<usize>,
    ) -> Option<(DmaAddress, u32)> {
        let (mut addr, mut len) = (0, 0);
        // SAFETY: By this function's contract and the type invariants.
        let mapped = unsafe {
            match frag {
                None => bindings::nk_xdp_map_head(device, self.as_raw(), &mut addr, &mut len),
                Some(index) => bindings::nk_xdp_map_frag(
                    device,
                    self.as_raw(),
                    index as u32,
                    &mut addr,
                    &mut len,
                ),
            }
        };
        mapped.then_some((addr, len))
    }
}

impl Drop for XdpFrame {
    fn drop(&mut self) {
        // SAFETY: By the type invariants, and not used after this. What page pools do not take back now is lost.
        let done = unsafe { bindings::nk_xdp_return_frame(self.as_raw()) };
        kernel::warn_on!(!done);
    }
}

/// Frames that others hand to a device (`ndo_xdp_xmit`), one after the other. Those that are not taken are freed by who called.
///
/// # Invariants
///
/// From `taken` on, the frames are nobody else's.
pub struct XdpFrames<'a> {
    frames: *mut *mut bindings::xdp_frame,
    count: usize,
    taken: usize,
    list: PhantomData<&'a mut ()>,
}

impl XdpFrames<'_> {
    /// # Safety
    ///
    /// There are so many frames, which are ours for the lifetime.
    pub(in crate::net) unsafe fn new(frames: *mut *mut bindings::xdp_frame, count: usize) -> Self {
        // INVARIANT: By this function's contract.
        Self {
            frames,
            count,
            taken: 0,
            list: PhantomData,
        }
    }

    /// Frames that were taken and not given back.
    pub(in crate::net) fn taken(&self) -> usize {
        self.taken
    }

    /// Hands the next frame to `f`, which may give it back. Returns whether it was taken.
    #[inline]
    pub fn next_to(&mut self, f: impl FnOnce(XdpFrame) -> Result<(), XdpFrame>) -> bool {
        if self.taken >= self.count {
            return false;
        }
        // SAFETY: There are `count`.
        let Some(frame) = NonNull::new(unsafe { *self.frames.add(self.taken) }) else {
            return false;
        };
        // SAFETY: By the type invariants.
        match f(unsafe { XdpFrame::from_raw(frame) }) {
            Ok(()) => {
                self.taken = self.taken.wrapping_add(1);
                true
            }
            Err(frame) => {
                let frame = ManuallyDrop::new(frame);
                // SAFETY: As above. Whichever it is: it is the caller's again.
                unsafe { *self.frames.add(self.taken) = frame.as_raw() };
                false
            }
        }
    }
}
