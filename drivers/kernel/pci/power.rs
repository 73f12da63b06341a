// SPDX-License-Identifier: GPL-2.0
//! Registration of a PCI driver that handles sleep and shutdown.

use crate::power::{shutdown, system_sleep, Notified, Transition};
use core::marker::PhantomData;
use kernel::{bindings, driver, pci, prelude::*, types::Opaque, ThisModule};

/// A driver that handles them.
pub trait PowerHandler: pci::Driver {
    /// Something happens to the system.
    fn power(this: Pin<&Self::Data<'_>>, transition: Transition);
}

/// As [`pci::Adapter`], for a [`PowerHandler`].
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

impl<T: PowerHandler> Notified for PowerAdapter<T> {
    fn notify(this: Pin<&T::Data<'_>>, transition: Transition) {
        T::power(this, transition);
    }
}

impl<T: PowerHandler> PowerAdapter<T> {
    const SLEEP: bindings::dev_pm_ops = system_sleep::<Self>();

    /// # Safety
    ///
    /// `dev` must be valid, bound to a driver registered with this adapter or being probed by it, and locked.
    unsafe extern "C" fn shutdown(dev: *mut bindings::pci_dev) {
        // SAFETY: By this function's contract, which the PCI core keeps: `device_shutdown()` holds the device lock.
        unsafe { shutdown::<Self>(&raw mut (*dev).dev) };
    }
}
