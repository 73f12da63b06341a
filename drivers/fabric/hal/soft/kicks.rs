// SPDX-License-Identifier: GPL-2.0
//! Doorbells that were rung and not yet looked at: a bit for each slot of each page.

use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Full, Relaxed},
};
use nk::irqlock::{new_spinlock_irq, SpinLockIrq};
use nupa_proto::doorbell::SLOTS;

/// Slots that were kicked.
#[pin_data]
pub(super) struct Kicks {
    /// There may be one, so that nobody need take the lock to see that there is none.
    any: Atomic<bool>,
    #[pin]
    pages: SpinLockIrq<KVec<Page>>,
}

/// One page's slots.
#[derive(Clone, Copy)]
struct Page(u128);

const _: () = assert!(SLOTS as u32 == u128::BITS);

impl Kicks {
    /// None yet, of `pages` pages. May sleep.
    pub(super) fn new(pages: u32) -> Result<impl PinInit<Self>> {
        let pages = KVec::from_elem(Page(0), usize::try_from(pages)?, GFP_KERNEL)?;
        Ok(pin_init!(Self {
            any: Atomic::new(false),
            pages <- new_spinlock_irq!(pages),
        }))
    }

    /// Notes a kick; one of a slot that does not exist is nobody's. Any context.
    pub(super) fn add(&self, page: u32, slot: u16) {
        let bit = 1u128.checked_shl(u32::from(slot)).unwrap_or(0);
        {
            let mut pages = self.pages.lock();
            if let Some(page) = usize::try_from(page).ok().and_then(|at| pages.get_mut(at)) {
                page.0 |= bit;
            }
        }
        self.any.store(true, Relaxed);
    }

    /// Calls `serve` with page and slot of all that were kicked, each once, and tells whether there was one. `serve` may be
    /// kicked meanwhile.
    pub(super) fn take(&self, mut serve: impl FnMut(u32, u16)) -> bool {
        // Before the bits are looked at, so that no later one is missed.
        if !self.any.load(Relaxed) || !self.any.xchg(false, Full) {
            return false;
        }
        let mut next = 0;
        while let Some((number, mut left)) = self.take_page(next) {
            while left != 0 {
                // Below 128, so that it fits.
                let slot = left.trailing_zeros() as u16;
                left &= left.wrapping_sub(1);
                serve(number, slot);
            }
            next = number.wrapping_add(1);
        }
        next != 0
    }

    /// The slots of the first page from `first` on of which one was kicked.
    fn take_page(&self, first: u32) -> Option<(u32, u128)> {
        let mut pages = self.pages.lock();
        let rest = (0u32..).zip(pages.iter_mut());
        let mut rest = rest.skip(usize::try_from(first).ok()?);
        let (number, page) = rest.find(|(_, page)| page.0 != 0)?;
        Some((number, core::mem::take(&mut page.0)))
    }
}
