// SPDX-License-Identifier: GPL-2.0
//! Channels of DMA engines that copy memory.
//!
//! C header: `include/linux/dmaengine.h`.

use crate::{bindings, hostmem::HostMemory, raw, window::Window};
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    device::{Bound, Device},
    error::from_err_ptr,
    prelude::*,
    str::CStr,
    sync::Arc,
    time::{delay::fsleep, Delta, Instant, Monotonic},
    types::Opaque,
};

/// Copies of a batch at most: of 64 KiB, those that programs have in single pages, and a few. Drivers with less room refuse some.
pub const MAX_BATCH: usize = 24;

/// Looks at a channel between two looks at the clock.
const LOOKS: u32 = 64;

/// Between two attempts to end what a channel does.
const RETRY: Delta = Delta::from_millis(100);

/// What has become of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All was copied, before anything that is done later.
    Copied,
    /// Some of it was not, and nothing is copied any more.
    Failed,
    /// Something may still be copied, until the channel is dropped.
    Hung,
}

/// A range that is mapped for the channel to read.
#[derive(Clone, Copy)]
struct Mapped {
    address: u64,
    len: usize,
}

/// A channel for its owner alone, from the host's memory to a window. Copies are submitted in batches.
pub struct Channel {
    raw: NonNull<bindings::nk_dma_chan>,
    /// The window, and where it is mapped for the channel to write.
    window: Arc<Window>,
    target: u64,
    /// What callbacks write to until the channel was told to end.
    results: ManuallyDrop<KBox<Opaque<bindings::nk_dma_results>>>,
    mapped: [Mapped; MAX_BATCH],
    /// Copies of this batch.
    submitted: usize,
    /// Of the last one.
    cookie: i32,
}

// SAFETY: A channel may be used by any thread, one at a time.
unsafe impl Send for Channel {}

impl Channel {
    /// Takes a channel that is free and maps `window` for it. `ENODEV` if there is none, `ENXIO` if none of them can be used in softirqs and told to
    /// end, and has addresses for all of the window. Sleeps.
    pub fn request(window: &Arc<Window>) -> Result<Self> {
        let results = KBox::new(Opaque::zeroed(), GFP_KERNEL)?;
        let (start, len) = (window.start(), window.len());
        // SAFETY: No requirements.
        let raw = from_err_ptr(unsafe { bindings::nk_dma_request(start, len as u64) })?;
        let raw = NonNull::new(raw).ok_or(ENODEV)?;
        let mut target = 0;
        // SAFETY: The channel is ours. Everybody may change the window's memory, which is reserved as long as it exists.
        let mapped = unsafe { bindings::nk_dma_map(raw.as_ptr(), start, len, false, &mut target) };
        if !mapped {
            // SAFETY: As above, and nobody has it after this.
            unsafe { bindings::nk_dma_release(raw.as_ptr()) };
            return Err(ENXIO);
        }
        Ok(Self {
            raw,
            window: window.clone(),
            target,
            results: ManuallyDrop::new(results),
            mapped: [Mapped { address: 0, len: 0 }; MAX_BATCH],
            submitted: 0,
            cookie: 0,
        })
    }

    /// Has the driver of a device, whose channel it is, be unbound before the channel's own, even once the channel is given back. `ENXIO` if that cannot
    /// be. Sleeps.
    pub fn link(&self, user: &Device<Bound>) -> Result {
        // SAFETY: The channel is ours, so its device is there, and so is the user's while its driver is bound.
        match unsafe { bindings::nk_dma_link(self.raw.as_ptr(), raw::device(user)) } {
            true => Ok(()),
            false => Err(ENXIO),
        }
    }

    /// What the kernel calls it.
    pub fn name(&self) -> &CStr {
        // SAFETY: The channel is ours. Its name is that of a device, which ends with a NUL and stays as long as the channel.
        unsafe { CStr::from_char_ptr(bindings::nk_dma_name(self.raw.as_ptr())) }
    }

    /// What source, destination and length of a copy are multiples of, in bytes.
    pub fn alignment(&self) -> u32 {
        // SAFETY: The channel is ours.
        unsafe { bindings::nk_dma_alignment(self.raw.as_ptr()) }
    }

    /// Most bytes of a copy.
    pub fn max_segment(&self) -> u32 {
        // SAFETY: The channel is ours.
        unsafe { bindings::nk_dma_max_segment(self.raw.as_ptr()) }
    }

