// SPDX-License-Identifier: GPL-2.0
//! Numbers of a host's controllers, by which the names of their auxiliary devices differ.

use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Full, Relaxed},
};

/// Numbers that are in use, a bit each.
static TAKEN: Atomic<u64> = Atomic::new(0);

/// A controller's number, the lowest that is free; it goes back when this is dropped.
pub(crate) struct Number(u32);

impl Number {
    /// `ENOSPC` if a host has as many controllers as there are numbers, 64.
    pub(crate) fn take() -> Result<Self> {
        loop {
            let taken = TAKEN.load(Relaxed);
            let number = taken.trailing_ones();
            let bit = 1u64.checked_shl(number).ok_or(ENOSPC)?;
            // Fails only where another controller has got a number, or given one back, meanwhile.
            if TAKEN.cmpxchg(taken, taken | bit, Full).is_ok() {
                return Ok(Self(number));
            }
        }
    }

    pub(crate) fn get(&self) -> u32 {
        self.0
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let bit = 1u64.wrapping_shl(self.0);
        loop {
            let taken = TAKEN.load(Relaxed);
            if TAKEN.cmpxchg(taken, taken & !bit, Full).is_ok() {
                return;
            }
        }
    }
}
