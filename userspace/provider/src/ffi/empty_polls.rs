// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which empty polls have the kernel's engine work.
//!
//! Programs often have a completion queue for requests and one for receive buffers, or more, and poll them in turn. The engine does the work
//! of all, so the empty polls of one queue are enough: calls for the others would only take the time before the next look at that one.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

use rustix::time::{clock_gettime, ClockId, Timespec};

/// Empty polls of other queues in a row after which one of them counts, and its queue takes the place of the one whose empty polls counted:
/// that may be polled no more. With more queues than this in turn, one poll in so many counts.
const OTHERS: u32 = 8;

/// The empty polls of a context's completion queues. What threads do at the same time may count twice or not at all, which costs a call, or
/// the time until the next poll.
#[derive(Debug)]
pub(super) struct EmptyPolls {
    /// Handle of the queue whose empty polls count.
    queue: AtomicU32,
    /// Empty polls of others since the last one of it.
    others: AtomicU32,
    /// Nanoseconds within the second at the last poll that had the engine work, of a clock that goes by ticks: only compared for equality.
    last: AtomicI64,
}

impl EmptyPolls {
    /// The first one counts.
    pub(super) fn new() -> Self {
        Self {
            queue: AtomicU32::new(0),
            others: AtomicU32::new(OTHERS),
            last: AtomicI64::new(0),
        }
    }

    /// Whether the engine is to work because the queue with this handle was found empty: also if it has not for some milliseconds, because
    /// queues that are polled now and then need it each time. Makes no system call.
    pub(super) fn counts(&self, handle: u32) -> bool {
        // Changes with the kernel's tick.
        self.counts_at(handle, clock_gettime(ClockId::MonotonicCoarse))
    }

    fn counts_at(&self, handle: u32, now: Timespec) -> bool {
        let others = self.others.load(Relaxed);
        if self.queue.load(Relaxed) == handle || others >= OTHERS {
            self.queue.store(handle, Relaxed);
            self.others.store(0, Relaxed);
            self.last.store(now.tv_nsec, Relaxed);
            return true;
        }
        self.others.store(others.wrapping_add(1), Relaxed);
        self.last.swap(now.tv_nsec, Relaxed) != now.tv_nsec
    }
}

#[cfg(test)]
mod tests {
    use super::{EmptyPolls, Timespec, OTHERS};

    /// The time at a tick.
    fn at(tick: i64) -> Timespec {
        Timespec {
            tv_sec: 0,
            tv_nsec: tick,
        }
    }

    /// How often the engine works in 1000 polls, which go through the queues in turn, between two ticks.
    fn works(queues: &[u32]) -> usize {
        let polls = EmptyPolls::new();
        let counts = |queue: &&u32| polls.counts_at(**queue, at(1));
        queues.iter().cycle().take(1000).filter(counts).count()
    }

    #[test]
    fn one_of_the_queues_that_are_polled_in_turn_counts() {
        assert_eq!(works(&[0]), 1000);
        assert_eq!(works(&[7]), 1000);
        assert_eq!(works(&[3, 4]), 500);
        assert_eq!(works(&[3, 4, 4, 5]), 250);
    }

    #[test]
    fn a_queue_counts_soon_when_the_others_are_polled_no_more() {
        let polls = EmptyPolls::new();
        for _ in 0..100 {
            polls.counts_at(3, at(1));
            polls.counts_at(4, at(1));
        }
        for other in [4, 5] {
            let first = (0..).find(|_| polls.counts_at(other, at(1)));
            assert!(first.is_some_and(|polls| polls <= OTHERS as usize));
            assert!(polls.counts_at(other, at(1)));
        }
    }

    #[test]
    fn polls_now_and_then_count() {
        let polls = EmptyPolls::new();
        for (tick, queue) in (0..100).zip([3, 4].into_iter().cycle()) {
            assert!(polls.counts_at(queue, at(tick)), "{tick}");
        }
    }
}
