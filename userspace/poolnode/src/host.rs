// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the function has of the process: memory, doorbell pages, vectors, time.

use std::cell::Cell;

use nupa_engine::hal::{Clock, Doorbells, Interrupts, Platform, SlotWord};
use nupa_function::pool::Vectors;
use nupa_function::{DoorbellMemory, Host, Note};
use nupa_pool::Time as _;
use nupa_poolmem::HostTime;
use nupa_proto::wqe::BLOCK_SIZE;
use rustix::rand::{getrandom, GetRandomFlags};

use crate::memory::NodeMemory;

/// DMA address of the first byte of the driver's memory: not zero, so that offsets and addresses cannot be mixed up.
pub const RAM_BASE: u64 = 0x1_0000_0000;
/// DMA address of the first byte of the pool.
pub(crate) const POOL_BASE: u64 = 1 << 44;
/// Vectors of a function.
const VECTORS: u16 = 2;

/// One function's host.
pub(crate) struct ProcessHost {
    memory: NodeMemory,
    /// The doorbell pages, which are always in the driver's memory.
    doorbells: Option<DoorbellMemory>,
    doorbell_pages: u32,
    raised: Cell<u64>,
    time: HostTime,
}

impl ProcessHost {
    pub(crate) fn new(memory: NodeMemory, doorbell_pages: u32, time: HostTime) -> Self {
        Self {
            memory,
            doorbells: None,
            doorbell_pages,
            raised: Cell::new(0),
            time,
        }
    }
}

/// A random number.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // Up to 256 bytes it never comes short, and knows no error for valid arguments (getrandom(2)).
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

impl Vectors for ProcessHost {
    fn raised(&self) -> u64 {
        self.raised.get()
    }

    fn take_raised(&self) -> u64 {
        self.raised.take()
    }
}

impl Doorbells for ProcessHost {
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
        guestmem::full_fence();
    }
}

impl Interrupts for ProcessHost {
    fn vectors(&self) -> u16 {
        VECTORS
    }

    fn raise(&self, vector: u16) {
        if vector < VECTORS {
            let bit = 1u64.wrapping_shl(vector.into());
            self.raised.set(self.raised.get() | bit);
        }
    }
}

impl Clock for ProcessHost {
    #[inline]
    fn now_us(&self) -> u64 {
        self.time.now_us()
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    fn pause_us(&self, us: u64) {
        self.time.sleep_us(us);
    }

    #[expect(clippy::cast_possible_truncation, reason = "as random as the whole")]
    fn random(&self) -> u32 {
        random() as u32
    }
}

impl Platform for ProcessHost {
    type Memory = NodeMemory;

    #[inline]
    fn memory(&self) -> &NodeMemory {
        &self.memory
    }
}

impl Host for ProcessHost {
    fn set_doorbell_memory(&mut self, memory: Option<DoorbellMemory>) {
        self.doorbells = memory;
    }

    fn note(&self, node: u16, note: Note<'_>) {
        match note {
            Note::Enabled { epoch } => tracing::debug!(node, epoch, "function enabled"),
            Note::Reset { epoch } => tracing::debug!(node, epoch, "function reset"),
            Note::Complaint { what, suppressed } => tracing::warn!(node, suppressed, "{what}"),
        }
    }
}
