// SPDX-License-Identifier: GPL-2.0
//! Memory barriers that `kernel::sync::barrier` lacks.
//!
//! C header: `include/asm-generic/barrier.h`.

use crate::bindings;

/// Orders all accesses to memory and device registers before it before all those after it (`mb()`). Any context.
#[inline]
pub fn full_fence() {
    // SAFETY: No requirements.
    unsafe { bindings::nk_mb() }
}
