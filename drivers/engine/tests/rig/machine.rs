// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A node's hardware: memory and doorbell pages that both sides hold.

use super::shared::Shared;
use nupa_engine::{
    hal::{
        AccessError, Atomic, Clock, Doorbells, Interrupts, Memory, NoMemory, Platform, SlotWord,
        Storage, Table,
    },
    rings::{Doorbell, QueueMemory},
};
use nupa_proto::{doorbell::SLOTS, wqe::BLOCK_SIZE};
use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    ops::Range,
    rc::Rc,
};

/// Doorbell page pairs of a node.
pub const PAGES: u32 = 4;
/// First DMA address that is memory.
pub const BASE: u64 = 0x1000_0000;
const SIZE: usize = 8 << 20;
/// First DMA address of memory that hosts share.
pub const POOL: u64 = 1 << 44;

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

    fn look(&self) -> u64 {
        self.pass(self.step.get());
        self.now.get()
    }

    pub fn pass(&self, us: u64) {
        self.now.set(self.now.get() + us);
    }
}

/// Containers over `Vec`.
pub struct VecStorage;

impl Storage for VecStorage {
    type Pages = Vec<u64>;
    type Table<T> = VecTable<T>;

    fn pages(len: usize) -> Result<Vec<u64>, NoMemory> {
        Ok(vec![0; len])
    }
}

pub struct VecTable<T>(Vec<Option<T>>);

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

/// A write to a trapped page.
#[derive(Clone, Copy, Debug)]
pub struct Kick {
    pub node: u16,
    pub page: u32,
    pub slot: u16,
    pub pushed: Option<u32>,
}

/// Memory from [`BASE`] on, and from [`POOL`] on that which is shared with other hosts.
pub struct Ram {
    bytes: RefCell<Vec<u8>>,
    pool: Rc<Shared>,
    /// Host that it is of.
    host: usize,
    /// Bytes that were copied from there.
    copied: Cell<usize>,
    /// Bytes that were written back.
    written_back: Cell<usize>,
}

impl Ram {
    /// Bytes that were copied from there to somewhere so far.
    pub fn copied(&self) -> usize {
        self.copied.get()
    }

    /// Bytes that were written back so far.
    pub fn written_back(&self) -> usize {
        self.written_back.get()
    }
}

/// Where in a vector of `size` bytes, which begins at `base`, `len` bytes at `addr` are.
fn range(addr: u64, len: usize, base: u64, size: usize) -> Result<Range<usize>, AccessError> {
    let start = addr
        .checked_sub(base)
        .and_then(|at| usize::try_from(at).ok())
        .ok_or(AccessError)?;
    let end = start
        .checked_add(len)
        .filter(|end| *end <= size)
        .ok_or(AccessError)?;
    Ok(start..end)
}

impl Ram {
    /// Where in the pool `len` bytes are.
    fn in_pool(&self, addr: u64, len: usize) -> Result<u64, AccessError> {
        let range = range(addr, len, POOL, self.pool.size())?;
        Ok(range.start as u64)
    }
}

impl Memory for Ram {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        if addr >= POOL {
            let at = self.in_pool(addr, buf.len())?;
            let readable = self.pool.check(at, buf.len());
            readable.map_err(|_| AccessError)?;
            self.pool.read(self.host, at, buf);
            return Ok(());
        }
        let range = range(addr, buf.len(), BASE, SIZE)?;
        buf.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        if addr >= POOL {
            let at = self.in_pool(addr, bytes.len())?;
            self.pool.write(self.host, at, bytes);
            return Ok(());
        }
        let range = range(addr, bytes.len(), BASE, SIZE)?;
        self.bytes.borrow_mut()[range].copy_from_slice(bytes);
        Ok(())
    }

    fn store_release(&self, addr: u64, value: u32) -> Result<(), AccessError> {
        if addr % 4 != 0 {
            return Err(AccessError);
        }
        self.write(addr, &value.to_le_bytes())
    }

    fn atomic(&self, addr: u64, operation: Atomic) -> Result<u64, AccessError> {
        if addr % 8 != 0 {
            return Err(AccessError);
        }
        let mut word = [0; 8];
        self.read(addr, &mut word)?;
        let old = u64::from_le_bytes(word);
        let new = match operation {
            Atomic::CompareSwap { compare, swap } if compare == old => swap,
            Atomic::CompareSwap { .. } => old,
            Atomic::FetchAdd(value) => old.wrapping_add(value),
            Atomic::Store(value) => value,
        };
        self.write(addr, &new.to_le_bytes())?;
        Ok(old)
    }

    fn needs_write_back(&self, addr: u64) -> bool {
        addr >= POOL
    }

    fn write_back(&self, addr: u64, len: usize) -> Result<(), AccessError> {
        if addr >= POOL {
            let at = self.in_pool(addr, len)?;
            self.pool.publish(self.host, at, len as u64);
            self.written_back.set(self.written_back.get() + len);
        }
        Ok(())
    }

    fn copy_to(&self, from: u64, target: &Self, to: u64, len: usize) -> Result<(), AccessError> {
        self.copied.set(self.copied.get() + len);
        if from.max(to) >= POOL {
            let mut bytes = vec![0; len];
            self.read(from, &mut bytes)?;
            return target.write(to, &bytes);
        }
        let (from, to) = (range(from, len, BASE, SIZE)?, range(to, len, BASE, SIZE)?);
        if std::ptr::eq(self, target) {
            self.bytes.borrow_mut().copy_within(from, to.start);
        } else {
            target.bytes.borrow_mut()[to].copy_from_slice(&self.bytes.borrow()[from]);
        }
        Ok(())
    }
}

