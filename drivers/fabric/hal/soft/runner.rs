// SPDX-License-Identifier: GPL-2.0
//! When the function looks for work, in softirq context: at kicks and doorbells, without a pause as long as there is work
//! and nobody else wants the processor, and from time to time.

use super::{
    pace::{self, Crowd, Pause, BREAKS, CALM_US, MAX_VAIN},
    station::Turn,
    SoftFunction,
};
use crate::vector::VectorInterrupt;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};
use nk::net::{is_alone, NapiContext, Poll};

/// When there was work, and when the next look is, in microseconds of the function's clock. Whoever has looked changes it;
/// two at once do no harm.
pub(super) struct Plan {
    /// Others can wake this host.
    pub(super) wakeable: bool,
    /// The last work.
    busy_us: Atomic<u64>,
    /// The last arrival, or kick after a calm.
    news_us: Atomic<u64>,
    /// The look that a timer is set for.
    next_us: Atomic<u64>,
    /// What a look takes that finds nothing.
    cost_us: Atomic<u64>,
    /// Looks of its own, one after the other, for which nothing had come: others find what comes, in their time, or nothing does.
    vain: Atomic<u32>,
    /// Looks of its own, since it was alone, that others' work was interrupted for, while there was bulk.
    breaks: Atomic<u32>,
    /// Bytes that had come and gone at the last of its own looks.
    moved: Atomic<u64>,
    /// A [`Crowd`], and when the last look was that counted for it.
    crowd: Atomic<u32>,
    looked_us: Atomic<u64>,
    /// It has looked without a pause since.
    spun: Atomic<bool>,
}

impl Plan {
    pub(super) fn new(wakeable: bool) -> Self {
        Self {
            wakeable,
            busy_us: Atomic::new(0),
            news_us: Atomic::new(0),
            next_us: Atomic::new(0),
            cost_us: Atomic::new(0),
            vain: Atomic::new(0),
            breaks: Atomic::new(0),
            moved: Atomic::new(0),
            crowd: Atomic::new(0),
            looked_us: Atomic::new(0),
            spun: Atomic::new(false),
        }
    }

    /// Whether there was work so shortly before that more may come at once.
    fn is_warm(&self, now_us: u64) -> bool {
        let spin_us = pace::spin_us(self.cost_us.load(Relaxed));
        now_us.saturating_sub(self.busy_us.load(Relaxed)) < spin_us
    }

    /// Notes a look.
    pub(super) fn looked(&self, begun_us: u64, now_us: u64, turn: &Turn) {
        if !turn.busy {
            let (cost, before) = (now_us.saturating_sub(begun_us), self.cost_us.load(Relaxed));
            let mean = before.saturating_mul(7).saturating_add(cost) / 8;
            return self.cost_us.store(mean, Relaxed);
        }
        self.busy_us.store(now_us, Relaxed);
        if turn.arrived || self.quiet_us(now_us) > CALM_US {
            self.news_us.store(now_us, Relaxed);
        }
    }

    /// Notes a look of the function's own, without a pause before it, or after one.
    fn looked_itself(&self, now_us: u64, spins: bool, turn: &Turn) {
        if spins {
            return self.spun.store(true, Relaxed);
        }
        count(&self.vain, !turn.arrived, MAX_VAIN);
        // After a reset of the function this is wrong once, and costs one look at another time.
        let moved = turn.moved.wrapping_sub(self.moved.load(Relaxed));
        self.moved.store(turn.moved, Relaxed);
        let bulk = pace::is_bulk(moved);
        if bulk || turn.arrived {
            count(&self.breaks, bulk, BREAKS.end);
        }
        if self.spun.load(Relaxed) {
            return self.spun.store(false, Relaxed);
        }
        let gap_us = now_us.saturating_sub(self.looked_us.load(Relaxed));
        if let Some(crowd) = self.crowd().after(gap_us, bulk && turn.arrived) {
            self.crowd.store(crowd.to_word(), Relaxed);
            self.looked_us.store(now_us, Relaxed);
        }
    }

