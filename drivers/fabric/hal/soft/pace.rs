// SPDX-License-Identifier: GPL-2.0
//! How often the function looks for work by itself. Pure logic, tested on the host.

use core::ops::Range;

/// Microseconds after the last work for which it looks for more without a pause, if nobody else wants the processor: not fewer,
/// and for so many looks.
const SPIN_US: Range<u64> = 200..2_000;
const SPIN_LOOKS: u64 = 256;
/// Microseconds between looks where others can wake this host. It has to show that it lives more often than others take it for
/// dead, and look whether they do.
const LONG_US: u64 = 50_000;
/// Microseconds between looks where they cannot, while there is something to do: not fewer, and as part of the time so that
/// looking takes little of it.
const SHORT_US: Range<u64> = 50..500;
const LOOK_SHARE: u64 = 4;
/// Looks in vain that each double the shortest pause.
pub(super) const MAX_VAIN: u32 = 3;
/// Looks that broke into others' work, between which there was bulk, which double it as well, after some.
pub(super) const BREAKS: Range<u32> = 2..5;
/// But not beyond so many microseconds.
const SPARED_US: u64 = 1_600;
/// Pauses as part of the time since something came: often where more is likely, then less.
const SOON_SHARE: u64 = 2;
const LATER_SHARE: u64 = 4;
/// Microseconds between looks after some time in which nothing has come: so late it may find out.
const BLIND_US: u64 = 10_000;
/// The same after a long time: each look costs an emulated processor half a millisecond.
const IDLE_US: u64 = LONG_US;
/// As part of the time in which nothing has come, how long it pauses next beyond [`BLIND_US`].
const IDLE_SHARE: u64 = 100;
/// Microseconds without an arrival after which a kick is expected to be answered soon.
pub(super) const CALM_US: u64 = 1_000;

/// Bytes between two looks from which on they count as bulk, which may gather: who waits for less is kept waiting by it.
const BULK: u64 = 32 << 10;
/// Looks that found bulk, less those that did not, from which on a host that others would wake for each looks by itself; and
/// how many count at most.
const CROWD: Range<u32> = 4..8;
/// Microseconds between two such looks: later, what it found is no crowd; sooner, that it found nothing says nothing.
const CROWD_US: Range<u64> = 250..1_000;

/// Whether so many bytes that came and went between two looks are bulk.
pub(super) fn is_bulk(moved: u64) -> bool {
    moved >= BULK
}

/// Whether so much arrives that a host looks by itself although others could wake it for each, which it tells them: what network
/// devices call interrupt moderation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crowd(u32);

impl Crowd {
    /// The same from a word.
    pub(super) fn from_word(word: u32) -> Self {
        Self(word.min(CROWD.end))
    }

    /// As a word.
    pub(super) fn to_word(self) -> u32 {
        self.0
    }

    /// After another look, so many microseconds after the one before that counted, for which bulk had arrived or not. `None` if it
    /// does not count.
    pub(super) fn after(self, gap_us: u64, bulk: bool) -> Option<Self> {
        match (bulk, gap_us) {
            (true, gap_us) if gap_us < CROWD_US.end => {
                Some(Self::from_word(self.0.saturating_add(1)))
            }
            (false, gap_us) if gap_us < CROWD_US.start => None,
            _ => Some(Self(self.0.saturating_sub(1))),
        }
    }

    /// Whether it is one.
    pub(super) fn gathers(self) -> bool {
        self.0 >= CROWD.start
    }
}

/// Microseconds to look for more without a pause, where a look takes so long.
pub(super) fn spin_us(cost_us: u64) -> u64 {
    let looks_us = cost_us.saturating_mul(SPIN_LOOKS);
    looks_us.clamp(SPIN_US.start, SPIN_US.end)
}

/// What a pause depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause {
    /// Others can wake this host.
    pub(super) wakeable: bool,
    /// But they do not now.
    pub(super) awake: bool,
    /// Microseconds since something came.
    pub(super) quiet_us: u64,
    /// Microseconds that a look takes which finds nothing.
    pub(super) cost_us: u64,
    /// Looks in vain, at most [`MAX_VAIN`].
    pub(super) vain: u32,
    /// Looks that broke into others' work, who may have more come at a time then, while there is bulk; at most the end
    /// of [`BREAKS`].
    pub(super) breaks: u32,
}

impl Pause {
    /// Microseconds.
    pub(super) fn us(&self) -> u64 {
        if self.wakeable {
            return if self.awake { SHORT_US.end } else { LONG_US };
        }
        let shortest = self.cost_us.saturating_mul(LOOK_SHARE);
        let shortest = shortest.clamp(SHORT_US.start, SHORT_US.end);
        let breaks = self.breaks.min(BREAKS.end).saturating_sub(BREAKS.start);
        let spared = self.vain.min(MAX_VAIN) + breaks;
        let shortest = (shortest << spared).min(SPARED_US);
        let longest = (self.quiet_us / IDLE_SHARE).clamp(BLIND_US, IDLE_US);
        let soon_us = self.quiet_us.min(CALM_US) / SOON_SHARE;
        let later_us = self.quiet_us / LATER_SHARE;
        soon_us.max(later_us).max(shortest).min(longest)
    }
}