    /// Submits a copy of `len` bytes, at least one, from a physical address to an offset in the window. False, and nothing is done, if the source is
    /// not memory of the kernel's allocators, or the target is outside, or the channel takes no more now. That the source is still the one
    /// that its address was made for is up to its owner, as in [`HostMemory`]. Softirqs are off.
    pub fn submit(&mut self, from: u64, to: usize, len: usize) -> bool {
        let Some(place) = self.mapped.get_mut(self.submitted) else {
            return false;
        };
        if self.window.at(to, len).is_none() || !HostMemory::is_memory(from, len, false) {
            return false;
        }
        let mut address = 0;
        // SAFETY: The channel is ours, and the source is memory, as just checked.
        if !unsafe { bindings::nk_dma_map(self.raw.as_ptr(), from, len, true, &mut address) } {
            return false;
        }
        let target = self.target.wrapping_add(to as u64);
        // SAFETY: Source and target are mapped for the channel, the one just now and the other by `request`, and stay so until it has ended with
        // them. So do the results, to which nobody has a reference.
        let submitted = unsafe {
            bindings::nk_dma_submit(
                self.raw.as_ptr(),
                target,
                address,
                len,
                self.results.get(),
                &mut self.cookie,
            )
        };
        if !submitted {
            // SAFETY: Mapped above, and the channel has not got it.
            unsafe { bindings::nk_dma_unmap(self.raw.as_ptr(), address, len, true) };
            return false;
        }
        *place = Mapped { address, len };
        self.submitted = self.submitted.saturating_add(1);
        true
    }

    /// Has the channel do what was submitted, and waits for that as long as `limit` without giving the processor away. After anything but
    /// [`Ended::Copied`] the channel is to be dropped. Softirqs are off.
    pub fn finish(&mut self, limit: Delta) -> Ended {
        if self.submitted == 0 {
            return Ended::Copied;
        }
        // SAFETY: The channel is ours.
        unsafe { bindings::nk_dma_issue(self.raw.as_ptr()) };
        let start = Instant::<Monotonic>::now();
        loop {
            // The clock comes first: a host that stood still for long has not had the channel's interrupts yet.
            let over = start.elapsed() >= limit;
            for _ in 0..LOOKS {
                // SAFETY: The channel is ours, and the cookie is of its last copy.
                let sound = unsafe { bindings::nk_dma_look(self.raw.as_ptr(), self.cookie) };
                if self.ended() == self.submitted {
                    return self.end_batch();
                }
                if !sound {
                    return Ended::Hung;
                }
                // SAFETY: No requirements.
                unsafe { bindings::nk_dma_relax() };
            }
            if over {
                return Ended::Hung;
            }
        }
    }

    /// Copies of the batch that have ended.
    fn ended(&self) -> usize {
        // SAFETY: The results are there as long as the channel.
        unsafe { bindings::nk_dma_ended(self.results.get()) as usize }
    }

    /// All of its copies have ended.
    fn end_batch(&mut self) -> Ended {
        // SAFETY: As above.
        let failed = unsafe { bindings::nk_dma_failed(self.results.get()) };
        self.unmap();
        // SAFETY: All callbacks have run, so this is the only one that has it.
        unsafe { *self.results.get() = pin_init::zeroed() };
        match failed {
            0 => Ended::Copied,
            _ => Ended::Failed,
        }
    }

    /// Has nothing more of the batch copied. Sleeps.
    #[cold]
    fn terminate(&mut self) {
        // SAFETY: The channel is ours.
        while unsafe { bindings::nk_dma_terminate(self.raw.as_ptr()) } != 0 {
            // What it writes to must not be anybody else's before.
            fsleep(RETRY);
        }
    }

    /// Unmaps what the channel read.
    fn unmap(&mut self) {
        for mapped in self.mapped.iter().take(self.submitted) {
            // SAFETY: Mapped by `submit`; the channel has ended with it.
            unsafe { bindings::nk_dma_unmap(self.raw.as_ptr(), mapped.address, mapped.len, true) };
        }
        self.submitted = 0;
    }
}

impl Drop for Channel {
    /// Ends what it does, if anything, and gives it back. Sleeps, as long as its driver says that it cannot end that.
    fn drop(&mut self) {
        if self.ended() != self.submitted {
            self.terminate();
        }
        // Copies may have been dropped without a callback. Drivers have been known to run some later, which they must not.
        let called_back = self.ended() == self.submitted;
        self.unmap();
        // SAFETY: The channel copies nothing any more, and nobody has it after this.
        unsafe {
            bindings::nk_dma_unmap(self.raw.as_ptr(), self.target, self.window.len(), false);
            bindings::nk_dma_release(self.raw.as_ptr());
        }
        if called_back {
            // SAFETY: Nobody writes to the results any more, or uses them after this.
            unsafe { ManuallyDrop::drop(&mut self.results) };
        }
    }
}
