// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Shared receive queues whose owner takes entries as well, for messages in process rings (`Documentation/process-rings.md`).
//!
//! The arm word of the queue's doorbell slot is the index of the next entry. Whoever takes entries compares and swaps it, so each goes to one. The
//! owner is a process, and may store there what it likes.

use super::{RecvQueue, RqError, Takers};
use crate::{
    hal::{AccessError, Memory, Platform, SlotWord},
    state::kept::{Held, KeptWqe},
};

/// How often the owner may take an entry that the engine was about to take, one time after the other. Each costs a look at the entry, and
/// nothing else keeps a process from doing so for ever. An owner that takes as many as it can is seldom quicker that often.
const TRIES: u32 = 64;

impl<P: AsRef<[u64]> + AsMut<[u64]>> RecvQueue<P> {
    /// Its owner takes entries as well from now on, and for as long as there is this queue.
    pub(crate) fn share_with_owner(&mut self, platform: &impl Platform) {
        if self.takers != Takers::Both {
            self.takers = Takers::Both;
            platform.store(self.page, self.slot, SlotWord::Arm, self.index);
        }
    }

    /// Whether its owner takes entries as well.
    #[inline]
    pub(crate) fn is_shared_with_owner(&self) -> bool {
        self.takers == Takers::Both
    }

    /// Goes past entries that were taken. `posted` is how far the owner has posted, as loaded before; returns how far that is known to be.
    pub(super) fn pass_taken(&mut self, platform: &impl Platform, posted: u32) -> u32 {
        self.index = platform.load(self.page, self.slot, SlotWord::Arm);
        let fits = |posted: u32| posted.wrapping_sub(self.index) <= self.ring.entries();
        if fits(posted) {
            return posted;
        }
        // The owner may have posted more in between, and taken that; then there is more, too, or no more is known to be posted.
        let later = platform.load(self.page, self.slot, SlotWord::Index);
        let overtaken = self.index.wrapping_sub(posted) <= later.wrapping_sub(posted);
        match overtaken && !fits(later) {
            true => self.index,
            false => later,
        }
    }

    /// No fewer entries than are left now: what the owner posts or takes meanwhile counts as left.
    pub(crate) fn left_at_most(&self, platform: &impl Platform) -> u32 {
        let next = platform.load(self.page, self.slot, SlotWord::Arm);
        let posted = platform.load(self.page, self.slot, SlotWord::Index);
        posted.wrapping_sub(next)
    }

    /// Takes the next entry, and as many more before it as `ahead` says; copies the last of them out, in place of one that is not held. If the device
    /// cannot reach that, it is taken all the same.
    pub(crate) fn take_shared(
        &mut self,
        platform: &impl Platform,
        kept: &mut KeptWqe<P>,
        mut ahead: impl FnMut() -> Result<u16, RqError>,
    ) -> Result<(Held, Result<(), AccessError>), RqError> {
        for tried in 0..TRIES {
            let posted = self.refresh(platform)?;
            let first = self.index;
            // What the owner says after this, it has not taken an entry for before it.
            let ahead = ahead()?;
            if posted.wrapping_sub(first) <= u32::from(ahead) {
                // There were enough when the message came, if the owner has been quicker.
                return Err(match tried {
                    0 => RqError::Empty,
                    _ => RqError::Overtaken,
                });
            }
            let last = first.wrapping_add(u32::from(ahead));
            // Before it is taken: the owner may write another one in its place afterwards.
            let read = match self.ring.addr(last) {
                Some(addr) => platform.memory().read(addr, kept.bytes_mut()),
                None => Err(AccessError),
            };
            let behind = last.wrapping_add(1);
            if platform.compare_exchange(self.page, self.slot, SlotWord::Arm, first, behind) {
                self.index = behind;
                let count = ahead.saturating_add(1);
                return Ok((Held { behind, count }, read));
            }
        }
        Err(RqError::Overtaken)
    }
}