/// When the next look is, if the timer is to be set anew: it is set for `planned_us`, a pause is `pause_us`, there is something to
/// do in `due_us`, and it was just looked, or not.
pub(super) fn next_us(
    now_us: u64,
    planned_us: u64,
    pause_us: u64,
    due_us: Option<u64>,
    looked: bool,
) -> Option<u64> {
    let late_us = now_us.saturating_add(due_us.map_or(pause_us, |due| due.min(pause_us)));
    // Setting it costs as much as a look, so it may come somewhat sooner, too. Nothing but a look makes up for one.
    let early_us = match looked {
        true => now_us.saturating_add(pause_us / 2).min(late_us),
        false => now_us,
    };
    let stays = (early_us..=late_us).contains(&planned_us);
    (!stays).then_some(late_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLIND: Pause = Pause {
        wakeable: false,
        awake: false,
        quiet_us: 0,
        cost_us: 5,
        vain: 0,
        breaks: 0,
    };

    #[test]
    fn pauses_grow_with_the_time_in_which_nothing_came() {
        let mut before = 0;
        for quiet_us in (0..20_000_000).step_by(100) {
            let pause = Pause { quiet_us, ..BLIND }.us();
            assert!(pause >= before);
            before = pause;
        }
        assert_eq!(BLIND.us(), SHORT_US.start);
        assert_eq!(before, IDLE_US);
    }

    #[test]
    fn looks_in_vain_and_into_others_work_are_spared() {
        let vain = [0, 1, 2, 3, 4].map(|vain| Pause { vain, ..BLIND }.us());
        assert_eq!(vain, [50, 100, 200, 400, 400]);
        let breaks = [2, 3, 4, 5, 6].map(|breaks| Pause { breaks, ..BLIND }.us());
        assert_eq!(breaks, vain);
        let both = Pause {
            vain: 3,
            breaks: 5,
            ..BLIND
        };
        assert_eq!(both.us(), SPARED_US);
    }

    #[test]
    fn who_only_kicks_is_looked_after_all_the_same() {
        // A look each 50 ms, and a kick each 0.7 ms between them.
        let pause = Pause {
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
            if let Some(next_us) = next_us(now_us, planned_us, pause.us(), None, looked) {
                planned_us = next_us;
            }
        }
        assert!(
            (LONG_US..LONG_US + 700).contains(&longest_us),
            "{longest_us}"
        );
    }

    #[test]
    fn a_crowd_comes_and_goes() {
        assert!(is_bulk(65_536) && !is_bulk(9_000));
        let after = |looks: &[(u64, bool)]| {
            let counted = |crowd: Crowd, &(gap_us, arrived): &(u64, bool)| {
                let after = crowd.after(gap_us, arrived).unwrap_or(crowd);
                Crowd::from_word(after.to_word())
            };
            looks.iter().fold(Crowd::default(), counted).gathers()
        };
        let stream = [(150, true); 10];
        assert!(after(&stream));
        assert!(!after(&stream[..3]));
        // Each again seen by a second look that finds nothing more.
        assert!(after(&[(150, true), (20, false)].repeat(10)));
        // What comes once in a while is no crowd.
        assert!(!after(&[(1_600, true); 10]));
        // It is over after some looks in vain, not after one.
        assert!(after(&[&stream[..], &[(500, false)]].concat()));
        assert!(!after(&[&stream[..], &[(500, false); 5]].concat()));
    }

    proptest! {
        #[test]
        fn pauses_are_bounded(
            quiet_us: u64,
            cost_us: u64,
            vain: u32,
            breaks: u32,
            wakeable: bool,
            awake: bool,
        ) {
            let pause = Pause { wakeable, awake, quiet_us, cost_us, vain, breaks };
            prop_assert!((SHORT_US.start..=LONG_US).contains(&pause.us()));
            prop_assert!((SPIN_US.start..=SPIN_US.end).contains(&spin_us(cost_us)));
        }

        #[test]
        fn nothing_that_is_due_is_late(
            now_us in 0..1_000_000u64,
            planned_us in 0..2_000_000u64,
            pause_us in 50..50_000u64,
            due_us in proptest::option::of(0..100_000u64),
            looked: bool,
        ) {
            let next_us = next_us(now_us, planned_us, pause_us, due_us, looked).unwrap_or(planned_us);
            prop_assert!(next_us >= now_us);
            prop_assert!(next_us <= now_us + due_us.unwrap_or(u64::MAX).min(pause_us));
        }
    }
}
