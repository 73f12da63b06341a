// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Receivers that hold up frames and datagrams for others.

use crate::hal::Clock;

/// Microseconds for which nobody waits for a receiver after something for it was dropped, whatever it takes meanwhile. One that takes an
/// entry just often enough holds up others for a sixth of the time at most: a frame waits 200 ms.
const PAUSE_US: u64 = 1_000_000;

/// Whether senders wait for a receiver that has no room: a ring to a node of another host, or a receive queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stall {
    /// When something was first dropped that had waited in vain.
    since_us: Option<u64>,
}

impl Stall {
    /// Nobody waits.
    #[inline]
    pub(crate) fn is_stalled(&self) -> bool {
        self.since_us.is_some()
    }

    /// Something was dropped that had waited for as long as it may.
    pub(crate) fn begin(&mut self, clock: &impl Clock) {
        self.since_us.get_or_insert_with(|| clock.now_us());
    }

    /// The receiver has room again. Others may wait for it, but not too soon after the last time.
    #[inline]
    pub(crate) fn end(&mut self, clock: &impl Clock) {
        if let Some(since) = self.since_us {
            if clock.now_us().saturating_sub(since) >= PAUSE_US {
                self.since_us = None;
            }
        }
    }
}
