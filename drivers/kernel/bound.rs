// SPDX-License-Identifier: GPL-2.0
//! Proof, for long-lived objects, that a device is still bound.

use kernel::{
    device::{Bound, Device},
    devres, new_mutex,
    prelude::*,
    sync::{aref::ARef, Arc, Mutex},
};

/// A device that its holder may use as a bound one for as long as it is; shared by everything that outlives `probe`.
///
/// The kernel crate's `Devres` answers the same question under the RCU read lock, where allocations must not sleep.
#[derive(Clone)]
pub struct BoundDevice {
    inner: Arc<Inner>,
}

#[pin_data]
struct Inner {
    device: ARef<Device>,
    /// Whether the device is bound; the end of the bound state waits for this lock.
    #[pin]
    bound: Mutex<bool>,
}

/// Ends the bound state when the device's managed resources are released.
struct Unbind(Arc<Inner>);

impl Drop for Unbind {
    fn drop(&mut self) {
        *self.0.bound.lock() = false;
    }
}

impl BoundDevice {
    /// Remembers `device` as bound until its driver is unbound.
    pub fn new(device: &Device<Bound>) -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(Inner {
                device: device.into(),
                bound <- new_mutex!(true),
            }),
            GFP_KERNEL,
        )?;
        devres::register(device, Unbind(inner.clone()), GFP_KERNEL)?;
        Ok(Self { inner })
    }

    /// The device, bound or not.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Runs `f` on the device if it is still bound, else returns `ENODEV`. Unbinding waits for `f`, which may sleep
    /// but must not unbind the device.
    pub fn with<R>(&self, f: impl FnOnce(&Device<Bound>) -> Result<R>) -> Result<R> {
        let bound = self.inner.bound.lock();
        if !*bound {
            return Err(ENODEV);
        }
        // SAFETY: The managed resource `Unbind` is released before unbinding ends; it waits for the lock held here.
        f(unsafe { self.inner.device.as_bound() })
    }
}
