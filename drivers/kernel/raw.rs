// SPDX-License-Identifier: GPL-2.0
//! C pointers behind types of the `kernel` crate that keeps its own accessors to itself; for this crate and `nk_rdma`.

use crate::bindings;
use kernel::device;

/// The C object of a device (`Device::as_raw()`, which is private to the `kernel` crate).
#[inline]
pub fn device<C: device::DeviceContext>(device: &device::Device<C>) -> *mut bindings::device {
    // `Device` is `#[repr(transparent)]` around the C structure.
    core::ptr::from_ref(device).cast_mut().cast()
}
