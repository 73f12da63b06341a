// SPDX-License-Identifier: GPL-2.0
//! Objects of the RDMA core with the driver's data behind them.

use crate::{bindings, event::Notifier, umem::Pins, Driver};
use core::{
    mem::MaybeUninit,
    ops::Deref,
    ptr::{addr_of, addr_of_mut},
};
use kernel::{prelude::*, sync::Arc, types::Opaque};

/// Data of an allocation of device memory, with the offset at which the process may map it.
pub struct Offered<T> {
    pub(crate) data: T,
    pub(crate) offset: u64,
}

impl<T> Deref for Offered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

/// Memory of an object: the core's structure first, as `INIT_RDMA_OBJ_SIZE()` demands.
#[repr(C)]
pub(crate) struct Layout<B, T> {
    ib: Opaque<B>,
    /// The way to the object for those that outlive it.
    notifier: MaybeUninit<Option<Arc<Notifier<B>>>>,
    /// Memory that the hardware uses on behalf of the object.
    pins: MaybeUninit<Pins>,
    data: MaybeUninit<T>,
}

impl<B, T> Layout<B, T> {
    /// Completes a new object.
    ///
    /// # Safety
    ///
    /// `ib` is the start of memory for a `Self` whose other fields are not initialised.
    pub(crate) unsafe fn init(ib: *mut B, notifier: Option<Arc<Notifier<B>>>, pins: Pins, data: T) {
        let this = ib.cast::<Self>();
        // SAFETY: By this function's contract.
        unsafe {
            (*this).notifier.write(notifier);
            (*this).pins.write(pins);
            (*this).data.write(data);
        }
    }

    /// Drops what [`Layout::init`] completed the object with: data, then the notifier (nobody raises events any
    /// more), then the memory.
    ///
    /// # Safety
    ///
    /// `ib` was passed to `init`, nobody uses the object, and this is called once.
    pub(crate) unsafe fn finish(ib: *mut B) {
        let this = ib.cast::<Self>();
        // SAFETY: By this function's contract all fields are initialised and ours.
        unsafe {
            (*this).data.assume_init_drop();
            if let Some(notifier) = (*this).notifier.assume_init_ref() {
                notifier.detach();
            }
            (*this).notifier.assume_init_drop();
            (*this).pins.assume_init_drop();
        }
    }

    /// # Safety
    ///
    /// `ib` was passed to `init` and not to `finish`, which holds for `'a`.
    pub(crate) unsafe fn data<'a>(ib: *mut B) -> &'a T {
        // SAFETY: By this function's contract; nobody has a mutable reference before `finish`.
        unsafe { &*addr_of!((*ib.cast::<Self>()).data).cast::<T>() }
    }

    /// The way to an object that was completed with one.
    ///
    /// # Safety
    ///
    /// As for [`Layout::data`].
    pub(crate) unsafe fn notifier<'a>(ib: *mut B) -> Option<&'a Arc<Notifier<B>>> {
        // SAFETY: By this function's contract.
        unsafe { (*ib.cast::<Self>()).notifier.assume_init_ref() }.as_ref()
    }

    /// Memory of an object.
    ///
    /// # Safety
    ///
    /// As for [`Layout::data`], and nobody replaces the pins for `'a`.
    pub(crate) unsafe fn pins<'a>(ib: *mut B) -> &'a Pins {
        // SAFETY: By this function's contract.
        unsafe { &*addr_of!((*ib.cast::<Self>()).pins).cast::<Pins>() }
    }

    /// Replaces the memory of an object, for one whose hardware has just let go of the old.
    ///
    /// # Safety
    ///
    /// As for [`Layout::data`], and nobody else uses the pins for the time of the call.
    pub(crate) unsafe fn replace_pins(ib: *mut B, pins: Pins) -> Pins {
        // SAFETY: By this function's contract.
        unsafe { core::ptr::replace(addr_of_mut!((*ib.cast::<Self>()).pins).cast::<Pins>(), pins) }
    }

    /// Memory for an object that the driver and not the core allocates, zeroed.
    pub(crate) fn allocate() -> Result<KBox<MaybeUninit<Self>>> {
        Ok(KBox::new_uninit(GFP_KERNEL_ACCOUNT | __GFP_ZERO)?)
    }

    /// Frees memory of [`Layout::allocate`] that was passed on as a pointer to the core's structure.
    ///
    /// # Safety
    ///
    /// `ib` comes from `KBox::into_raw()` of such memory and its contents were finished.
    pub(crate) unsafe fn free(ib: *mut B) {
        // SAFETY: By this function's contract.
        drop(unsafe { KBox::from_raw(ib.cast::<MaybeUninit<Self>>()) });
    }
}

macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident: $raw:ident, $data:ty;)+) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        pub struct $name<D: Driver>(Layout<bindings::$raw, $data>);

        impl<D: Driver> $name<D> {
            /// Bytes of the whole object.
            #[allow(dead_code, reason = "not for objects that the driver allocates")]
            pub(crate) const SIZE: usize = size_of::<Layout<bindings::$raw, $data>>();

            /// # Safety
            ///
            /// `ib` is a complete object of a device of `D`, for `'a`.
            #[allow(dead_code, reason = "not all kinds of object come back from the core")]
            pub(crate) unsafe fn from_raw<'a>(ib: *mut bindings::$raw) -> &'a Self {
                // SAFETY: `Self` is a transparent wrapper; the rest is the caller's guarantee.
                unsafe { &*ib.cast::<Self>() }
            }

            /// The core's structure.
            #[allow(dead_code, reason = "not all kinds of object are asked for theirs")]
            pub(crate) fn as_raw(&self) -> *mut bindings::$raw {
                self.0.ib.get()
            }
        }

        impl<D: Driver> Deref for $name<D> {
            type Target = $data;

            fn deref(&self) -> &$data {
                // SAFETY: There is a reference, so the object is complete.
                unsafe { Layout::data(self.0.ib.get()) }
            }
        }
    )+ };
}

objects! {
    /// Protection domain.
    Pd: ib_pd, D::Pd;
    /// Completion queue.
    Cq: ib_cq, D::Cq;
    /// Shared receive queue.
    Srq: ib_srq, D::Srq;
    /// Queue pair.
    Qp: ib_qp, D::Qp;
    /// Address handle.
    Ah: ib_ah, D::Ah;
    /// Memory region.
    Mr: ib_mr, D::Mr;
    /// Memory window.
    Mw: ib_mw, D::Mw;
    /// Allocation of device memory.
    Dm: ib_dm, Offered<D::Dm>;
}
