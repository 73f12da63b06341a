// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Time.

use std::time::Instant;

/// A clock that never goes back.
pub trait Clock {
    /// Microseconds since some start.
    fn now_us(&self) -> u64;

    /// The same time in nanoseconds.
    fn now_ns(&self) -> u64 {
        self.now_us().saturating_mul(1000)
    }
}

/// The machine's monotonic clock, from the moment that this value was made.
#[derive(Debug)]
pub struct MonotonicClock(Instant);

impl MonotonicClock {
    /// Starts at zero.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    fn now_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
