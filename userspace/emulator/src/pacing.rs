// SPDX-License-Identifier: GPL-2.0 OR MIT

//! When to poll doorbells, and when to sleep.

use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Duration;

use crate::cli::Poll;

/// How long "auto" polls after the last work: about what a kick costs both sides.
const AUTO_SPIN: Duration = Duration::from_micros(50);

/// Decides on polling.
///
/// A polling thread is faster than a kick only where it has a core to itself: on a machine
/// where two guests and the switch share two cores, it makes a round trip take
/// milliseconds. "Auto" therefore polls only while there is a core for the switch besides
/// one for each guest's CPU and one for its VMM.
#[derive(Debug)]
pub(crate) struct Pacing {
    poll: Poll,
    cores: usize,
    /// Time of the last work, on the fabric's clock, while polling.
    since: Option<u64>,
}

impl Pacing {
    pub(crate) fn new(poll: Poll) -> Self {
        Self {
            poll,
            cores: available_parallelism().map_or(1, NonZero::get),
            since: None,
        }
    }

    /// How long to poll after work was found, with so many guests; none: not at all.
    pub(crate) fn spin(&self, guests: usize) -> Option<Duration> {
        match self.poll {
            Poll::Never => None,
            Poll::For(time) => Some(time),
            Poll::Auto => {
                (guests > 0 && self.cores > guests.saturating_mul(2)).then_some(AUTO_SPIN)
            }
        }
    }

    /// Whether kicks may be held off, with so many guests: where "auto" would not poll.
    pub(crate) fn holds_off(&self, guests: usize) -> bool {
        self.poll == Poll::Auto && self.spin(guests).is_none()
    }

    /// Whether doorbells are being polled.
    pub(crate) fn is_polling(&self) -> bool {
        self.since.is_some()
    }

    /// Takes note of a round that found work or not; answers whether to poll on.
    pub(crate) fn round(&mut self, found: bool, guests: usize, now_us: u64) -> bool {
        let Some(spin) = self.spin(guests) else {
            self.since = None;
            return false;
        };
        if found {
            self.since = Some(now_us);
        }
        let spun = self
            .since
            .map(|since| Duration::from_micros(now_us.saturating_sub(since)));
        if spun.is_some_and(|spun| spun >= spin) {
            self.since = None;
        }
        self.is_polling()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_needs_a_free_core() {
        let spin = |cores, guests| {
            Pacing {
                poll: Poll::Auto,
                cores,
                since: None,
            }
            .spin(guests)
        };
        assert_eq!(spin(2, 2), None);
        assert_eq!(spin(4, 2), None);
        assert_eq!(spin(5, 2), Some(AUTO_SPIN));
        assert_eq!(spin(64, 0), None);
    }

    #[test]
    fn polling_ends_when_nothing_comes() {
        let mut pacing = Pacing::new(Poll::For(Duration::from_micros(10)));
        assert!(!pacing.round(false, 1, 0));
        assert!(pacing.round(true, 1, 100));
        assert!(pacing.round(false, 1, 109));
        assert!(pacing.round(true, 1, 109));
        assert!(pacing.round(false, 1, 118));
        assert!(!pacing.round(false, 1, 119));
        assert!(!pacing.round(false, 1, 120));
        assert!(!Pacing::new(Poll::Never).round(true, 1, 0));
    }
}
