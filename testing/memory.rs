// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A node's memory: mapped as a guest's is, or shared with other hosts.

use crate::shared::Shared;
use guestmem::MmapRegion;
use nupa_engine::hal::{AccessError, Atomic, Memory, Undone};
use nupa_function::WordMemory;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// First DMA address that is memory.
pub const BASE: u64 = 0x1000_0000;
/// First DMA address of memory that hosts share.
pub const POOL: u64 = 1 << 44;

/// What becomes of bytes that were read at an address.
type Moves = Box<dyn FnMut(u64, &mut [u8])>;

/// Memory from [`BASE`] on, and from [`POOL`] on that which is shared with other hosts.
pub struct Ram {
    own: MmapRegion,
    /// Addresses below this are the node's own and stand still.
    still: Cell<u64>,
    moves: RefCell<Option<Moves>>,
    pool: Rc<Shared>,
    /// Host that it is of.
    host: usize,
    /// Bytes that were copied from there.
    copied: Cell<usize>,
    /// Bytes that were written back.
    written_back: Cell<usize>,
    /// Bytes that were copied from there with non-temporal stores.
    nontemporal: Cell<usize>,
    channel: Channel,
}

/// Something that copies what is submitted to it: a DMA channel, or several processors.
struct Channel {
    /// Least bytes.
    from: Cell<u32>,
    /// These are processors. They copy from the pool as well, and nothing is stored late.
    processors: Cell<bool>,
    /// The batch that so many further on cannot be finished; 0: none.
    fails: Cell<u32>,
    /// Where what was submitted goes.
    batch: RefCell<Vec<(u64, Vec<u8>)>>,
    /// The same of what is stored late.
    late: RefCell<Vec<(u64, Vec<u8>)>>,
    /// Whether that is at the end of the turn, and not before the next one.
    soon: Cell<bool>,
    /// Something of the batch cannot be read, and how often that was so.
    unreadable: Cell<bool>,
    unread: Cell<u32>,
    /// Bytes that were copied.
    copied: Cell<usize>,
}

impl Ram {
    pub(crate) fn new(pool: Rc<Shared>, host: usize, size: usize) -> Self {
        let own = MmapRegion::new("nupa-testing", size).expect("memory");
        Self {
            own,
            still: Cell::new(POOL),
            moves: RefCell::new(None),
            pool,
            host,
            copied: Cell::new(0),
            written_back: Cell::new(0),
            nontemporal: Cell::new(0),
            channel: Channel {
                from: Cell::new(u32::MAX),
                processors: Cell::new(false),
                fails: Cell::new(0),
                batch: RefCell::default(),
                late: RefCell::default(),
                soon: Cell::new(false),
                unreadable: Cell::new(false),
                unread: Cell::new(0),
                copied: Cell::new(0),
            },
        }
    }

    /// Memory of a host that shares none: so many bytes, whole pages.
    pub fn alone(size: usize) -> Self {
        Self::new(Shared::new(0, 0), 0, size)
    }

    /// From now on the controller finds what `moves` makes of its node's own memory with each read, until that is none: bytes that
    /// somebody else changes between two looks. What is copied from one node to another stays as it is.
    pub fn move_bytes(&self, moves: Option<Moves>) {
        self.still.set(if moves.is_some() { 0 } else { POOL });
        self.moves.replace(moves);
    }

    /// End of the node's own.
    pub fn end(&self) -> u64 {
        BASE + self.own.len() as u64
    }

    /// The node's own; offsets are from [`BASE`].
    #[inline]
    pub fn own(&self) -> &MmapRegion {
        &self.own
    }

    /// Bytes that were copied from there to somewhere so far.
    pub fn copied(&self) -> usize {
        self.copied.get()
    }

    /// Bytes that were written back so far.
    pub fn written_back(&self) -> usize {
        self.written_back.get()
    }

    /// Bytes that were copied from there with non-temporal stores so far.
    pub fn nontemporal(&self) -> usize {
        self.nontemporal.get()
    }

