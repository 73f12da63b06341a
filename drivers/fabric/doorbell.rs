// SPDX-License-Identifier: GPL-2.0
//! Doorbell pages, BAR 2, and the slots of queues in them.

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
use nk::pci::full_fence;
use nupa_engine::{client, hal::SlotWord};
use nupa_proto::{
    doorbell::{kick_offset, push_offset, slot_offset, PAIR_SIZE, PUSH_SLOTS},
    regs::BAR_DOORBELL,
    wqe::BLOCK_SIZE,
};

/// The doorbell BAR.
#[pin_data]
pub(crate) struct Doorbells {
    bar: Devres<pci::Bar<'static>>,
    #[pin]
    slots: Mutex<SlotMap>,
}

impl Doorbells {
    /// Maps the BAR, of which the function says that it has `pages` page pairs; the inner error says that it has none.
    pub(crate) fn new(pdev: &pci::Device<Bound>, pages: u32) -> Result<Result<Arc<Self>, Unfit>> {
        let bar = pdev.iomap_region(u32::from(BAR_DOORBELL), c"nupa_fabric")?;
        let room =
            u32::try_from(bar.maxsize().checked_div(PAIR_SIZE).unwrap_or(0)).unwrap_or(u32::MAX);
        let pages = pages.min(room);
        if let Err(unfit) = check_doorbells(pages) {
            return Ok(Err(unfit));
        }
        let bar = bar.into_devres()?;
        let doorbells = pin_init!(Self {
            bar,
            slots <- new_mutex!(SlotMap::new(pages)),
        });
        Arc::pin_init(doorbells, GFP_KERNEL).map(Ok)
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
        let base = push_offset(self.page, self.number);
        for (offset, unit) in (base..).step_by(8).zip(block.chunks_exact(8)) {
            let unit = unit
                .iter()
                .rev()
                .fold(0, |unit, &byte| unit << 8 | u64::from(byte));
            let _ = bar.try_write64(unit, offset);
        }
        let _ = bar.try_write32(index, kick_offset(self.page, self.number).wrapping_add(4));
        true
    }
}
