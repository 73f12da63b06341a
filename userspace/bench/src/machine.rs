// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A node's memory and doorbell pages, as the engine and as their owner see them.

use std::cell::Cell;
use std::rc::Rc;

use guestmem::{full_fence, GuestMemory, MapRequest, MmapRegion, Rights};
use nupa_engine::hal::{
    AccessError, Atomic, Clock, Doorbells, Interrupts, Memory, Platform, SlotWord,
};
use nupa_engine::hal::{NoMemory, Storage, Table};
use nupa_engine::rings::{Doorbell, QueueMemory};
use nupa_proto::doorbell::{push_offset, slot_offset, PAIR_SIZE, PUSH_SLOTS};
use nupa_proto::wqe::BLOCK_SIZE;

/// First DMA address of a node's memory.
const BASE: u64 = 1 << 32;
/// Bytes of a node's memory.
const SIZE: u64 = 32 << 20;
/// DMA address of the half that is not given out for rings.
pub const BUFFERS: u64 = BASE + SIZE / 2;

/// The engine's containers.
#[derive(Debug)]
pub(crate) struct VecStorage;

impl Storage for VecStorage {
    type Pages = Vec<u64>;
    type Table<T> = VecTable<T>;

    fn pages(len: usize) -> Result<Vec<u64>, NoMemory> {
        Ok(vec![0; len])
    }
}

/// A table over a vector.
#[derive(Debug)]
pub(crate) struct VecTable<T>(Vec<Option<T>>);

impl<T> Default for VecTable<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Table<T> for VecTable<T> {
    fn slots(&self) -> &[Option<T>] {
        &self.0
    }

    fn slots_mut(&mut self) -> &mut [Option<T>] {
        &mut self.0
    }

    fn grow(&mut self, len: usize) -> Result<(), NoMemory> {
        self.0.resize_with(len, || None);
        Ok(())
    }
}

/// Guest memory as the engine reaches it.
#[derive(Debug)]
pub struct Ram(GuestMemory);

impl Memory for Ram {
    #[inline]
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        self.0.read(addr, buf).map_err(|_| AccessError)
    }

    #[inline]
    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.0.write(addr, bytes).map_err(|_| AccessError)
    }

    #[inline]
    fn store_release(&self, addr: u64, value: u32) -> Result<(), AccessError> {
        self.0.store_u32(addr, value).map_err(|_| AccessError)
    }

    fn atomic(&self, addr: u64, operation: Atomic) -> Result<u64, AccessError> {
        let guest = &self.0;
        let old = match operation {
            Atomic::CompareSwap { compare, swap } => {
                guest.compare_exchange_u64(addr, compare, swap)
            }
            Atomic::FetchAdd(value) => guest.fetch_add_u64(addr, value),
            Atomic::Store(value) => guest.store_u64(addr, value).map(|()| 0),
        };
        old.map_err(|_| AccessError)
    }

    #[inline]
    fn copy_to(&self, from: u64, target: &Self, to: u64, len: usize) -> Result<(), AccessError> {
        GuestMemory::copy(&self.0, from, &target.0, to, len).map_err(|_| AccessError)
    }
}

#[derive(Debug)]
struct Inner {
    ram: Ram,
    /// The same memory, as its owner's processors have it.
    own: MmapRegion,
    doorbells: MmapRegion,
    interrupts: Cell<u64>,
    brk: Cell<u64>,
}

/// A node's hardware. Clones are the same hardware.
#[derive(Clone, Debug)]
pub struct Machine(Rc<Inner>);

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// New memory and one pair of doorbell pages.
    pub fn new() -> Self {
        let size = usize::try_from(SIZE).expect("fits");
        let own = MmapRegion::new("nupa-bench", size).expect("memory");
        let mut ram = GuestMemory::new();
        let request = MapRequest {
            iova: BASE,
            len: SIZE,
            file: Some(own.file()),
            offset: 0,
            rights: Rights::ReadWrite,
        };
        ram.map(&request).expect("map");
        let doorbells = MmapRegion::new("nupa-bench-doorbells", PAIR_SIZE).expect("doorbells");
        Self(Rc::new(Inner {
            ram: Ram(ram),
            own,
            doorbells,
            interrupts: Cell::new(0),
            brk: Cell::new(BASE),
        }))
    }

    /// Page-aligned memory that was not given out before.
    pub fn alloc(&self, len: u64) -> u64 {
        let addr = self.0.brk.get();
        self.0.brk.set((addr + len).next_multiple_of(4096));
        assert!(self.0.brk.get() <= BUFFERS, "out of memory");
        addr
    }

    /// Plain guest memory.
    pub fn guest(&self) -> &GuestMemory {
        &self.0.ram.0
    }

    /// Owner's view of ring memory.
    pub fn view(&self, addr: u64) -> View {
        let offset = usize::try_from(addr - BASE).expect("lies in memory");
        View {
            machine: self.clone(),
            offset,
        }
    }

    /// Owner's view of a doorbell slot.
    pub fn slot(&self, slot: u16) -> Slot {
        Slot {
            machine: self.clone(),
            slot,
            kicked: Rc::default(),
        }
    }
}

