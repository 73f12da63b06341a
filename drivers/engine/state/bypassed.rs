// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What processes say that they have moved through process rings, past the engine (`Documentation/process-rings.md`, "Counters").

use crate::{
    hal::{Clock, Platform},
    state::{counters::Volume, process_ring::RingAt},
};
use nupa_proto::process_ring::{LINES, MAX_PAYLOAD, MOST_PER_US, TOTALS_PUT};

/// What a process has moved through a ring, as far as it was counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bypassed {
    /// When the engine was told of the ring, in the clock's microseconds, and what the process's totals were then.
    since_us: u64,
    first: Volume,
    /// What was counted since.
    counted: Volume,
}

/// The process ring that a queue pair sends to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerRing {
    /// Where it is.
    pub(crate) at: Option<RingAt>,
    /// What its process has put there.
    pub(crate) bypassed: Bypassed,
}

impl PeerRing {
    /// One that nothing was counted of.
    pub(crate) fn new(platform: &impl Platform, at: Option<RingAt>) -> Self {
        Self {
            at,
            bypassed: Bypassed::new(platform, at, TOTALS_PUT),
        }
    }
}

impl Bypassed {
    /// Nothing was counted yet of the ring at this address, in which the totals are at offset `totals`.
    pub(crate) fn new(platform: &impl Platform, at: Option<RingAt>, totals: usize) -> Self {
        let said = at.map(|at| at.totals(platform.memory(), totals));
        Self {
            since_us: platform.now_us(),
            first: said.and_then(Result::ok).unwrap_or_default(),
            counted: Volume::default(),
        }
    }

    /// What has been moved through the ring since the last time: nothing, if it cannot be reached.
    pub(crate) fn grown(
        &mut self,
        platform: &impl Platform,
        at: Option<RingAt>,
        totals: usize,
    ) -> Volume {
        match at.map(|at| at.totals(platform.memory(), totals)) {
            Some(Ok(said)) => self.count(platform, said),
            _ => Volume::default(),
        }
    }

    /// Counts up to what a process says. It may say anything: no more is believed than it could have moved, and nothing that was counted is taken back.
    fn count(&mut self, clock: &impl Clock, said: Volume) -> Volume {
        let counted = self.counted;
        let passed = clock.now_us().saturating_sub(self.since_us);
        let most = passed
            .saturating_mul(MOST_PER_US)
            .saturating_add(LINES.into());
        let items = ahead(said.items, self.first.items);
        let items = items.min(most).max(counted.items);
        let most = items.saturating_mul(MAX_PAYLOAD.into());
        let bytes = ahead(said.bytes, self.first.bytes);
        let bytes = bytes.min(most).max(counted.bytes);
        self.counted = Volume { items, bytes };
        Volume {
            items: items.saturating_sub(counted.items),
            bytes: bytes.saturating_sub(counted.bytes),
        }
    }
}

/// How far a total that wraps around is ahead of what it was at first; 0 if it is behind that.
fn ahead(said: u64, first: u64) -> u64 {
    match said.wrapping_sub(first) {
        ahead if ahead <= u64::MAX / 2 => ahead,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    struct Time(Cell<u64>);

    impl Clock for Time {
        fn now_us(&self) -> u64 {
            self.0.get()
        }

        fn random(&self) -> u32 {
            0
        }
    }

    const fn volume(items: u64, bytes: u64) -> Volume {
        Volume { items, bytes }
    }

    const NOTHING: Volume = volume(0, 0);
    const LONGEST: u64 = MAX_PAYLOAD as u64;

    #[test]
    fn what_has_grown_is_counted_once() {
        let (time, mut bypassed) = (Time(Cell::new(0)), Bypassed::default());
        assert_eq!(bypassed.count(&time, volume(3, 300)), volume(3, 300));
        assert_eq!(bypassed.count(&time, volume(3, 300)), NOTHING);
        assert_eq!(bypassed.count(&time, volume(5, 301)), volume(2, 1));
    }

    #[test]
    fn what_was_there_before_is_not() {
        let mut bypassed = Bypassed {
            since_us: 50,
            first: volume(1000, u64::MAX - 10),
            counted: NOTHING,
        };
        let time = Time(Cell::new(50));
        let said = volume(1001, u64::MAX - 8);
        assert_eq!(bypassed.count(&time, said), volume(1, 2));
    }

    #[test]
    fn totals_that_go_down_take_nothing_back() {
        let (time, mut bypassed) = (Time(Cell::new(0)), Bypassed::default());
        assert_eq!(bypassed.count(&time, volume(10, 100)), volume(10, 100));
        for said in [NOTHING, volume(9, 99), volume(10, 100)] {
            assert_eq!(bypassed.count(&time, said), NOTHING);
        }
        assert_eq!(bypassed.count(&time, volume(11, 101)), volume(1, 1));
    }

    #[test]
    fn no_more_is_believed_than_can_be() {
        let (time, mut bypassed) = (Time(Cell::new(0)), Bypassed::default());
        let lie = volume(u64::MAX / 2, u64::MAX / 2);
        let first = u64::from(LINES);
        let expected = volume(first, first * LONGEST);
        assert_eq!(bypassed.count(&time, lie), expected);
        assert_eq!(bypassed.count(&time, lie), NOTHING);
        time.0.set(10);
        let next = 10 * MOST_PER_US;
        let expected = volume(next, next * LONGEST);
        assert_eq!(bypassed.count(&time, lie), expected);
        time.0.set(u64::MAX);
        let rest = bypassed.count(&time, lie);
        assert_eq!(first + next + rest.items, u64::MAX / 2);
    }

    #[test]
    fn bytes_may_be_seen_before_their_messages_or_later() {
        let (time, mut bypassed) = (Time(Cell::new(0)), Bypassed::default());
        assert_eq!(bypassed.count(&time, volume(0, LONGEST)), NOTHING);
        let said = volume(1, LONGEST);
        assert_eq!(bypassed.count(&time, said), volume(1, LONGEST));
        let said = volume(2, LONGEST);
        assert_eq!(bypassed.count(&time, said), volume(1, 0));
        let said = volume(2, 2 * LONGEST);
        assert_eq!(bypassed.count(&time, said), volume(0, LONGEST));
    }
}
