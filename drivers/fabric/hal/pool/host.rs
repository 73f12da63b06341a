// SPDX-License-Identifier: GPL-2.0
//! What the function has of its host: memory, doorbells, interrupts, time.

use super::{memory::NodeMemory, window::HostClock};
use core::cell::Cell;
use kernel::{
    device::Device,
    prelude::*,
    sync::aref::ARef,
    time::{delay::fsleep, Delta},
};
use nk::barrier::full_fence;
use nupa_engine::hal::{Clock, Doorbells, Interrupts, Platform, SlotWord};
use nupa_function::{pool::Vectors, DoorbellMemory, Host, Note};
use nupa_proto::wqe::BLOCK_SIZE;

/// Most vectors: one bit each.
pub(super) const MAX_VECTORS: u32 = u64::BITS;

/// One function's host.
pub(super) struct PoolHost {
    device: ARef<Device>,
    /// Its memory.
    pub(super) memory: NodeMemory,
    /// The doorbell pages, which are always in the driver's memory.
    doorbells: Option<DoorbellMemory>,
    doorbell_pages: u32,
    vectors: u16,
    /// Vectors that were raised and not yet run.
    raised: Cell<u64>,
    clock: HostClock,
}

impl PoolHost {
    /// A host with `vectors` vectors, at most [`MAX_VECTORS`].
    pub(super) fn new(
        device: ARef<Device>,
        memory: NodeMemory,
        doorbell_pages: u32,
        vectors: u16,
        clock: HostClock,
    ) -> Self {
        Self {
            device,
            memory,
            doorbells: None,
            doorbell_pages,
            vectors,
            raised: Cell::new(0),
            clock,
        }
    }
}

impl Vectors for PoolHost {
    fn raised(&self) -> u64 {
        self.raised.get()
    }

    fn take_raised(&self) -> u64 {
        self.raised.take()
    }
}

impl Doorbells for PoolHost {
    fn pages(&self) -> u32 {
        self.doorbell_pages
    }

    #[inline]
    fn load(&self, page: u32, slot: u16, word: SlotWord) -> u32 {
        let pages = self.doorbells.as_ref();
        pages.map_or(0, |pages| pages.load(&self.memory, page, slot, word))
    }

    #[inline]
    fn store(&self, page: u32, slot: u16, word: SlotWord, value: u32) {
        if let Some(pages) = &self.doorbells {
            pages.store(&self.memory, page, slot, word, value);
        }
    }

    fn compare_exchange(
        &self,
        page: u32,
        slot: u16,
        word: SlotWord,
        expected: u32,
        value: u32,
    ) -> bool {
        let (pages, at) = (self.doorbells.as_ref(), (page, slot, word));
        pages.is_some_and(|pages| pages.compare_exchange(&self.memory, at, expected, value))
    }

    fn push_block(&self, page: u32, slot: u16, block: &mut [u8; BLOCK_SIZE]) -> bool {
        let pages = self.doorbells.as_ref();
        pages.is_some_and(|pages| pages.push_block(&self.memory, page, slot, block))
    }

    #[inline]
    fn fence(&self) {
        full_fence();
    }
}

impl Interrupts for PoolHost {
    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn raise(&self, vector: u16) {
        // As of a device: what may not write to memory cannot interrupt either.
        if self.memory.is_reachable() && vector < self.vectors {
            let bit = 1u64.wrapping_shl(u32::from(vector));
            self.raised.set(self.raised.get() | bit);
        }
    }
}

impl Clock for PoolHost {
    #[inline]
    fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn pause_us(&self, us: u64) {
        fsleep(Delta::from_micros(i64::try_from(us).unwrap_or(i64::MAX)));
    }

    fn random(&self) -> u32 {
        nk::random::u32()
    }
}

impl Platform for PoolHost {
    type Memory = NodeMemory;

    #[inline]
    fn memory(&self) -> &NodeMemory {
        &self.memory
    }
}

impl Host for PoolHost {
    fn set_doorbell_memory(&mut self, memory: Option<DoorbellMemory>) {
        self.doorbells = memory;
    }

    fn note(&self, _node: u16, note: Note<'_>) {
        match note {
            Note::Enabled { epoch } => dev_dbg!(self.device, "function enabled, epoch {epoch}\n"),
            Note::Reset { epoch } => dev_dbg!(self.device, "function reset, epoch {epoch}\n"),
            Note::Complaint { what, suppressed } => {
                dev_warn!(self.device, "{what} ({suppressed} more before)\n");
            }
        }
    }
}
