// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory of the function's driver, as the engine sees it.

use guestmem::{GuestMemory, Rights};
use nupa_engine::hal::{AccessError, Atomic, Memory};
use nupa_function::WordMemory;

/// Memory of the driver, and the pool, by DMA address.
#[derive(Debug)]
pub(crate) struct NodeMemory(GuestMemory);

impl NodeMemory {
    pub(crate) fn new(mapped: GuestMemory) -> Self {
        Self(mapped)
    }
}

/// Every error is the same to the engine.
#[inline]
fn reached<T>(result: Result<T, guestmem::AccessError>) -> Result<T, AccessError> {
    result.map_err(|_| AccessError)
}

impl Memory for NodeMemory {
    #[inline]
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        reached(self.0.read(addr, buf))
    }

    #[inline]
    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        reached(self.0.write(addr, bytes))
    }

    #[inline]
    fn store_release(&self, addr: u64, value: u32) -> Result<(), AccessError> {
        reached(self.0.store_u32(addr, value.to_le()))
    }

    fn atomic(&self, addr: u64, operation: Atomic) -> Result<u64, AccessError> {
        reached(match operation {
            Atomic::CompareSwap { compare, swap } => {
                self.0.compare_exchange_u64(addr, compare, swap)
            }
            Atomic::FetchAdd(value) => self.0.fetch_add_u64(addr, value),
            Atomic::Store(value) => self.0.store_u64(addr, value).map(|()| 0),
        })
    }

    #[inline]
    fn copy_to(&self, from: u64, target: &Self, to: u64, len: usize) -> Result<(), AccessError> {
        reached(GuestMemory::copy(&self.0, from, &target.0, to, len))
    }

    fn copy_nontemporal(
        &self,
        from: u64,
        target: &Self,
        to: u64,
        len: usize,
    ) -> Result<(), AccessError> {
        reached(GuestMemory::copy_nontemporal(
            &self.0, from, &target.0, to, len,
        ))
    }
}

impl WordMemory for NodeMemory {
    #[inline]
    fn load_acquire(&self, addr: u64) -> Result<u32, AccessError> {
        reached(self.0.load_u32(addr)).map(u32::from_le)
    }

    fn compare_exchange(&self, addr: u64, expected: u32, value: u32) -> Result<bool, AccessError> {
        let (expected, value) = (expected.to_le(), value.to_le());
        let old = reached(self.0.compare_exchange_u32(addr, expected, value))?;
        Ok(old == expected)
    }

    fn check(&self, addr: u64, len: usize) -> Result<(), AccessError> {
        reached(self.0.check(addr, len, Rights::ReadWrite))
    }
}
