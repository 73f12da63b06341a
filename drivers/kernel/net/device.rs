// SPDX-License-Identifier: GPL-2.0
//! The network device.
//!
//! C header: `include/linux/netdevice.h`

use super::{
    operations::Operations,
    tx_queue::{TxQueueRef, TxSlot},
    MacAddress,
};
use crate::{
    bindings, devlink,
    raw::{self, Name},
};
use core::{marker::PhantomData, ops::Deref, ptr::NonNull};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{aref::AlwaysRefCounted, atomic::Atomic},
    types::Opaque,
};

/// What lies in the private area of a `struct net_device`.
#[pin_data]
pub(super) struct Private<T: Operations> {
    #[pin]
    pub(super) data: T,
    pub(super) tx: KVec<TxSlot<T::TxQueue>>,
    /// How many statistics the core was told that there are.
    pub(super) stats: Atomic<usize>,
    /// Entries of the table that spreads received packets over the queues.
    pub(super) indirection: usize,
    /// What the device refers to.
    pub(super) _devlink_port: Option<devlink::Port>,
}

/// A `struct net_device` of a driver whose private data is `T`.
///
/// A reference is counted (`dev_hold()`): unregistration waits until all [`ARef`](kernel::sync::aref::ARef)s are gone,
/// so a driver drops those that it holds before its [`Registration`](super::Registration).
///
/// # Invariants
///
/// The private area holds an initialised, pinned [`Private<T>`] for as long as a reference to this exists.
#[repr(transparent)]
pub struct Device<T: Operations>(Opaque<bindings::net_device>, PhantomData<T>);

// SAFETY: The network core may use a device from any thread, and `T` is `Send` and `Sync`; the queue data is `Send` and
// only reached under the transmit lock of its queue.
unsafe impl<T: Operations> Send for Device<T> {}
// SAFETY: As above; methods that need a lock demand or take it.
unsafe impl<T: Operations> Sync for Device<T> {}

// SAFETY: `dev_hold()` and `dev_put()` count references, and `unregister_netdev()` waits for the last one before
// `Registration` frees anything.
unsafe impl<T: Operations> AlwaysRefCounted for Device<T> {
    fn inc_ref(&self) {
        // SAFETY: The device is alive by the type invariants.
        unsafe { bindings::nk_dev_hold(self.as_raw()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller gives up the reference that it owns.
        unsafe { bindings::nk_dev_put(obj.as_ref().as_raw()) };
    }
}

impl<T: Operations> Device<T> {
    /// # Safety
    ///
    /// `dev` was allocated by [`Registration`](super::Registration) for this `T`, its private area is initialised, and
    /// both hold for `'a`.
    #[inline]
    pub(super) unsafe fn from_raw<'a>(dev: *mut bindings::net_device) -> &'a Self {
        // SAFETY: `Self` is a transparent wrapper; the rest is the caller's guarantee.
        unsafe { &*dev.cast() }
    }

    /// The C object.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::net_device {
        self.0.get()
    }

    /// Where the private area of `dev` starts, as `netdev_priv()`.
    #[inline]
    pub(super) fn private_ptr(dev: *mut bindings::net_device) -> *mut Private<T> {
        const { assert!(align_of::<Private<T>>() <= align_of::<bindings::net_device>()) };
        // The area begins right behind the structure (layout-tested as the offset of `priv`).
        dev.wrapping_add(1).cast()
    }

    #[inline]
    pub(super) fn private(&self) -> Pin<&Private<T>> {
        // SAFETY: By the type invariants; it never moves.
        unsafe { Pin::new_unchecked(&*Self::private_ptr(self.as_raw())) }
    }

    /// The driver's private data.
    #[inline]
    pub fn data(&self) -> Pin<&T> {
        // SAFETY: Structural pinning: `data` is a pinned field.
        unsafe { self.private().map_unchecked(|p| &p.data) }
    }

    /// Transmit queue `index`, if there is one. Any context.
    #[inline]
    pub fn tx_queue(&self, index: usize) -> Option<TxQueueRef<'_, T>> {
        let slot = self.private().get_ref().tx.get(index)?;
        // SAFETY: `_tx` is an array of at least `tx.len()` queues (`Registration` allocated both with one count), set
        // up before the device was registered and freed with it.
        Some(unsafe { TxQueueRef::new((*self.as_raw())._tx.add(index), slot, index) })
    }

