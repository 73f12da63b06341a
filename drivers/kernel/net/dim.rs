// SPDX-License-Identifier: GPL-2.0
//! Dynamic interrupt moderation: finds the moderation that suits the load by trying neighbours of the one in use.
//!
//! C header: `include/linux/dim.h`

use crate::bindings;
use kernel::{container_of, prelude::*, sync::Arc, types::Opaque};

/// Number of levels: 0 stands for the least moderation, `LEVELS - 1` for the most.
pub const LEVELS: usize = bindings::NET_DIM_PARAMS_NUM_PROFILES as usize;

/// Takes over what was found.
pub trait Apply: Send + Sync + 'static {
    /// Sets the moderation of a level below [`LEVELS`]. In a work queue, may sleep.
    fn apply(&self, level: usize);
}

/// Moderation of one receive queue. Dropping it waits for a running [`Apply::apply`].
#[pin_data(PinnedDrop)]
pub struct Dim<A: Apply> {
    #[pin]
    dim: Opaque<bindings::dim>,
    target: A,
}

// SAFETY: The work item runs in any thread and uses the target, which is `Sync`, by reference; samples are taken under
// `&mut` of the one `Sampler`.
unsafe impl<A: Apply> Send for Dim<A> {}
// SAFETY: As above.
unsafe impl<A: Apply> Sync for Dim<A> {}

impl<A: Apply> Dim<A> {
    fn new(target: A) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                dim <- Opaque::ffi_init(|dim: *mut bindings::dim| {
                    // SAFETY: `dim` is ours to initialise and stays pinned until the work is cancelled in `drop`.
                    unsafe {
                        dim.write_bytes(0, 1);
                        bindings::nk_dim_init(dim, Some(Self::work_callback));
                    }
                }),
                target,
            }),
            GFP_KERNEL,
        )
    }

    extern "C" fn work_callback(work: *mut bindings::work_struct) {
        // SAFETY: The work item is the one in the `struct dim` of a pinned `Self`, which waits for it in `drop`.
        let (dim, this) = unsafe {
            let dim = container_of!(work, bindings::dim, work);
            (dim, &*container_of!(Opaque::cast_from(dim), Self, dim))
        };
        // SAFETY: While this runs the state is "apply new profile", in which `net_dim()` leaves the structure alone; it
        // is left by the last store.
        unsafe {
            this.target.apply(usize::from((*dim).profile_ix));
            core::ptr::write_volatile(
                &raw mut (*dim).state,
                bindings::dim_state_DIM_START_MEASURE as u8,
            );
        }
    }
}

#[pinned_drop]
impl<A: Apply> PinnedDrop for Dim<A> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Initialised in `new`; waits for the work.
        unsafe { bindings::nk_dim_cancel(self.dim.get()) };
    }
}

/// The one who measures, in the queue's poll function.
pub struct Sampler<A: Apply> {
    dim: Arc<Dim<A>>,
    events: u16,
}

impl<A: Apply> Sampler<A> {
    /// Starts to moderate `target`. May sleep.
    pub fn new(target: A) -> Result<Self> {
        Ok(Self {
            dim: Dim::new(target)?,
            events: 0,
        })
    }

    /// Notes one interrupt's work, given the totals of packets and bytes received so far. Softirq context.
    pub fn sample(&mut self, packets: u64, bytes: u64) {
        self.events = self.events.wrapping_add(1);
        let mut sample: bindings::dim_sample = pin_init::zeroed();
        // SAFETY: The structures are alive; `&mut self` makes this the only caller.
        unsafe {
            bindings::nk_dim_sample(self.events, packets, bytes, &mut sample);
            bindings::net_dim(self.dim.dim.get(), &sample);
        }
    }
}
