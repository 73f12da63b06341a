// SPDX-License-Identifier: GPL-2.0
//! Whether a program polls in its own time, so that the function need not interrupt it to do the same. Pure logic, tested on the host.

/// Microseconds between two polls up to which the program does nothing else.
const GAP_US: u64 = 200;
/// Microseconds without an arrival for which a program has to have polled to be expected to go on until there is one.
const WAITS_US: u64 = 1_000;
/// Arrivals after which the program has to have gone on, to be expected to do so after the next one, and how many count at most. A time at which
/// it did not go on takes `STOPPED` of them away: a program may be interrupted now and then, but one that waits for something else after each
/// arrival does not poll.
const RESUMED: u32 = 4;
const MOST_RESUMED: u32 = 8;
const STOPPED: u32 = 4;

/// A task, and how often it has slept by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) task: i32,
    pub(super) sleeps: u64,
}

/// The polls of a program: of several, those of the one that began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProgramPolls {
    /// Time of the last one.
    pub(super) last_us: u64,
    /// Time of the first one since the last gap, or since something arrived.
    pub(super) first_us: u64,
    /// Something arrived with the last one, or since then with another poll of the function.
    pub(super) arrived: bool,
    /// Arrivals after which the program went on, as far as they count.
    pub(super) resumed: u32,
    /// Whose they are.
    pub(super) run: Run,
}

impl ProgramPolls {
    /// The state after another poll. `arrived`: with it.
    pub(super) fn after(self, now_us: u64, run: Run, arrived: bool) -> Self {
        let recent = self.is_recent(now_us);
        if recent && run.task != self.run.task {
            return self;
        }
        let went_on = recent && run == self.run;
        let resumed = match (self.arrived, went_on) {
            _ if run != self.run => 0,
            (true, true) => self.resumed.saturating_add(1).min(MOST_RESUMED),
            (false, true) => self.resumed,
            (_, false) => self.resumed.saturating_sub(STOPPED),
        };
        Self {
            last_us: now_us,
            first_us: match went_on && !self.arrived {
                true => self.first_us,
                false => now_us,
            },
            arrived,
            resumed,
            run,
        }
    }

    /// Whether the program is expected to poll again within [`GAP_US`].
    pub(super) fn goes_on(self, now_us: u64) -> bool {
        let waits = !self.arrived && now_us.saturating_sub(self.first_us) >= WAITS_US;
        self.is_recent(now_us) && (waits || self.resumed >= RESUMED)
    }

    fn is_recent(self, now_us: u64) -> bool {
        now_us.saturating_sub(self.last_us) <= GAP_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program does before a poll.
    #[derive(Clone, Copy)]
    enum Before {
        Works(u64),
        Sleeps(u64),
    }
    use Before::{Sleeps, Works};

    /// For how many of the polls of a program it is expected to go on, after them, when it has done this for a while. Something arrives with
    /// those that are marked.
    fn goes_on(polls: &[(Before, bool)]) -> usize {
        let (mut now_us, mut run) = (0, Run { task: 1, sleeps: 0 });
        let mut state = ProgramPolls::default();
        let mut expected = 0;
        for _ in 0..100 {
            expected = 0;
            for &(before, arrived) in polls {
                now_us += match before {
                    Works(us) | Sleeps(us) => us,
                };
                run.sleeps += u64::from(matches!(before, Sleeps(_)));
                state = state.after(now_us, run, arrived);
                expected += usize::from(state.goes_on(now_us));
            }
        }
        expected
    }

    #[test]
    fn programs_that_do_nothing_else_are_expected_to_go_on() {
        assert_eq!(goes_on(&[(Works(20), false)]), 1);
        assert_eq!(goes_on(&[(Works(GAP_US), false)]), 1);
        assert_eq!(goes_on(&[(Works(GAP_US + 1), false)]), 0);
        // It answers each message at once, and is interrupted now and then.
        let answers = [(Works(30), false), (Works(30), true)];
        assert_eq!(goes_on(&answers), 2);
        let messages = [&[(Works(800), false)][..], &answers.repeat(40)].concat();
        assert_eq!(goes_on(&messages), 81);
    }

    #[test]
    fn programs_that_wait_for_something_else_are_not() {
        // When what it has asked for is done, it waits for a word of its memory.
        let asks = [(Works(500), false), (Works(30), false), (Works(30), true)];
        assert_eq!(goes_on(&asks), 0);
        // Also if it polls until there is no more.
        let drains = [(Works(500), false), (Works(30), true), (Works(30), false)];
        assert_eq!(goes_on(&drains), 0);
        // Also if that took long.
        let polls = [(Works(30), false); 100];
        let long = [&[(Works(500), false)][..], &polls, &[(Works(30), true)]].concat();
        assert!(goes_on(&long) < 70);
        // For events, or for time to pass.
        assert_eq!(goes_on(&[(Sleeps(150), false), (Works(20), false)]), 0);
        assert_eq!(goes_on(&[(Sleeps(150), true), (Works(20), false)]), 0);
    }

    #[test]
    fn programs_that_stop_are_not() {
        let run = Run { task: 1, sleeps: 5 };
        let state = (0..1_000).fold(ProgramPolls::default(), |state, poll| {
            state.after(poll * 10, run, poll % 3 == 0)
        });
        assert!(state.goes_on(9_990 + GAP_US));
        assert!(!state.goes_on(9_991 + GAP_US));
        let slept = Run { sleeps: 6, ..run };
        assert!(!state.after(10_000, slept, false).goes_on(10_000));
    }

    #[test]
    fn another_program_changes_nothing_until_the_first_one_stops() {
        let [one, other] = [1, 2].map(|task| Run { task, sleeps: 0 });
        let both = (0..1_000).fold(ProgramPolls::default(), |state, poll| {
            let run = [one, other][poll as usize % 2];
            state.after(poll * 10, run, false)
        });
        assert!(both.goes_on(9_990));
        let later = (1_020..2_000).fold(both, |state, poll| state.after(poll * 10, other, false));
        assert!(later.goes_on(19_990) && later.run == other);
    }
}
