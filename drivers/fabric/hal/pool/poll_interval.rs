// SPDX-License-Identifier: GPL-2.0
//! How often the function looks for work by itself. Pure logic, tested on the host.

use core::ops::Range;
use nupa_engine::Volume;

/// Microseconds after the last work for which it looks for more without a pause, if nobody else wants the processor: not fewer,
/// and for so many looks.
const SPIN_US: Range<u64> = 200..2_000;
const SPIN_LOOKS: u64 = 256;
/// Microseconds between looks where others can wake this host. It has to show that it lives more often than others take it for
/// dead, and look whether they do.
const LONG_US: u64 = 100_000;
/// Microseconds between looks where they cannot, while there is something to do: not fewer, and as part of the time so that
/// looking takes little of it.
const SHORT_US: Range<u64> = 50..500;
const LOOK_SHARE: u64 = 4;
/// Looks of a program that waits, in vain and one after the other, from which on it is taken to go on.
const POLLS: u32 = 4;
/// Part of an expectation by which it changes at a time.
const LEARN_SHARE: u64 = 8;
/// Looks that broke into others' work, between which there was plenty, less those between which there was not, which double it as
/// well, after some.
pub(super) const PREEMPTIONS: Range<u32> = 2..6;
/// But not beyond so many microseconds.
const PREEMPTION_LONGEST_US: u64 = 1_600;
/// Pauses as part of the time since something came: often where more is likely, then less.
const SOON_SHARE: u64 = 2;
const LATER_SHARE: u64 = 4;
/// Microseconds between looks after some time in which nothing has come: so late it may find out.
const QUIET_LONGEST_US: u64 = 10_000;
/// The same after a long time: each look costs an emulated processor half a millisecond.
const IDLE_US: u64 = LONG_US;
/// As part of the time in which nothing has come, how long it pauses next beyond [`BLIND_US`].
const IDLE_SHARE: u64 = 100;
/// Microseconds without an arrival after which a kick is expected to be answered soon.
pub(super) const CALM_US: u64 = 1_000;

/// Bytes that came or that went between two looks from which on they count as bulk, which may gather: who waits for less is kept
/// waiting by it.
const BULK: u64 = 32 << 10;
/// Frames and messages from which on they are worth it that looks are spared: each costs a host as much as some bytes do. Nobody is
/// kept from waking a host by them: a host whose few large frames are acknowledged by small ones waits for these.
const MANY: u64 = 4;
/// The same for a stream, between times at which it is asked for: more than one message of the longest that travel in one piece, so
/// nobody waits for each.
const STREAM: u64 = 96 << 10;
/// Such times, less twice those in which less moved, from which on there is a stream; and how many count at most.
const STREAMS: Range<u32> = 3..4;
/// Microseconds that a look takes which finds nothing, from which on the processor is one that interrupts cost much.
const COSTLY_POLL_US: u64 = 2;
/// Looks that found bulk, less those that did not, from which on a host that others would wake for each looks by itself; and
/// how many count at most.
const COALESCE: Range<u32> = 4..8;
/// Microseconds between two such looks: later, what it found is not coalesced; sooner, that it found nothing says nothing.
const COALESCE_US: Range<u64> = 250..1_000;

/// Whether what came or went between two looks, whichever is more, is bulk.
pub(super) fn is_bulk(moved: Volume) -> bool {
    moved.bytes >= BULK
}

/// Whether it is so much, or are so many, that the next look may come later.
pub(super) fn is_plenty(moved: Volume) -> bool {
    is_bulk(moved) || moved.items >= MANY
}

/// Whether there is a stream that looks are for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream(u32);

impl Stream {
    /// The same from a word.
    pub(super) fn from_word(word: u32) -> Self {
        Self(word.min(STREAMS.end))
    }

    /// As a word.
    pub(super) fn to_word(self) -> u32 {
        self.0
    }

    /// After some time in which so many bytes came or went, whichever are more.
    pub(super) fn after(self, moved: u64) -> Self {
        match moved >= STREAM {
            true => Self::from_word(self.0.saturating_add(1)),
            false => Self(self.0.saturating_sub(2)),
        }
    }

    /// Whether it is one.
    pub(super) fn flows(self) -> bool {
        self.0 >= STREAMS.start
    }
}

/// Whether so much arrives that a host looks by itself although others could wake it for each, which it tells them: what network
/// devices call interrupt moderation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Coalescing(u32);

impl Coalescing {
    /// The same from a word.
    pub(super) fn from_word(word: u32) -> Self {
        Self(word.min(COALESCE.end))
    }

    /// As a word.
    pub(super) fn to_word(self) -> u32 {
        self.0
    }

    /// After another look, so many microseconds after the one before that counted, for which bulk had arrived or not. `None` if it
    /// does not count.
    pub(super) fn after(self, gap_us: u64, bulk: bool) -> Option<Self> {
        match (bulk, gap_us) {
            (true, gap_us) if gap_us < COALESCE_US.end => {
                Some(Self::from_word(self.0.saturating_add(1)))
            }
            (false, gap_us) if gap_us < COALESCE_US.start => None,
            _ => Some(Self(self.0.saturating_sub(1))),
        }
    }

    /// Whether it is one.
    pub(super) fn coalesces(self) -> bool {
        self.0 >= COALESCE.start
    }
}

/// Microseconds to look for more without a pause, where a look takes so long.
pub(super) fn spin_us(cost_us: u64) -> u64 {
    let looks_us = cost_us.saturating_mul(SPIN_LOOKS);
    looks_us.clamp(SPIN_US.start, SPIN_US.end)
}

