// SPDX-License-Identifier: GPL-2.0
//! Registration of a PCI driver that handles bus errors and resets, sleep and shutdown.

use super::{PowerAdapter, PowerHandler};
use core::marker::PhantomData;
use kernel::{
    bindings,
    device::{Core, CoreInternal},
    driver, pci,
    prelude::*,
    types::Opaque,
    ThisModule,
};

/// What happened to the way between CPU and device (`enum pci_channel_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelState {
    /// The device can be accessed.
    Normal,
    /// Accesses are blocked until the slot is reset.
    Frozen,
    /// The device will not come back.
    Failed,
}

/// What a driver can make of an error (`enum pci_ers_result`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// It goes on without a reset.
    CanRecover,
    /// It needs a reset of the slot.
    NeedReset,
    /// The device is lost.
    Disconnect,
    /// It works again.
    Recovered,
}

impl Recovery {
    fn to_raw(self) -> bindings::pci_ers_result_t {
        match self {
            Self::CanRecover => bindings::pci_ers_result_PCI_ERS_RESULT_CAN_RECOVER,
            Self::NeedReset => bindings::pci_ers_result_PCI_ERS_RESULT_NEED_RESET,
            Self::Disconnect => bindings::pci_ers_result_PCI_ERS_RESULT_DISCONNECT,
            Self::Recovered => bindings::pci_ers_result_PCI_ERS_RESULT_RECOVERED,
        }
    }
}

/// Callbacks of the PCI core around errors and resets, see `Documentation/PCI/pci-error-recovery.rst` of the kernel.
///
/// All run in process context with the device lock held, between a successful `probe` and `unbind`.
pub trait ErrorHandler: PowerHandler {
    /// An error was seen; stop using the device if it is frozen or failed.
    fn error_detected(
        dev: &pci::Device<Core<'_>>,
        this: Pin<&Self::Data<'_>>,
        state: ChannelState,
    ) -> Recovery;

    /// The slot was reset and configuration space is as it was at `probe`.
    fn slot_reset(dev: &pci::Device<Core<'_>>, this: Pin<&Self::Data<'_>>) -> Recovery;

    /// Recovery is over, traffic may flow.
    fn resume(dev: &pci::Device<Core<'_>>, this: Pin<&Self::Data<'_>>);

    /// Somebody is about to reset the function (sysfs, VFIO).
    fn reset_prepare(dev: &pci::Device<Core<'_>>, this: Pin<&Self::Data<'_>>);

    /// The function was reset and configuration space restored.
    fn reset_done(dev: &pci::Device<Core<'_>>, this: Pin<&Self::Data<'_>>);
}

/// As [`PowerAdapter`], with the callbacks of [`ErrorHandler`].
pub struct Adapter<T: ErrorHandler>(PhantomData<T>);

// SAFETY: All of it is that of `PowerAdapter<T>`, which makes the same promise.
unsafe impl<T: ErrorHandler> driver::DriverLayout for Adapter<T> {
    type DriverType = <PowerAdapter<T> as driver::DriverLayout>::DriverType;
    type DriverData<'bound> = <PowerAdapter<T> as driver::DriverLayout>::DriverData<'bound>;
    const DEVICE_DRIVER_OFFSET: usize =
        <PowerAdapter<T> as driver::DriverLayout>::DEVICE_DRIVER_OFFSET;
}

