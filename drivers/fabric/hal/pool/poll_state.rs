// SPDX-License-Identifier: GPL-2.0
//! What looks came to, from which follows when the next one is.

use super::{
    node::Turn,
    poll_interval::{self, Coalescing, IntervalInputs, Stream, Wait, CALM_US, PREEMPTIONS},
};
use kernel::sync::atomic::{Atomic, Relaxed};
use nk::net::Repeat;
use nupa_engine::Volume;

/// Looks in vain, one after the other, from which on others are taken to find what comes.
const MAX_EMPTY_POLLS: u32 = 3;
/// Microseconds from one time to the next at least at which it is asked whether a stream flows.
const STREAM_US: u64 = 800;

/// When there was work, in microseconds of the function's clock, and what looks came to. Whoever has looked changes it; two at
/// once do no harm.
pub(super) struct PollState {
    /// Others can wake this host.
    pub(super) wakeable: bool,
    /// The last work.
    busy_us: Atomic<u64>,
    /// The last arrival, or kick after a calm.
    news_us: Atomic<u64>,
    /// What a look takes that finds nothing, in eighths of a microsecond.
    cost: Atomic<u64>,
    /// Looks of its own, one after the other, for which nothing had come: others find what comes, in their time, or nothing does.
    empty_polls: Atomic<u32>,
    /// Microseconds after which there is to be something, or nobody else who wants the processor.
    expected_us: Atomic<u64>,
    /// It has looked in vain since something came.
    missed: Atomic<bool>,
    /// Looks of a program that waits, in vain and one after the other.
    polls: Atomic<u32>,
    /// Nobody else wanted the processor when it last looked.
    alone: Atomic<bool>,
    /// Looks of its own that others' work was interrupted for, while there was plenty, less those while there was not.
    preemptions: Atomic<u32>,
    /// What had come and what had gone at the last of its own looks.
    moved: Moved,
    /// A [`Stream`], when it was last asked whether it is one, and what had come and gone then.
    stream: Atomic<u32>,
    asked_us: Atomic<u64>,
    asked_moved: Moved,
    /// A [`Coalescing`], and when the last look was that counted for it.
    coalescing: Atomic<u32>,
    looked_us: Atomic<u64>,
    /// It has looked without a pause since.
    spun: Atomic<bool>,
    /// The timer is set for ticks.
    ticks: Atomic<bool>,
}

impl PollState {
    pub(super) fn new(wakeable: bool) -> Self {
        Self {
            wakeable,
            busy_us: Atomic::new(0),
            news_us: Atomic::new(0),
            cost: Atomic::new(0),
            empty_polls: Atomic::new(0),
            preemptions: Atomic::new(0),
            expected_us: Atomic::new(0),
            missed: Atomic::new(false),
            polls: Atomic::new(0),
            alone: Atomic::new(false),
            moved: Moved::new(),
            stream: Atomic::new(0),
            asked_us: Atomic::new(0),
            asked_moved: Moved::new(),
            coalescing: Atomic::new(0),
            looked_us: Atomic::new(0),
            spun: Atomic::new(false),
            ticks: Atomic::new(false),
        }
    }

    /// Whether there was work so shortly before that more may come at once.
    pub(super) fn is_warm(&self, now_us: u64) -> bool {
        let spin_us = poll_interval::spin_us(self.cost_us());
        now_us.saturating_sub(self.busy_us.load(Relaxed)) < spin_us
    }

    /// Notes a look.
    pub(super) fn looked(&self, begun_us: u64, now_us: u64, turn: &Turn) {
        if now_us.saturating_sub(self.asked_us.load(Relaxed)) >= STREAM_US {
            self.asked_us.store(now_us, Relaxed);
            let stream = self
                .stream()
                .after(self.asked_moved.advance(turn.moved).bytes);
            self.stream.store(stream.to_word(), Relaxed);
        }
        if !turn.busy {
            let (cost_us, mean) = (now_us.saturating_sub(begun_us), self.cost.load(Relaxed));
            let mean = mean.saturating_sub(mean / 8).saturating_add(cost_us);
            return self.cost.store(mean, Relaxed);
        }
        self.busy_us.store(now_us, Relaxed);
        if turn.arrived || self.quiet_us(now_us) > CALM_US {
            self.news_us.store(now_us, Relaxed);
        }
        if turn.arrived {
            self.missed.store(false, Relaxed);
            self.polls.store(0, Relaxed);
        }
    }

    /// Whether it has not looked after a pause since something came.
    pub(super) fn is_first(&self) -> bool {
        !self.missed.load(Relaxed)
    }

    /// Notes a look after a pause, which was the first since something came, or not.
    pub(super) fn note_timed_poll(&self, first: bool, alone: bool, turn: &Turn) {
        if first {
            let before = self.expected_us.load(Relaxed);
            let expected_us = poll_interval::expect_us(before, alone || turn.arrived);
            self.expected_us.store(expected_us, Relaxed);
        }
        self.missed.store(!turn.arrived, Relaxed);
        self.polls.store(0, Relaxed);
    }

