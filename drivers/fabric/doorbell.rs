// SPDX-License-Identifier: GPL-2.0
//! Doorbell pages.
//!
//! The shared pages are in memory of ours if the function can do that, and else in its BAR 2: memory costs neither a bus
//! access nor, in a guest, a trap. Kicks always go to the function. A page has one holder at a time, the kernel or a process,
//! whose queues share it; `crate::slots` says who may have how many. With the page that a process maps comes the trapped one
//! that kicks go to, if the function has such pages; if not, the driver kicks for it ([`DoorbellSlot::kick`]).

mod page;
mod slot;

pub use self::page::{DoorbellPage, DoorbellSlot};
pub(crate) use self::slot::Slot;

use crate::{
    hal::Function,
    identity::{check_doorbells, Unfit},
    registers::Identity,
    slots::{PageTable, TakenPage, MAX_PAGES},
};
use kernel::{
    device::{Bound, Device},
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use nk::{bound::BoundDevice, mmap::MmapRange, process::Process, ring::RingMemory};
use nupa_engine::hal::SlotWord;
use nupa_proto::{
    doorbell::{host_slot_offset, kick_offset, slot_offset, PAGE_SIZE},
    regs::{CAP_HOST_DOORBELLS, CAP_PUSH},
};

/// The doorbell pages of a function.
#[pin_data]
pub(crate) struct Doorbells {
    function: Arc<dyn Function>,
    /// The shared pages, if they are not in the BAR.
    memory: Option<Arc<RingMemory>>,
    /// Whether the function looks at push slots.
    push: bool,
    #[pin]
    pages: Mutex<PageTable<Process, KVec<Option<TakenPage<Process>>>>>,
}

impl Doorbells {
    /// Those of a function that says this of itself; the inner error says that it has none. May sleep.
    pub(crate) fn new(
        device: &Device<Bound>,
        function: Arc<dyn Function>,
        identity: &Identity,
    ) -> Result<Result<Arc<Self>, Unfit>> {
        let room = function.doorbell_room();
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
                let memory = RingMemory::new(&BoundDevice::new(device)?, bytes)?;
                Some(Arc::new(memory, GFP_KERNEL)?)
            }
        };
        let count = identity.doorbell_pages.min(MAX_PAGES);
        let mut pages = KVec::with_capacity(usize::try_from(count)?, GFP_KERNEL)?;
        for _ in 0..count {
            pages.push(None, GFP_KERNEL)?;
        }
        let doorbells = pin_init!(Self {
            memory,
            push: identity.caps & CAP_PUSH != 0,
            function,
            pages <- new_mutex!(PageTable::new(pages)),
        });
        Arc::pin_init(doorbells, GFP_KERNEL).map(Ok)
    }

    /// Where the shared pages are, if they are in memory, for the function to be told when it is started.
    pub(crate) fn memory_address(&self) -> Option<u64> {
        self.memory.as_ref().map(|memory| memory.dma_address())
    }

    /// The function.
    pub(crate) fn function(&self) -> &Arc<dyn Function> {
        &self.function
    }

    /// The trapped page of a pair, if the function has such pages. Any context.
    fn trapped(&self, page: u32) -> Option<MmapRange> {
        let offset = kick_offset(page, 0);
        self.function.window(offset, PAGE_SIZE as u64)
    }

    /// Whether there are trapped pages, which processes kick by themselves. Any context.
    pub(crate) fn are_trapped(&self) -> bool {
        self.trapped(0).is_some()
    }

    /// Has the function do its work in the caller's time, if it needs that. May sleep.
    pub(crate) fn service(&self) {
        self.function.service();
    }

    /// Loads a word of a slot. Any context.
    #[inline]
    fn load(&self, page: u32, slot: u16, word: SlotWord) -> u32 {
        if let Some(memory) = &self.memory {
            return memory.load_acquire(host_slot_offset(page, slot).wrapping_add(word.offset()));
        }
        let offset = slot_offset(page, slot).wrapping_add(word.offset());
        self.function.load32(offset)
    }
}
