// SPDX-License-Identifier: GPL-2.0
//! Event counters with one writer.

use core::{cell::UnsafeCell, ptr};

/// A 64-bit counter that one context at a time bumps and any context reads.
///
/// What `u64_stats_t` is to C drivers on 64-bit machines (include/linux/u64_stats_sync.h): a plain load, add and store.
/// Two concurrent writers would lose counts, nothing worse.
#[derive(Default)]
pub struct Counter(UnsafeCell<u64>);

// SAFETY: All accesses are volatile and of word size, which the Linux kernel memory model (tools/memory-model) treats as
// `READ_ONCE()` and `WRITE_ONCE()`: free of data races and of tearing on 64-bit machines, on which alone this builds.
unsafe impl Sync for Counter {}

const _: () = assert!(size_of::<usize>() == size_of::<u64>());

impl Counter {
    /// A counter at zero.
    pub const fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    /// Adds `n`, wrapping. Any context, one at a time.
    #[inline]
    pub fn add(&self, n: u64) {
        // SAFETY: The pointer comes from the cell; see the `Sync` implementation for concurrency.
        unsafe { ptr::write_volatile(self.0.get(), self.get().wrapping_add(n)) };
    }

    /// The count. Any context.
    #[inline]
    pub fn get(&self) -> u64 {
        // SAFETY: As in `add`.
        unsafe { ptr::read_volatile(self.0.get()) }
    }
}