    /// Has payload for the pool be submitted from so many bytes on.
    pub fn submit_from(&self, from: u32) {
        self.channel.from.set(from);
    }

    /// The same, of payload from the pool, too: several processors copy it.
    pub fn share_copies_from(&self, from: u32) {
        self.submit_from(from);
        self.channel.processors.set(true);
    }

    /// Bytes that were copied after they were submitted.
    pub fn submitted(&self) -> usize {
        self.channel.copied.get()
    }

    /// Batches in which a processor found something that it could not read.
    pub fn unread(&self) -> u32 {
        self.channel.unread.get()
    }

    /// Has the batch that is `nth` from now on not be finished, the first being 1: a part of it is stored at once, and the rest before the engine is called
    /// again. After it nothing is submitted. Of processors the rest is not stored, and they go on.
    pub fn fail_to_finish(&self, nth: u32) {
        self.channel.fails.set(nth);
    }

    /// Has the rest of such a batch be stored as soon as the turn is over, before anybody else does anything.
    pub fn store_late_soon(&self) {
        self.channel.soon.set(true);
    }

    /// Stores what is stored late, before a turn.
    pub(crate) fn settle(&self) {
        for (to, bytes) in self.channel.late.take() {
            self.write(to, &bytes).expect("memory that was written to");
        }
    }

    /// The same after one.
    pub(crate) fn settle_soon(&self) {
        if self.channel.soon.get() {
            self.settle();
        }
    }

    /// Leaves a copy to several processors, one of which finds out whether its memory is there.
    fn share_copy(&self, from: u64, target: &Self, to: u64, len: usize) -> Result<(), AccessError> {
        self.copied.set(self.copied.get() + len);
        let mut bytes = vec![0; len];
        match self.read(from, &mut bytes) {
            Ok(()) => target.channel.batch.borrow_mut().push((to, bytes)),
            Err(AccessError) => target.channel.unreadable.set(true),
        }
        Ok(())
    }

    // What follows stays out of the way of what benchmarks measure.

    #[inline(never)]
    fn read_other(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        if addr < POOL {
            reached(self.own.read(offset(addr), buf))?;
            if let Some(moves) = &mut *self.moves.borrow_mut() {
                moves(addr, buf);
            }
            return Ok(());
        }
        let at = self.in_pool(addr, buf.len())?;
        let readable = self.pool.check(at, buf.len());
        readable.map_err(|_| AccessError)?;
        self.pool.read(self.host, at, buf);
        Ok(())
    }

    #[inline(never)]
    fn write_pool(&self, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let at = self.in_pool(addr, bytes.len())?;
        self.pool.write(self.host, at, bytes);
        Ok(())
    }

    #[inline(never)]
    fn copy_pool(&self, from: u64, target: &Self, to: u64, len: usize) -> Result<(), AccessError> {
        let mut bytes = vec![0; len];
        self.read(from, &mut bytes)?;
        target.write(to, &bytes)
    }

    /// Where in the pool `len` bytes at an address are.
    fn in_pool(&self, addr: u64, len: usize) -> Result<u64, AccessError> {
        let end = self.pool.size().checked_sub(len).ok_or(AccessError)?;
        let at = addr.checked_sub(POOL).ok_or(AccessError)?;
        (at <= end as u64).then_some(at).ok_or(AccessError)
    }
}

