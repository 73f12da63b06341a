// SPDX-License-Identifier: GPL-2.0
//! Allocation and registration of a network device.

use super::{
    device::{Device, Private},
    ethtool,
    operations::{Operations, VTable},
    tx_queue::TxSlot,
    Features, MacAddress,
};
use crate::{bindings, devlink, raw};
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    device,
    error::to_result,
    prelude::*,
    sync::{aref::ARef, atomic::Atomic},
    time::Jiffies,
};

/// What a network device is from the start.
pub struct Config<'a> {
    /// The port of a devlink instance that this is the network interface of.
    pub devlink_port: Option<devlink::Port>,
    /// Name with one `%d`, at most 15 bytes, e.g. `c"nupanet%d"`.
    pub name: &'a CStr,
    /// Transmit and receive queues to allocate.
    pub queues: u32,
    /// Entries of the table that spreads received packets over the queues.
    pub indirection: usize,
    /// Permanent MAC address.
    pub mac: MacAddress,
    /// MTU to start with.
    pub mtu: u32,
    /// Smallest MTU.
    pub min_mtu: u32,
    /// Largest MTU.
    pub max_mtu: u32,
    /// Bytes below which packets with segmentation to do stay if the user allows more than 64 KiB (`tso_max_size`).
    pub max_super_frame: u32,
    /// Segments of a super-frame at most.
    pub max_segments: u32,
    /// Features that can be switched on and off, and are on.
    pub features: Features,
    /// Features that are on for good.
    pub fixed_features: Features,
    /// Features for packets of VLAN devices on top.
    pub vlan_features: Features,
    /// Transmit watchdog.
    pub watchdog: Jiffies,
}

/// A network device that is not registered yet; freed with its private data on drop.
///
/// It gives out no reference to the device: nobody would wait for that before the memory is freed.
///
/// # Invariants
///
/// The pointer is to a device that this owns, whose private area is initialised.
pub struct Unregistered<T: Operations>(NonNull<bindings::net_device>, PhantomData<T>);

impl<T: Operations + ethtool::Operations> Unregistered<T> {
    /// Allocates a device below `parent` and initialises its private data. May sleep.
    pub fn new(
        parent: &device::Device<device::Bound>,
        config: &Config<'_>,
        data: impl PinInit<T, Error>,
    ) -> Result<Self> {
        let mut tx = KVec::with_capacity(config.queues as usize, GFP_KERNEL)?;
        for _ in 0..config.queues {
            tx.push(TxSlot::new(), GFP_KERNEL)?;
        }
        // SAFETY: The name is NUL-terminated and copied, the set-up function is the one for Ethernet.
        let dev = NonNull::new(unsafe {
            bindings::alloc_netdev_mqs(
                size_of::<Private<T>>() as c_int,
                config.name.as_char_ptr(),
                // "Predictable": one controller per host, so the number says all; user space need not rename it.
                bindings::NET_NAME_PREDICTABLE as u8,
                Some(bindings::ether_setup),
                config.queues,
                config.queues,
            )
        })
        .ok_or(ENOMEM)?;
        let (indirection, devlink_port) = (config.indirection, config.devlink_port.clone());
        let init = try_pin_init!(Private { data <- data, tx, stats: Atomic::new(0), indirection, _devlink_port: devlink_port }? Error);
        // SAFETY: The private area has room for `Private<T>`, is suitably aligned (see `private_ptr`) and never moves.
        if let Err(e) = unsafe { init.__pinned_init(Device::<T>::private_ptr(dev.as_ptr())) } {
            // SAFETY: Allocated above and never registered.
            unsafe { bindings::free_netdev(dev.as_ptr()) };
            return Err(e);
        }
        // INVARIANT: Initialised above.
        let this = Self(dev, PhantomData);
        this.configure(parent, config);
        Ok(this)
    }

