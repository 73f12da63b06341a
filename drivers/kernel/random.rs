// SPDX-License-Identifier: GPL-2.0
//! Random numbers that nobody can guess.
//!
//! C header: `include/linux/random.h`. Any context; before the generator is seeded the numbers are of less worth.

use crate::bindings;

/// 32 random bits.
pub fn u32() -> u32 {
    // SAFETY: No requirements.
    unsafe { bindings::get_random_u32() }
}

/// 64 random bits.
pub fn u64() -> u64 {
    // SAFETY: No requirements.
    unsafe { bindings::get_random_u64() }
}
