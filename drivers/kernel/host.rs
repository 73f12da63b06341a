// SPDX-License-Identifier: GPL-2.0
//! The machine that the kernel runs on.
//!
//! C headers: `include/linux/dmi.h`, `include/linux/utsname.h`.

use crate::bindings;

/// Bytes of a name that count, and one.
const MAX_NAME: usize = 64;

/// What tells a machine from others: its UUID as firmware says it, or without one its host name. The same after a restart.
pub struct Name {
    bytes: [u8; MAX_NAME],
    len: usize,
}

impl Name {
    /// This machine's. Any context.
    pub fn own() -> Self {
        let mut bytes = [0u8; MAX_NAME];
        // SAFETY: The buffer has as many bytes as are said.
        let len = unsafe { bindings::nk_host_name(bytes.as_mut_ptr().cast(), bytes.len()) };
        Self { bytes, len }
    }

    /// Its bytes, 63 at most.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}
