// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Kick hold-off: many kicks in a row are not asked for one by one.
//!
//! A kick costs the guest that makes it as much as a packet does, and takes a core from a guest
//! for as long as the switch needs to wake up. Where requests come in crowds, the switch
//! therefore asks for no kicks and looks at the doorbells after a short sleep, as NAPI does with
//! interrupts. Measured on two cores with two guests: 64-byte datagrams +80 %, a TCP stream +15 %.
//!
//! Who sends the next request only when the last is answered would wait for each sleep. Such
//! requests come alone, so nothing is held off unless a kick announces more than one request on
//! average; and since a crowd may be waited for as well, a hold-off goes on only while requests
//! come at least as fast as they did with kicks.
//!
//! This is pure logic on the fabric's clock, in microseconds.

/// Time between two looks at the doorbells.
const HOLD_US: u64 = 100;
/// Rounds with work, or looks, after which their rate is judged.
const WINDOW: u64 = 16;
/// Longest window of kicks that is worth a hold-off: rarer kicks cost next to nothing.
const BUSY_WINDOW_US: u64 = WINDOW * 250;
/// Requests in a window that make a crowd: three for two kicks.
const CROWD: u64 = WINDOW / 2 * 3;
/// Windows of kicks until the next try, after one that made requests come slower.
const BACKOFF: u64 = 64;
/// Silence after which what is known of the load no longer counts.
const QUIET_US: u64 = 2000;

/// Decides when kicks are held off.
#[derive(Debug, Default)]
pub(crate) struct HoldOff {
    state: State,
    window: Window,
    /// Requests per second with kicks, for comparison while they are held off.
    before: u64,
    /// Windows left until the next try.
    backoff: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// Each kick is wanted.
    #[default]
    Kicked,
    /// None is wanted; the doorbells are looked at when the time has come.
    Held { until: u64 },
    /// A look found nothing. The next kick is wanted, and starts the next sleep.
    Paused { since: u64 },
}

/// Rounds that are judged together.
#[derive(Debug, Default)]
struct Window {
    rounds: u64,
    start: u64,
    /// Requests of all time at the start.
    requests: u64,
}

impl HoldOff {
    /// Whether it is time to look at the doorbells.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        matches!(self.state, State::Held { until } if until <= now)
    }

    /// Whether kicks are held off.
    pub(crate) fn is_holding(&self) -> bool {
        matches!(self.state, State::Held { .. })
    }

    /// Takes note of a round of the event loop, which found work or not, and was preceded by a look at the doorbells if
    /// one was due. `requests` counts those of all time. Returns when to look next; none: kicks are wanted.
    pub(crate) fn round(
        &mut self,
        worked: bool,
        now: u64,
        requests: impl FnOnce() -> u64,
    ) -> Option<u64> {
        match self.state {
            State::Kicked if worked => self.kicked(now, requests),
            State::Held { until } if until <= now => {
                if worked {
                    self.hold(now, requests);
                } else {
                    self.state = State::Paused { since: now };
                }
            }
            State::Paused { since } if worked => {
                if now.saturating_sub(since) < QUIET_US {
                    self.hold(now, requests);
                } else {
                    self.release(now, requests());
                }
            }
            State::Kicked | State::Held { .. } | State::Paused { .. } => {}
        }
        match self.state {
            State::Held { until } => Some(until),
            State::Kicked | State::Paused { .. } => None,
        }
    }

    /// All kicks are wanted again, whatever the load.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// A round with work while kicks are wanted.
    fn kicked(&mut self, now: u64, requests: impl FnOnce() -> u64) {
        let Some((found, elapsed)) = self.window.round(now, requests) else {
            return;
        };
        if self.backoff > 0 {
            self.backoff = self.backoff.saturating_sub(1);
        } else if found >= CROWD && elapsed <= BUSY_WINDOW_US {
            self.before = per_second(found, elapsed);
            self.state = State::Held {
                until: now.saturating_add(HOLD_US),
            };
        }
    }

    /// Sleeps for another time, unless that has turned out to be a bad idea.
    fn hold(&mut self, now: u64, requests: impl FnOnce() -> u64) {
        self.state = State::Held {
            until: now.saturating_add(HOLD_US),
        };
        if let Some((found, elapsed)) = self.window.round(now, requests) {
            if per_second(found, elapsed) < self.before {
                self.state = State::Kicked;
                self.backoff = BACKOFF;
            }
        }
    }

    /// Starts anew with kicks.
    fn release(&mut self, now: u64, requests: u64) {
        self.state = State::Kicked;
        self.window = Window {
            rounds: 0,
            start: now,
            requests,
        };
    }
}

