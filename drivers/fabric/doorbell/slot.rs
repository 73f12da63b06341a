// SPDX-License-Identifier: GPL-2.0
//! Doorbell slots of queues that the kernel itself uses.

use super::{page::DoorbellSlot, Doorbells};
use crate::slots::Wanted;
use kernel::{prelude::*, sync::Arc};
use nk::barrier::full_fence;
use nupa_engine::{hal::SlotWord, rings};
use nupa_proto::{
    doorbell::{host_push_offset, host_slot_offset, push_offset, slot_offset, PUSH_SLOTS},
    wqe::BLOCK_SIZE,
};

/// A doorbell slot of a queue of the kernel's; goes back when this and what [`Slot::hold`] returned is dropped.
pub(crate) struct Slot {
    /// The same as the page's, one step nearer.
    doorbells: Arc<Doorbells>,
    page: u32,
    number: u16,
    slot: Arc<DoorbellSlot>,
}

impl Slot {
    fn from_slot(slot: DoorbellSlot) -> Result<Self> {
        Ok(Self {
            doorbells: slot.doorbells().clone(),
            page: slot.page_number(),
            number: slot.number(),
            slot: Arc::new(slot, GFP_KERNEL)?,
        })
    }

    /// Takes what is wanted; the second is for the receive queue of a pair. May sleep. `ENOSPC` if all are taken.
    pub(crate) fn take(doorbells: &Arc<Doorbells>, wanted: Wanted) -> Result<(Self, Option<Self>)> {
        let (slot, recv_slot) = DoorbellSlot::for_kernel(doorbells, wanted)?;
        let recv_slot = recv_slot.map(Self::from_slot).transpose()?;
        Ok((Self::from_slot(slot)?, recv_slot))
    }

    /// Takes a free slot for a queue that is not sent from. May sleep. `ENOSPC` if all are taken.
    pub(crate) fn new(doorbells: &Arc<Doorbells>) -> Result<Self> {
        Self::take(doorbells, Wanted::Queue).map(|(slot, _)| slot)
    }

    /// The slot, for the object that has to keep it for as long as it is in the controller.
    pub(crate) fn hold(&self) -> Arc<DoorbellSlot> {
        self.slot.clone()
    }

    /// Page pair.
    pub(crate) fn page(&self) -> u32 {
        self.page
    }

    /// Number within the page.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// Any context. Without effect once the driver is unbound.
impl rings::Doorbell for Slot {
    #[inline]
    fn load(&self, word: SlotWord) -> u32 {
        self.doorbells.load(self.page, self.number, word)
    }

    #[inline]
    fn store(&self, word: SlotWord, value: u32) {
        if let Some(memory) = &self.doorbells.memory {
            let slot = host_slot_offset(self.page, self.number);
            return memory.store_release(slot.wrapping_add(word.offset()), value);
        }
        let offset = slot_offset(self.page, self.number).wrapping_add(word.offset());
        self.doorbells.function.store32(offset, value);
    }

    /// Never of pages in the BAR: the bus has no such access, and nobody in the kernel takes entries of shared receive queues.
    fn compare_exchange(&self, word: SlotWord, expected: u32, value: u32) -> bool {
        let slot = host_slot_offset(self.page, self.number);
        let at = slot.wrapping_add(word.offset());
        let memory = self.doorbells.memory.as_ref();
        memory.is_some_and(|memory| memory.compare_exchange(at, expected, value))
    }

    #[inline]
    fn fence(&self) {
        full_fence();
    }

    #[inline]
    fn kick(&self, index: u32) {
        let function = &self.doorbells.function;
        function.kick(self.page, self.number, index, false);
    }

    fn push(&self, block: &[u8; BLOCK_SIZE], index: u32) -> bool {
        if self.number >= PUSH_SLOTS || !self.doorbells.push {
            return false;
        }
        let function = &self.doorbells.function;
        if let Some(memory) = &self.doorbells.memory {
            memory.write(host_push_offset(self.page, self.number), block);
            full_fence();
        } else {
            let base = push_offset(self.page, self.number);
            for (offset, unit) in (base..).step_by(8).zip(block.chunks_exact(8)) {
                let unit = unit
                    .iter()
                    .rev()
                    .fold(0, |unit, &byte| unit << 8 | u64::from(byte));
                function.store64(offset, unit);
            }
        }
        function.kick(self.page, self.number, index, true);
        true
    }
}
