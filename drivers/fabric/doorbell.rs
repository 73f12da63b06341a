// SPDX-License-Identifier: GPL-2.0
//! Doorbell pages.
//!
//! The shared pages are in memory of ours if the function can do that, and else in BAR 2: memory costs neither a bus
//! access nor, in a guest, a trap. Kicks always go to BAR 2. A page has one holder at a time ([`DoorbellPage`]): the
//! driver, or a user context that maps it.

mod page;
mod slot;

pub use self::page::{DoorbellPage, DoorbellSlot, Window};
pub(crate) use self::slot::{OwnPages, Slot};

use crate::{
    identity::{check_doorbells, Unfit},
    registers::Identity,
    slots::PageMap,
};
use kernel::{
    device::Bound,
    devres::Devres,
    io::Io,
    new_mutex, pci,
    prelude::*,
    sync::{Arc, Mutex},
};
use nk::{bound::BoundDevice, ring::RingMemory};
use nupa_proto::{
    doorbell::{device_memory_offset, PAGE_SIZE, PAIR_SIZE},
    regs::{BAR_DOORBELL, CAP_HOST_DOORBELLS},
};

/// The doorbell BAR.
#[pin_data]
pub(crate) struct Doorbells {
    bar: Devres<pci::Bar<'static>>,
    /// Physical address of the BAR.
    phys: u64,
    /// The shared pages, if they are not in the BAR.
    memory: Option<RingMemory>,
    /// The function's own memory, behind the pages in the BAR.
    device_memory: Option<Window>,
    #[pin]
    pages: Mutex<PageMap>,
}

impl Doorbells {
    /// Maps the BAR of a function that says this of itself; the inner error says that it has no pages. May sleep.
    pub(crate) fn new(
        pdev: &pci::Device<Bound>,
        identity: &Identity,
    ) -> Result<Result<Arc<Self>, Unfit>> {
        let bar = pdev.iomap_region(u32::from(BAR_DOORBELL), c"nupa_fabric")?;
        let phys = pdev.resource_start(u32::from(BAR_DOORBELL))?;
        let bytes = bar.maxsize();
        let room = u32::try_from(bytes.checked_div(PAIR_SIZE).unwrap_or(0)).unwrap_or(u32::MAX);
        if let Err(unfit) = check_doorbells(identity.doorbell_pages, room) {
            return Ok(Err(unfit));
        }
        let memory = match identity.caps & CAP_HOST_DOORBELLS {
            0 => None,
            // The function takes all of its pages from there, so there is no less than all of it.
            _ => {
                let bytes = usize::try_from(identity.doorbell_pages)?
                    .checked_mul(PAGE_SIZE)
                    .ok_or(EINVAL)?;
                Some(RingMemory::new(&BoundDevice::new(pdev.as_ref())?, bytes)?)
            }
        };
        let bar = bar.into_devres()?;
        let device_memory = device_memory(identity, phys, bytes);
        let doorbells = pin_init!(Self {
            bar,
            phys,
            memory,
            device_memory,
            pages <- new_mutex!(PageMap::new(identity.doorbell_pages)),
        });
        Arc::pin_init(doorbells, GFP_KERNEL).map(Ok)
    }

    /// Where the shared pages are, if they are in memory, for the function to be told when it is started.
    pub(crate) fn memory_address(&self) -> Option<u64> {
        self.memory.as_ref().map(RingMemory::dma_address)
    }

    /// The function's own memory as the CPU sees it, if it has any.
    pub(crate) fn device_memory(&self) -> Option<Window> {
        self.device_memory
    }

    fn write32(&self, offset: usize, value: u32) {
        // After unbinding there is nobody to be told, and offsets of slots are inside of the BAR.
        let _ = self
            .bar
            .try_access()
            .map(|bar| bar.try_write32(value, offset));
    }

    fn write64(&self, offset: usize, value: u64) {
        // As above.
        let _ = self
            .bar
            .try_access()
            .map(|bar| bar.try_write64(value, offset));
    }
}

/// Where the function's memory is in a BAR of `bytes` bytes at `phys`; none if it has none, or says what cannot be.
fn device_memory(identity: &Identity, phys: u64, bytes: usize) -> Option<Window> {
    let offset = u64::try_from(device_memory_offset(identity.doorbell_pages)).ok()?;
    let len = identity.device_memory;
    let end = offset.checked_add(len)?;
    (len != 0 && end <= u64::try_from(bytes).ok()?).then_some(Window {
        phys: phys.checked_add(offset)?,
        len,
        memory: false,
    })
}