impl Window {
    /// Counts a round. Returns requests and microseconds of the window when it is over; the next one has begun then.
    fn round(&mut self, now: u64, requests: impl FnOnce() -> u64) -> Option<(u64, u64)> {
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds < WINDOW {
            return None;
        }
        let requests = requests();
        let found = requests.wrapping_sub(self.requests);
        let elapsed = now.saturating_sub(self.start);
        *self = Self {
            rounds: 0,
            start: now,
            requests,
        };
        Some((found, elapsed))
    }
}

/// A rate from a count and microseconds.
fn per_second(count: u64, elapsed: u64) -> u64 {
    count
        .saturating_mul(1_000_000)
        .checked_div(elapsed)
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load: so many requests per kick, so far apart; held off, so many per look.
    struct Load {
        hold_off: HoldOff,
        now: u64,
        requests: u64,
    }

    impl Load {
        fn new() -> Self {
            Self {
                hold_off: HoldOff::default(),
                now: 1_000_000,
                requests: 0,
            }
        }

        /// `rounds` rounds. Returns in how many of them kicks were held off.
        fn run(&mut self, rounds: u64, per_kick: u64, gap: u64, per_look: u64) -> u64 {
            let mut held = 0;
            for _ in 0..rounds {
                let holding = self.hold_off.is_holding();
                let (time, found) = if holding {
                    (HOLD_US, per_look)
                } else {
                    (gap, per_kick)
                };
                self.now = self.now.saturating_add(time);
                self.requests = self.requests.saturating_add(found);
                held = u64::from(holding).saturating_add(held);
                let requests = self.requests;
                let next = self.hold_off.round(true, self.now, || requests);
                assert_eq!(next.is_some(), self.hold_off.is_holding());
            }
            held
        }
    }

    #[test]
    fn crowds_are_held_off() {
        let mut load = Load::new();
        load.run(2 * WINDOW, 4, 100, 8);
        assert_eq!(load.run(1000, 4, 100, 8), 1000);
    }

    #[test]
    fn requests_that_come_alone_are_not() {
        assert_eq!(Load::new().run(10_000, 1, 20, 1), 0);
    }

    #[test]
    fn rare_crowds_are_not() {
        assert_eq!(Load::new().run(10_000, 4, 300, 4), 0);
    }

    #[test]
    fn what_gets_slower_is_let_go_and_rarely_tried() {
        let mut load = Load::new();
        let rounds = 100 * WINDOW * BACKOFF;
        let held = load.run(rounds, 4, 50, 4);
        assert!(held > 0);
        assert!(
            held <= rounds / BACKOFF + WINDOW,
            "{held} of {rounds} rounds"
        );
    }

    #[test]
    fn a_look_that_finds_nothing_asks_for_a_kick() {
        let mut load = Load::new();
        load.run(3 * WINDOW, 4, 100, 8);
        assert!(load.hold_off.is_holding());
        let until = load.now + HOLD_US;
        assert!(!load.hold_off.is_due(until - 1));
        assert!(load.hold_off.is_due(until));
        assert_eq!(load.hold_off.round(false, until, || 0), None);
        assert!(!load.hold_off.is_due(until + 1));
        // Soon after that, kicks are held off as before; later, they have to show first that they come in crowds.
        let mut paused = load.hold_off.round(true, until + 10, || load.requests);
        assert_eq!(paused, Some(until + 10 + HOLD_US));
        let empty = until + 10 + HOLD_US;
        assert_eq!(load.hold_off.round(false, empty, || 0), None);
        paused = load
            .hold_off
            .round(true, empty + QUIET_US, || load.requests);
        assert_eq!(paused, None);
    }

    #[test]
    fn other_work_in_between_changes_nothing() {
        let mut load = Load::new();
        load.run(3 * WINDOW, 4, 100, 8);
        let until = load.now + HOLD_US;
        assert_eq!(load.hold_off.round(true, until - 1, || 0), Some(until));
    }
}
