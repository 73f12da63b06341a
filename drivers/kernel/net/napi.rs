// SPDX-License-Identifier: GPL-2.0
//! NAPI: polling of a queue in softirq context, started by its interrupt.
//!
//! C header: `include/linux/netdevice.h`, `Documentation/networking/napi.rst`

use super::{
    operations::Operations,
    skb::{RxSkb, SkBuff},
    Device, Rtnl,
};
use crate::bindings;
use core::{cell::UnsafeCell, marker::PhantomData, ptr::NonNull};
use kernel::{
    container_of, new_mutex,
    prelude::*,
    sync::{aref::ARef, Arc, Mutex},
    types::Opaque,
};

/// What a NAPI instance polls.
pub trait Poll: Send + 'static {
    /// Works on up to `budget` received packets and returns how many.
    ///
    /// A return below `budget` ends polling until the next [`Napi::schedule`]: arm the interrupt first and look once
    /// more, an interrupt that comes in between is not lost. Softirq context, one CPU at a time.
    fn poll(&mut self, context: &NapiContext<'_>, budget: u32) -> u32;

    /// Frees packets that were sent, for netpoll, which waits for room in a queue: with interrupts off, perhaps with the
    /// transmit lock held by what was interrupted. One CPU at a time, and not while the other function runs.
    fn reclaim(&mut self) {}
}

/// A NAPI instance and, while it is enabled, what it polls.
///
/// Dropping it disables it and may sleep, so the last reference must go in process context.
#[pin_data(PinnedDrop)]
pub struct Napi<P: Poll> {
    #[pin]
    napi: Opaque<bindings::napi_struct>,
    /// Belongs to the poll function while enabled, else to the holder of `enabled`.
    target: UnsafeCell<Option<P>>,
    #[pin]
    enabled: Mutex<bool>,
    /// A counted reference (`dev_hold()`).
    dev: NonNull<bindings::net_device>,
}

// SAFETY: The C object may be scheduled, enabled and disabled from any thread; `target` is `Send` and its owner at each
// time is unique, see the field.
unsafe impl<P: Poll> Send for Napi<P> {}
// SAFETY: As above.
unsafe impl<P: Poll> Sync for Napi<P> {}

/// What the device keeps of an instance beyond its end.
pub(super) enum Kept {
    /// Nothing. Its poll function gets a budget of `weight`.
    Nothing {
        /// Packets.
        weight: c_int,
    },
    /// Settings and number, for the next instance of this index.
    Index(c_int),
}

/// A NAPI instance of any kind: what other objects keep alive because they refer to it.
pub trait NapiAnchor: Send + Sync + private::Raw {}

impl<P: Poll> NapiAnchor for Napi<P> {}

/// Hides raw pointers from users of [`NapiAnchor`].
pub(super) mod private {
    use crate::bindings;

    pub trait Raw {
        fn as_napi(&self) -> *mut bindings::napi_struct;
        fn as_netdev(&self) -> *mut bindings::net_device;
        /// Calls `f` while the instance is disabled and stays so; false, without the call, if it is enabled. May sleep.
        fn while_disabled(&self, f: &mut dyn FnMut()) -> bool;
    }
}

impl<P: Poll> private::Raw for Napi<P> {
    fn as_napi(&self) -> *mut bindings::napi_struct {
        self.napi.get()
    }

    fn as_netdev(&self) -> *mut bindings::net_device {
        self.dev.as_ptr()
    }

    fn while_disabled(&self, f: &mut dyn FnMut()) -> bool {
        let enabled = self.enabled.lock();
        if !*enabled {
            f();
        }
        !*enabled
    }
}

impl<P: Poll> Napi<P> {
    /// Adds a NAPI instance, disabled, to `dev`. What user space sets of it, and its number, are kept for the next one of this
    /// `index`: it counts instances as queues are counted. `EINVAL` if there is no such queue. May sleep.
    pub fn new<T: Operations>(dev: &ARef<Device<T>>, index: u32) -> Result<Arc<Self>> {
        let dev = NonNull::new(dev.as_raw()).ok_or(EINVAL)?;
        // SAFETY: The device is alive; the number is fixed when it is allocated.
        if index >= unsafe { (*dev.as_ptr()).num_napi_configs } {
            return Err(EINVAL);
        }
        // SAFETY: The device is alive, and keeps settings of so many. Its unregistration waits for the reference that is taken here.
        unsafe { Self::add(dev, Kept::Index(c_int::try_from(index)?)) }
    }

