// SPDX-License-Identifier: GPL-2.0
//! How long the function waits before it polls the pool again. Pure logic, tested on the host.
//!
//! Three forces set the interval. A peer cannot interrupt this host in every mode, so only polling finds what a peer has written. Each
//! poll costs processor time, and under emulation a timer interrupt costs more than the poll itself. And a poll that interrupts a
//! busy program takes the time from that program. The costs named here are those under QEMU's TCG, where both are highest.

use core::ops::Range;
use nupa_engine::Volume;

/// Microseconds for which the function polls without a pause after the last work, if no task wants the processor: 256 empty polls,
/// but within these bounds. The lower bound covers the round trip of a small message; the upper one keeps a slow processor from
/// spinning through a scheduler tick.
const SPIN_US: Range<u64> = 200..2_000;
const SPIN_POLLS: u64 = 256;
/// Microseconds between polls where peers can interrupt this host. The poll is needed all the same: it notices a peer that died, and
/// there have to be several within the time after which a silent peer counts as dead.
const LONG_US: u64 = 100_000;
/// Bounds, in microseconds, of the interval on a host that nobody can interrupt, while there is traffic. Within them a poll takes at
/// most one part in `POLL_SHARE` of the processor.
const SHORT_US: Range<u64> = 50..500;
const POLL_SHARE: u64 = 4;
/// The expected time to the next arrival moves by one part in this many at a time.
const LEARN_SHARE: u64 = 8;
/// Range of the score of preemptions: polls that interrupted another task and found plenty of work, minus those that found little.
/// Each point above the start doubles the interval, because then more arrives per poll and the task runs longer.
pub(super) const PREEMPTIONS: Range<u32> = 2..6;
/// Microseconds that the doubled interval never exceeds.
const PREEMPTION_LONGEST_US: u64 = 1_600;
/// After an arrival the interval is this part of the time since then: one half at first, when more is likely, and one quarter later.
const SOON_SHARE: u64 = 2;
const LATER_SHARE: u64 = 4;
/// Microseconds that the interval reaches 40 ms after the last arrival: the latency that the next message then sees.
const QUIET_LONGEST_US: u64 = 10_000;
/// The same after ten seconds without an arrival. A timer interrupt costs an emulated processor half a millisecond, so a shorter
/// interval would take more than 0.5 % of it on an idle host.
const IDLE_US: u64 = LONG_US;
/// Between these two, the interval is one part in this many of the time without an arrival.
const IDLE_SHARE: u64 = 100;
/// Microseconds without an arrival after which a kick of this host is taken as a request that a peer will soon answer.
pub(super) const CALM_US: u64 = 1_000;

/// Bytes in one direction between two polls that count as bulk. Bulk may gather between polls; a host that moves less is waiting for
/// each message.
const BULK: u64 = 32 << 10;
/// Frames and messages between two polls that, like bulk, make a longer interval worth it: each costs as much as some kilobytes. They
/// never stop peers from interrupting this host, because a stream of large frames waits for its small acknowledgments.
const MANY: u64 = 4;
/// Bytes in one direction within `STREAM_US` of [`PollState`](super::poll_state::PollState) that belong to a stream: more than the
/// longest message that travels in one piece, so that nobody waits for each message.
const STREAM: u64 = 96 << 10;
/// Score of periods with that many bytes, minus twice those with fewer: a stream from the start of the range on, capped at its end.
const STREAMS: Range<u32> = 3..4;
/// Microseconds of an empty poll from which on the processor is taken to be emulated, where interrupts are expensive.
const COSTLY_POLL_US: u64 = 2;
/// Score of polls that found bulk, minus those that did not. From the start of the range on, the host polls on a timer and tells peers
/// not to interrupt it; the score is capped at the end.
const COALESCE: Range<u32> = 4..8;
/// Microseconds between two polls that count for that score. Bulk after a longer gap would not have been coalesced; an empty poll after
/// a shorter gap proves nothing.
const COALESCE_US: Range<u64> = 250..1_000;

/// Whether what moved between two polls is bulk. `moved` is the larger of both directions.
pub(super) fn is_bulk(moved: Volume) -> bool {
    moved.bytes >= BULK
}

/// Whether so much moved that the next poll may come later.
pub(super) fn is_plenty(moved: Volume) -> bool {
    is_bulk(moved) || moved.items >= MANY
}

/// Detects a stream of data in either direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream(u32);

impl Stream {
    /// From the word that [`to_word`](Self::to_word) gave.
    pub(super) fn from_word(word: u32) -> Self {
        Self(word.min(STREAMS.end))
    }

    /// As a word, to be kept in an atomic.
    pub(super) fn to_word(self) -> u32 {
        self.0
    }