/// Microseconds after which it looks first since something came, after a first look after so many, which was worth it, or broke into
/// others' work for nothing.
pub(super) fn expect_us(expected_us: u64, worth: bool) -> u64 {
    let step = (expected_us / LEARN_SHARE).max(1);
    let after = match worth {
        true => expected_us.saturating_sub(step),
        false => expected_us.saturating_add(step),
    };
    after.clamp(SHORT_US.start, SHORT_US.end)
}

/// What a pause depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct IntervalInputs {
    /// Others can wake this host.
    pub(super) wakeable: bool,
    /// But they do not now.
    pub(super) awake: bool,
    /// Microseconds since something came.
    pub(super) quiet_us: u64,
    /// Microseconds that a look takes which finds nothing.
    pub(super) cost_us: u64,
    /// What [`expect_us`] says, as long as it has not looked since something came.
    pub(super) expected_us: Option<u64>,
    /// Looks that broke into others' work, who may have more come at a time then, while there is plenty; at most the end
    /// of [`BREAKS`].
    pub(super) preemptions: u32,
    /// They are for a stream.
    pub(super) streams: bool,
    /// Looks of a program that waits, one after the other, for which nothing had come.
    pub(super) polls: u32,
}

/// A pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Microseconds.
    Us(u64),
    /// Until the processor's next tick, an interrupt that is there anyway.
    Tick,
}

impl IntervalInputs {
    /// How long it is.
    pub(super) fn wait(&self) -> Wait {
        let looks = !self.wakeable || self.awake;
        let looked_after = self.polls >= POLLS || self.streams;
        if looks && looked_after && self.cost_us >= COSTLY_POLL_US {
            return Wait::Tick;
        }
        Wait::Us(self.us())
    }

    fn us(&self) -> u64 {
        if self.wakeable {
            return if self.awake { SHORT_US.end } else { LONG_US };
        }
        let shortest = self.cost_us.saturating_mul(LOOK_SHARE);
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

/// When the next look is, if the timer is to be set anew: it expires in `planned_us`, if at all, a pause is `pause`, ticks are
/// `tick_us` apart, there is something to do in `due_us`, and it was just looked, or not.
pub(super) fn next(
    planned_us: Option<u64>,
    interval: Wait,
    tick_us: u64,
    due_us: Option<u64>,
    looked: bool,
) -> Option<Wait> {
    let pause_us = match interval {
        Wait::Us(us) => us,
        Wait::Tick => tick_us,
    };
    let late_us = due_us.map_or(pause_us, |due| due.min(pause_us));
    // Setting it costs as much as a look, so it may come somewhat sooner, too, but not again and again where pauses are long.
    // Nothing but a look makes up for one.
    let early_us = match interval {
        Wait::Us(us) if looked && us <= SHORT_US.end => late_us.min(us / 4),
        Wait::Us(us) if looked => late_us.min(us - us / 8),
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
        polls: 0,
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
    fn looks_into_others_work_are_spared() {
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
    fn what_comes_regularly_is_found_by_few_looks() {
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
        // Where others find it, it does not look before them.
        let others = (0..100).fold(50, |expected_us, _| expect_us(expected_us, false));
        assert_eq!(others, SHORT_US.end);
    }

    #[test]
    fn who_only_kicks_is_looked_after_all_the_same() {
        // A look each 100 ms, and a kick each 0.7 ms between them.
        let interval = IntervalInputs {
            wakeable: true,
            ..BLIND
        };
        let (mut planned_us, mut last_us, mut longest_us) = (LONG_US, 0, 0);
        for now_us in (0..10_000_000).step_by(700) {
            let looked = now_us >= planned_us;
            if looked {
                longest_us = longest_us.max(now_us - last_us);
                last_us = now_us;
            }
            let left_us = planned_us.checked_sub(now_us);
            if let Some(Wait::Us(us)) = next(left_us, interval.wait(), TICK_US, None, looked) {
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
        // Each again seen by a second look that finds nothing more.
        assert!(after(&[(150, true), (20, false)].repeat(10)));
        // What comes once in a while is not coalesced.
        assert!(!after(&[(1_600, true); 10]));
        // It is over after some looks in vain, not after one.
        assert!(after(&[&stream[..], &[(500, false)]].concat()));
        assert!(!after(&[&stream[..], &[(500, false); 5]].concat()));
    }

    #[test]
    fn streams_are_looked_after_at_ticks_where_interrupts_are_dear() {
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
            polls: POLLS,
            ..BLIND
        };
        assert_eq!(waits.wait(), Wait::Tick);
        // A tick that it is set for comes, however often it looks before.
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
            polls: u32,
        ) {
            let interval = IntervalInputs { wakeable, awake, quiet_us, cost_us, expected_us, preemptions, streams, polls };
            prop_assert!((SHORT_US.start..=LONG_US).contains(&interval.us()));
            prop_assert!((SPIN_US.start..=SPIN_US.end).contains(&spin_us(cost_us)));
        }

        #[test]
        fn nothing_that_is_due_is_late(
            planned_us in proptest::option::of(0..2_000_000u64),
            pause_us in proptest::option::of(50..100_000u64),
            due_us in proptest::option::of(0..100_000u64),
            looked: bool,
        ) {
            let interval = pause_us.map_or(Wait::Tick, Wait::Us);
            let us = |wait| match wait {
                Wait::Us(us) => us,
                Wait::Tick => TICK_US,
            };
            let next_us = next(planned_us, interval, TICK_US, due_us, looked).map(us).or(planned_us);
            let latest_us = us(interval).min(due_us.unwrap_or(u64::MAX));
            prop_assert!(next_us.is_some_and(|next_us| next_us <= latest_us));
        }
    }
}
