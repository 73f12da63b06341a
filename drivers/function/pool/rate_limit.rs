// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How often something is done that other nodes, or the memory of the pool, can give cause for at any time.
//!
//! A node that is refused by others resets itself, for an honest one does that if it has taken this node for dead; a reset, after
//! which the epoch is another, mends that. And it logs what is wrong with others, and that they went. A hostile node, or a line
//! of the pool that stays poisoned, is cause for that with each epoch, so it is done less and less often.

/// Faults of one node that may be logged in a burst.
pub const FAULTS: u8 = 8;
/// Departures of one node that may be logged in a burst: dozens where somebody works on its host.
pub const DEPARTURES: u8 = 64;

/// Microseconds of the first pause.
const FIRST_PAUSE_US: u64 = 30_000_000;
/// Microseconds between two times at most.
const LONGEST_PAUSE_US: u64 = 3_600_000_000;

/// Lets something happen so often at once, and then after pauses that grow.
#[derive(Debug)]
pub struct RateLimit {
    burst: u8,
    left: u8,
    not_before_us: u64,
    pause_us: u64,
    suppressed: u32,
}

impl RateLimit {
    /// Nothing has happened.
    pub const fn new(burst: u8) -> Self {
        Self {
            burst,
            left: burst,
            not_before_us: 0,
            pause_us: FIRST_PAUSE_US,
            suppressed: 0,
        }
    }

    /// Whether it may happen now: if so, how often it was not to happen since it last did.
    pub fn allow(&mut self, now_us: u64) -> Option<u32> {
        if now_us < self.not_before_us {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        // After a quiet time of the longest pause, the burst is allowed again.
        if now_us.saturating_sub(self.not_before_us) > LONGEST_PAUSE_US {
            (self.left, self.pause_us) = (self.burst, FIRST_PAUSE_US);
        }
        self.left = self.left.saturating_sub(1);
        self.not_before_us = now_us;
        if self.left == 0 {
            self.not_before_us = now_us.saturating_add(self.pause_us);
            self.pause_us = self.pause_us.saturating_mul(2).min(LONGEST_PAUSE_US);
        }
        Some(core::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a test may fail loudly")]
mod tests {
    use super::*;

    /// How often something happens that there is cause for each second.
    fn times(rate_limit: &mut RateLimit, from: u64, seconds: u64) -> usize {
        (0..seconds)
            .filter(|second| rate_limit.allow(from + second * 1_000_000).is_some())
            .count()
    }

    #[test]
    fn the_pauses_grow_and_shrink_again() {
        let mut rate_limit = RateLimit::new(1);
        assert_eq!(times(&mut rate_limit, 0, 30), 1);
        assert_eq!(times(&mut rate_limit, 30_000_000, 1), 1);
        assert_eq!(times(&mut rate_limit, 31_000_000, 59), 0);
        assert!(times(&mut rate_limit, 90_000_000, 86_400) < 40);
        let later = 90_000_000_000_000;
        assert!(rate_limit.allow(later).is_some());
        assert!(rate_limit.allow(later + FIRST_PAUSE_US).is_some());
    }

    #[test]
    fn a_node_that_goes_twice_a_second_all_day_fills_no_log() {
        let mut rate_limit = RateLimit::new(DEPARTURES);
        let half_seconds = 0..2 * 86_400;
        let logged = half_seconds.filter(|n| rate_limit.allow(n * 500_000).is_some());
        let logged = logged.count();
        assert!((64..110).contains(&logged), "{logged}");
    }

    #[test]
    fn a_burst_goes_first_and_what_is_left_out_is_counted() {
        let mut rate_limit = RateLimit::new(FAULTS);
        assert_eq!(times(&mut rate_limit, 0, 30), 8);
        // The pause is from the eighth on, in second 7.
        assert_eq!(rate_limit.allow(36_999_999), None);
        assert_eq!(rate_limit.allow(37_000_000), Some(23));
        assert_eq!(rate_limit.allow(96_999_999), None);
        assert_eq!(rate_limit.allow(97_000_000), Some(1));
        // A day of it is some dozens of lines, and a quiet hour makes room for the next burst.
        let more = times(&mut rate_limit, 100_000_000, 86_400);
        assert!((20..40).contains(&more), "{more}");
        assert_eq!(times(&mut rate_limit, 100_000_000_000_000, 30), 8);
    }
}
