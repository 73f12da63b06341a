// SPDX-License-Identifier: GPL-2.0
//! Coherent memory shared with a device: queue rings and command buffers.
//!
//! C header: `include/linux/dma-mapping.h`.

use crate::{
    bindings,
    bound::BoundDevice,
    mmap::{Kind, MmapRange, Owner},
};
use core::mem::size_of;
use kernel::{
    device::Device,
    dma::{Coherent, DmaAddress},
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Release},
        Arc,
    },
};

/// Bytes of the units in which the memory is read and written.
const UNIT: usize = size_of::<u64>();

/// Zeroed coherent memory that a device reads and writes at any time.
///
/// All access is by copy, in volatile 8-byte units, so that nothing the device does while it happens is undefined
/// behaviour; a torn copy is the reader's to detect, by ordering it against a word that hands it over
/// ([`RingMemory::load_acquire`], [`RingMemory::store_release`]). Nothing here sleeps but allocation and drop.
///
/// The device must have been told to forget the memory, or be unable to reach memory, before it is dropped.
pub struct RingMemory {
    units: Coherent<[u64]>,
}

impl Owner for RingMemory {}

impl RingMemory {
    /// Allocates at least `bytes` of physically contiguous memory, aligned to a page if it is one or more.
    pub fn new(device: &BoundDevice, bytes: usize) -> Result<Self> {
        let units = bytes.div_ceil(UNIT);
        let units =
            device.with(|device: &Device<_>| Coherent::zeroed_slice(device, units, GFP_KERNEL))?;
        Ok(Self { units })
    }

    /// Address for the device.
    #[inline]
    pub fn dma_address(&self) -> DmaAddress {
        self.units.dma_handle()
    }

    /// The page at `offset`, a multiple of its size, for processes to map; none outside of the memory. Any context.
    pub fn page(self: &Arc<Self>, offset: usize) -> Option<MmapRange> {
        if offset % PAGE_SIZE != 0 {
            return None;
        }
        let page = self.at(offset, PAGE_SIZE)?;
        // SAFETY: `page` points into memory that `Coherent` got from `dma_alloc_coherent()`, a whole page of it.
        let start = unsafe { bindings::nk_coherent_phys(page.cast()) };
        // SAFETY: The memory is freed with the last reference; whoever reads or writes it expects others to do so, too.
        unsafe { MmapRange::new(start, PAGE_SIZE as u64, Kind::Cached, self.clone()) }
    }

    /// Bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.units.size()
    }

    /// Pointer to `bytes` bytes at `offset`, if they lie inside and start at a unit.
    #[inline]
    fn at(&self, offset: usize, bytes: usize) -> Option<*mut u64> {
        let end = offset.checked_add(bytes)?;
        if end > self.len() || offset % UNIT != 0 {
            return None;
        }
        // SAFETY: `offset` is inside the allocation, as just checked.
        Some(unsafe { self.units.as_mut_ptr().cast::<u64>().byte_add(offset) })
    }

    /// Copies bytes out. `offset` is a multiple of 8. False outside of the memory; the buffer is then unchanged.
    #[inline]
    pub fn read(&self, offset: usize, buf: &mut [u8]) -> bool {
        let Some(mut from) = self.at(offset, buf.len().next_multiple_of(UNIT)) else {
            return false;
        };
        for to in buf.chunks_mut(UNIT) {
            // SAFETY: `at` checked that all units lie inside; `Coherent` keeps them mapped. Volatile, because the
            // device may write at the same time (see `Coherent::field_read`).
            let unit = unsafe { from.read_volatile() }.to_ne_bytes();
            // SAFETY: `from` stays inside the allocation, or becomes its end after the last unit.
            from = unsafe { from.add(1) };
            for (to, byte) in to.iter_mut().zip(unit) {
                *to = byte;
            }
        }
        true
    }

    /// Copies bytes in. `offset` is a multiple of 8. False, without effect, outside of the memory.
    ///
    /// A last unit that is not filled gets zeroes: nothing of worth may lie behind the bytes within their unit.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(mut to) = self.at(offset, bytes.len().next_multiple_of(UNIT)) else {
            return false;
        };
        for from in bytes.chunks(UNIT) {
            let unit = match <[u8; UNIT]>::try_from(from) {
                Ok(unit) => u64::from_ne_bytes(unit),
                Err(_) => from
                    .iter()
                    .rev()
                    .fold(0, |unit, &byte| unit << 8 | u64::from(byte))
                    .to_le(),
            };
            // SAFETY: As in `read`.
            unsafe { to.write_volatile(unit) };
            // SAFETY: As in `read`.
            to = unsafe { to.add(1) };
        }
        true
    }

    /// Word at `offset`, a multiple of 4.
    #[inline]
    fn word(&self, offset: usize) -> Option<&Atomic<u32>> {
        let unit = self.at(offset - offset % UNIT, UNIT)?;
        if offset % size_of::<u32>() != 0 {
            return None;
        }
        // SAFETY: The word lies in the unit that `at` found, is aligned as just checked, lives as long as `self`, and
        // is only ever accessed by volatile or atomic operations.
        Some(unsafe { Atomic::from_ptr(unit.byte_add(offset % UNIT).cast::<u32>()) })
    }

    /// Loads a little-endian word; what the device wrote before it can be read afterwards. 0 outside of the memory.
    #[inline]
    pub fn load_acquire(&self, offset: usize) -> u32 {
        self.word(offset)
            .map_or(0, |word| u32::from_le(word.load(Acquire)))
    }

    /// Stores a little-endian word if `expected` is there, as a full fence; returns whether it was. False outside of the memory.
    pub fn compare_exchange(&self, offset: usize, expected: u32, value: u32) -> bool {
        self.word(offset).is_some_and(|word| {
            let swapped = word.cmpxchg(expected.to_le(), value.to_le(), Full);
            swapped.is_ok()
        })
    }

    /// Stores a little-endian word; the device sees what was written before it. Ignored outside of the memory.
    #[inline]
    pub fn store_release(&self, offset: usize, value: u32) {
        if let Some(word) = self.word(offset) {
            word.store(value.to_le(), Release);
        }
    }
}
