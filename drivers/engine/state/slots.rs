// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which queue each doorbell slot belongs to.

use crate::hal::{Doorbells, NoMemory, SlotWord, Storage, Table};
use nupa_proto::{doorbell::SLOTS, status::AdminStatus};

/// The queue that a doorbell slot belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Send queue of this queue pair.
    Send(u32),
    /// Receive queue of this queue pair.
    Recv(u32),
    /// Shared receive queue.
    Shared(u32),
    /// A completion or event queue: never kicked.
    Consumer,
}

/// Owners of all slots of a node's doorbell pages.
pub(crate) struct DoorbellSlots<S: Storage> {
    owners: S::Table<Owner>,
}

impl<S: Storage> Default for DoorbellSlots<S> {
    fn default() -> Self {
        Self {
            owners: S::Table::default(),
        }
    }
}

#[inline]
fn position(page: u32, slot: u16) -> Option<usize> {
    let within = (slot < SLOTS).then_some(usize::from(slot))?;
    (page as usize)
        .checked_mul(usize::from(SLOTS))?
        .checked_add(within)
}

impl<S: Storage> DoorbellSlots<S> {
    /// Owner of a slot.
    #[inline]
    pub(crate) fn owner(&self, page: u32, slot: u16) -> Option<Owner> {
        *self.owners.slots().get(position(page, slot)?)?
    }

    /// Whether a slot exists and is free.
    pub(crate) fn check(
        &self,
        doorbells: &impl Doorbells,
        page: u32,
        slot: u16,
    ) -> Result<(), AdminStatus> {
        if page >= doorbells.pages() || slot >= SLOTS {
            return Err(AdminStatus::InvalidField);
        }
        match self.owner(page, slot) {
            None => Ok(()),
            Some(_) => Err(AdminStatus::Busy),
        }
    }

    /// Gives a slot that was checked to a queue, with all its words zero.
    pub(crate) fn claim(
        &mut self,
        doorbells: &impl Doorbells,
        page: u32,
        slot: u16,
        owner: Owner,
    ) -> Result<(), AdminStatus> {
        let at = position(page, slot).ok_or(AdminStatus::InvalidField)?;
        if at >= self.owners.slots().len() {
            let len = (page as usize)
                .saturating_add(1)
                .saturating_mul(usize::from(SLOTS));
            self.owners
                .grow(len)
                .map_err(|NoMemory| AdminStatus::NoResources)?;
        }
        *self
            .owners
            .slots_mut()
            .get_mut(at)
            .ok_or(AdminStatus::NoResources)? = Some(owner);
        clear(doorbells, page, slot);
        Ok(())
    }

    /// Takes a slot back.
    pub(crate) fn release(&mut self, page: u32, slot: u16) {
        let entry = position(page, slot).and_then(|at| self.owners.slots_mut().get_mut(at));
        if let Some(entry) = entry {
            *entry = None;
        }
    }
}

/// Stores zero to all words of a slot.
pub(crate) fn clear(doorbells: &impl Doorbells, page: u32, slot: u16) {
    for word in [SlotWord::Index, SlotWord::Arm, SlotWord::Event] {
        doorbells.store(page, slot, word, 0);
    }
}
