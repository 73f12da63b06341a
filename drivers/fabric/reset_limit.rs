// SPDX-License-Identifier: GPL-2.0
//! How many resets are enough.

/// Resets that are allowed within [`WINDOW_MS`].
const RESETS: u32 = 5;
/// Milliseconds.
const WINDOW_MS: i64 = 60_000;

/// Counts the resets of a controller, so that a broken one is given up in the end.
#[derive(Debug)]
pub(crate) struct ResetLimit {
    since_ms: i64,
    resets: u32,
}

impl ResetLimit {
    pub(crate) const fn new() -> Self {
        Self {
            since_ms: 0,
            resets: 0,
        }
    }

    /// Whether one more reset is worth while at this time, in milliseconds of a clock that never goes back.
    pub(crate) fn try_again(&mut self, now_ms: i64) -> bool {
        if self.resets == 0 || now_ms.saturating_sub(self.since_ms) >= WINDOW_MS {
            *self = Self {
                since_ms: now_ms,
                resets: 0,
            };
        }
        self.resets = self.resets.saturating_add(1);
        self.resets <= RESETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_when_resets_come_too_fast_and_returns() {
        let mut limit = ResetLimit::new();
        for n in 0..RESETS {
            assert!(limit.try_again(i64::from(n) * 1000));
        }
        assert!(!limit.try_again(10_000));
        assert!(!limit.try_again(WINDOW_MS - 1));
        assert!(limit.try_again(WINDOW_MS));
    }

    #[test]
    fn slow_resets_go_on_for_ever() {
        let mut limit = ResetLimit::new();
        assert!((0..1000).all(|n| limit.try_again(n * WINDOW_MS / i64::from(RESETS))));
    }
}