impl Doorbells for Machine {
    fn pages(&self) -> u32 {
        1
    }

    #[inline]
    fn load(&self, page: u32, slot: u16, word: SlotWord) -> u32 {
        let offset = slot_offset(page, slot) + word.offset();
        self.0.doorbells.load_u32(offset).unwrap_or(0)
    }

    #[inline]
    fn store(&self, page: u32, slot: u16, word: SlotWord, value: u32) {
        let offset = slot_offset(page, slot) + word.offset();
        let stored = self.0.doorbells.store_u32(offset, value);
        debug_assert!(stored.is_ok(), "the engine checks pages and slots");
    }

    #[inline]
    fn push_block(&self, page: u32, slot: u16, block: &mut [u8; BLOCK_SIZE]) -> bool {
        slot < PUSH_SLOTS
            && self
                .0
                .doorbells
                .read(push_offset(page, slot), block)
                .is_ok()
    }

    #[inline]
    fn fence(&self) {
        full_fence();
    }
}

impl Interrupts for Machine {
    fn vectors(&self) -> u16 {
        2
    }

    fn raise(&self, _vector: u16) {
        self.0.interrupts.set(self.0.interrupts.get() + 1);
    }
}

impl Clock for Machine {
    fn now_us(&self) -> u64 {
        0
    }

    fn random(&self) -> u32 {
        0x5a5a_5a5a
    }
}

impl Platform for Machine {
    type Memory = Ram;

    #[inline]
    fn memory(&self) -> &Ram {
        &self.0.ram
    }
}

/// Ring memory of the owner.
#[derive(Debug)]
pub struct View {
    machine: Machine,
    /// Where in the node's memory it begins.
    offset: usize,
}

impl QueueMemory for View {
    #[inline]
    fn read(&self, offset: usize, buf: &mut [u8]) {
        let done = self.machine.0.own.read(self.offset + offset, buf);
        debug_assert!(done.is_ok(), "the ring is mapped");
    }

    #[inline]
    fn write(&self, offset: usize, bytes: &[u8]) {
        let done = self.machine.0.own.write(self.offset + offset, bytes);
        debug_assert!(done.is_ok(), "the ring is mapped");
    }

    #[inline]
    fn load_acquire(&self, offset: usize) -> u32 {
        let word = self.machine.0.own.load_u32(self.offset + offset);
        word.unwrap_or(0)
    }
}

/// A kick that was asked for; `None` in it without a push.
type Kick = Option<Option<u32>>;

/// Doorbell slot of the owner. Kicks are kept until [`Slot::take_kick`].
#[derive(Clone, Debug)]
pub struct Slot {
    machine: Machine,
    slot: u16,
    kicked: Rc<Cell<Kick>>,
}

impl Slot {
    /// The kick since the last call, with its index if it was a push.
    #[inline]
    pub fn take_kick(&self) -> Option<Option<u32>> {
        self.kicked.take()
    }
}

impl Doorbell for Slot {
    #[inline]
    fn load(&self, word: SlotWord) -> u32 {
        Doorbells::load(&self.machine, 0, self.slot, word)
    }

    #[inline]
    fn store(&self, word: SlotWord, value: u32) {
        Doorbells::store(&self.machine, 0, self.slot, word, value);
    }

    #[inline]
    fn fence(&self) {
        full_fence();
    }

    #[inline]
    fn kick(&self, _index: u32) {
        self.kicked.set(Some(None));
    }

    #[inline]
    fn push(&self, block: &[u8; BLOCK_SIZE], index: u32) -> bool {
        let offset = push_offset(0, self.slot);
        let pushed =
            self.slot < PUSH_SLOTS && self.machine.0.doorbells.write(offset, block).is_ok();
        if pushed {
            self.kicked.set(Some(Some(index)));
        }
        pushed
    }
}