    /// Sets how many transmit and receive queues are in use. May sleep.
    pub fn set_real_queues(&self, _rtnl: &Rtnl, tx: u32, rx: u32) -> Result {
        // SAFETY: The device is alive, the RTNL is held; the function checks counts.
        to_result(unsafe { bindings::netif_set_real_num_queues(self.as_raw(), tx, rx) })
    }

    /// How many queues of each kind are in use. Stable with the RTNL held.
    pub fn real_queues(&self) -> usize {
        // SAFETY: The device is alive; aligned word reads do not tear.
        unsafe { core::ptr::read_volatile(&raw const (*self.as_raw()).real_num_rx_queues) as usize }
    }

    /// Whether the user has set the table that spreads received packets over the queues (`ethtool -X`). With the RTNL held.
    pub fn has_own_indirection(&self) -> bool {
        // SAFETY: The device is alive.
        unsafe { bindings::netif_is_rxfh_configured(self.as_raw()) }
    }

    /// Refuses larger MTUs from now on.
    pub fn set_max_mtu(&self, _rtnl: &Rtnl, most: u32) {
        // SAFETY: The device is alive; it is looked at with the RTNL held.
        unsafe { core::ptr::write_volatile(&raw mut (*self.as_raw()).max_mtu, most) };
    }

    /// The MTU. Stable with the RTNL held.
    pub fn mtu(&self) -> u32 {
        // SAFETY: The device is alive; aligned word reads do not tear.
        unsafe { core::ptr::read_volatile(&raw const (*self.as_raw()).mtu) }
    }

    /// Prefers transmit queue `queue` on CPU `cpu`. May sleep.
    pub fn set_xps(&self, queue: u16, cpu: u32) -> Result {
        // SAFETY: The device is alive; the function checks both numbers.
        to_result(unsafe { bindings::nk_set_xps(self.as_raw(), queue, cpu) })
    }

    /// Reports that the link is up. Any context.
    pub fn carrier_on(&self) {
        // SAFETY: The device is alive.
        unsafe { bindings::netif_carrier_on(self.as_raw()) };
    }

    /// Reports that the link is down. Any context.
    pub fn carrier_off(&self) {
        // SAFETY: The device is alive.
        unsafe { bindings::netif_carrier_off(self.as_raw()) };
    }

    /// Whether the link was last reported to be up. Any context.
    pub fn carrier_ok(&self) -> bool {
        // SAFETY: The device is alive.
        unsafe { bindings::nk_netif_carrier_ok(self.as_raw()) }
    }

    /// Whether the interface is up, that is between `open` and `stop`. Stable with the RTNL held.
    pub fn is_running(&self) -> bool {
        // SAFETY: The device is alive.
        unsafe { bindings::nk_netif_running(self.as_raw()) }
    }

    /// Whether the device is attached. Stable with the RTNL held.
    pub fn is_present(&self) -> bool {
        // SAFETY: The device is alive.
        unsafe { bindings::nk_netif_device_present(self.as_raw()) }
    }

    /// Marks the device as gone for now: its queues stop and the core calls none of its operations but `stop`.
    pub fn detach(&self, _rtnl: &Rtnl) {
        // SAFETY: The device is alive.
        unsafe { bindings::netif_device_detach(self.as_raw()) };
    }

    /// Undoes [`detach`](Self::detach) and wakes all queues if the interface is running.
    pub fn attach(&self, _rtnl: &Rtnl) {
        // SAFETY: The device is alive.
        unsafe { bindings::netif_device_attach(self.as_raw()) };
    }

