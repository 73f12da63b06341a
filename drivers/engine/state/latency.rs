// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How long requests take, from when they are first taken off their send queue to their completion. A few are measured, so that it costs
//! the others next to nothing.

use crate::{hal::Clock, state::counters::Counters};
use nupa_proto::admin::LATENCY_CLASSES;

/// So many requests of a queue pair have to succeed after one was begun to be measured, before the next one is.
const EVERY: u64 = 64;

/// Measures requests of a send queue, one at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampler {
    sample: Option<Sample>,
    /// How many requests have to succeed before the next one is measured.
    next: u64,
}

/// A request that is measured.
#[derive(Clone, Copy, Debug)]
struct Sample {
    start_us: u64,
    /// Index of the send queue behind its descriptor.
    behind: u32,
}

impl Sampler {
    /// One that measures the first request.
    pub(crate) const NEW: Self = Self {
        sample: None,
        next: 0,
    };

    /// One that measures none.
    pub(crate) const OFF: Self = Self {
        sample: None,
        next: u64::MAX,
    };

    /// Whether a request is measured after so many that have succeeded.
    #[inline(always)]
    pub(crate) fn wants(&self, succeeded: u64) -> bool {
        succeeded >= self.next
    }

    /// Whether a request is measured that has not ended.
    #[inline(always)]
    pub(crate) fn is_measuring(&self) -> bool {
        self.sample.is_some()
    }

    /// Begins to measure a request, whose descriptor ends at `behind`. Nothing was heard of the one before if that was flushed.
    #[cold]
    pub(crate) fn begin(&mut self, clock: &impl Clock, succeeded: u64, behind: u32) {
        self.next = succeeded.saturating_add(EVERY);
        self.sample = Some(Sample {
            start_us: clock.now_us(),
            behind,
        });
    }

    /// The request whose descriptor ends at `behind` is done. Counts how long it took, if it is the one that is measured and has succeeded.
    #[cold]
    pub(crate) fn end(
        &mut self,
        clock: &impl Clock,
        behind: u32,
        fine: bool,
        counters: &mut Counters,
    ) {
        let Some(sample) = self.sample.take_if(|sample| sample.behind == behind) else {
            return;
        };
        let took = clock.now_us().saturating_sub(sample.start_us);
        if let Some(count) = counters.tx_latency.get_mut(class(took)).filter(|_| fine) {
            count.add(1);
        }
    }

    /// Forgets the one that is measured.
    pub(crate) fn clear(&mut self) {
        self.sample = None;
    }
}

/// The class of a time in microseconds: below 1, below 2, below 4, and so on; the last one has all that are longer.
fn class(us: u64) -> usize {
    let bits = u64::BITS.saturating_sub(us.leading_zeros());
    usize::try_from(bits).map_or(LATENCY_CLASSES - 1, |bits| bits.min(LATENCY_CLASSES - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        let times = [0, 1, 2, 3, 4, 7, 8, 1023, 1024, u64::MAX];
        assert_eq!(times.map(class), [0, 1, 2, 2, 3, 3, 4, 10, 11, 11]);
    }
}