impl Memory for Ram {
    #[inline(always)]
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        if addr < self.still.get() {
            return reached(self.own.read(offset(addr), buf));
        }
        self.read_other(addr, buf)
    }

    #[inline(always)]
    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        if addr < POOL {
            return reached(self.own.write(offset(addr), bytes));
        }
        self.write_pool(addr, bytes)
    }

    #[inline(always)]
    fn store_release(&self, addr: u64, value: u32) -> Result<(), AccessError> {
        if addr < POOL {
            return reached(self.own.store_u32(offset(addr), value));
        }
        if addr % 4 != 0 {
            return Err(AccessError);
        }
        self.write(addr, &value.to_le_bytes())
    }

    fn atomic(&self, addr: u64, operation: Atomic) -> Result<u64, AccessError> {
        if addr < POOL {
            let (own, at) = (&self.own, offset(addr));
            return reached(match operation {
                Atomic::CompareSwap { compare, swap } => {
                    own.compare_exchange_u64(at, compare, swap)
                }
                Atomic::FetchAdd(value) => own.fetch_add_u64(at, value),
                Atomic::Store(value) => own.store_u64(at, value).map(|()| 0),
            });
        }
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

    #[inline(always)]
    fn copy_to(&self, from: u64, target: &Self, to: u64, len: usize) -> Result<(), AccessError> {
        self.copied.set(self.copied.get() + len);
        if from.max(to) < POOL {
            let (from, to) = (offset(from), offset(to));
            return reached(MmapRegion::copy(&self.own, from, &target.own, to, len));
        }
        self.copy_pool(from, target, to, len)
    }

    fn copy_nontemporal(
        &self,
        from: u64,
        target: &Self,
        to: u64,
        len: usize,
    ) -> Result<(), AccessError> {
        self.copy_to(from, target, to, len)?;
        let at = target.in_pool(to, len)?;
        target.pool.publish(target.host, at, len as u64);
        self.nontemporal.set(self.nontemporal.get() + len);
        Ok(())
    }

    fn submits_from(&self) -> u32 {
        self.channel.from.get()
    }

    fn submits_shared_from(&self) -> u32 {
        match self.channel.processors.get() {
            true => self.channel.from.get(),
            false => u32::MAX,
        }
    }

    fn submit_copy(
        &self,
        from: u64,
        target: &Self,
        to: u64,
        len: usize,
    ) -> Result<(), AccessError> {
        if self.channel.processors.get() {
            return self.share_copy(from, target, to, len);
        }
        if from >= POOL || to < POOL || self.channel.from.get() == u32::MAX {
            return self.copy_to(from, target, to, len);
        }
        self.copied.set(self.copied.get() + len);
        let mut bytes = vec![0; len];
        self.read(from, &mut bytes)?;
        target.in_pool(to, len)?;
        target.channel.batch.borrow_mut().push((to, bytes));
        Ok(())
    }

    fn finish_copies(&self) -> Result<(), Undone> {
        let mut batch = self.channel.batch.take();
        // In any order.
        batch.reverse();
        let fails = self.channel.fails.get();
        self.channel.fails.set(fails.saturating_sub(1));
        let done = match fails == 1 {
            true => batch.len() / 2,
            false => batch.len(),
        };
        let late = batch.split_off(done);
        for (to, bytes) in batch {
            self.write(to, &bytes).expect("memory that is there");
            self.channel
                .copied
                .set(self.channel.copied.get() + bytes.len());
        }
        if self.channel.unreadable.take() {
            self.channel.unread.set(self.channel.unread.get() + 1);
            return Err(Undone::Failed);
        }
        if fails != 1 {
            return Ok(());
        }
        if self.channel.processors.get() {
            return Err(Undone::Failed);
        }
        self.channel.from.set(u32::MAX);
        self.channel.late.replace(late);
        Err(Undone::Unfinished)
    }
}

impl WordMemory for Ram {
    fn load_acquire(&self, addr: u64) -> Result<u32, AccessError> {
        reached(self.own.load_u32(offset(addr)))
    }

    fn compare_exchange(&self, addr: u64, expected: u32, value: u32) -> Result<bool, AccessError> {
        let old = self.own.compare_exchange_u32(offset(addr), expected, value);
        Ok(reached(old)? == expected)
    }

    fn check(&self, addr: u64, len: usize) -> Result<(), AccessError> {
        let end = offset(addr).checked_add(len).ok_or(AccessError)?;
        (end <= self.own.len()).then_some(()).ok_or(AccessError)
    }
}

/// Where in a node's own memory an address is; what lies below that is behind its end.
#[inline(always)]
fn offset(addr: u64) -> usize {
    addr.wrapping_sub(BASE) as usize
}

#[inline(always)]
fn reached<T>(result: Result<T, guestmem::AccessError>) -> Result<T, AccessError> {
    result.map_err(|_| AccessError)
}
