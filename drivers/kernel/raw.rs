// SPDX-License-Identifier: GPL-2.0
//! For this crate and `nk_rdma`: C pointers behind types of the `kernel` crate that keeps its own accessors to itself, and
//! memory that C code changes at any time.

use crate::bindings;
use kernel::{device, fmt, str::BStr};

/// The C object of a device (`Device::as_raw()`, which is private to the `kernel` crate).
#[inline]
pub fn device<C: device::DeviceContext>(device: &device::Device<C>) -> *mut bindings::device {
    // `Device` is `#[repr(transparent)]` around the C structure.
    core::ptr::from_ref(device).cast_mut().cast()
}

/// Copies bytes that C code may be changing just now: some may be old, others new.
///
/// # Safety
///
/// `from` points to `N` bytes of C's that can be read.
pub unsafe fn read_bytes<const N: usize>(from: *const u8) -> [u8; N] {
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: By this function's contract. Volatile, as `READ_ONCE()`: bytes do not tear.
        *byte = unsafe { from.add(index).read_volatile() };
    }
    bytes
}

/// A copy of the name of something, for messages: whoever renames it meanwhile does not change it.
pub struct Name<const N: usize = 16>([u8; N]);

impl<const N: usize> Name<N> {
    /// The name up to the first NUL.
    pub fn new(bytes: [u8; N]) -> Self {
        Self(bytes)
    }
}

impl<const N: usize> fmt::Display for Name<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.split(|byte| *byte == 0).next();
        fmt::Display::fmt(BStr::from_bytes(name.unwrap_or_default()), f)
    }
}