    /// Adds an instance. May sleep.
    ///
    /// # Safety
    ///
    /// The device is alive, and is not freed before the instance is. An index is one that it keeps settings of.
    pub(super) unsafe fn add(dev: NonNull<bindings::net_device>, kept: Kept) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                napi <- Opaque::ffi_init(|napi: *mut bindings::napi_struct| {
                    // SAFETY: `napi` is ours to initialise and stays pinned; the device is alive, and stays so until
                    // `drop` by this function's contract.
                    unsafe {
                        napi.write_bytes(0, 1);
                        bindings::nk_dev_hold(dev.as_ptr());
                        match kept {
                            Kept::Nothing { weight } => bindings::nk_napi_add(
                                dev.as_ptr(),
                                napi,
                                Some(Self::poll_callback),
                                weight,
                            ),
                            Kept::Index(index) => bindings::nk_napi_add_config(
                                dev.as_ptr(),
                                napi,
                                Some(Self::poll_callback),
                                index,
                            ),
                        }
                    }
                }),
                target: UnsafeCell::new(None),
                enabled <- lock(),
                dev,
            }),
            GFP_KERNEL,
        )
    }

    /// Starts polling of `target` at each [`schedule`](Self::schedule). `EBUSY` if it is enabled already. May sleep.
    pub fn enable(&self, target: P) -> Result {
        let mut enabled = self.enabled.lock();
        if *enabled {
            return Err(EBUSY);
        }
        // SAFETY: Disabled, so the target belongs to the holder of the lock.
        unsafe { *self.target.get() = Some(target) };
        // SAFETY: Added in `new` and disabled.
        unsafe { bindings::napi_enable(self.napi.get()) };
        *enabled = true;
        Ok(())
    }

    /// Ends polling, waiting for a running poll, and returns what was polled. May sleep.
    pub fn disable(&self) -> Option<P> {
        let mut enabled = self.enabled.lock();
        if *enabled {
            // SAFETY: Enabled; waits for the poll function, which is not called after this.
            unsafe { bindings::napi_disable(self.napi.get()) };
            *enabled = false;
        }
        // SAFETY: Disabled, so the target belongs to the holder of the lock.
        unsafe { (*self.target.get()).take() }
    }

    /// Says that interrupt `irq` schedules this, for user space to see (`netdev.yaml`). With the RTNL held, may sleep.
    pub fn set_interrupt(&self, irq: u32, _rtnl: &Rtnl) {
        if let Ok(irq) = c_int::try_from(irq) {
            // SAFETY: Added in `new`; the device neither spreads interrupts nor steers flows by what is noted here.
            unsafe { bindings::nk_napi_set_irq(self.napi.get(), irq) };
        }
    }

    /// Says that this polls queue `index` of the device, in both directions, for user space to see (`netdev.yaml`). `EINVAL` if
    /// there is no such queue.
    pub fn link(self: &Arc<Self>, index: u32, _rtnl: &Rtnl) -> Result<QueueLink> {
        let dev = self.dev.as_ptr();
        // SAFETY: The device is alive; both counts are fixed when it is allocated.
        let queues = unsafe { (*dev).num_rx_queues.min((*dev).num_tx_queues) };
        if index >= queues {
            return Err(EINVAL);
        }
        let link = QueueLink {
            napi: self.clone(),
            index,
        };
        link.set(self.napi.get());
        Ok(link)
    }

    /// Has the target polled soon. Any context.
    #[inline]
    pub fn schedule(&self) {
        // SAFETY: Added in `new`; scheduling is harmless while disabled.
        unsafe { bindings::nk_napi_schedule_any(self.napi.get()) };
    }

    /// # Safety
    ///
    /// For the core alone, which calls this for an enabled instance, on one CPU at a time.
    unsafe extern "C" fn poll_callback(napi: *mut bindings::napi_struct, budget: c_int) -> c_int {
        // SAFETY: The core calls this for an instance that `new` added, which is the first field of a pinned `Self`.
        let this = unsafe { &*container_of!(Opaque::cast_from(napi), Self, napi) };
        // SAFETY: The instance is enabled and the core polls it on one CPU at a time, so the target is ours.
        let target = unsafe { &mut *this.target.get() };
        let context = NapiContext {
            napi,
            not_send: PhantomData,
        };
        let limit = u32::try_from(budget).unwrap_or(0);
        if limit == 0 {
            // Netpoll: nothing of what a context is for can be done here.
            if let Some(target) = target {
                target.reclaim();
            }
            return 0;
        }
        let work = target
            .as_mut()
            .map_or(0, |target| target.poll(&context, limit))
            .min(limit);
        if work < limit {
            // SAFETY: We are its poll function and leave the target alone from here on.
            unsafe { bindings::napi_complete_done(napi, work as c_int) };
        }
        work as c_int
    }
}