// SAFETY: Registration and its end are those of `PowerAdapter<T>`, which makes the same promise.
unsafe impl<T: ErrorHandler> driver::RegistrationOps for Adapter<T> {
    unsafe fn register(
        driver: &Opaque<Self::DriverType>,
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> Result {
        // SAFETY: Not registered yet, so the structure is ours; the table is static.
        unsafe { (*driver.get()).err_handler = &Adapter::<T>::ERROR_HANDLERS };
        // SAFETY: This function's contract is the callee's; it leaves the field set above alone.
        unsafe { <PowerAdapter<T> as driver::RegistrationOps>::register(driver, name, module) }
    }

    unsafe fn unregister(driver: &Opaque<Self::DriverType>) {
        // SAFETY: This function's contract is the callee's.
        unsafe { <PowerAdapter<T> as driver::RegistrationOps>::unregister(driver) }
    }
}

/// Runs `f` with the device and its driver's data, or returns `None` if no `probe` has succeeded.
///
/// # Safety
///
/// `dev` must be valid, bound to a driver registered with [`Adapter<T>`] or being probed by it, and locked.
unsafe fn with_data<T: ErrorHandler, R>(
    dev: *mut bindings::pci_dev,
    f: impl FnOnce(&pci::Device<Core<'_>>, Pin<&T::Data<'_>>) -> R,
) -> Option<R> {
    // SAFETY: `dev` is valid; the device lock serialises this with `probe` and removal, which set and clear it.
    if unsafe { bindings::dev_get_drvdata(&raw const (*dev).dev) }.is_null() {
        return None;
    }
    // SAFETY: `dev` is valid, and `pci::Device` is a transparent wrapper of it.
    let dev = unsafe { &*dev.cast::<pci::Device<CoreInternal<'_>>>() };
    // SAFETY: Driver data is set, so `probe` has succeeded; its type is that of `T`.
    let data = unsafe { dev.as_ref().drvdata_borrow::<T::Data<'_>>() };
    Some(f(dev, data))
}

impl<T: ErrorHandler> Adapter<T> {
    const ERROR_HANDLERS: bindings::pci_error_handlers = bindings::pci_error_handlers {
        error_detected: Some(Self::error_detected),
        slot_reset: Some(Self::slot_reset),
        resume: Some(Self::resume),
        reset_prepare: Some(Self::reset_prepare),
        reset_done: Some(Self::reset_done),
        mmio_enabled: None,
        cor_error_detected: None,
    };

    /// # Safety
    ///
    /// As for [`with_data`].
    unsafe extern "C" fn error_detected(
        dev: *mut bindings::pci_dev,
        state: bindings::pci_channel_state_t,
    ) -> bindings::pci_ers_result_t {
        let state = match state {
            bindings::pci_channel_io_normal => ChannelState::Normal,
            bindings::pci_channel_io_frozen => ChannelState::Frozen,
            _ => ChannelState::Failed,
        };
        // SAFETY: By this function's contract, which the PCI core keeps: it holds the device lock.
        let recovery =
            unsafe { with_data::<T, _>(dev, |dev, data| T::error_detected(dev, data, state)) };
        recovery.unwrap_or(Recovery::Disconnect).to_raw()
    }

    /// # Safety
    ///
    /// As for [`with_data`].
    unsafe extern "C" fn slot_reset(dev: *mut bindings::pci_dev) -> bindings::pci_ers_result_t {
        // SAFETY: As in `error_detected`.
        let recovery = unsafe { with_data::<T, _>(dev, T::slot_reset) };
        recovery.unwrap_or(Recovery::Disconnect).to_raw()
    }

    /// # Safety
    ///
    /// As for [`with_data`].
    unsafe extern "C" fn resume(dev: *mut bindings::pci_dev) {
        // SAFETY: As in `error_detected`.
        unsafe { with_data::<T, _>(dev, <T as ErrorHandler>::resume) };
    }

    /// # Safety
    ///
    /// As for [`with_data`].
    unsafe extern "C" fn reset_prepare(dev: *mut bindings::pci_dev) {
        // SAFETY: As in `error_detected`.
        unsafe { with_data::<T, _>(dev, T::reset_prepare) };
    }

    /// # Safety
    ///
    /// As for [`with_data`].
    unsafe extern "C" fn reset_done(dev: *mut bindings::pci_dev) {
        // SAFETY: As in `error_detected`.
        unsafe { with_data::<T, _>(dev, T::reset_done) };
    }
}