    /// The state after a period in which `moved` bytes moved in the busier direction.
    pub(super) fn after(self, moved: u64) -> Self {
        match moved >= STREAM {
            true => Self::from_word(self.0.saturating_add(1)),
            false => Self(self.0.saturating_sub(2)),
        }
    }

    /// Whether data streams.
    pub(super) fn flows(self) -> bool {
        self.0 >= STREAMS.start
    }
}

/// Decides whether a host that peers can interrupt polls on a timer instead, because so much arrives: interrupt coalescing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Coalescing(u32);

impl Coalescing {
    /// From the word that [`to_word`](Self::to_word) gave.
    pub(super) fn from_word(word: u32) -> Self {
        Self(word.min(COALESCE.end))
    }

    /// As a word, to be kept in an atomic.
    pub(super) fn to_word(self) -> u32 {
        self.0
    }

    /// The state after a poll that found bulk or did not, `gap_us` after the last poll that counted. `None` if this one does not count.
    pub(super) fn after(self, gap_us: u64, bulk: bool) -> Option<Self> {
        match (bulk, gap_us) {
            (true, gap_us) if gap_us < COALESCE_US.end => {
                Some(Self::from_word(self.0.saturating_add(1)))
            }
            (false, gap_us) if gap_us < COALESCE_US.start => None,
            _ => Some(Self(self.0.saturating_sub(1))),
        }
    }

    /// Whether the host polls on a timer.
    pub(super) fn coalesces(self) -> bool {
        self.0 >= COALESCE.start
    }
}

/// Microseconds to poll without a pause, where an empty poll takes `cost_us`.
pub(super) fn spin_us(cost_us: u64) -> u64 {
    let spin_us = cost_us.saturating_mul(SPIN_POLLS);
    spin_us.clamp(SPIN_US.start, SPIN_US.end)
}

/// The new delay, in microseconds, from an arrival to the first poll after it. The delay shrinks if the last such poll was `worth` its cost,
/// and grows if that poll interrupted another task for nothing.
pub(super) fn expect_us(expected_us: u64, worth: bool) -> u64 {
    let step = (expected_us / LEARN_SHARE).max(1);
    let after = match worth {
        true => expected_us.saturating_sub(step),
        false => expected_us.saturating_add(step),
    };
    after.clamp(SHORT_US.start, SHORT_US.end)
}

/// What the interval depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct IntervalInputs {
    /// Peers can interrupt this host.
    pub(super) wakeable: bool,
    /// But they have been told not to.
    pub(super) awake: bool,
    /// Microseconds since the last arrival.
    pub(super) quiet_us: u64,
    /// Microseconds that an empty poll takes.
    pub(super) cost_us: u64,
    /// The delay of [`expect_us`], until the first poll after an arrival.
    pub(super) expected_us: Option<u64>,
    /// The score of [`PREEMPTIONS`].
    pub(super) preemptions: u32,
    /// Data streams.
    pub(super) streams: bool,
    /// A program polls in its own time, and is expected to go on.
    pub(super) program_polls: bool,
}

/// An interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Microseconds.
    Us(u64),
    /// Until the processor's next scheduler tick, which interrupts it anyway.
    Tick,
}

impl IntervalInputs {
    /// How long to wait before the next poll.
    pub(super) fn wait(&self) -> Wait {
        let by_timer = !self.wakeable || self.awake;
        let others_poll = self.program_polls || self.streams;
        if by_timer && others_poll && self.cost_us >= COSTLY_POLL_US {
            return Wait::Tick;
        }
        Wait::Us(self.us())
    }

    fn us(&self) -> u64 {
        if self.wakeable {
            return if self.awake { SHORT_US.end } else { LONG_US };
        }
        let shortest = self.cost_us.saturating_mul(POLL_SHARE);
        let shortest = shortest.clamp(SHORT_US.start, SHORT_US.end);
        let preemptions = self
            .preemptions
            .min(PREEMPTIONS.end)
            .saturating_sub(PREEMPTIONS.start);
        let shortest = (shortest << preemptions).min(PREEMPTION_LONGEST_US);
        if let Some(expected_us) = self.expected_us {
            return expected_us.max(shortest);
        }
        let longest = (self.quiet_us / IDLE_SHARE).clamp(QUIET_LONGEST_US, IDLE_US);
        let soon_us = self.quiet_us.min(CALM_US) / SOON_SHARE;
        let later_us = self.quiet_us / LATER_SHARE;
        soon_us.max(later_us).max(shortest).min(longest)
    }
}

