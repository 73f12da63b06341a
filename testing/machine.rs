// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A node's hardware: memory and doorbell pages that both sides hold.

use crate::{
    memory::{Ram, BASE},
    shared::Shared,
};
use guestmem::{full_fence, GuestMemory, MapRequest, MmapRegion, Rights};
use nupa_engine::{
    hal::{Clock, Doorbells, Interrupts, Platform, SlotWord},
    rings::{Doorbell, QueueMemory},
};
use nupa_proto::{
    doorbell::{push_offset, slot_offset, PAIR_SIZE, PUSH_SLOTS},
    wqe::BLOCK_SIZE,
};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

/// Where doorbell pages are in [`Machine::mapped`].
pub const DOORBELLS: u64 = 1 << 40;

/// How much a node has.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Bytes of memory, whole pages.
    pub memory: usize,
    /// Doorbell page pairs.
    pub pages: u32,
}

impl Default for Size {
    fn default() -> Self {
        Self {
            memory: 32 << 20,
            pages: 4,
        }
    }
}

/// Time of all machines, in microseconds.
#[derive(Debug, Default)]
pub struct Ticks {
    now: Cell<u64>,
    /// What passes with each look.
    pub step: Cell<u64>,
}

impl Ticks {
    /// The time, without anybody looking.
    pub fn get(&self) -> u64 {
        self.now.get()
    }

    #[inline]
    fn look(&self) -> u64 {
        self.pass(self.step.get());
        self.now.get()
    }

    #[inline]
    pub fn pass(&self, us: u64) {
        self.now.set(self.now.get() + us);
    }
}

/// A write to a trapped page.
#[derive(Clone, Copy, Debug)]
pub struct Kick {
    pub node: u16,
    pub page: u32,
    pub slot: u16,
    pub pushed: Option<u32>,
}

/// Writes to trapped pages that nobody has dealt with.
#[derive(Clone, Default)]
pub struct Kicks(Rc<RefCell<VecDeque<Kick>>>);

impl Kicks {
    /// The oldest one.
    #[inline]
    pub fn take(&self) -> Option<Kick> {
        self.0.borrow_mut().pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    #[inline]
    fn add(&self, kick: Kick) {
        self.0.borrow_mut().push_back(kick);
    }
}

struct Inner {
    id: u16,
    ram: Ram,
    doorbells: MmapRegion,
    /// Page pairs of that.
    pages: u32,
    /// What is added to doorbell words with each load.
    moves: Cell<u32>,
    moved: Cell<u32>,
    /// Exchanges of doorbell words that others are quicker than.
    overtakes: Cell<u32>,
    /// Entries that are posted and taken just before the next look at an arm word.
    passes: Cell<u32>,
    raised: RefCell<Vec<u16>>,
    now: Rc<Ticks>,
    seed: Cell<u32>,
    kicks: Kicks,
}

/// A node's hardware. Clones are the same hardware.
#[derive(Clone)]
pub struct Machine {
    inner: Rc<Inner>,
}

impl Machine {
    pub(crate) fn new(id: u16, size: Size, pool: Rc<Shared>, now: Rc<Ticks>, kicks: Kicks) -> Self {
        let doorbells = PAIR_SIZE * size.pages as usize;
        let inner = Inner {
            id,
            ram: Ram::new(pool, usize::from(id), size.memory),
            doorbells: MmapRegion::new("nupa-testing-doorbells", doorbells).expect("memory"),
            pages: size.pages,
            moves: Cell::new(0),
            moved: Cell::new(0),
            overtakes: Cell::new(0),
            passes: Cell::new(0),
            raised: RefCell::default(),
            now,
            seed: Cell::new(u32::from(id) + 1),
            kicks,
        };
        Self {
            inner: Rc::new(inner),
        }
    }

    #[inline]
    pub fn ram(&self) -> &Ram {
        &self.inner.ram
    }

    /// From now on each load of a doorbell word finds it moved on by so many.
    pub fn move_doorbells(&self, by: u32) {
        self.inner.moves.set(by);
    }

    /// Each of the next `count` exchanges of doorbell words finds that somebody else has added one just before.
    pub fn overtake_exchanges(&self, count: u32) {
        self.inner.overtakes.set(count);
    }

    /// Just before the next look at the arm word of a slot, both that and the index are moved on by so many: the owner of the queue has posted as many
    /// entries and taken as many.
    pub fn pass_entries(&self, count: u32) {
        self.inner.passes.set(count);
    }

    #[cold]
    fn pass(&self, page: u32, slot: u16) {
        let count = self.inner.passes.take();
        for word in [SlotWord::Index, SlotWord::Arm] {
            let next = self.load(page, slot, word).wrapping_add(count);
            self.store(page, slot, word, next);
        }
    }

    /// A doorbell word that is moved on by so many more than the last time.
    #[cold]
    fn moved(&self, value: u32, by: u32) -> u32 {
        let moved = self.inner.moved.get().wrapping_add(by);
        self.inner.moved.set(moved);
        value.wrapping_add(moved)
    }

    /// Memory and doorbell pages, mapped once more, for another thread: from [`BASE`] and from [`DOORBELLS`] on.
    pub fn mapped(&self) -> GuestMemory {
        let mut mapped = GuestMemory::new();
        let regions = [(BASE, self.ram().own()), (DOORBELLS, &self.inner.doorbells)];
        for (iova, region) in regions {
            let request = MapRequest {
                iova,
                len: region.len() as u64,
                file: Some(region.file()),
                offset: 0,
                rights: Rights::ReadWrite,
            };
            mapped.map(&request).expect("it is mapped nowhere else");
        }
        mapped
    }

