// SPDX-License-Identifier: GPL-2.0
//! What happens to a device's driver when the system sleeps, hibernates or goes down.
//!
//! C header: `include/linux/pm.h`.

use core::{ffi::c_int, pin::Pin};
use kernel::{
    bindings,
    device::{CoreInternal, Device},
    driver::DriverLayout,
};

/// What happens to the system. A driver is told in process context with the device lock held, between a successful `probe` and
/// `unbind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// It goes to sleep or hibernates: stop all DMA, interrupts and timers, and leave the device's memory alone. Programs are frozen,
    /// so are freezable workqueues. Afterwards the bus may take the device's power.
    Suspend,
    /// It is awake again, with a PCI device's configuration space as it was saved; what the device itself knew may be lost.
    /// Programs are still frozen.
    Resume,
    /// The machine goes down or starts another kernel: stop all DMA.
    Shutdown,
}

/// The registration of a driver that is told.
pub(crate) trait Notified: DriverLayout {
    /// Tells the driver by its data of a device.
    fn notify(this: Pin<&Self::DriverData<'_>>, transition: Transition);
}

/// As `SYSTEM_SLEEP_PM_OPS()`: hibernation stops and starts devices as sleep does, once more while the image is written.
pub(crate) const fn system_sleep<T: Notified>() -> bindings::dev_pm_ops {
    bindings::dev_pm_ops {
        suspend: Some(suspend::<T>),
        resume: Some(resume::<T>),
        freeze: Some(suspend::<T>),
        thaw: Some(resume::<T>),
        poweroff: Some(suspend::<T>),
        restore: Some(resume::<T>),
        ..pin_init::zeroed()
    }
}

/// # Safety
///
/// `dev` must be valid, bound to a driver registered with `T` or being probed by it, and locked.
unsafe extern "C" fn suspend<T: Notified>(dev: *mut bindings::device) -> c_int {
    // SAFETY: By this function's contract, which the core of power management keeps: it holds the device lock. The data is what
    // `T` says, for `probe` has set it.
    unsafe { with_data::<T::DriverData<'_>, _>(dev, |data| T::notify(data, Transition::Suspend)) };
    0
}

/// # Safety
///
/// As for [`suspend`].
unsafe extern "C" fn resume<T: Notified>(dev: *mut bindings::device) -> c_int {
    // SAFETY: As in `suspend`.
    unsafe { with_data::<T::DriverData<'_>, _>(dev, |data| T::notify(data, Transition::Resume)) };
    0
}

/// # Safety
///
/// As for [`suspend`].
pub(crate) unsafe extern "C" fn shutdown<T: Notified>(dev: *mut bindings::device) {
    // SAFETY: As in `suspend`; `device_shutdown()` holds the device lock.
    unsafe { with_data::<T::DriverData<'_>, _>(dev, |data| T::notify(data, Transition::Shutdown)) };
}

/// Runs `f` with the driver's data of a device, or returns `None` if no `probe` has succeeded.
///
/// # Safety
///
/// `dev` must be valid and locked, and its driver's data of type `D`, as [`Device::set_drvdata`] stores it.
pub(crate) unsafe fn with_data<D, R>(
    dev: *mut bindings::device,
    f: impl FnOnce(Pin<&D>) -> R,
) -> Option<R> {
    // SAFETY: `dev` is valid; its lock serialises this with `probe` and removal, which set and clear the data.
    if unsafe { bindings::dev_get_drvdata(dev) }.is_null() {
        return None;
    }
    // SAFETY: `dev` is valid, and `Device` is a transparent wrapper of it.
    let dev = unsafe { &*dev.cast::<Device<CoreInternal<'_>>>() };
    // SAFETY: The data is set, so `probe` has succeeded; its type is `D` by this function's contract.
    Some(f(unsafe { dev.drvdata_borrow::<D>() }))
}
