// SPDX-License-Identifier: GPL-2.0
//! Who has which doorbell pages, and which slots of a page are taken.
//!
//! A page belongs to the kernel or to one process, whose queues share it. `crate::shares` says how many a user may have.

use crate::shares::{kernel_reserve, Refused, Taken};
use core::{marker::PhantomData, ops::DerefMut};
use nupa_proto::doorbell::{PUSH_SLOTS, SLOTS};

/// Which slots are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// One, for a completion queue, an event queue or a shared receive queue.
    Queue,
    /// One for a send queue.
    Send,
    /// One for a send queue, and one on the same page for its receive queue.
    Pair,
}

/// Slots of one doorbell page, one bit for each that is taken.
#[derive(Clone, Copy, Debug, Default)]
struct SlotMap(u128);

const _: () = assert!(SLOTS as u32 == u128::BITS);

/// Slots that have a push slot.
const WITH_PUSH: u128 = (1 << PUSH_SLOTS) - 1;

impl SlotMap {
    /// Takes all that is wanted, or nothing.
    fn take(&mut self, wanted: Wanted) -> Option<(u16, Option<u16>)> {
        let mut left = *self;
        let taken = match wanted {
            Wanted::Queue => (left.take_one(false)?, None),
            Wanted::Send => (left.take_one(true)?, None),
            Wanted::Pair => (left.take_one(true)?, Some(left.take_one(false)?)),
        };
        *self = left;
        Some(taken)
    }

    /// Takes a free slot. Those with a push slot go to who wants one, as far as there are others.
    fn take_one(&mut self, push: bool) -> Option<u16> {
        let preferred = if push { WITH_PUSH } else { !WITH_PUSH };
        self.take_of(preferred).or_else(|| self.take_of(!preferred))
    }

    fn take_of(&mut self, wanted: u128) -> Option<u16> {
        let free = !self.0 & wanted;
        if free == 0 {
            return None;
        }
        let slot = free.trailing_zeros();
        self.0 |= 1 << slot;
        u16::try_from(slot).ok()
    }

    fn give(&mut self, slot: u16) {
        self.0 &= !1u128.checked_shl(u32::from(slot)).unwrap_or(0);
    }
}

/// Most doorbell pages that are used: enough for 20,000 queue pairs with a completion queue each.
pub(crate) const MAX_PAGES: u32 = 512;

/// Who has a page; `P` tells processes apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder<P> {
    /// The kernel.
    Kernel,
    /// A process.
    Process {
        /// Which one.
        process: P,
        /// The user that its pages count for.
        user: u32,
    },
}

impl<P: PartialEq> Holder<P> {
    /// Whether slots of a page of `self` may be given to `other`. The user of a process may have changed meanwhile.
    fn shares_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Kernel, Self::Kernel) => true,
            (Self::Process { process, .. }, Self::Process { process: other, .. }) => {
                process == other
            }
            _ => false,
        }
    }
}

/// Slots that were taken. Each is a use of the page, which ends with [`PageTable::give`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakenSlots {
    /// The page.
    pub(crate) page: u32,
    /// Nobody has had the page just before: it is to be cleared before anybody else learns of it.
    pub(crate) fresh: bool,
    /// The slot.
    pub(crate) slot: u16,
    /// That of the receive queue of a pair.
    pub(crate) recv_slot: Option<u16>,
}

/// A page that is taken.
#[derive(Debug)]
pub(crate) struct TakenPage<P> {
    holder: Holder<P>,
    slots: SlotMap,
    /// Slots that are taken, and whoever else keeps the page, such as mappings.
    uses: u32,
}

/// Doorbell pages of a function, in `S`: `Some` for each that is taken.
#[derive(Debug)]
pub(crate) struct PageTable<P, S> {
    pages: S,
    holders: PhantomData<P>,
}

impl<P: PartialEq + Clone, S: DerefMut<Target = [Option<TakenPage<P>>]>> PageTable<P, S> {
    /// Of as many pages as `pages` has entries.
    pub(crate) fn new(pages: S) -> Self {
        Self {
            pages,
            holders: PhantomData,
        }
    }

    /// Takes slots for `holder`, on a page that it has if one has room. `unlimited` tells whether it may exceed the limit
    /// of its user.
    pub(crate) fn take(
        &mut self,
        holder: &Holder<P>,
        wanted: Wanted,
        unlimited: impl FnOnce() -> bool,
    ) -> Result<TakenSlots, Refused> {
        for (number, page) in (0..).zip(self.pages.iter_mut()) {
            let Some(page) = page.as_mut().filter(|page| page.holder.shares_with(holder)) else {
                continue;
            };
            if let Some(slots) = page.slots.take(wanted) {
                return Ok(page.taken(number, false, slots));
            }
        }
        self.check_limits(holder, unlimited)?;
        let mut free = (0..).zip(self.pages.iter_mut());
        let (number, place) = free
            .find(|(_, page)| page.is_none())
            .ok_or(Refused::NoneLeft)?;
        let page = place.insert(TakenPage {
            holder: holder.clone(),
            slots: SlotMap::default(),
            uses: 0,
        });
        let slots = page.slots.take(wanted).ok_or(Refused::NoneLeft)?;
        Ok(page.taken(number, true, slots))
    }

    /// Whether `holder` may have one more page.
    fn check_limits(
        &self,
        holder: &Holder<P>,
        unlimited: impl FnOnce() -> bool,
    ) -> Result<(), Refused> {
        let Holder::Process { user: wanting, .. } = holder else {
            return Ok(());
        };
        let mut taken = Taken::default();
        for page in self.pages.iter().flatten() {
            match &page.holder {
                Holder::Kernel => taken.kernel = taken.kernel.saturating_add(1),
                Holder::Process { user, .. } => {
                    taken.users = taken.users.saturating_add(1);
                    taken.own = taken.own.saturating_add(u32::from(user == wanting));
                }
            }
        }
        let all = u32::try_from(self.pages.len()).unwrap_or(u32::MAX);
        taken.check(all, kernel_reserve(all), unlimited)
    }

    /// Keeps a page that is in use for one more use.
    pub(crate) fn keep(&mut self, number: u32) {
        if let Some(Some(page)) = self.entry(number) {
            page.uses = page.uses.saturating_add(1);
        }
    }

    /// Ends a use of a page, and gives the slot back that it was for, if any. The page is free with the last one.
    pub(crate) fn give(&mut self, number: u32, slot: Option<u16>) {
        let Some(entry) = self.entry(number) else {
            return;
        };
        if let Some(page) = entry {
            if let Some(slot) = slot {
                page.slots.give(slot);
            }
            page.uses = page.uses.saturating_sub(1);
            if page.uses == 0 {
                *entry = None;
            }
        }
    }

    fn entry(&mut self, number: u32) -> Option<&mut Option<TakenPage<P>>> {
        self.pages.get_mut(usize::try_from(number).ok()?)
    }
}

impl<P> TakenPage<P> {
    fn taken(
        &mut self,
        page: u32,
        fresh: bool,
        (slot, recv_slot): (u16, Option<u16>),
    ) -> TakenSlots {
        let uses = 1u32.saturating_add(u32::from(recv_slot.is_some()));
        self.uses = self.uses.saturating_add(uses);
        TakenSlots {
            page,
            fresh,
            slot,
            recv_slot,
        }
    }
}

#[cfg(test)]
#[path = "slots/tests.rs"]
mod tests;