/// A queue that refers to the NAPI instance which polls it (`netif_queue_set_napi()`); [`unlink`](Self::unlink) ends that.
///
/// # Invariants
///
/// `index` is a queue of the instance's device.
pub struct QueueLink {
    napi: Arc<dyn NapiAnchor>,
    index: u32,
}

impl QueueLink {
    /// Has the queue refer to `napi`. With the RTNL held.
    fn set(&self, napi: *mut bindings::napi_struct) {
        let dev = self.napi.as_netdev();
        for kind in [
            bindings::netdev_queue_type_NETDEV_QUEUE_TYPE_RX,
            bindings::netdev_queue_type_NETDEV_QUEUE_TYPE_TX,
        ] {
            // SAFETY: The instance keeps its device alive, which has such a queue by the type invariants.
            unsafe { bindings::netif_queue_set_napi(dev, self.index, kind, napi) };
        }
    }

    /// Has the queue refer to nothing any more.
    pub fn unlink(self, _rtnl: &Rtnl) {
        self.set(core::ptr::null_mut());
        let mut this = core::mem::ManuallyDrop::new(self);
        // SAFETY: It is not used, or dropped, again.
        unsafe { core::ptr::drop_in_place(&raw mut this.napi) };
    }
}

impl Drop for QueueLink {
    fn drop(&mut self) {
        // Without the RTNL the queue cannot be told, so what it refers to has to stay for ever.
        kernel::warn_on!(true);
        core::mem::forget(self.napi.clone());
    }
}

#[pinned_drop]
impl<P: Poll> PinnedDrop for Napi<P> {
    fn drop(self: Pin<&mut Self>) {
        drop(self.disable());
        // SAFETY: Added in `new`, disabled above; the reference to the device was taken there as well.
        unsafe {
            bindings::nk_napi_del(self.napi.get());
            bindings::nk_dev_put(self.dev.as_ptr());
        }
    }
}

/// The lock of [`Napi::enabled`]. By itself, and never inlined, because each crate has its own name of what is generic, and lockdep wants
/// one for all.
#[inline(never)]
fn lock() -> impl PinInit<Mutex<bool>> {
    new_mutex!(false)
}

/// Proof of being in a poll function, and what one can do there.
pub struct NapiContext<'a> {
    napi: *mut bindings::napi_struct,
    not_send: PhantomData<(&'a (), *mut ())>,
}

impl NapiContext<'_> {
    /// The instance that is being polled.
    #[inline]
    pub(super) fn as_napi(&self) -> *mut bindings::napi_struct {
        self.napi
    }

    /// Allocates a packet with room for `len` bytes in its linear part.
    #[inline]
    pub fn alloc(&self, len: u32) -> Option<RxSkb> {
        // SAFETY: We are in the poll function of this instance.
        let skb = NonNull::new(unsafe { bindings::napi_alloc_skb(self.napi, len) })?;
        // SAFETY: Just allocated and ours.
        Some(RxSkb::new(unsafe { SkBuff::from_raw(skb) }))
    }

    /// Has frames that were redirected ([`super::xdp::XdpBuff::redirect`]) sent now. Before the poll function returns.
    pub fn flush_redirected(&self) {
        // SAFETY: We are in a poll function.
        unsafe { bindings::xdp_do_flush() };
    }

    /// Hands a packet to the stack, through generic receive offload. `EINVAL` if it has no Ethernet header in its
    /// linear part; it is then dropped.
    #[inline]
    pub fn receive<T: Operations>(&self, dev: &Device<T>, packet: RxSkb) -> Result {
        if packet.linear().len() < bindings::ETH_HLEN as usize {
            return Err(EINVAL);
        }
        let mut skb = packet.into_inner();
        // SAFETY: The skb is ours and given away here; it has an Ethernet header; we are in the poll function.
        unsafe {
            let protocol = bindings::eth_type_trans(skb.as_raw(), dev.as_raw());
            skb.set_protocol(protocol);
            bindings::nk_napi_gro_receive(self.napi, skb.into_raw());
        }
        Ok(())
    }
}