    /// Sets the interface down, as its administrator would. With the RTNL held.
    pub fn close(&self, _rtnl: &RtnlGuard) {
        // SAFETY: The device is alive and registered, and the RTNL is held.
        unsafe { bindings::dev_close(self.as_raw()) };
    }

    /// Runs `f` with the device marked as gone, so that the watchdog does not take queues for stuck that stand still for
    /// it. The device must be attached; queues are woken afterwards if the interface is running.
    pub fn while_detached<R>(&self, _rtnl: &Rtnl, f: impl FnOnce() -> R) -> R {
        // SAFETY: The device is alive.
        unsafe { bindings::netif_device_detach(self.as_raw()) };
        let result = f();
        // SAFETY: As above.
        unsafe { bindings::netif_device_attach(self.as_raw()) };
        result
    }

    /// Starts all transmit queues. In `open`.
    pub fn start_all_queues(&self) {
        // SAFETY: The device is alive.
        unsafe { bindings::nk_tx_start_all(self.as_raw()) };
    }

    /// Stops all transmit queues and waits for running transmits. May not be called from a transmit.
    pub fn stop_all_queues(&self) {
        // SAFETY: The device is alive.
        unsafe { bindings::nk_tx_disable(self.as_raw()) };
    }

    /// `NETIF_F_*` that are on. Any context.
    #[inline]
    pub fn features(&self) -> super::Features {
        // SAFETY: The device is alive; aligned word reads do not tear.
        super::Features::from_raw(unsafe {
            core::ptr::read_volatile(&raw const (*self.as_raw()).features)
        })
    }

    /// Whether all frames are wanted. Any context; stable with the RTNL held.
    pub fn is_promiscuous(&self) -> bool {
        self.flags() & bindings::net_device_flags_IFF_PROMISC != 0
    }

    /// Whether all multicast frames are wanted. Any context; stable with the RTNL held.
    pub fn wants_all_multicast(&self) -> bool {
        self.flags() & bindings::net_device_flags_IFF_ALLMULTI != 0
    }

    fn flags(&self) -> u32 {
        // SAFETY: The device is alive; aligned word reads do not tear.
        unsafe { core::ptr::read_volatile(&raw const (*self.as_raw()).flags) }
    }

    /// The MAC address. With the RTNL held, or any context that bears parts of two.
    pub fn mac_address(&self) -> MacAddress {
        // SAFETY: `dev_addr` points to at least `ETH_ALEN` bytes for an Ethernet device's whole life.
        unsafe { raw::read_bytes((*self.as_raw()).dev_addr.cast()) }
    }

    /// The interface's name as of now, for messages. Any context.
    pub fn name(&self) -> Name {
        // SAFETY: The name is an array of the device, which is alive; it may be changed at any time.
        Name::new(unsafe { raw::read_bytes((&raw const (*self.as_raw()).name).cast()) })
    }
}

/// Proof that this thread holds the routing netlink lock (RTNL), which serialises configuration of all network devices.
pub struct Rtnl(PhantomData<*mut ()>);

impl Rtnl {
    /// # Safety
    ///
    /// The RTNL is held for as long as this exists.
    pub(super) unsafe fn held() -> Self {
        Self(PhantomData)
    }
}

/// The RTNL, taken (`rtnl_lock()`).
pub struct RtnlGuard(Rtnl);

impl RtnlGuard {
    /// Takes the lock. May sleep.
    pub fn lock() -> Self {
        // SAFETY: No preconditions but process context; lockdep finds what is held in the wrong order.
        unsafe { bindings::nk_rtnl_lock() };
        // SAFETY: Taken above, and released when this is dropped.
        Self(unsafe { Rtnl::held() })
    }
}

impl Deref for RtnlGuard {
    type Target = Rtnl;

    fn deref(&self) -> &Rtnl {
        &self.0
    }
}

impl Drop for RtnlGuard {
    fn drop(&mut self) {
        // SAFETY: Taken in `lock()`, by this thread because the guard is not `Send`.
        unsafe { bindings::nk_rtnl_unlock() };
    }
}