    fn crowd(&self) -> Crowd {
        Crowd::from_word(self.crowd.load(Relaxed))
    }

    /// Notes that the function is about to look while nobody else wants the processor.
    fn looks_alone(&self) {
        self.breaks.store(0, Relaxed);
    }

    /// Whether so much arrives that it looks by itself although others could wake it for each.
    fn gathers(&self) -> bool {
        self.wakeable && self.crowd().gathers()
    }

    /// Whether programs find what comes, in their time, before the function looks by itself: then it need not be woken, and looks
    /// after a while whether they still do.
    pub(super) fn is_tended(&self) -> bool {
        self.vain.load(Relaxed) >= MAX_VAIN
    }

    /// Microseconds since something came.
    fn quiet_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.news_us.load(Relaxed))
    }

    /// After a turn: microseconds until the next look, if the timer is to be set anew.
    pub(super) fn next(&self, now_us: u64, turn: &Turn) -> Option<u64> {
        let pause = Pause {
            wakeable: self.wakeable,
            awake: turn.awake,
            quiet_us: self.quiet_us(now_us),
            cost_us: self.cost_us.load(Relaxed),
            vain: self.vain.load(Relaxed),
            breaks: self.breaks.load(Relaxed),
        };
        let planned_us = self.next_us.load(Relaxed);
        let next_us = pace::next_us(now_us, planned_us, pause.us(), turn.due_us, turn.looked)?;
        self.next_us.store(next_us, Relaxed);
        Some(next_us.saturating_sub(now_us))
    }
}

/// Counts looks of a kind that came one after the other.
fn count(looks: &Atomic<u32>, another: bool, max: u32) {
    let before = looks.load(Relaxed);
    let after = match another {
        true => before.saturating_add(1).min(max),
        false => 0,
    };
    looks.store(after, Relaxed);
}

/// What the function's NAPI instance polls.
pub(super) struct Runner {
    pub(super) function: Arc<SoftFunction>,
    pub(super) vectors: KVec<VectorInterrupt>,
}

impl Poll for Runner {
    fn poll(&mut self, _context: &NapiContext<'_>, budget: u32) -> u32 {
        let Some((turn, again)) = self.look() else {
            // Who has the station schedules this again.
            return 0;
        };
        self.interrupt(turn.raised);
        if again {
            return budget;
        }
        self.function.plan_next(&turn);
        0
    }
}

impl Runner {
    /// Looks for work; `None` if somebody else has the station. Also says whether the next look is due at once.
    fn look(&self) -> Option<(Turn, bool)> {
        let function = &self.function;
        let alone = is_alone();
        if alone {
            function.plan.looks_alone();
        }
        let is_warm = || function.plan.is_warm(function.clock.now_us());
        let mut spins = alone && is_warm();
        let mut before: Option<Turn> = None;
        loop {
            let awake = spins || function.plan.gathers();
            let turn = function.serve(|station| station.turn(&function.kicks, spins, awake));
            let Some(mut turn) = turn else {
                return before.map(|turn| (turn, false));
            };
            turn.raised |= before.map_or(0, |turn| turn.raised);
            let now_us = function.clock.now_us();
            function.plan.looked_itself(now_us, spins, &turn);
            let goes_on = is_warm() && is_alone();
            if spins && !goes_on {
                // Who relied on its looking has been told only now that it does not, so it looks once more.
                spins = false;
                before = Some(turn);
                continue;
            }
            return Some((turn, goes_on || turn.due_us == Some(0)));
        }
    }

    /// Runs the vectors that were raised, as interrupts would.
    fn interrupt(&self, raised: u64) {
        let mut left = raised;
        while left != 0 {
            let vector = usize::try_from(left.trailing_zeros()).unwrap_or(usize::MAX);
            left &= left.wrapping_sub(1);
            if let Some(vector) = self.vectors.get(vector) {
                vector.run();
            }
        }
    }
}
