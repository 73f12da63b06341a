// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a pool needs of the host that maps it.

use core::ops::Range;
use nupa_proto::pool::LINE;
use zerocopy::IntoBytes;

/// Memory that cannot be read: what was stored there is lost. Nothing else happens; hosts survive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poisoned {
    /// Offset in the pool, in the line that it is about.
    pub offset: u64,
}

/// A mapped pool. Offsets count from its start; what lies outside reads as zero and is not written.
///
/// Where the hosts' caches are kept coherent, [`Window::publish`] and [`Window::refresh`] are no more than fences. Where they
/// are not, what is stored may be seen by others at any time, and need not be until it is published; and what is loaded may be of any time since
/// the range was refreshed. Whole lines move: nobody else stores to a line that this host has stored to and not
/// published, but for words that are claimed, where the settling time makes up for it.
pub trait Window {
    /// Bytes of the pool.
    fn len(&self) -> u64;

    /// Whether the pool has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the hosts' caches are kept coherent.
    fn is_coherent(&self) -> bool;

    /// Loads a naturally aligned little-endian word as a whole, with acquire order.
    fn load(&self, offset: u64) -> Result<u64, Poisoned>;

    /// Stores a naturally aligned little-endian word as a whole, with release order.
    fn store(&self, offset: u64, value: u64);

    /// Stores `new` if `current` is there and returns whether it was. Needs to be atomic only as far as the machine can make
    /// it so between hosts: claims are looked at again after a while. What is compared may be as old as what is loaded.
    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned>;

    /// Copies out. Bytes that others change meanwhile may be old or new ones.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Poisoned>;

    /// Copies in.
    fn write(&self, offset: u64, bytes: &[u8]);

    /// Copies words in that lie in memory as they are to lie in the pool, at a multiple of 8. What is in registers need not be stored elsewhere before.
    #[inline]
    fn write_words<const WORDS: usize>(&self, offset: u64, words: [u64; WORDS]) {
        self.write(offset, words.as_bytes());
    }

    /// Lets others see what was stored to a range: before anything that is stored later, but for the same line.
    fn publish(&self, offset: u64, len: u64);

    /// Makes loads from a range, from now on, see what was published. Where caches are not coherent, what this host has stored there
    /// and not published is seen by others then.
    fn refresh(&self, offset: u64, len: u64);

    /// Full fence: orders every earlier access to the pool before every later one. So what was published before is seen by others before
    /// anything is loaded.
    fn fence(&self);

    /// Whether the heartbeat of this host's node stands still, for tests.
    fn is_frozen(&self) -> bool {
        false
    }
}

/// Time, for what waits. May be coarse.
pub trait Time {
    /// Microseconds since some start; never goes back.
    fn now_us(&self) -> u64;

    /// Sleeps at least as long.
    fn sleep_us(&self, us: u64);
}

/// Zeroes lines, and lets others see that.
pub(crate) fn zero(window: &impl Window, range: Range<u64>) {
    let zeroes = [0; LINE as usize];
    for line in range.clone().step_by(LINE as usize) {
        window.write(line, &zeroes);
    }
    let len = range.end.saturating_sub(range.start);
    window.publish(range.start, len);
}
