// SPDX-License-Identifier: GPL-2.0
//! What polls found, which sets when the next one is due.

use super::{
    poll_interval::{self, Coalescing, IntervalInputs, Stream, Wait, CALM_US, PREEMPTIONS},
    program_polls::{ProgramPolls, Run},
};
use kernel::sync::atomic::{Atomic, Relaxed};
use nk::{net::Repeat, sched};
use nupa_engine::Volume;
use nupa_function::pool::Turn;

/// Empty polls of the function in a row after which programs are taken to find what arrives.
const MAX_EMPTY_POLLS: u32 = 3;
/// Microseconds of a period of [`Stream`].
const STREAM_US: u64 = 800;

/// When there was work, in microseconds of the function's clock, and what polls found. Whoever polled updates it, without a lock: it only
/// steers how often the pool is polled, so a lost update does no harm.
pub(super) struct PollState {
    /// Peers can interrupt this host.
    pub(super) wakeable: bool,
    /// Time of the last work.
    busy_us: Atomic<u64>,
    /// Time of the last arrival, or of the last kick that came after [`CALM_US`] without one.
    news_us: Atomic<u64>,
    /// Moving average of the time that an empty poll takes, in eighths of a microsecond.
    cost: Atomic<u64>,
    /// Empty polls of the function in a row: programs find what arrives, or nothing does.
    empty_polls: Atomic<u32>,
    /// Microseconds from an arrival to the first poll after it, see [`poll_interval::expect_us`].
    expected_us: Atomic<u64>,
    /// There was an empty poll after a pause since the last arrival.
    missed: Atomic<bool>,
    /// [`ProgramPolls`].
    program_last_us: Atomic<u64>,
    program_first_us: Atomic<u64>,
    program_arrived: Atomic<bool>,
    program_resumed: Atomic<u32>,
    program_task: Atomic<i32>,
    program_sleeps: Atomic<u64>,
    /// No other task wanted the processor at the last poll.
    alone: Atomic<bool>,
    /// The score of [`PREEMPTIONS`].
    preemptions: Atomic<u32>,
    /// What had been received and sent at the last poll of the function.
    moved: Moved,
    /// A [`Stream`], the start of its period, and what had been received and sent then.
    stream: Atomic<u32>,
    asked_us: Atomic<u64>,
    asked_moved: Moved,
    /// A [`Coalescing`], and the time of the last poll that counted for it.
    coalescing: Atomic<u32>,
    counted_us: Atomic<u64>,
    /// It has polled without a pause since then.
    spun: Atomic<bool>,
    /// The timer is set for scheduler ticks.
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
            program_last_us: Atomic::new(0),
            program_first_us: Atomic::new(0),
            program_arrived: Atomic::new(false),
            program_resumed: Atomic::new(0),
            program_task: Atomic::new(0),
            program_sleeps: Atomic::new(0),
            alone: Atomic::new(false),
            moved: Moved::new(),
            stream: Atomic::new(0),
            asked_us: Atomic::new(0),
            asked_moved: Moved::new(),
            coalescing: Atomic::new(0),
            counted_us: Atomic::new(0),
            spun: Atomic::new(false),
            ticks: Atomic::new(false),
        }
    }

    /// Whether the last work is so recent that more may follow at once.
    pub(super) fn is_warm(&self, now_us: u64) -> bool {
        let spin_us = poll_interval::spin_us(self.cost_us());
        now_us.saturating_sub(self.busy_us.load(Relaxed)) < spin_us
    }

    /// Records a turn.
    pub(super) fn note_turn(&self, begun_us: u64, now_us: u64, turn: &Turn) {
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
            self.program_arrived.store(true, Relaxed);
        }
    }

    /// Whether the next poll after a pause is the first since the last arrival.
    pub(super) fn is_first(&self) -> bool {
        !self.missed.load(Relaxed)
    }

    /// Records a poll after a pause. `first`: the first since the last arrival. `alone`: no other task wanted the processor.
    pub(super) fn note_timed_poll(&self, first: bool, alone: bool, turn: &Turn) {
        if first {
            let before = self.expected_us.load(Relaxed);
            let expected_us = poll_interval::expect_us(before, alone || turn.arrived);
            self.expected_us.store(expected_us, Relaxed);
        }
        self.missed.store(!turn.arrived, Relaxed);
    }

    /// Records a poll of the function itself. `spins`: without a pause before it.
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
        let gap_us = now_us.saturating_sub(self.counted_us.load(Relaxed));
        let bulk = poll_interval::is_bulk(moved) && turn.arrived;
        if let Some(coalescing) = self.coalescing().after(gap_us, bulk) {
            self.coalescing.store(coalescing.to_word(), Relaxed);
            self.counted_us.store(now_us, Relaxed);
        }
    }

    fn stream(&self) -> Stream {
        Stream::from_word(self.stream.load(Relaxed))
    }

    fn coalescing(&self) -> Coalescing {
        Coalescing::from_word(self.coalescing.load(Relaxed))
    }

    fn polls_of_program(&self) -> ProgramPolls {
        ProgramPolls {
            last_us: self.program_last_us.load(Relaxed),
            first_us: self.program_first_us.load(Relaxed),
            arrived: self.program_arrived.load(Relaxed),
            resumed: self.program_resumed.load(Relaxed),
            run: Run {
                task: self.program_task.load(Relaxed),
                sleeps: self.program_sleeps.load(Relaxed),
            },
        }
    }

    /// Records a poll by a waiting program, the one that is running. Process context.
    pub(super) fn note_program_poll(&self, now_us: u64, turn: &Turn) {
        let (task, sleeps) = sched::running_task();
        let run = Run { task, sleeps };
        let polls = self.polls_of_program().after(now_us, run, turn.arrived);
        self.program_last_us.store(polls.last_us, Relaxed);
        self.program_first_us.store(polls.first_us, Relaxed);
        self.program_arrived.store(polls.arrived, Relaxed);
        self.program_resumed.store(polls.resumed, Relaxed);
        self.program_task.store(polls.run.task, Relaxed);
        self.program_sleeps.store(polls.run.sleeps, Relaxed);
    }

    /// Records whether no other task wants the processor.
    pub(super) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Relaxed);
    }

    /// Whether so much arrives that the function polls on a timer although peers could interrupt it.
    pub(super) fn coalesces(&self) -> bool {
        self.wakeable && self.coalescing().coalesces()
    }

    /// Whether polling programs find what arrives before the function does. Then peers need not interrupt it; its timer checks now and
    /// then whether this still holds.
    pub(super) fn programs_poll(&self) -> bool {
        self.empty_polls.load(Relaxed) >= MAX_EMPTY_POLLS
    }

    /// Microseconds that an empty poll takes.
    fn cost_us(&self) -> u64 {
        self.cost.load(Relaxed) / 8
    }

    /// Microseconds since the last arrival.
    fn quiet_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.news_us.load(Relaxed))
    }

    /// The new timer setting after a turn, or `None` to keep the current one, which expires in `planned_us`.
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
            program_polls: preemptions && self.polls_of_program().goes_on(now_us),
        };
        let tick_us = u64::try_from(Repeat::TICK.as_nanos()).unwrap_or(0) / 1000;
        let wait = interval.wait();
        // A timer that is set for microseconds does not stand in for ticks.
        let ticks = self.ticks.load(Relaxed);
        let planned_us = planned_us.filter(|_| ticks || wait != Wait::Tick);
        let next = poll_interval::next(
            planned_us,
            wait,
            tick_us,
            turn.due_in_us(now_us),
            turn.polled_pool,
        )?;
        self.ticks.store(next == Wait::Tick, Relaxed);
        Some(next)
    }
}

/// What had been received and sent at some time.
struct Moved([Past; 2]);

/// Items and bytes.
struct Past([Atomic<u64>; 2]);

impl Moved {
    fn new() -> Self {
        Self([const { Past([const { Atomic::new(0) }; 2]) }; 2])
    }

    /// What moved since then in the busier direction. `now`: what has been received and sent by now.
    fn advance(&self, now: [Volume; 2]) -> Volume {
        let mut most = Volume::default();
        for (Past([items, bytes]), now) in self.0.iter().zip(now) {
            // Wrong once after a reset of the function, which costs one poll at the wrong time.
            let since = |before: &Atomic<u64>, now: u64| now.wrapping_sub(before.load(Relaxed));
            most.items = since(items, now.items).max(most.items);
            most.bytes = since(bytes, now.bytes).max(most.bytes);
            items.store(now.items, Relaxed);
            bytes.store(now.bytes, Relaxed);
        }
        most
    }
}
