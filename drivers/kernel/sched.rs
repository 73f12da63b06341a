// SPDX-License-Identifier: GPL-2.0
//! The scheduler, as far as drivers that do much at once have to do with it.
//!
//! C header: `include/linux/sched.h`.

use crate::bindings;

/// Lets others run that wait for this processor (`cond_resched()`). May sleep.
#[inline]
pub fn cond_resched() {
    // SAFETY: No requirements on memory; where sleeping is not allowed the kernel says so.
    unsafe { bindings::nk_cond_resched() }
}
