// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Copies that several processors make together: one submits them and waits, and all make what nobody else has begun.

/// A word that processors share: the kernel's atomics, or those of the standard library.
pub trait Word<T> {
    /// One with this value.
    fn new(value: T) -> Self;
    /// Loads it, in no order.
    fn load_relaxed(&self) -> T;
    /// Loads it, before what follows.
    fn load_acquire(&self) -> T;
    /// Stores it, in no order.
    fn store_relaxed(&self, value: T);
    /// Stores it, behind what comes before.
    fn store_release(&self, value: T);
}

/// One that counts.
pub trait Counter: Word<u32> {
    /// Stores `new` if it is `old`, and says whether it was. Acquires.
    fn exchange(&self, old: u32, new: u32) -> bool;
    /// Adds, and releases.
    fn add_release(&self, more: u32);
}

/// A copy from one address to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where the bytes are.
    pub from: u64,
    /// Where they go.
    pub to: u64,
    /// How many they are.
    pub len: u64,
}

struct Slot<W> {
    from: W,
    to: W,
    len: W,
}

/// The queue, of at most `SLOTS` pieces under way, a power of two. They are begun `GROUP` at a time. Nothing here sleeps or waits, but for
/// [`CopyQueue::drain`] and [`CopyQueue::finish`].
///
/// All counts are of pieces, and wrap around. No thread stands still for so long between two instructions that they do so meanwhile.
pub struct CopyQueue<C, W, const SLOTS: usize, const GROUP: u32> {
    slots: [Slot<W>; SLOTS],
    own: Line<Own<C>>,
    /// What others may begin.
    published: Line<C>,
    /// What somebody has begun.
    begun: Line<C>,
    results: Line<Results<C>>,
}

/// A line of the caches: processors that wait load `published` all the time, and others store the rest meanwhile.
#[repr(align(64))]
struct Line<T>(T);

/// What is the submitter's own.
struct Own<C> {
    /// Pieces that it has put into slots.
    filled: C,
    /// How many of these were done when it last looked.
    before: C,
}

/// What became of pieces.
struct Results<C> {
    /// How many are done, in any order.
    done: C,
    /// One could not be copied.
    failed: C,
}

impl<C: Counter, W: Word<u64>, const SLOTS: usize, const GROUP: u32> CopyQueue<C, W, SLOTS, GROUP> {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        const { assert!(SLOTS.is_power_of_two() && GROUP > 0 && GROUP as usize <= SLOTS) };
        let slot = |_| Slot {
            from: W::new(0),
            to: W::new(0),
            len: W::new(0),
        };
        Self {
            slots: core::array::from_fn(slot),
            own: Line(Own {
                filled: C::new(0),
                before: C::new(0),
            }),
            published: Line(C::new(0)),
            begun: Line(C::new(0)),
            results: Line(Results {
                done: C::new(0),
                failed: C::new(0),
            }),
        }
    }

    fn slot(&self, number: u32) -> Option<&Slot<W>> {
        self.slots.get((number as usize).checked_rem(SLOTS)?)
    }

    /// Whether there is no room: the queue is to be [drained](CopyQueue::drain) first. Of the submitter, of whom there is one at a time.
    pub fn is_full(&self) -> bool {
        let own = &self.own.0;
        let pieces = own
            .filled
            .load_relaxed()
            .wrapping_sub(own.before.load_relaxed());
        pieces as usize >= SLOTS
    }

    /// Whether somebody has begun any piece since the queue was last drained. Of the submitter.
    pub fn is_begun(&self) -> bool {
        self.begun.0.load_relaxed() != self.own.0.before.load_relaxed()
    }

    /// Adds a piece, for which there is room. Returns whether there is more to begin for others. Of the submitter.
    pub fn submit(&self, piece: Piece) -> bool {
        let number = self.own.0.filled.load_relaxed();
        if let Some(slot) = self.slot(number) {
            slot.from.store_relaxed(piece.from);
            slot.to.store_relaxed(piece.to);
            slot.len.store_relaxed(piece.len);
        }
        let filled = number.wrapping_add(1);
        self.own.0.filled.store_relaxed(filled);
        let group = filled.wrapping_sub(self.published.0.load_relaxed()) >= GROUP;
        if group {
            self.published.0.store_release(filled);
        }
        group
    }

    /// Makes some pieces that nobody has begun, with `copy`, which says whether it could. Returns how many.
    pub fn work(&self, mut copy: impl FnMut(Piece) -> bool) -> u32 {
        let Some((first, count)) = self.begin() else {
            return 0;
        };
        let mut copied = true;
        for number in 0..count {
            if let Some(slot) = self.slot(first.wrapping_add(number)) {
                copied &= copy(Piece {
                    from: slot.from.load_relaxed(),
                    to: slot.to.load_relaxed(),
                    len: slot.len.load_relaxed(),
                });
            }
        }
        if !copied {
            self.results.0.failed.store_relaxed(1);
        }
        self.results.0.done.add_release(count);
        count
    }

    /// Number of the first piece that is this processor's now, and of how many.
    fn begin(&self) -> Option<(u32, u32)> {
        loop {
            let first = self.begun.0.load_relaxed();
            let left = self.published.0.load_acquire().wrapping_sub(first);
            // Somebody was quicker if this is not a number of pieces.
            if left == 0 || left as usize > SLOTS {
                return None;
            }
            let count = left.min(GROUP);
            if self.begun.0.exchange(first, first.wrapping_add(count)) {
                return Some((first, count));
            }
        }
    }

    /// As [`CopyQueue::drain`]. False if a piece could not be copied since the last time that this was asked.
    pub fn finish(&self, copy: impl FnMut(Piece) -> bool, wait: impl Fn()) -> bool {
        self.drain(copy, wait);
        let failed = self.results.0.failed.load_relaxed() != 0;
        self.results.0.failed.store_relaxed(0);
        !failed
    }

    /// Makes what nobody has begun, and has `wait` wait a moment until others have made the rest. Then there is room. Of the submitter.
    pub fn drain(&self, mut copy: impl FnMut(Piece) -> bool, wait: impl Fn()) {
        let filled = self.own.0.filled.load_relaxed();
        self.published.0.store_release(filled);
        while self.work(&mut copy) != 0 {}
        while self.results.0.done.load_acquire() != filled {
            wait();
        }
        self.own.0.before.store_relaxed(filled);
    }
}

impl<C: Counter, W: Word<u64>, const SLOTS: usize, const GROUP: u32> Default
    for CopyQueue<C, W, SLOTS, GROUP>
{
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