    /// Notes a look of the function's own, without a pause before it, or after one.
    pub(super) fn note_own_poll(&self, now_us: u64, spins: bool, turn: &Turn) {
        if spins {
            return self.spun.store(true, Relaxed);
        }
        let empty_polls = match turn.arrived {
            true => 0,
            false => self
                .empty_polls
                .load(Relaxed)
                .saturating_add(1)
                .min(MAX_EMPTY_POLLS),
        };
        self.empty_polls.store(empty_polls, Relaxed);
        let moved = self.moved.advance(turn.moved);
        let preemptions = self.preemptions.load(Relaxed);
        let preemptions = match poll_interval::is_plenty(moved) {
            true => preemptions.saturating_add(1).min(PREEMPTIONS.end),
            false => preemptions.saturating_sub(u32::from(turn.arrived)),
        };
        self.preemptions.store(preemptions, Relaxed);
        if self.spun.load(Relaxed) {
            return self.spun.store(false, Relaxed);
        }
        let gap_us = now_us.saturating_sub(self.looked_us.load(Relaxed));
        let bulk = poll_interval::is_bulk(moved) && turn.arrived;
        if let Some(coalescing) = self.coalescing().after(gap_us, bulk) {
            self.coalescing.store(coalescing.to_word(), Relaxed);
            self.looked_us.store(now_us, Relaxed);
        }
    }

    fn stream(&self) -> Stream {
        Stream::from_word(self.stream.load(Relaxed))
    }

    fn coalescing(&self) -> Coalescing {
        Coalescing::from_word(self.coalescing.load(Relaxed))
    }

    /// Notes a look of a program that waits.
    pub(super) fn polled(&self, turn: &Turn) {
        if !turn.busy {
            let polls = self.polls.load(Relaxed).saturating_add(1);
            self.polls.store(polls, Relaxed);
        }
    }

    /// Notes whether nobody else wants the processor.
    pub(super) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Relaxed);
    }

    /// Whether so much arrives that it looks by itself although others could wake it for each.
    pub(super) fn coalesces(&self) -> bool {
        self.wakeable && self.coalescing().coalesces()
    }

    /// Whether programs find what comes, in their time, before the function looks by itself: then it need not be woken, and looks
    /// after a while whether they still do.
    pub(super) fn programs_poll(&self) -> bool {
        self.empty_polls.load(Relaxed) >= MAX_EMPTY_POLLS
    }

    /// What a look takes that finds nothing.
    fn cost_us(&self) -> u64 {
        self.cost.load(Relaxed) / 8
    }

    /// Microseconds since something came.
    fn quiet_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.news_us.load(Relaxed))
    }

    /// When the next look is after a turn, if the timer, which expires in `planned_us`, is to be set anew.
    pub(super) fn next(&self, now_us: u64, planned_us: Option<u64>, turn: &Turn) -> Option<Wait> {
        let preemptions = !self.alone.load(Relaxed);
        let interval = IntervalInputs {
            wakeable: self.wakeable,
            awake: turn.awake,
            quiet_us: self.quiet_us(now_us),
            cost_us: self.cost_us(),
            expected_us: self.is_first().then(|| self.expected_us.load(Relaxed)),
            preemptions: if preemptions {
                self.preemptions.load(Relaxed)
            } else {
                0
            },
            streams: preemptions && self.stream().flows(),
            polls: if preemptions {
                self.polls.load(Relaxed)
            } else {
                0
            },
        };
        let tick_us = u64::try_from(Repeat::TICK.as_nanos()).unwrap_or(0) / 1000;
        let wait = interval.wait();
        // Only a timer that is set for ticks goes on with them.
        let ticks = self.ticks.load(Relaxed);
        let planned_us = planned_us.filter(|_| ticks || wait != Wait::Tick);
        let next = poll_interval::next(planned_us, wait, tick_us, turn.due_us, turn.looked)?;
        self.ticks.store(next == Wait::Tick, Relaxed);
        Some(next)
    }
}

/// What had come and what had gone at a time.
struct Moved([Past; 2]);

/// Items and bytes.
struct Past([Atomic<u64>; 2]);

impl Moved {
    fn new() -> Self {
        Self([const { Past([const { Atomic::new(0) }; 2]) }; 2])
    }

    /// What has come or what has gone since, whichever is more, now that so much has.
    fn advance(&self, now: [Volume; 2]) -> Volume {
        let mut most = Volume::default();
        for (Past([items, bytes]), now) in self.0.iter().zip(now) {
            // After a reset of the function this is wrong once, and costs one look at another time.
            let since = |before: &Atomic<u64>, now: u64| now.wrapping_sub(before.load(Relaxed));
            most.items = since(items, now.items).max(most.items);
            most.bytes = since(bytes, now.bytes).max(most.bytes);
            items.store(now.items, Relaxed);
            bytes.store(now.bytes, Relaxed);
        }
        most
    }
}
