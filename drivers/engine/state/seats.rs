// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which messages in process rings have entries of a shared receive queue: both its owner and the engine take them.

use nupa_proto::process_ring::LINES;

/// How long an owner may need, from when it has taken an entry, to say so: longer than a process that wants to run usually has to wait for a CPU,
/// and far shorter than what a message waits for a queue pair that does not receive.
const DOUBT_US: u64 = 50_000;

/// How many of the messages that go past the engines to a queue pair have entries of its shared receive queue: free-running.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seats {
    /// As far as the engine knows, which takes entries for them as well.
    taken: u32,
    /// What the owner has said last, when that was news.
    told: u32,
    /// Until when the owner may have taken entries for the next message of the engine's and not said so, if there are too few: microseconds.
    doubt_until: Option<u64>,
}

impl Seats {
    /// As far as the engine knows.
    #[inline]
    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// The owner says that `told` messages have entries. No more than `bypassed` have gone past the engines, and no more than a ring has room for
    /// of those have none.
    pub(crate) fn tell(&mut self, told: u32, bypassed: u32) {
        // It has said that before it learnt of entries that the engine took for them, however long ago.
        let is_late = told.wrapping_sub(self.told) < self.taken.wrapping_sub(self.told);
        if !is_late && bypassed.wrapping_sub(told) <= LINES {
            (self.taken, self.told) = (told, told);
        }
    }

    /// How many of the messages that went past the engines, `bypassed` until now, have no entry yet. `None` if that is more than a ring has room
    /// for, as it is if the number goes back.
    pub(crate) fn unseated(&self, bypassed: u32) -> Option<u16> {
        let unseated = bypassed.wrapping_sub(self.taken);
        u16::try_from(unseated)
            .ok()
            .filter(|&unseated| u32::from(unseated) <= LINES)
    }

    /// All messages that went past the engines until now have entries.
    pub(crate) fn seat(&mut self, bypassed: u32) {
        (self.taken, self.doubt_until) = (bypassed, None);
    }

    /// There are too few entries at the time `now`, in microseconds. Until when that may be because the owner has not said yet which it has taken; `None` if
    /// it has none to take, because all messages have theirs.
    pub(crate) fn doubt(&mut self, bypassed: u32, now: u64) -> Option<u64> {
        let any = self.taken != bypassed;
        any.then(|| *self.doubt_until.get_or_insert(now.saturating_add(DOUBT_US)))
    }
}