/// The new timer setting, or `None` to keep the current one.
///
/// The timer expires in `planned_us`, if it is set. The interval is `interval`, scheduler ticks are `tick_us` apart, the engine has
/// something due in `due_in_us`, and `polled_pool` says whether the pool was polled just now.
pub(super) fn next(
    planned_us: Option<u64>,
    interval: Wait,
    tick_us: u64,
    due_in_us: Option<u64>,
    polled_pool: bool,
) -> Option<Wait> {
    let pause_us = match interval {
        Wait::Us(us) => us,
        Wait::Tick => tick_us,
    };
    let late_us = due_in_us.map_or(pause_us, |due| due.min(pause_us));
    // Setting the timer costs as much as a poll, so one that expires somewhat early is kept, unless the interval is longer than any
    // that preemptions lead to. After a turn that did not poll, any timer in time is kept: only a poll makes up for a poll.
    let early_us = match interval {
        Wait::Us(us) if polled_pool && us <= PREEMPTION_LONGEST_US => late_us.min(us / 4),
        Wait::Us(us) if polled_pool => late_us.min(us - us / 8),
        _ => 0,
    };
    let stays = planned_us.is_some_and(|planned| (early_us..=late_us).contains(&planned));
    let next = match late_us < pause_us {
        true => Wait::Us(late_us),
        false => interval,
    };
    (!stays).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLIND: IntervalInputs = IntervalInputs {
        wakeable: false,
        awake: false,
        quiet_us: 0,
        cost_us: 5,
        expected_us: None,
        preemptions: 0,
        streams: false,
        program_polls: false,
    };
    const TICK_US: u64 = 4_000;

    #[test]
    fn pauses_grow_with_the_time_in_which_nothing_came() {
        let mut before = 0;
        for quiet_us in (0..20_000_000).step_by(100) {
            let interval = IntervalInputs { quiet_us, ..BLIND }.us();
            assert!(interval >= before);
            before = interval;
        }
        assert_eq!(BLIND.us(), SHORT_US.start);
        assert_eq!(before, IDLE_US);
    }

    #[test]
    fn polls_that_interrupt_others_become_fewer() {
        let preemptions = [2, 3, 4, 5, 6, 7].map(|preemptions| {
            IntervalInputs {
                preemptions,
                ..BLIND
            }
            .us()
        });
        assert_eq!(preemptions, [50, 100, 200, 400, 800, 800]);
        let dear = IntervalInputs {
            cost_us: 100,
            preemptions: 6,
            ..BLIND
        };
        assert_eq!(dear.us(), PREEMPTION_LONGEST_US);
    }

    #[test]
    fn regular_arrivals_take_few_polls() {
        for gap_us in [60, 130, 333, 470] {
            let (mut expected_us, mut looks, mut late_us) = (SHORT_US.end, 0, 0);
            for round in 0..200 {
                let (mut quiet_us, mut missed) = (0, 0);
                while quiet_us < gap_us {
                    let first = missed == 0;
                    let interval = IntervalInputs {
                        quiet_us,
                        expected_us: first.then_some(expected_us),
                        ..BLIND
                    };
                    quiet_us += interval.us();
                    missed += 1;
                    if first {
                        expected_us = expect_us(expected_us, quiet_us >= gap_us);
                    }
                }
                if round >= 100 {
                    (looks, late_us) = (looks + missed, late_us + quiet_us - gap_us);
                }
            }
            assert!((100..=200).contains(&looks), "{gap_us}: {looks}");
            let bound_us = (gap_us / 3).max(SHORT_US.start);
            assert!(late_us / 100 <= bound_us, "{gap_us}: {late_us}");
        }
        // Where programs find what arrives, the function does not poll before them.
        let others = (0..100).fold(50, |expected_us, _| expect_us(expected_us, false));
        assert_eq!(others, SHORT_US.end);
    }

    #[test]
    fn kicks_do_not_put_off_the_poll() {
        // A poll every 100 ms, and a kick every 0.7 ms between them.
        let interval = IntervalInputs {
            wakeable: true,
            ..BLIND
        };
        let (mut planned_us, mut last_us, mut longest_us) = (LONG_US, 0, 0);
        for now_us in (0..10_000_000).step_by(700) {
            let polled_pool = now_us >= planned_us;
            if polled_pool {
                longest_us = longest_us.max(now_us - last_us);
                last_us = now_us;
            }
            let left_us = planned_us.checked_sub(now_us);
            if let Some(Wait::Us(us)) = next(left_us, interval.wait(), TICK_US, None, polled_pool) {
                planned_us = now_us + us;
            }
        }
        assert!(
            (LONG_US..LONG_US + 700).contains(&longest_us),
            "{longest_us}"
        );
    }

    #[test]
    fn who_is_idle_is_left_alone() {
        let next = |planned_us, us| next(Some(planned_us), Wait::Us(us), TICK_US, None, true);
        assert_eq!(next(150, 500), None);
        // What preemptions have doubled is short all the same.
        assert_eq!(next(450, 1_600), None);
        assert_eq!(next(IDLE_US - 100, IDLE_US), None);
        assert_eq!(next(IDLE_US / 2, IDLE_US), Some(Wait::Us(IDLE_US)));
    }

    #[test]
    fn coalescing_begins_and_ends() {
        let volume = |items, bytes| Volume { items, bytes };
        assert!(is_bulk(volume(1, 65_536)) && !is_bulk(volume(10, 640)));
        assert!(is_plenty(volume(1, 65_536)) && is_plenty(volume(10, 640)));
        assert!(!is_plenty(volume(1, 9_000)));
        let after = |looks: &[(u64, bool)]| {
            let counted = |coalescing: Coalescing, &(gap_us, arrived): &(u64, bool)| {
                let after = coalescing.after(gap_us, arrived).unwrap_or(coalescing);
                Coalescing::from_word(after.to_word())
            };
            looks
                .iter()
                .fold(Coalescing::default(), counted)
                .coalesces()
        };
        let stream = [(150, true); 10];
        assert!(after(&stream));
        assert!(!after(&stream[..3]));
        // Each followed by an empty poll.
        assert!(after(&[(150, true), (20, false)].repeat(10)));
        // What comes once in a while is not coalesced.
        assert!(!after(&[(1_600, true); 10]));
        // It ends after several empty polls, not after one.
        assert!(after(&[&stream[..], &[(500, false)]].concat()));
        assert!(!after(&[&stream[..], &[(500, false); 5]].concat()));
    }

    #[test]
    fn streams_are_polled_at_ticks_where_interrupts_are_expensive() {
        let after = |moved: &[u64]| {
            let counted =
                |stream: Stream, &moved: &u64| Stream::from_word(stream.after(moved).to_word());
            moved.iter().fold(Stream::default(), counted).flows()
        };
        assert!(after(&[1 << 18; 3]) && !after(&[1 << 18; 2]));
        assert!(!after(&[1 << 16; 100]));
        assert!(!after(&[&[1 << 18; 100][..], &[0]].concat()));
        let stream = IntervalInputs {
            streams: true,
            ..BLIND
        };
        assert_eq!(stream.wait(), Wait::Tick);
        let looks = |interval: IntervalInputs| interval.wait() != Wait::Tick;
        assert!(looks(IntervalInputs {
            cost_us: 1,
            ..stream
        }));
        let wakeable = IntervalInputs {
            wakeable: true,
            ..stream
        };
        assert!(looks(wakeable));
        assert!(!looks(IntervalInputs {
            awake: true,
            ..wakeable
        }));
        let waits = IntervalInputs {
            program_polls: true,
            ..BLIND
        };
        assert_eq!(waits.wait(), Wait::Tick);
        // A tick that the timer is set for comes, however often the pool is polled before it.
        let next = |planned_us, due_us| next(planned_us, Wait::Tick, TICK_US, due_us, true);
        assert_eq!(next(Some(3), None), None);
        assert_eq!(next(None, None), Some(Wait::Tick));
        assert_eq!(next(Some(5_000), None), Some(Wait::Tick));
        assert_eq!(next(Some(3_000), Some(1_000)), Some(Wait::Us(1_000)));
    }

    proptest! {
        #[test]
        fn pauses_are_bounded(
            quiet_us: u64,
            cost_us: u64,
            expected_us in proptest::option::of(50..500u64),
            preemptions: u32,
            wakeable: bool,
            awake: bool,
            streams: bool,
            program_polls: bool,
        ) {
            let interval = IntervalInputs { wakeable, awake, quiet_us, cost_us, expected_us, preemptions, streams, program_polls };
            prop_assert!((SHORT_US.start..=LONG_US).contains(&interval.us()));
            prop_assert!((SPIN_US.start..=SPIN_US.end).contains(&spin_us(cost_us)));
        }

        #[test]
        fn nothing_that_is_due_is_late(
            planned_us in proptest::option::of(0..2_000_000u64),
            pause_us in proptest::option::of(50..100_000u64),
            due_us in proptest::option::of(0..100_000u64),
            polled_pool: bool,
        ) {
            let interval = pause_us.map_or(Wait::Tick, Wait::Us);
            let us = |wait| match wait {
                Wait::Us(us) => us,
                Wait::Tick => TICK_US,
            };
            let next_us = next(planned_us, interval, TICK_US, due_us, polled_pool).map(us).or(planned_us);
            let latest_us = us(interval).min(due_us.unwrap_or(u64::MAX));
            prop_assert!(next_us.is_some_and(|next_us| next_us <= latest_us));
        }
    }
}