struct Inner {
    id: u16,
    ram: Ram,
    words: Vec<Cell<u32>>,
    push: RefCell<HashMap<(u32, u16), [u8; BLOCK_SIZE]>>,
    raised: RefCell<Vec<u16>>,
    now: Rc<Ticks>,
    seed: Cell<u32>,
    kicks: Rc<RefCell<VecDeque<Kick>>>,
}

/// A node's hardware. Clones are the same hardware.
#[derive(Clone)]
pub struct Machine {
    inner: Rc<Inner>,
}

impl Machine {
    pub fn new(
        id: u16,
        pool: Rc<Shared>,
        now: Rc<Ticks>,
        kicks: Rc<RefCell<VecDeque<Kick>>>,
    ) -> Self {
        let inner = Inner {
            id,
            ram: Ram {
                bytes: RefCell::new(vec![0; SIZE]),
                pool,
                host: usize::from(id),
                copied: Cell::new(0),
                written_back: Cell::new(0),
            },
            words: vec![Cell::new(0); PAGES as usize * usize::from(SLOTS) * 4],
            push: RefCell::default(),
            raised: RefCell::default(),
            now,
            seed: Cell::new(u32::from(id) + 1),
            kicks,
        };
        Self {
            inner: Rc::new(inner),
        }
    }

    pub fn ram(&self) -> &Ram {
        &self.inner.ram
    }

    /// End of memory.
    pub fn end(&self) -> u64 {
        BASE + SIZE as u64
    }

    /// Vectors raised since the last call.
    pub fn take_raised(&self) -> Vec<u16> {
        self.inner.raised.take()
    }

    fn word(&self, page: u32, slot: u16, word: SlotWord) -> Option<&Cell<u32>> {
        let at = (page as usize * usize::from(SLOTS) + usize::from(slot)) * 4 + word.offset() / 4;
        self.inner.words.get(at)
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
            addr,
        }
    }
}

impl Doorbells for Machine {
    fn pages(&self) -> u32 {
        PAGES
    }

    fn load(&self, page: u32, slot: u16, word: SlotWord) -> u32 {
        self.word(page, slot, word).map_or(0, Cell::get)
    }

    fn store(&self, page: u32, slot: u16, word: SlotWord, value: u32) {
        if let Some(cell) = self.word(page, slot, word) {
            cell.set(value);
        }
    }

    fn push_block(&self, page: u32, slot: u16, block: &mut [u8; BLOCK_SIZE]) -> bool {
        let push = self.inner.push.borrow();
        push.get(&(page, slot)).is_some_and(|pushed| {
            *block = *pushed;
            true
        })
    }

    fn fence(&self) {}
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
    fn send_kick(&self, pushed: Option<u32>) {
        let kick = Kick {
            node: self.machine.inner.id,
            page: self.page,
            slot: self.slot,
            pushed,
        };
        self.machine.inner.kicks.borrow_mut().push_back(kick);
    }
}

impl Doorbell for SlotView {
    fn load(&self, word: SlotWord) -> u32 {
        self.machine.load(self.page, self.slot, word)
    }

    fn store(&self, word: SlotWord, value: u32) {
        self.machine.store(self.page, self.slot, word, value);
    }

    fn fence(&self) {}

    fn kick(&self, _index: u32) {
        self.send_kick(None);
    }

    fn push(&self, block: &[u8; BLOCK_SIZE], index: u32) -> bool {
        self.machine
            .inner
            .push
            .borrow_mut()
            .insert((self.page, self.slot), *block);
        self.send_kick(Some(index));
        true
    }
}

/// Ring memory, as its owner has it.
pub struct RingView {
    machine: Machine,
    addr: u64,
}

impl QueueMemory for RingView {
    fn read(&self, offset: usize, buf: &mut [u8]) {
        self.machine
            .ram()
            .read(self.addr + offset as u64, buf)
            .expect("ring is memory");
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.machine
            .ram()
            .write(self.addr + offset as u64, bytes)
            .expect("ring is memory");
    }

    fn load_acquire(&self, offset: usize) -> u32 {
        let mut word = [0; 4];
        self.read(offset, &mut word);
        u32::from_le_bytes(word)
    }
}
