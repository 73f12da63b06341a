// SPDX-License-Identifier: GPL-2.0
//! What happens to a device's driver when the system sleeps, hibernates or goes down.
//!
//! C header: `include/linux/pm.h`.

use core::{ffi::c_int, pin::Pin};
use kernel::{
    bindings,
    device::{CoreInternal, Device},
};

/// A callback of `struct dev_pm_ops`.
pub(crate) type Callback = unsafe extern "C" fn(*mut bindings::device) -> c_int;

/// As `SYSTEM_SLEEP_PM_OPS()`: hibernation stops and starts devices as sleep does, once more while the image is written.
pub(crate) const fn system_sleep(suspend: Callback, resume: Callback) -> bindings::dev_pm_ops {
    bindings::dev_pm_ops {
        suspend: Some(suspend),
        resume: Some(resume),
        freeze: Some(suspend),
        thaw: Some(resume),
        poweroff: Some(suspend),
        restore: Some(resume),
        ..pin_init::zeroed()
    }
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
