// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which messages in process rings have entries of a shared receive queue: both its owner and the engine take them.

use nupa_proto::process_ring::LINES;

/// How many of the messages that go past the engines to a queue pair have entries of its shared receive queue: free-running.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seats {
    /// As far as the engine knows, which takes entries for them as well.
    pub(crate) taken: u32,
    /// What the owner has said last, when that was news.
    told: u32,
}

impl Seats {
    /// The owner says that `told` messages have entries. No more than `bypassed` have gone past the engines, and no more than a ring has room for
    /// of those have none.
    pub(crate) fn tell(&mut self, told: u32, bypassed: u32) {
        // It has said that before it learnt of entries that the engine took for them, however long ago.
        let is_late = told.wrapping_sub(self.told) < self.taken.wrapping_sub(self.told);
        if !is_late && bypassed.wrapping_sub(told) <= LINES {
            *self = Self { taken: told, told };
        }
    }
}