    fn configure(&self, parent: &device::Device<device::Bound>, config: &Config<'_>) {
        let dev = self.0.as_ptr();
        let on = (config.features | config.fixed_features).as_raw();
        // SAFETY: The device is ours and not registered, so nobody else looks at it.
        unsafe {
            bindings::nk_set_parent(dev, raw::device(parent));
            bindings::nk_eth_hw_addr_set(dev, config.mac.as_ptr());
            // The address changes while the interface is up, and `set_rx_mode` takes further ones.
            bindings::nk_set_address_flags(dev);
            (*dev).netdev_ops = VTable::<T>::OPS;
            (*dev).stat_ops = VTable::<T>::STAT_OPS;
            (*dev).ethtool_ops = ethtool::VTable::<T>::OPS;
            if let Some(port) = &config.devlink_port {
                // It stays: the private area has another reference to it.
                (*dev).devlink_port = port.as_raw();
            }
            (*dev).mtu = config.mtu;
            (*dev).min_mtu = config.min_mtu;
            (*dev).max_mtu = config.max_mtu;
            (*dev).hw_features |= config.features.as_raw();
            (*dev).features |= on;
            (*dev).hw_enc_features |= on;
            (*dev).vlan_features |= config.vlan_features.as_raw();
            (*dev).xdp_features = bindings::nk_xdp_const_NK_XDP_FEATURES;
            (*dev).watchdog_timeo = config.watchdog as c_int;
            bindings::netif_set_tso_max_size(dev, config.max_super_frame);
            bindings::netif_set_tso_max_segs(dev, config.max_segments);
            bindings::netif_carrier_off(dev);
        }
    }

    /// Registers the device. Takes the RTNL, may sleep.
    pub fn register(self) -> Result<Registration<T>> {
        // SAFETY: Completely set up.
        to_result(unsafe { bindings::register_netdev(self.0.as_ptr()) })?;
        // INVARIANT: Registered above.
        Ok(Registration(
            core::mem::ManuallyDrop::new(self).0,
            PhantomData,
        ))
    }
}

impl<T: Operations> Drop for Unregistered<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants, and nobody refers to the device.
        unsafe { free(self.0.as_ptr(), PhantomData::<T>) };
    }
}

/// A registered network device. Dropping it takes it down, unregisters it, waits for all references and frees it; this
/// takes the RTNL and sleeps.
///
/// # Invariants
///
/// The pointer is to a registered device that this owns, whose private area is initialised.
pub struct Registration<T: Operations>(NonNull<bindings::net_device>, PhantomData<T>);

// SAFETY: Unregistering is allowed from any thread that may sleep; `T` is `Send`.
unsafe impl<T: Operations> Send for Registration<T> {}
// SAFETY: It gives access to nothing but the device, which is `Sync`.
unsafe impl<T: Operations> Sync for Registration<T> {}

impl<T: Operations> Registration<T> {
    /// The device.
    pub fn device(&self) -> &Device<T> {
        // SAFETY: By the type invariants.
        unsafe { Device::from_raw(self.0.as_ptr()) }
    }

    /// A counted reference to the device. The end of the registration waits until it is dropped.
    pub fn device_ref(&self) -> ARef<Device<T>> {
        self.device().into()
    }
}

impl<T: Operations> Drop for Registration<T> {
    fn drop(&mut self) {
        // SAFETY: Registered by the type invariants; after this no callback runs and no reference is left.
        unsafe {
            bindings::unregister_netdev(self.0.as_ptr());
            free(self.0.as_ptr(), PhantomData::<T>);
        }
    }
}

/// # Safety
///
/// `dev` is not registered, nobody refers to it, and its private area holds an initialised [`Private<T>`].
unsafe fn free<T: Operations>(dev: *mut bindings::net_device, _: PhantomData<T>) {
    // SAFETY: By the caller's guarantee.
    unsafe {
        core::ptr::drop_in_place(Device::<T>::private_ptr(dev));
        bindings::free_netdev(dev);
    }
}
