// SPDX-License-Identifier: GPL-2.0
//! Polls of the function in softirq context: after kicks and doorbells, without a pause as long as there is work and no other task
//! wants the processor, and on a timer. Or always, in a thread that has a processor for it.

use super::function::PoolFunction;
use crate::vector::VectorInterrupt;
use kernel::{prelude::*, sync::Arc};
use nk::{
    kthread::BusyPoll,
    net::{is_alone, NapiContext, Poll},
};
use nupa_function::pool::Turn;

/// What the function's NAPI instance polls.
pub(super) struct Poller {
    pub(super) function: Arc<PoolFunction>,
    pub(super) vectors: KVec<VectorInterrupt>,
}

impl Poll for Poller {
    fn poll(&mut self, _context: &NapiContext<'_>, budget: u32) -> u32 {
        let poller = &self.function.poller;
        poller.begin_poll();
        let Some((turn, again)) = self.poll_once() else {
            // The holder of the node schedules another poll.
            poller.end_poll();
            return 0;
        };
        self.interrupt(turn.raised);
        if again {
            return budget;
        }
        poller.end_poll();
        self.function.schedule_next(&turn);
        0
    }
}

impl BusyPoll for Poller {
    fn busy_poll(&mut self) -> bool {
        let function = &self.function;
        let turn = function.serve(|node| node.turn(&function.kicks, true, true));
        if let Some(turn) = turn {
            self.interrupt(turn.raised);
        }
        turn.is_some()
    }
}

impl Poller {
    /// Polls for work; `None` if somebody else holds the node. Also returns whether the next poll is due at once.
    fn poll_once(&self) -> Option<(Turn, bool)> {
        let function = &self.function;
        let alone = is_alone();
        function.poll_state.set_alone(alone);
        let is_warm = || function.poll_state.is_warm(function.clock.now_us());
        let mut spins = alone && is_warm();
        let (mut paused, first) = (
            function.poller.take_expired(),
            function.poll_state.is_first(),
        );
        let mut before: Option<Turn> = None;
        loop {
            let awake = spins || function.poll_state.coalesces();
            let turn = function.serve(|node| node.turn(&function.kicks, spins, awake));
            let Some(mut turn) = turn else {
                return before.map(|turn| (turn, false));
            };
            turn.raised |= before.map_or(0, |turn| turn.raised);
            let now_us = function.clock.now_us();
            function.poll_state.note_own_poll(now_us, spins, &turn);
            if core::mem::take(&mut paused) {
                function.poll_state.note_timed_poll(first, alone, &turn);
            }
            let alone = is_alone();
            function.poll_state.set_alone(alone);
            let goes_on = is_warm() && alone;
            if spins && !goes_on {
                // Peers and drivers relied on the polling until now, and may have left work without an interrupt or a kick: poll once more.
                spins = false;
                before = Some(turn);
                continue;
            }
            return Some((turn, goes_on || turn.due_in_us(now_us) == Some(0)));
        }
    }

    /// Runs the handlers of the raised vectors, as interrupts would.
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
