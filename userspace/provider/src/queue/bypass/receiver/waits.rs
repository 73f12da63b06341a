// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How long a process waits for its engine to let go of a ring.

use std::time::{Duration, Instant};

/// How long the engine may take entries: it waits for nothing meanwhile, but the host's processor may be another's.
const MOST: Duration = Duration::from_secs(1);
/// A wait is forgotten after so many times as long.
const FORGOTTEN: u32 = 16;

/// The time that was waited. It is a sender that says whether the engine takes entries, and one that means no good could say so for almost as long as
/// it may, again and again.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// What is not forgotten of the waits before, when the last one ended.
    waited: Duration,
    ended: Option<Instant>,
    begun: Option<Instant>,
}

impl Waits {
    /// A wait begins.
    pub(super) fn begin(&mut self, now: Instant) {
        let since = self.ended.map(|ended| now.duration_since(ended));
        let forgotten = since.and_then(|since| since.checked_div(FORGOTTEN));
        self.waited = self.waited.saturating_sub(forgotten.unwrap_or_default());
        self.begun = Some(now);
    }

    /// What was waited so far.
    fn so_far(&self, now: Instant) -> Duration {
        let this = self.begun.map(|begun| now.duration_since(begun));
        self.waited.saturating_add(this.unwrap_or_default())
    }

    /// Whether that is too long.
    pub(super) fn are_too_long(&self, now: Instant) -> bool {
        self.so_far(now) > MOST
    }

    /// The wait ends.
    pub(super) fn end(&mut self, now: Instant) {
        self.waited = self.so_far(now);
        (self.begun, self.ended) = (None, Some(now));
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a test may fail loudly")]
mod tests {
    use super::*;

    /// Waits of a length, as often as that goes, with a pause behind each; no more than `most` times.
    fn waits(length: Duration, pause: Duration, most: u32) -> u32 {
        let (mut waits, mut now) = (Waits::default(), Instant::now());
        for count in 0..most {
            waits.begin(now);
            now += length;
            if waits.are_too_long(now) {
                return count;
            }
            waits.end(now);
            now += pause;
        }
        most
    }

    #[test]
    fn waits_are_added_up_and_forgotten() {
        let ms = Duration::from_millis;
        assert_eq!(waits(MOST, ms(0), 10), 1);
        assert_eq!(waits(MOST + ms(1), ms(0), 10), 0);
        assert_eq!(waits(ms(900), ms(0), 10), 1);
        assert_eq!(waits(ms(300), ms(10), 10), 3);
        assert_eq!(waits(ms(900), ms(900) * FORGOTTEN, 1000), 1000);
        assert_eq!(waits(ms(1), ms(1) * FORGOTTEN, 100_000), 100_000);
    }
}
