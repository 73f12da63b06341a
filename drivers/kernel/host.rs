// SPDX-License-Identifier: GPL-2.0
//! The machine that the kernel runs on.
//!
//! C headers: `include/linux/dmi.h`, `include/linux/utsname.h`.

use crate::bindings;

/// Bytes of a name that count.
const MAX_NAME: usize = 64;

/// A number that is the same after a restart and most likely another one on other machines; not 0. Any context.
pub fn identity() -> u64 {
    let mut name = [0u8; MAX_NAME];
    // SAFETY: The buffer has as many bytes as are said.
    let len = unsafe { bindings::nk_host_name(name.as_mut_ptr().cast(), name.len()) };
    let name = name.get(..len).unwrap_or_default();
    // FNV-1a.
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}
