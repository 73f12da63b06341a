// SPDX-License-Identifier: GPL-2.0
//! Devices and their registration.

use crate::{bindings, vtable::VTable, Driver, KernelVerbs};
use core::{marker::PhantomData, mem::ManuallyDrop, ops::Deref, ptr::addr_of_mut, ptr::NonNull};
use kernel::{device, error::to_result, prelude::*, types::Opaque, ThisModule};
use nk::raw::{self, Name};

/// The only port of a device.
pub(crate) const PORT: u32 = 1;

/// Bytes of a device's name.
const NAME_LEN: usize = bindings::IB_DEVICE_NAME_MAX as usize;

/// A device with the driver's data behind it.
#[repr(C)]
pub struct Device<D: Driver> {
    ib: Opaque<bindings::nk_rdma_device>,
    data: D,
}

// SAFETY: The core's functions may be called from any thread, and `D` is `Send` and `Sync`.
unsafe impl<D: Driver> Send for Device<D> {}
// SAFETY: As above.
unsafe impl<D: Driver> Sync for Device<D> {}

impl<D: Driver> Device<D> {
    /// # Safety
    ///
    /// `ib` is a device that [`Unregistered`] made for `D`, for `'a`.
    pub(crate) unsafe fn from_raw<'a>(ib: *mut bindings::ib_device) -> &'a Self {
        // SAFETY: The device starts with the C structure; the rest is the caller's guarantee.
        unsafe { &*ib.cast::<Self>() }
    }

    /// The core's structure.
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_device {
        self.ib.get().cast()
    }

    /// Name, for messages.
    pub fn name(&self) -> Name<NAME_LEN> {
        // SAFETY: The name is an array of the device, which is alive; it may be changed at any time.
        Name::new(unsafe { raw::read_bytes((&raw const (*self.as_raw()).name).cast()) })
    }

    /// Whether the port's network interface is there, up, and has a carrier. Any context but hard interrupts.
    pub fn netdev_active(&self) -> bool {
        // SAFETY: The device is alive.
        let state = unsafe { bindings::nk_rdma_port_state(self.as_raw(), PORT) };
        state == bindings::ib_port_state_IB_PORT_ACTIVE
    }
}

impl<D: Driver> Deref for Device<D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.data
    }
}

/// A device that nobody knows yet.
pub struct Unregistered<D: Driver>(NonNull<Device<D>>);

impl<D: Driver> Drop for Unregistered<D> {
    fn drop(&mut self) {
        let dev = self.0.as_ptr();
        // SAFETY: The device is ours alone, or unregistered again; its data was initialised in `new` and is dropped
        // here only, before the core frees the memory.
        unsafe {
            addr_of_mut!((*dev).data).drop_in_place();
            bindings::ib_dealloc_device(dev.cast());
        }
    }
}

impl<D: Driver> Unregistered<D> {
    /// Makes a device for `data`, with one port. Sleeps.
    pub fn new(data: D) -> Result<Self> {
        // SAFETY: The size is that of a structure that begins with `struct nk_rdma_device`.
        let ib = unsafe { bindings::nk_rdma_alloc(size_of::<Device<D>>()) };
        let dev = NonNull::new(ib.cast::<Device<D>>()).ok_or(ENOMEM)?;
        // SAFETY: The memory is fresh and large enough.
        unsafe { addr_of_mut!((*dev.as_ptr()).data).write(data) };
        Ok(Self(dev))
    }

    /// Registers the device as a child of `parent`, which does its DMA, under `name` (`%d` stands for a number).
    ///
    /// `module` is the one whose code `D` is, `vectors` is how many completion vectors there are. The port belongs to
    /// the network device that has the same parent, now or later. Sleeps; not with the RTNL held.
    pub fn register<'bound>(
        self,
        parent: &'bound device::Device<device::Bound>,
        module: &'static ThisModule,
        name: &'static CStr,
        guid: u64,
        vectors: u32,
    ) -> Result<Registration<'bound, D>>
    where
        D: KernelVerbs,
    {
        let vectors = i32::try_from(vectors)?;
        let ib = self.0.as_ptr().cast::<bindings::ib_device>();
        let parent = raw::device(parent);
        self.set_operations(module);
        // SAFETY: The device is ours alone before its registration.
        unsafe {
            bindings::nk_rdma_set_device(ib, VTable::<D>::METHODS, parent, guid, vectors);
            (*ib).local_dma_lkey = D::LOCAL_DMA_LKEY;
        }
        let follower = Follower::new(ib, parent)?;
        // SAFETY: The device is complete; `parent` is bound, which it stays until the registration is dropped.
        to_result(unsafe { bindings::ib_register_device(ib, name.as_char_ptr(), parent) })?;
        Ok(Registration {
            dev: ManuallyDrop::new(self),
            follower: ManuallyDrop::new(follower),
            _parent: PhantomData,
        })
    }

    /// Says what the device can do, with the code of `module`. By itself because of the space that it takes on the stack, below which the core makes much.
    #[inline(never)]
    fn set_operations(&self, module: &'static ThisModule)
    where
        D: KernelVerbs,
    {
        let mut ops = VTable::<D>::OPS;
        ops.owner = module.as_ptr();
        ops.set_uverbs_robust_udata(1);
        // SAFETY: The device is ours alone before its registration. The core copies the table.
        unsafe { bindings::ib_set_device_ops(self.0.as_ptr().cast(), &ops) };
    }
}

/// Sets the port's network device as it comes and goes.
struct Follower(KBox<Opaque<bindings::nk_rdma_follower>>);

impl Follower {
    fn new(ib: *mut bindings::ib_device, parent: *mut bindings::device) -> Result<Self> {
        let follower = KBox::new(Opaque::zeroed(), GFP_KERNEL)?;
        // SAFETY: The follower stays where it is until `drop`, which comes before the end of the device and of its
        // parent.
        to_result(unsafe { bindings::nk_rdma_follow(follower.get(), ib, parent) })?;
        Ok(Self(follower))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // SAFETY: Registered in `new`.
        unsafe { bindings::nk_rdma_unfollow(self.0.get()) };
    }
}

/// A registered device. Dropping it takes the device away from everybody, programs included, and waits until all its
/// objects are gone; not with the RTNL held. Its parent is bound until then.
pub struct Registration<'bound, D: Driver> {
    dev: ManuallyDrop<Unregistered<D>>,
    follower: ManuallyDrop<Follower>,
    _parent: PhantomData<&'bound device::Device<device::Bound>>,
}

// SAFETY: Any thread may unregister the device.
unsafe impl<D: Driver> Send for Registration<'_, D> {}
// SAFETY: Only gives references to `Device`, which is `Sync`.
unsafe impl<D: Driver> Sync for Registration<'_, D> {}

impl<D: Driver> Registration<'_, D> {
    /// The device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: It is alive as long as `self`, and only shared from its registration on.
        unsafe { self.dev.0.as_ref() }
    }
}

impl<D: Driver> Drop for Registration<'_, D> {
    fn drop(&mut self) {
        // SAFETY: Both are dropped here only. The network device is followed no more before the device goes.
        // Unregistering returns when the core has ended its last call, after which the driver's data can be dropped.
        unsafe {
            ManuallyDrop::drop(&mut self.follower);
            bindings::ib_unregister_device(self.device().as_raw());
            ManuallyDrop::drop(&mut self.dev);
        }
    }
}
