// SPDX-License-Identifier: GPL-2.0
//! Drivers of DAX devices: memory that the kernel does not use for itself, such as a region of CXL memory.
//!
//! C header: `drivers/dax/bus.h`. A driver is bound by hand (`Documentation/ABI/testing/sysfs-bus-dax` of the kernel): an
//! administrator writes the name of a device to the driver's `new_id`.

use crate::{
    bindings,
    power::{shutdown, system_sleep, Notified, Transition},
};
use core::{marker::PhantomData, mem::offset_of};
use kernel::{
    device::{self, Core, CoreInternal},
    driver,
    error::{from_result, to_result},
    ffi::c_int,
    prelude::*,
    types::Opaque,
    ThisModule,
};

/// What a driver gets by default are devices of its type, and no device is of this one: so it gets those that are named to it.
/// Nor is it one of the kernel's own types. Of `DAXDRV_FSDEV_TYPE` the kernel thinks that a file system may have the memory
/// (`fs_dax_get()`).
const NO_TYPE: bindings::dax_driver_type = bindings::dax_driver_type::MAX;

// The bus's header is the kernel's own, of the tree that the modules are built for. With another kernel's types this would not
// hold, and there would be something to think about.
const _: () = assert!(
    bindings::dax_driver_type_DAXDRV_KMEM_TYPE == 0
        && bindings::dax_driver_type_DAXDRV_DEVICE_TYPE == 1
        && bindings::dax_driver_type_DAXDRV_FSDEV_TYPE == 2
);

/// A device on the DAX bus.
///
/// # Invariants
///
/// It is a valid `struct dev_dax`.
#[repr(transparent)]
pub struct Device<Ctx: device::DeviceContext = device::Normal>(
    Opaque<bindings::dev_dax>,
    PhantomData<Ctx>,
);

// SAFETY: `Device` is a transparent wrapper of a type that does not depend on the context.
kernel::impl_device_context_deref!(unsafe { Device });

impl<Ctx: device::DeviceContext> AsRef<device::Device<Ctx>> for Device<Ctx> {
    fn as_ref(&self) -> &device::Device<Ctx> {
        // SAFETY: By the type's invariant. `device::Device` is a transparent wrapper of the C structure, which lives as
        // long as what it is embedded in.
        unsafe { &*(&raw const (*self.0.get()).dev).cast() }
    }
}

/// Physical memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Physical address.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) len: u64,
}

impl Device<device::Bound> {
    /// Its memory; `EINVAL` if that is not one range.
    pub(crate) fn memory(&self) -> Result<Memory> {
        let (mut start, mut len) = (0, 0);
        // SAFETY: By the type's invariant; the device is bound, so its ranges do not change.
        to_result(unsafe { bindings::nk_dax_range(self.0.get(), &mut start, &mut len) })?;
        Ok(Memory { start, len })
    }

    /// Whether all of its memory is known to outlive a loss of power.
    pub fn is_persistent(&self) -> bool {
        let known = |memory: Memory| {
            // SAFETY: No requirements.
            unsafe { bindings::nk_memory_is_persistent(memory.start, memory.len) }
        };
        self.memory().is_ok_and(known)
    }
}

/// A driver of DAX devices.
pub trait Driver {
    /// Its data of a device; dropped before the device's managed resources are released.
    type Data<'bound>: Send + 'bound;

    /// Takes a device. Process context, with the device lock held.
    fn probe<'bound>(
        dev: &'bound Device<Core<'_>>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound;

    /// Something happens to the system.
    fn power(this: Pin<&Self::Data<'_>>, transition: Transition);
}

/// What [`driver::Registration`] takes to register a [`Driver`].
pub struct Adapter<T: Driver>(PhantomData<T>);

// SAFETY: `dax_device_driver` is a C type with a `device_driver` at this offset; `probe` below sets data of this type.
unsafe impl<T: Driver> driver::DriverLayout for Adapter<T> {
    type DriverType = bindings::dax_device_driver;
    type DriverData<'bound> = T::Data<'bound>;
    const DEVICE_DRIVER_OFFSET: usize = offset_of!(Self::DriverType, drv);
}

// SAFETY: `unregister` undoes what `register` does.
unsafe impl<T: Driver> driver::RegistrationOps for Adapter<T> {
    unsafe fn register(
        driver: &Opaque<Self::DriverType>,
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> Result {
        // SAFETY: Not registered yet, so the structure is ours.
        unsafe {
            (*driver.get()).probe = Some(Self::probe);
            // The bus has no such callbacks of its own, so the driver's are called.
            (*driver.get()).drv.pm = &Self::SLEEP;
            (*driver.get()).drv.shutdown = Some(shutdown::<Self>);
            (*driver.get()).type_ = NO_TYPE;
        }
        // SAFETY: By this function's contract the structure stays where it is until `unregister`. The name is static.
        to_result(unsafe {
            bindings::__dax_driver_register(
                driver.get(),
                module.as_ptr().cast(),
                name.as_char_ptr(),
            )
        })
    }

    unsafe fn unregister(driver: &Opaque<Self::DriverType>) {
        // SAFETY: By this function's contract it is registered.
        unsafe { bindings::dax_driver_unregister(driver.get()) }
    }
}

impl<T: Driver> Notified for Adapter<T> {
    fn notify(this: Pin<&T::Data<'_>>, transition: Transition) {
        T::power(this, transition);
    }
}

impl<T: Driver> Adapter<T> {
    const SLEEP: kernel::bindings::dev_pm_ops = system_sleep::<Self>();

    /// # Safety
    ///
    /// `dev` must be a valid device that is being probed.
    unsafe extern "C" fn probe(dev: *mut bindings::dev_dax) -> c_int {
        // SAFETY: By this function's contract; `Device` is a transparent wrapper of the C structure.
        let dev = unsafe { &*dev.cast::<Device<CoreInternal<'_>>>() };
        from_result(|| {
            let data = T::probe(dev);
            let device: &device::Device<CoreInternal<'_>> = dev.as_ref();
            device.set_drvdata(data)?;
            Ok(0)
        })
    }
}
