// SPDX-License-Identifier: GPL-2.0
//! Doorbell pages, and the slots of queues in them.
//!
//! The shared pages are in memory of ours if the function can do that, and else in BAR 2: memory costs neither a bus
//! access nor, in a guest, a trap. Kicks always go to BAR 2.

use crate::{
    identity::{check_doorbells, Unfit},
    slots::SlotMap,
};
use kernel::{
    device::Bound,
    devres::Devres,
    io::Io,
    new_mutex, pci,
    prelude::*,
    sync::{Arc, Mutex},
};
use nk::{bound::BoundDevice, pci::full_fence, ring::RingMemory};
use nupa_engine::{client, hal::SlotWord};
use nupa_proto::{
    doorbell::{
        host_push_offset, host_slot_offset, kick_offset, push_offset, slot_offset, PAGE_SIZE,
        PAIR_SIZE, PUSH_SLOTS,
    },
    regs::{BAR_DOORBELL, CAP_HOST_DOORBELLS},
    wqe::BLOCK_SIZE,
};

/// The doorbell BAR.
#[pin_data]
pub(crate) struct Doorbells {
    bar: Devres<pci::Bar<'static>>,
    /// The shared pages, if they are not in the BAR.
    memory: Option<RingMemory>,
    #[pin]
    slots: Mutex<SlotMap>,
}

impl Doorbells {
    /// Maps the BAR, of which the function says that it has `pages` page pairs; the inner error says that it has none.
    ///
    /// `caps` are the function's capabilities. May sleep.
    pub(crate) fn new(
        pdev: &pci::Device<Bound>,
        pages: u32,
        caps: u64,
    ) -> Result<Result<Arc<Self>, Unfit>> {
        let bar = pdev.iomap_region(u32::from(BAR_DOORBELL), c"nupa_fabric")?;
        let room =
            u32::try_from(bar.maxsize().checked_div(PAIR_SIZE).unwrap_or(0)).unwrap_or(u32::MAX);
        let pages = pages.min(room);
        if let Err(unfit) = check_doorbells(pages) {
            return Ok(Err(unfit));
        }
        let memory = match caps & CAP_HOST_DOORBELLS {
            0 => None,
            _ => {
                let bytes = usize::try_from(pages)?
                    .checked_mul(PAGE_SIZE)
                    .ok_or(EINVAL)?;
                Some(RingMemory::new(&BoundDevice::new(pdev.as_ref())?, bytes)?)
            }
        };
        let bar = bar.into_devres()?;
        let doorbells = pin_init!(Self {
            bar,
            memory,
            slots <- new_mutex!(SlotMap::new(pages)),
        });
        Arc::pin_init(doorbells, GFP_KERNEL).map(Ok)
    }

    /// Where the shared pages are, if they are in memory, for the function to be told when it is started.
    pub(crate) fn memory_address(&self) -> Option<u64> {
        self.memory.as_ref().map(RingMemory::dma_address)
    }

    fn write32(&self, offset: usize, value: u32) {
        // After unbinding there is nobody to be told, and offsets of slots are inside of the BAR.
        let _ = self
            .bar
            .try_access()
            .map(|bar| bar.try_write32(value, offset));
    }
}

/// A doorbell slot that its holder was given; goes back when dropped.
pub(crate) struct Slot {
    doorbells: Arc<Doorbells>,
    page: u32,
    number: u16,
}

impl Slot {
    /// Takes a free slot, one with a push slot if possible. May sleep. `ENOSPC` if all are taken.
    pub(crate) fn new(doorbells: &Arc<Doorbells>, push: bool) -> Result<Self> {
        let (page, number) = doorbells.slots.lock().take(push).ok_or(ENOSPC)?;
        Ok(Self {
            doorbells: doorbells.clone(),
            page,
            number,
        })
    }

    /// Takes a free slot of a page, for the second queue of a pair. May sleep. `ENOSPC` if all are taken.
    pub(crate) fn on_page(doorbells: &Arc<Doorbells>, page: u32) -> Result<Self> {
        let number = doorbells.slots.lock().take_on(page).ok_or(ENOSPC)?;
        Ok(Self {
            doorbells: doorbells.clone(),
            page,
            number,
        })
    }

    /// Page pair.
    pub(crate) fn page(&self) -> u32 {
        self.page
    }

    /// Number within the page.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Where a word of the slot is in pages that are in memory.
    #[inline]
    fn memory_offset(&self, word: SlotWord) -> usize {
        host_slot_offset(self.page, self.number).wrapping_add(word.offset())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.doorbells.slots.lock().give(self.page, self.number);
    }
}

/// Any context. Without effect once the driver is unbound.
impl client::Doorbell for Slot {
    #[inline]
    fn load(&self, word: SlotWord) -> u32 {
        if let Some(memory) = &self.doorbells.memory {
            return memory.load_acquire(self.memory_offset(word));
        }
        let offset = slot_offset(self.page, self.number).wrapping_add(word.offset());
        let value = self
            .doorbells
            .bar
            .try_access()
            .map(|bar| bar.try_read32(offset));
        value.and_then(Result::ok).unwrap_or(0)
    }

    #[inline]
    fn store(&self, word: SlotWord, value: u32) {
        if let Some(memory) = &self.doorbells.memory {
            return memory.store_release(self.memory_offset(word), value);
        }
        self.doorbells.write32(
            slot_offset(self.page, self.number).wrapping_add(word.offset()),
            value,
        );
    }

    #[inline]
    fn fence(&self) {
        full_fence();
    }

    #[inline]
    fn kick(&self, index: u32) {
        self.doorbells
            .write32(kick_offset(self.page, self.number), index);
    }

    fn push(&self, block: &[u8; BLOCK_SIZE], index: u32) -> bool {
        if self.number >= PUSH_SLOTS {
            return false;
        }
        let Some(bar) = self.doorbells.bar.try_access() else {
            return true;
        };
        let kick = kick_offset(self.page, self.number).wrapping_add(4);
        if let Some(memory) = &self.doorbells.memory {
            memory.write(host_push_offset(self.page, self.number), block);
            full_fence();
            let _ = bar.try_write32(index, kick);
            return true;
        }
        let base = push_offset(self.page, self.number);
        for (offset, unit) in (base..).step_by(8).zip(block.chunks_exact(8)) {
            let unit = unit
                .iter()
                .rev()
                .fold(0, |unit, &byte| unit << 8 | u64::from(byte));
            let _ = bar.try_write64(unit, offset);
        }
        let _ = bar.try_write32(index, kick);
        true
    }
}
