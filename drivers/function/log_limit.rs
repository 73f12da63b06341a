// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Keeps a driver from filling the log.

/// Messages allowed per window.
const BURST: u32 = 10;
/// Microseconds of a window.
const WINDOW_US: u64 = 5_000_000;

/// Allows a few messages in each window of time and counts the rest.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    window_start: u64,
    used: u32,
    suppressed: u64,
}

impl LogLimit {
    /// Whether a message may be logged now; if so, how many were not before it.
    pub(crate) fn allow(&mut self, now_us: u64) -> Option<u64> {
        if now_us.saturating_sub(self.window_start) >= WINDOW_US {
            self.window_start = now_us;
            self.used = 0;
        }
        if self.used >= BURST {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.used = self.used.saturating_add(1);
        Some(core::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_next_window_tells_of_the_rest() {
        let mut limit = LogLimit::default();
        for _ in 0..BURST {
            assert_eq!(limit.allow(WINDOW_US), Some(0));
        }
        assert_eq!(limit.allow(WINDOW_US), None);
        assert_eq!(limit.allow(WINDOW_US * 2 - 1), None);
        assert_eq!(limit.allow(WINDOW_US * 2), Some(2));
    }
}
