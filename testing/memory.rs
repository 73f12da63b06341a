// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A node's memory: mapped as a guest's is, or shared with other hosts.

use crate::shared::Shared;
use guestmem::{GuestMemory, MapRequest, MmapRegion, Rights};
use nupa_engine::hal::{AccessError, Atomic, Memory};
use nupa_function::WordMemory;
use std::{cell::Cell, rc::Rc};

/// First DMA address that is memory.
pub const BASE: u64 = 0x1000_0000;
/// First DMA address of memory that hosts share.
pub const POOL: u64 = 1 << 44;
/// Bytes of a node's own memory.
const SIZE: usize = 32 << 20;

/// Memory from [`BASE`] on, and from [`POOL`] on that which is shared with other hosts.
pub struct Ram {
    /// The node's own, as a device reaches it, ...
    guest: GuestMemory,
    /// ... and as its processors do.
    own: MmapRegion,
    pool: Rc<Shared>,
    /// Host that it is of.
    host: usize,
    /// Bytes that were copied from there.
    copied: Cell<usize>,
    /// Bytes that were written back.
    written_back: Cell<usize>,
}

impl Ram {
    pub(crate) fn new(pool: Rc<Shared>, host: usize) -> Self {
        let own = MmapRegion::new("nupa-testing", SIZE).expect("memory");
        let mut guest = GuestMemory::new();
        let request = MapRequest {
            iova: BASE,
            len: SIZE as u64,
            file: Some(own.file()),
            offset: 0,
            rights: Rights::ReadWrite,
        };
        guest.map(&request).expect("it is mapped nowhere else");
        Self {
            guest,
            own,
            pool,
            host,
            copied: Cell::new(0),
            written_back: Cell::new(0),
        }
    }

    /// Memory of a host that shares none.
    pub fn alone() -> Self {
        Self::new(Shared::new(0, 0), 0)
    }

    /// End of the node's own.
    pub fn end(&self) -> u64 {
        BASE + SIZE as u64
    }

    /// The node's own, as a device reaches it.
    pub fn guest(&self) -> &GuestMemory {
        &self.guest
    }

    /// The node's own, as its processors reach it: offsets are from [`BASE`].
    pub(crate) fn own(&self) -> &MmapRegion {
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

    /// Where in the pool `len` bytes at an address are.
    fn in_pool(&self, addr: u64, len: usize) -> Result<u64, AccessError> {
        let end = self.pool.size().checked_sub(len).ok_or(AccessError)?;
        let at = addr.checked_sub(POOL).ok_or(AccessError)?;
        (at <= end as u64).then_some(at).ok_or(AccessError)
    }
}

impl Memory for Ram {
    #[inline]
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        if addr < POOL {
            return self.guest.read(addr, buf).map_err(|_| AccessError);
        }
        let at = self.in_pool(addr, buf.len())?;
        let readable = self.pool.check(at, buf.len());
        readable.map_err(|_| AccessError)?;
        self.pool.read(self.host, at, buf);
        Ok(())
    }

    #[inline]
    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        if addr < POOL {
            return self.guest.write(addr, bytes).map_err(|_| AccessError);
        }
        let at = self.in_pool(addr, bytes.len())?;
        self.pool.write(self.host, at, bytes);
        Ok(())
    }

    #[inline]
    fn store_release(&self, addr: u64, value: u32) -> Result<(), AccessError> {
        if addr < POOL {
            return self.guest.store_u32(addr, value).map_err(|_| AccessError);
        }
        if addr % 4 != 0 {
            return Err(AccessError);
        }
        self.write(addr, &value.to_le_bytes())
    }

    fn atomic(&self, addr: u64, operation: Atomic) -> Result<u64, AccessError> {
        if addr < POOL {
            let guest = &self.guest;
            let old = match operation {
                Atomic::CompareSwap { compare, swap } => {
                    guest.compare_exchange_u64(addr, compare, swap)
                }
                Atomic::FetchAdd(value) => guest.fetch_add_u64(addr, value),
                Atomic::Store(value) => guest.store_u64(addr, value).map(|()| 0),
            };
            return old.map_err(|_| AccessError);
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

    #[inline]
    fn copy_to(&self, from: u64, target: &Self, to: u64, len: usize) -> Result<(), AccessError> {
        self.copied.set(self.copied.get() + len);
        if from.max(to) < POOL {
            let copied = GuestMemory::copy(&self.guest, from, &target.guest, to, len);
            return copied.map_err(|_| AccessError);
        }
        let mut bytes = vec![0; len];
        self.read(from, &mut bytes)?;
        target.write(to, &bytes)
    }
}

impl WordMemory for Ram {
    fn load_acquire(&self, addr: u64) -> Result<u32, AccessError> {
        self.guest.load_u32(addr).map_err(|_| AccessError)
    }

    fn check(&self, addr: u64, len: usize) -> Result<(), AccessError> {
        let reached = self.guest.check(addr, len, Rights::ReadWrite);
        reached.map_err(|_| AccessError)
    }
}
