// SPDX-License-Identifier: GPL-2.0
//! Bottom halves off, for process context that calls what is made for interrupt handlers.
//!
//! C header: `include/linux/bottom_half.h`.

use crate::bindings;

/// Whether softirqs are held back on this CPU, or one runs, and nothing more: neither an interrupt nor code that has those off.
#[inline]
pub fn are_disabled() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::nk_bh_is_disabled() }
}

/// Runs `f` with softirqs held back on this CPU; those that it raised run before this returns, unless the caller has
/// them off itself. Not in hard interrupt context or with interrupts off; `f` must not sleep.
pub fn disabled<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: No requirements; paired below.
    unsafe { bindings::nk_bh_disable() };
    let result = f();
    // SAFETY: They were disabled above, in the same context since `f` does not sleep.
    unsafe { bindings::nk_bh_enable() };
    result
}
