// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The time of day of timestamps.

/// What the device's clock and the time of day were at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The device's clock.
    pub(crate) clock: u64,
    /// Nanoseconds since 1970.
    pub(crate) wall_ns: u64,
}

/// Turns timestamps into the time of day, by a moment at which both were looked at.
///
/// That costs a system call, so it is done again only for a timestamp of a second or more after it: the clocks drift apart,
/// and the time of day may be set.
#[derive(Debug, Default)]
pub(crate) struct WallClock(Option<Moment>);

impl WallClock {
    /// The time of day at a timestamp of a device whose clock has so many kHz, in nanoseconds since 1970; 0 if that
    /// cannot be told, or there is no timestamp (0). `look` looks at both clocks.
    pub(crate) fn at(
        &mut self,
        clock: u64,
        khz: u32,
        look: impl FnOnce() -> Option<Moment>,
    ) -> u64 {
        if clock == 0 {
            return 0;
        }
        let second = u64::from(khz).saturating_mul(1000);
        let is_new = |moment: &Moment| clock.saturating_sub(moment.clock) < second;
        if !self.0.as_ref().is_some_and(is_new) {
            // Where the device is gone, the last moment has to do.
            self.0 = look().or(self.0);
        }
        let Some(moment) = self.0 else {
            return 0;
        };
        let distance = ticks_to_ns(clock.abs_diff(moment.clock), khz);
        if clock < moment.clock {
            moment.wall_ns.saturating_sub(distance)
        } else {
            moment.wall_ns.saturating_add(distance)
        }
    }
}

/// Ticks of a clock of so many kHz in nanoseconds.
fn ticks_to_ns(ticks: u64, khz: u32) -> u64 {
    let scaled = u128::from(ticks).saturating_mul(1_000_000);
    let ns = scaled.checked_div(khz.into()).unwrap_or(0);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock of 500 MHz.
    const KHZ: u32 = 500_000;
    const SECOND: u64 = 500_000_000;

    fn at(clock: u64, wall_ns: u64) -> impl FnOnce() -> Option<Moment> {
        move || Some(Moment { clock, wall_ns })
    }

    #[test]
    fn timestamps_before_and_after_the_moment_have_their_time() {
        let mut wall = WallClock::default();
        assert_eq!(wall.at(990, KHZ, at(1000, 70_000)), 69_980);
        assert_eq!(wall.at(1000, KHZ, || None), 70_000);
        assert_eq!(wall.at(1010, KHZ, || None), 70_020);
    }

    #[test]
    fn the_clocks_are_looked_at_again_a_second_later() {
        let mut wall = WallClock::default();
        assert_eq!(wall.at(10, KHZ, at(10, 5)), 5);
        let looked = |wall: &mut WallClock, clock| {
            let mut looked = false;
            wall.at(clock, KHZ, || {
                looked = true;
                Some(Moment { clock, wall_ns: 9 })
            });
            looked
        };
        assert!(!looked(&mut wall, 9 + SECOND));
        assert!(looked(&mut wall, 10 + SECOND));
        assert!(!looked(&mut wall, 1), "old timestamps need no other moment");
    }

    #[test]
    fn no_timestamp_has_no_time() {
        let mut wall = WallClock::default();
        assert_eq!(wall.at(0, KHZ, at(1000, 70_000)), 0);
    }

    #[test]
    fn without_a_device_the_last_moment_counts() {
        let mut wall = WallClock::default();
        assert_eq!(wall.at(7, KHZ, || None), 0);
        assert_eq!(wall.at(7, KHZ, at(7, 40)), 40);
        assert_eq!(wall.at(7 + SECOND, KHZ, || None), 1_000_000_040);
        assert_eq!(wall.at(7, 0, || None), 40, "no clock, no division by zero");
    }
}
