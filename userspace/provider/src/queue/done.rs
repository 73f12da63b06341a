// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How far the controller has come with a ring, as its completions tell.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Free-running index before which entries of a ring are free again. Whoever polls moves it, under the lock of a
/// completion queue; whoever posts reads it, under the lock of the ring.
#[derive(Debug, Default)]
pub(crate) struct Done {
    index: AtomicU32,
    /// Of a shared receive queue: how many entries were taken by messages that are complete.
    count: AtomicU32,
    /// Its owner takes entries too, and completions say exactly which ones they are about: `count` counts, `index` does not.
    exact: AtomicBool,
}

impl Done {
    /// Where it stands. What the completion's poster wrote before is visible afterwards.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.index.load(Ordering::Acquire)
    }

    /// Moves it. For rings whose completions come in order, all through one completion queue.
    #[inline]
    pub(crate) fn set(&self, index: u32) {
        self.index.store(index, Ordering::Release);
    }

    /// Moves it forward, never back. For who holds the lock that all hold who move it: that of the completion queue, or of a shared receive queue, whose
    /// completions come through several completion queues, so that one poller may overtake another.
    #[inline(always)]
    pub(crate) fn advance(&self, index: u32) {
        if is_ahead(index, self.index.load(Ordering::Relaxed)) {
            self.set(index);
        }
    }

    /// Counts entries of a shared receive queue.
    #[inline]
    pub(crate) fn add(&self, entries: u32) {
        self.count.fetch_add(entries, Ordering::Release);
    }

    /// Entries counted.
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// The owner takes entries from now on.
    pub(super) fn set_exact(&self) {
        self.exact.store(true, Ordering::Release);
    }

    /// Whether the owner takes entries.
    #[inline]
    pub(super) fn is_exact(&self) -> bool {
        self.exact.load(Ordering::Acquire)
    }

    /// Whether it stands before an index.
    #[inline(always)]
    pub(crate) fn is_before(&self, index: u32) -> bool {
        is_ahead(index, self.get())
    }

    /// Starts over, as the ring does.
    pub(crate) fn reset(&self) {
        self.index.store(0, Ordering::Release);
    }
}

/// Whether `index` lies ahead of `seen`; rings are far shorter than half the range of an index.
#[inline]
pub(super) const fn is_ahead(index: u32, seen: u32) -> bool {
    let ahead = index.wrapping_sub(seen);
    ahead != 0 && ahead <= u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_forward_only_and_wraps() {
        let done = Done::default();
        done.advance(5);
        done.advance(3);
        assert_eq!(done.get(), 5);
        let done = Done {
            index: AtomicU32::new(u32::MAX),
            ..Done::default()
        };
        done.advance(2);
        done.advance(u32::MAX - 1);
        assert_eq!(done.get(), 2);
        done.reset();
        assert_eq!(done.get(), 0);
    }
}
