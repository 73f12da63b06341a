// SPDX-License-Identifier: GPL-2.0
//! Doorbell pages, one holder each.

use super::Doorbells;
use crate::slots::SlotMap;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use nk::mmap::MmapRange;
use nupa_engine::hal::SlotWord;
use nupa_proto::{
    doorbell::{host_slot_offset, slot_offset, PAGE_SIZE, SLOTS, SLOT_DRIVER, SLOT_SIZE},
    uabi::SLOT_LIVE,
};

/// A pair of doorbell pages, wiped, that nobody else holds. Queues on it can be rung through it and through no other.
///
/// It goes to another holder once this is dropped: no mapping of it may be left by then. It stays mapped and without
/// effect while the controller is lost, and can be used again afterwards.
#[pin_data]
pub struct DoorbellPage {
    taken: Taken,
    #[pin]
    slots: Mutex<SlotMap>,
}

/// A page pair that is taken; goes back when dropped.
struct Taken {
    doorbells: Arc<Doorbells>,
    number: u32,
}

impl Taken {
    /// Wipes what an earlier holder has left, and marks the slots as live for user space. What the controller reads of a
    /// slot it wipes itself, when it gives the slot to a queue.
    fn clear(&self) {
        const ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
        let slots = (0..SLOTS).map(|slot| usize::from(slot).wrapping_mul(SLOT_SIZE));
        let marks = slots.map(|slot| slot.wrapping_add(SLOT_DRIVER));
        if let Some(memory) = &self.doorbells.memory {
            let start = host_slot_offset(self.number, 0);
            memory.write(start, &ZEROES);
            marks.for_each(|mark| memory.store_release(start.wrapping_add(mark), SLOT_LIVE));
            return;
        }
        let start = slot_offset(self.number, 0);
        for offset in (start..start.wrapping_add(PAGE_SIZE)).step_by(8) {
            self.doorbells.function.store64(offset, 0);
        }
        let function = &self.doorbells.function;
        marks.for_each(|mark| function.store32(start.wrapping_add(mark), SLOT_LIVE));
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.doorbells.pages.lock().give(self.number);
    }
}

impl DoorbellPage {
    /// Takes a free page pair. May sleep. `ENOSPC` if all are taken.
    pub(crate) fn new(doorbells: &Arc<Doorbells>) -> Result<Arc<Self>> {
        let number = doorbells.pages.lock().take().ok_or(ENOSPC)?;
        let taken = Taken {
            doorbells: doorbells.clone(),
            number,
        };
        taken.clear();
        let page = pin_init!(Self {
            taken,
            slots <- new_mutex!(SlotMap::default()),
        });
        Arc::pin_init(page, GFP_KERNEL_ACCOUNT)
    }

    pub(super) fn doorbells(&self) -> &Arc<Doorbells> {
        &self.taken.doorbells
    }

    /// Number of the pair, for commands that create queues.
    pub(crate) fn number(&self) -> u32 {
        self.taken.number
    }

    /// The shared page, to be mapped for reading and writing. Any context.
    pub fn shared(&self) -> Option<MmapRange> {
        match &self.doorbells().memory {
            Some(memory) => memory.page(host_slot_offset(self.number(), 0)),
            None => {
                let offset = slot_offset(self.number(), 0);
                let function = &self.doorbells().function;
                function.window(offset, PAGE_SIZE as u64)
            }
        }
    }

    /// The trapped page, to be mapped for writing, if the function has one. Without it whoever maps the shared page has
    /// the driver kick ([`crate::Qp::kick_send`] and the like). Any context.
    pub fn trapped(&self) -> Option<MmapRange> {
        self.doorbells().trapped(self.number())
    }

    /// Takes a free slot, one without a push slot if possible. May sleep.
    pub fn take_slot(self: &Arc<Self>) -> Option<DoorbellSlot> {
        self.take(false)
    }

    /// Takes a free slot for a send queue, one with a push slot if possible. May sleep.
    pub fn take_send_slot(self: &Arc<Self>) -> Option<DoorbellSlot> {
        self.take(true)
    }

    fn take(self: &Arc<Self>, push: bool) -> Option<DoorbellSlot> {
        let number = self.slots.lock().take(push)?;
        Some(DoorbellSlot {
            page: self.clone(),
            number,
        })
    }
}

/// A doorbell slot of a page; goes back when dropped, which must be after the queue it was given to is destroyed.
pub struct DoorbellSlot {
    page: Arc<DoorbellPage>,
    number: u16,
}

impl DoorbellSlot {
    /// Number within the page.
    #[inline]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The page.
    #[inline]
    pub fn page(&self) -> &Arc<DoorbellPage> {
        &self.page
    }

    /// Tells the function that the slot's queue has work up to where the doorbell says, for an owner that cannot do so
    /// itself. May sleep. Without effect once the driver is unbound, or if no queue has the slot.
    pub(crate) fn kick(&self) {
        let (doorbells, page) = (self.page.doorbells(), self.page.number());
        let index = doorbells.load(page, self.number, SlotWord::Index);
        doorbells.function.kick_now(page, self.number, index);
    }
}

impl Drop for DoorbellSlot {
    fn drop(&mut self) {
        self.page.slots.lock().give(self.number);
    }
}
