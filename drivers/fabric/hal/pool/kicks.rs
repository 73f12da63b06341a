// SPDX-License-Identifier: GPL-2.0
//! Doorbells that were rung and not yet looked at: a bit for each slot of each page.

use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Full, Relaxed},
};
use nupa_proto::doorbell::SLOTS;

/// Bits of a word.
const BITS: usize = u64::BITS as usize;
/// Words of a page's slots.
const WORDS: usize = (SLOTS as usize).div_ceil(BITS);
const _: () = assert!(WORDS * BITS == SLOTS as usize);

/// Slots that were kicked.
pub(super) struct Kicks {
    /// One bit for each slot of each page.
    pages: KVec<[Bits; WORDS]>,
    /// One bit for each page, set after those of its slots, so that not all of them have to be checked.
    marks: KVec<Bits>,
}

impl Kicks {
    /// None yet, of `pages` pages. May sleep.
    pub(super) fn new(pages: u32) -> Result<Self> {
        let count = usize::try_from(pages)?;
        let mut pages = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            pages.push([const { Bits::none() }; WORDS], GFP_KERNEL)?;
        }
        let count = count.div_ceil(BITS);
        let mut marks = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            marks.push(Bits::none(), GFP_KERNEL)?;
        }
        Ok(Self { pages, marks })
    }

    /// Notes a kick; one of a slot that does not exist is nobody's. Any context.
    pub(super) fn add(&self, page: u32, slot: u16) {
        let (page, slot) = (page as usize, usize::from(slot));
        let slots = self.pages.get(page).and_then(|page| page.get(slot / BITS));
        let Some((slots, mark)) = slots.zip(self.marks.get(page / BITS)) else {
            return;
        };
        slots.set(slot % BITS);
        mark.set(page % BITS);
    }
}

impl nupa_function::pool::Kicks for Kicks {
    fn take(&self, mut serve: impl FnMut(u32, u16)) -> bool {
        let mut any = false;
        for (marks, first) in self.marks.iter().zip((0usize..).step_by(BITS)) {
            for bit in marks.take() {
                let number = first.wrapping_add(bit);
                let Some(page) = self.pages.get(number) else {
                    continue;
                };
                for (slots, first) in page.iter().zip((0usize..).step_by(BITS)) {
                    for bit in slots.take() {
                        any = true;
                        // Below `SLOTS`, and there are not more pages than 32 bits count.
                        serve(number as u32, first.wrapping_add(bit) as u16);
                    }
                }
            }
        }
        any
    }
}

/// Bits that are set from anywhere and taken together.
struct Bits(Atomic<u64>);

impl Bits {
    const fn none() -> Self {
        Self(Atomic::new(0))
    }

    /// Sets one. What was done before is seen by who takes it.
    fn set(&self, bit: usize) {
        let bit = 1u64.wrapping_shl(bit as u32);
        let mut before = self.0.load(Relaxed);
        // Also if it is set already: it may be just about to be taken.
        while let Err(now) = self.0.cmpxchg(before, before | bit, Full) {
            before = now;
        }
    }

    /// Clears all and gives those that were set.
    fn take(&self) -> impl Iterator<Item = usize> {
        let mut left = match self.0.load(Relaxed) {
            0 => 0,
            _ => self.0.xchg(0, Full),
        };
        core::iter::from_fn(move || {
            let bit = left.trailing_zeros();
            let found = left != 0;
            left &= left.wrapping_sub(1);
            found.then_some(bit as usize)
        })
    }
}
