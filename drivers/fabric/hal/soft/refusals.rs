// SPDX-License-Identifier: GPL-2.0
//! What to do where other nodes refuse this one's epoch.
//!
//! An honest one does that if it has taken this node for dead; a reset, after which the epoch is another, mends that. A
//! hostile one can say so at any time, so there is not a reset each time that somebody does.

/// Microseconds between the first reset and the next.
const FIRST_PAUSE_US: u64 = 30_000_000;
/// Microseconds between resets at most.
const LONGEST_PAUSE_US: u64 = 3_600_000_000;

/// When to reset for the sake of those who refuse this node.
#[derive(Debug)]
pub(super) struct Refusals {
    not_before_us: u64,
    pause_us: u64,
}

impl Refusals {
    /// Nobody has refused anything.
    pub(super) const fn new() -> Self {
        Self {
            not_before_us: 0,
            pause_us: FIRST_PAUSE_US,
        }
    }

    /// Whether the function is to be reset now that somebody refuses it.
    pub(super) fn must_reset(&mut self, now_us: u64) -> bool {
        if now_us < self.not_before_us {
            return false;
        }
        // A long time of peace forgives.
        if now_us.saturating_sub(self.not_before_us) > LONGEST_PAUSE_US {
            self.pause_us = FIRST_PAUSE_US;
        }
        self.not_before_us = now_us.saturating_add(self.pause_us);
        self.pause_us = self.pause_us.saturating_mul(2).min(LONGEST_PAUSE_US);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_grow_and_shrink_again() {
        let mut refusals = Refusals::new();
        let resets = |refusals: &mut Refusals, from: u64, seconds: u64| {
            (0..seconds)
                .filter(|second| refusals.must_reset(from + second * 1_000_000))
                .count()
        };
        assert_eq!(resets(&mut refusals, 0, 30), 1);
        assert_eq!(resets(&mut refusals, 30_000_000, 1), 1);
        assert_eq!(resets(&mut refusals, 31_000_000, 59), 0);
        assert!(resets(&mut refusals, 90_000_000, 86_400) < 40);
        let later = 90_000_000_000_000;
        assert!(refusals.must_reset(later));
        assert!(refusals.must_reset(later + FIRST_PAUSE_US));
    }
}