    /// Vectors raised since the last call.
    pub fn take_raised(&self) -> Vec<u16> {
        self.inner.raised.take()
    }

    /// The owner's view of a slot.
    pub fn doorbell(&self, page: u32, slot: u16) -> SlotView {
        SlotView {
            machine: self.clone(),
            page,
            slot,
        }
    }

    /// The owner's view of ring memory.
    pub fn ring(&self, addr: u64) -> RingView {
        RingView {
            machine: self.clone(),
            start: (addr - BASE) as usize,
        }
    }
}

impl Doorbells for Machine {
    #[inline]
    fn pages(&self) -> u32 {
        self.inner.pages
    }

    #[inline]
    fn load(&self, page: u32, slot: u16, word: SlotWord) -> u32 {
        let offset = slot_offset(page, slot) + word.offset();
        if self.inner.passes.get() != 0 && word.offset() == SlotWord::Arm.offset() {
            self.pass(page, slot);
        }
        let value = self.inner.doorbells.load_u32(offset).unwrap_or(0);
        match self.inner.moves.get() {
            0 => value,
            by => self.moved(value, by),
        }
    }

    #[inline]
    fn store(&self, page: u32, slot: u16, word: SlotWord, value: u32) {
        let offset = slot_offset(page, slot) + word.offset();
        let stored = self.inner.doorbells.store_u32(offset, value);
        debug_assert!(stored.is_ok(), "the engine checks pages and slots");
    }

    fn compare_exchange(
        &self,
        page: u32,
        slot: u16,
        word: SlotWord,
        expected: u32,
        value: u32,
    ) -> bool {
        let offset = slot_offset(page, slot) + word.offset();
        if let Some(left) = self.inner.overtakes.get().checked_sub(1) {
            self.inner.overtakes.set(left);
            let next = self.load(page, slot, word).wrapping_add(1);
            self.store(page, slot, word, next);
        }
        let doorbells = &self.inner.doorbells;
        doorbells.compare_exchange_u32(offset, expected, value) == Ok(expected)
    }

    #[inline]
    fn push_block(&self, page: u32, slot: u16, block: &mut [u8; BLOCK_SIZE]) -> bool {
        let offset = push_offset(page, slot);
        slot < PUSH_SLOTS && self.inner.doorbells.read(offset, block).is_ok()
    }

    #[inline]
    fn fence(&self) {
        full_fence();
    }
}

impl Interrupts for Machine {
    fn vectors(&self) -> u16 {
        4
    }

    fn raise(&self, vector: u16) {
        self.inner.raised.borrow_mut().push(vector);
    }
}

impl Clock for Machine {
    #[inline]
    fn now_us(&self) -> u64 {
        self.inner.now.look()
    }

    fn pause_us(&self, us: u64) {
        self.inner.now.pass(us);
    }

    fn random(&self) -> u32 {
        let next = self
            .inner
            .seed
            .get()
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.inner.seed.set(next);
        next
    }
}

impl Platform for Machine {
    type Memory = Ram;

    #[inline]
    fn memory(&self) -> &Ram {
        self.ram()
    }
}

/// One doorbell slot, as its owner has it.
pub struct SlotView {
    machine: Machine,
    page: u32,
    slot: u16,
}

impl SlotView {
    #[inline]
    fn send_kick(&self, pushed: Option<u32>) {
        let kick = Kick {
            node: self.machine.inner.id,
            page: self.page,
            slot: self.slot,
            pushed,
        };
        self.machine.inner.kicks.add(kick);
    }
}

impl Doorbell for SlotView {
    #[inline]
    fn load(&self, word: SlotWord) -> u32 {
        self.machine.load(self.page, self.slot, word)
    }

    #[inline]
    fn store(&self, word: SlotWord, value: u32) {
        self.machine.store(self.page, self.slot, word, value);
    }

    fn compare_exchange(&self, word: SlotWord, expected: u32, value: u32) -> bool {
        let Self {
            machine,
            page,
            slot,
        } = self;
        machine.compare_exchange(*page, *slot, word, expected, value)
    }

    #[inline]
    fn fence(&self) {
        full_fence();
    }

    #[inline]
    fn kick(&self, _index: u32) {
        self.send_kick(None);
    }

    #[inline]
    fn push(&self, block: &[u8; BLOCK_SIZE], index: u32) -> bool {
        let offset = push_offset(self.page, self.slot);
        let doorbells = &self.machine.inner.doorbells;
        let pushed = self.slot < PUSH_SLOTS && doorbells.write(offset, block).is_ok();
        if pushed {
            self.send_kick(Some(index));
        }
        pushed
    }
}

/// Ring memory, as its owner has it.
pub struct RingView {
    machine: Machine,
    /// Where in the node's own memory it begins.
    start: usize,
}

impl QueueMemory for RingView {
    #[inline(always)]
    fn read(&self, offset: usize, buf: &mut [u8]) {
        let read = self.machine.ram().own().read(self.start + offset, buf);
        debug_assert!(read.is_ok(), "a ring is memory");
    }

    #[inline(always)]
    fn write(&self, offset: usize, bytes: &[u8]) {
        let written = self.machine.ram().own().write(self.start + offset, bytes);
        debug_assert!(written.is_ok(), "a ring is memory");
    }

    #[inline(always)]
    fn load_acquire(&self, offset: usize) -> u32 {
        let word = self.machine.ram().own().load_u32(self.start + offset);
        debug_assert!(word.is_ok(), "a ring is memory");
        word.unwrap_or(0)
    }
}
