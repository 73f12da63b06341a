// SPDX-License-Identifier: GPL-2.0
//! Registration of a PCI driver that handles sleep and shutdown.

use crate::power::{system_sleep, with_data};
use core::marker::PhantomData;
use kernel::{bindings, driver, ffi::c_int, pci, prelude::*, types::Opaque, ThisModule};

/// Callbacks of the PCI core around the system's sleep and its end.
///
/// All run in process context with the device lock held, between a successful `probe` and `unbind`.
pub trait PowerHandler: pci::Driver {
    /// The system goes to sleep or hibernates: stop all DMA, interrupts and timers. Programs are frozen, so are freezable
    /// workqueues. Afterwards the PCI core saves configuration space and may take the device's power.
    fn suspend(this: Pin<&Self::Data<'_>>);

    /// It is awake again, with configuration space as it was saved; what the device itself knew may be lost. Programs are still
    /// frozen.
    fn resume(this: Pin<&Self::Data<'_>>);

    /// The machine goes down or starts another kernel: stop all DMA.
    fn shutdown(this: Pin<&Self::Data<'_>>);
}

/// As [`pci::Adapter`], with the callbacks of [`PowerHandler`].
pub struct PowerAdapter<T: PowerHandler>(PhantomData<T>);

// SAFETY: All of it is that of `pci::Adapter<T>`, which makes the same promise.
unsafe impl<T: PowerHandler> driver::DriverLayout for PowerAdapter<T> {
    type DriverType = <pci::Adapter<T> as driver::DriverLayout>::DriverType;
    type DriverData<'bound> = <pci::Adapter<T> as driver::DriverLayout>::DriverData<'bound>;
    const DEVICE_DRIVER_OFFSET: usize =
        <pci::Adapter<T> as driver::DriverLayout>::DEVICE_DRIVER_OFFSET;
}

// SAFETY: Registration and its end are those of `pci::Adapter<T>`, which makes the same promise.
unsafe impl<T: PowerHandler> driver::RegistrationOps for PowerAdapter<T> {
    unsafe fn register(
        driver: &Opaque<Self::DriverType>,
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> Result {
        // SAFETY: Not registered yet, so the structure is ours; the table is static.
        unsafe {
            (*driver.get()).driver.pm = &Self::SLEEP;
            (*driver.get()).shutdown = Some(Self::shutdown);
        }
        // SAFETY: This function's contract is the callee's; it leaves the fields set above alone.
        unsafe { <pci::Adapter<T> as driver::RegistrationOps>::register(driver, name, module) }
    }

    unsafe fn unregister(driver: &Opaque<Self::DriverType>) {
        // SAFETY: This function's contract is the callee's.
        unsafe { <pci::Adapter<T> as driver::RegistrationOps>::unregister(driver) }
    }
}

impl<T: PowerHandler> PowerAdapter<T> {
    const SLEEP: bindings::dev_pm_ops = system_sleep(Self::suspend, Self::resume);

    /// # Safety
    ///
    /// `dev` must be valid, bound to a driver registered with this adapter or being probed by it, and locked.
    unsafe extern "C" fn suspend(dev: *mut bindings::device) -> c_int {
        // SAFETY: By this function's contract, which the core of power management keeps: it holds the device lock. The data is that
        // of `T`, whose `probe` has set it.
        unsafe { with_data::<T::Data<'_>, _>(dev, T::suspend) };
        0
    }

    /// # Safety
    ///
    /// As for `suspend`.
    unsafe extern "C" fn resume(dev: *mut bindings::device) -> c_int {
        // SAFETY: As in `suspend`.
        unsafe { with_data::<T::Data<'_>, _>(dev, T::resume) };
        0
    }

    /// # Safety
    ///
    /// As for `suspend`.
    unsafe extern "C" fn shutdown(dev: *mut bindings::pci_dev) {
        // SAFETY: As in `suspend`, by the PCI core; `device_shutdown()` holds the device lock.
        unsafe { with_data::<T::Data<'_>, _>(&raw mut (*dev).dev, T::shutdown) };
    }
}
