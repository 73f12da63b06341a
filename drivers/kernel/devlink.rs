// SPDX-License-Identifier: GPL-2.0
//! A device as a whole: what it is, its port, and its health (`devlink`).
//!
//! C header: `include/net/devlink.h`

mod callbacks;
mod message;

pub use self::message::{Info, Message};

use crate::{bindings, raw};
use core::ptr::NonNull;
use kernel::{
    device::{Bound, Device},
    error::{from_err_ptr, to_result},
    prelude::*,
    str::CString,
    sync::Arc,
    types::Opaque,
};

/// What a driver says of its device, and does for its health. All of it may sleep, and has the lock of the devlink instance.
pub trait Operations: Send + Sync + 'static {
    /// What is known of a failure.
    type Report: Sync;
    /// Name of the health reporter.
    const REPORTER: &'static CStr;

    /// Says what the device is (`devlink dev info`).
    fn info(&self, info: &Info<'_>) -> Result;

    /// Says how the device is (`devlink health diagnose`).
    fn diagnose(&self, message: &Message<'_>) -> Result;

    /// Says what is to be kept of a failure (`devlink health dump`). Without a report: how the device is.
    fn dump(&self, message: &Message<'_>, report: Option<&Self::Report>) -> Result;

    /// Has a device work again that does not (`devlink health recover`). With a report: after that failure was reported.
    fn recover(&self, report: Option<&Self::Report>) -> Result;
}

/// A devlink instance; freed when dropped, after all that it has.
struct Instance(NonNull<bindings::devlink>);

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: Allocated in `Parts::new` and not registered any more; what it had is gone.
        unsafe { bindings::devlink_free(self.0.as_ptr()) };
    }
}

/// A port of an instance that is registered; ends when dropped.
struct RegisteredPort(KBox<Opaque<bindings::devlink_port>>);

impl RegisteredPort {
    fn new(instance: &Instance) -> Result<Self> {
        let port = KBox::new(Opaque::<bindings::devlink_port>::zeroed(), GFP_KERNEL)?;
        let attributes = bindings::devlink_port_attrs {
            flavour: bindings::devlink_port_flavour_DEVLINK_PORT_FLAVOUR_PHYSICAL,
            ..pin_init::zeroed()
        };
        // SAFETY: The port is zeroed and not registered, and stays where it is; the attributes are copied.
        unsafe { bindings::devlink_port_attrs_set(port.get(), &raw const attributes) };
        // SAFETY: The instance lives longer than the port, which `Parts` sees to. There are no operations.
        to_result(unsafe {
            bindings::devlink_port_register_with_ops(
                instance.0.as_ptr(),
                port.get(),
                0,
                core::ptr::null(),
            )
        })?;
        Ok(Self(port))
    }
}

impl Drop for RegisteredPort {
    fn drop(&mut self) {
        // SAFETY: Registered in `new`; no network interface refers to it, see `Port`.
        unsafe { bindings::devlink_port_unregister(self.0.get()) };
    }
}

/// A health reporter; ends when dropped.
struct Reporter(NonNull<bindings::devlink_health_reporter>);

impl Drop for Reporter {
    fn drop(&mut self) {
        // SAFETY: Created in `Parts::new`.
        unsafe { bindings::devlink_health_reporter_destroy(self.0.as_ptr()) };
    }
}

/// All that an instance has, in the order of its end.
struct Parts<T: Operations> {
    reporter: Reporter,
    port: RegisteredPort,
    instance: Instance,
    /// What callbacks are given a pointer to.
    _data: Arc<T>,
}

// SAFETY: All of it may be used and freed by any thread that may sleep; the data is `Send` and `Sync`.
unsafe impl<T: Operations> Send for Parts<T> {}
// SAFETY: As above; what is done with it takes the instance's lock.
unsafe impl<T: Operations> Sync for Parts<T> {}

/// The port of an instance, for the network interface that belongs to it. Keeps the instance's memory.
#[derive(Clone)]
pub struct Port(Arc<dyn PortAnchor>);

trait PortAnchor: Send + Sync {
    fn as_port(&self) -> *mut bindings::devlink_port;
}

impl<T: Operations> PortAnchor for Parts<T> {
    fn as_port(&self) -> *mut bindings::devlink_port {
        self.port.0.get()
    }
}

impl Port {
    pub(crate) fn as_raw(&self) -> *mut bindings::devlink_port {
        self.0.as_port()
    }
}

/// A devlink instance that user space sees, until this is dropped. That waits for running callbacks.
pub struct Registration<T: Operations>(Arc<Parts<T>>);

impl<T: Operations> Registration<T> {
    /// Registers an instance with one port for `parent`. May sleep.
    pub fn new(parent: &Device<Bound>, data: Arc<T>) -> Result<Self> {
        let pointer: *const T = &*data;
        // SAFETY: The table lives for ever, `parent` is a valid device.
        let instance = unsafe {
            bindings::nk_devlink_alloc(
                callbacks::VTable::<T>::OPS,
                size_of::<*const T>(),
                raw::device(parent),
            )
        };
        let instance = Instance(NonNull::new(instance).ok_or(ENOMEM)?);
        // SAFETY: The area has room for a pointer, and is aligned for anything.
        unsafe {
            bindings::devlink_priv(instance.0.as_ptr())
                .cast::<*const T>()
                .write(pointer);
        }
        let port = RegisteredPort::new(&instance)?;
        // SAFETY: The table lives for ever, and the data as long as the reporter.
        let reporter = from_err_ptr(unsafe {
            bindings::devlink_health_reporter_create(
                instance.0.as_ptr(),
                callbacks::VTable::<T>::REPORTER,
                pointer.cast_mut().cast(),
            )
        })?;
        let parts = Parts {
            reporter: Reporter(NonNull::new(reporter).ok_or(ENOMEM)?),
            port,
            instance,
            _data: data,
        };
        let parts = Arc::new(parts, GFP_KERNEL)?;
        // SAFETY: Complete, and not registered.
        unsafe { bindings::devlink_register(parts.instance.0.as_ptr()) };
        Ok(Self(parts))
    }

    /// The port.
    pub fn port(&self) -> Port {
        Port(self.0.clone())
    }

    /// Tells that the device works, after a failure that was mended without [`Operations::recover`]. May sleep.
    pub fn set_healthy(&self) {
        // SAFETY: The reporter exists, and the instance is registered.
        unsafe {
            bindings::devlink_health_reporter_state_update(
                self.0.reporter.0.as_ptr(),
                bindings::devlink_health_reporter_state_DEVLINK_HEALTH_REPORTER_STATE_HEALTHY,
            );
        }
    }

    /// Tells of a failure: user space is notified, a dump is made, and [`Operations::recover`] is called if the administrator has
    /// not switched that off. Takes the instance's lock, so not from its callbacks. May sleep.
    pub fn report(&self, what: &str, report: &T::Report) {
        let Ok(what) = CString::try_from_fmt(fmt!("{what}")) else {
            return;
        };
        // SAFETY: The reporter exists. The report is given back to `dump` during the call only.
        unsafe {
            // An error says that nothing was recovered, which user space sees.
            bindings::devlink_health_report(
                self.0.reporter.0.as_ptr(),
                what.as_char_ptr(),
                core::ptr::from_ref(report).cast_mut().cast(),
            );
        }
    }
}

impl<T: Operations> Drop for Registration<T> {
    fn drop(&mut self) {
        // SAFETY: Registered in `new`; no callback runs after this.
        unsafe { bindings::devlink_unregister(self.0.instance.0.as_ptr()) };
    }
}
