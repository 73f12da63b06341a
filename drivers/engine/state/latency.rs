// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How long requests take, from when they are first taken off their send queue to their completion. A few are measured, so that it costs
//! the others next to nothing.

use crate::{
    hal::Clock,
    state::{counters::Counters, qp::SendSide, request::Request},
};
use nupa_proto::admin::LATENCY_CLASSES;

/// So many requests of a queue pair have to succeed after one was begun to be measured, before the next one is.
const EVERY: u64 = 64;

/// Where a queue pair begins that is never measured.
pub(crate) const NEVER: u64 = u64::MAX;

/// A request that is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    start_us: u64,
    /// Index of the send queue behind its descriptor.
    behind: u32,
}

impl<P> SendSide<P> {
    /// Begins to measure the current request, if so many have succeeded; nothing was heard of the one before if that was flushed.
    #[cold]
    pub(crate) fn begin_sample(&mut self, clock: &impl Clock, request: &Request, requests: u64) {
        if request.is_local() {
            return;
        }
        self.sample_at = requests.wrapping_add(EVERY);
        self.sample = Some(Sample {
            start_us: clock.now_us(),
            behind: request.behind,
        });
    }

    /// The current request is done. Counts how long it took, if it is the one that is measured and has succeeded.
    #[cold]
    pub(crate) fn end_sample(
        &mut self,
        clock: &impl Clock,
        request: &Request,
        fine: bool,
        counters: &mut Counters,
    ) {
        let Some(sample) = self
            .sample
            .take_if(|sample| sample.behind == request.behind)
        else {
            return;
        };
        let took = clock.now_us().saturating_sub(sample.start_us);
        if let Some(count) = counters.tx_latency.get_mut(class(took)).filter(|_| fine) {
            count.add(1);
        }
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
