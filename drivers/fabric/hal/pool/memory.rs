// SPDX-License-Identifier: GPL-2.0
//! The node's memory as its engine sees it: the host's, and the node's share of the pool's.

use super::{copies::Copies, copy_workers::CopyWorkers};
use core::ops::Range;
use kernel::{prelude::*, sync::Arc};
use nk::hostmem::HostMemory;
use nupa_engine::hal::{AccessError, Atomic, Memory, Undone};
use nupa_function::WordMemory;
use nupa_proto::regs::DEVICE_MEMORY_BASE;

/// Memory by DMA address.
#[derive(Clone)]
pub(super) struct NodeMemory {
    host: HostMemory,
    /// Physical addresses of the memory that counts as the function's own.
    own: Range<u64>,
    /// Whether the pool's memory holds what was stored only once it is written back: caches of hosts are not coherent, or it
    /// outlives a loss of power and caches do not.
    behind_caches: bool,
    /// Whether the function may use memory.
    reachable: bool,
    copiers: Copiers,
}

/// What copies long payload.
#[derive(Clone)]
pub(super) enum Copiers {
    /// The processor that works with the node, alone.
    Processor,
    /// A DMA channel, to the pool.
    Channel(Arc<Copies>),
    /// Workers, to and from the pool.
    Workers(Arc<CopyWorkers>),
}

impl Copiers {
    /// The channel, if it is one.
    pub(super) fn channel(&self) -> Option<&Arc<Copies>> {
        match self {
            Self::Channel(copies) => Some(copies),
            Self::Processor | Self::Workers(_) => None,
        }
    }

    /// Ends them, when nobody has the node any more. Sleeps.
    pub(super) fn stop(&self) {
        match self {
            Self::Processor => {}
            Self::Channel(copies) => copies.stop(),
            Self::Workers(workers) => workers.stop(),
        }
    }
}

impl NodeMemory {
    /// Memory that cannot be reached yet.
    pub(super) fn new(
        host: HostMemory,
        own: Range<u64>,
        behind_caches: bool,
        copiers: Copiers,
    ) -> Self {
        Self {
            host,
            own,
            behind_caches,
            reachable: false,
            copiers,
        }
    }

    /// Says whether the function may use memory.
    pub(super) fn set_reachable(&mut self, on: bool) {
        self.reachable = on;
    }

    /// Whether the function may use memory.
    pub(super) fn is_reachable(&self) -> bool {
        self.reachable
    }

    /// Physical address of `len` bytes.
    #[inline]
    fn locate(&self, addr: u64, len: usize) -> Result<u64, AccessError> {
        if !self.reachable {
            return Err(AccessError);
        }
        let Some(offset) = addr.checked_sub(DEVICE_MEMORY_BASE) else {
            return Ok(addr);
        };
        let physical = self.own.start.checked_add(offset).ok_or(AccessError)?;
        let end = physical.checked_add(len as u64).ok_or(AccessError)?;
        (end <= self.own.end).then_some(physical).ok_or(AccessError)
    }
}

/// Every error is the same to the engine.
#[inline]
fn reached<T>(result: Result<T>) -> Result<T, AccessError> {
    result.map_err(|_| AccessError)
}

impl Memory for NodeMemory {
    #[inline]
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        reached(self.host.read(self.locate(addr, buf.len())?, buf))
    }

    #[inline]
    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        reached(self.host.write(self.locate(addr, bytes.len())?, bytes))
    }

    #[inline]
    fn store_release(&self, addr: u64, value: u32) -> Result<(), AccessError> {
        let at = self.locate(addr, size_of::<u32>())?;
        reached(self.host.store_release(at, value))
    }

    fn atomic(&self, addr: u64, operation: Atomic) -> Result<u64, AccessError> {
        let at = self.locate(addr, size_of::<u64>())?;
        reached(match operation {
            Atomic::CompareSwap { compare, swap } => self.host.compare_swap(at, compare, swap),
            Atomic::FetchAdd(value) => self.host.fetch_add(at, value),
            Atomic::Store(value) => self.host.swap(at, value),
        })
    }

    fn needs_write_back(&self, _addr: u64) -> bool {
        self.behind_caches
    }

    fn write_back(&self, addr: u64, len: usize) -> Result<(), AccessError> {
        if !self.behind_caches {
            return Ok(());
        }
        reached(self.host.write_back(self.locate(addr, len)?, len))
    }

    #[inline]
    fn copy_to(&self, from: u64, target: &Self, to: u64, len: usize) -> Result<(), AccessError> {
        let (from, to) = (self.locate(from, len)?, target.locate(to, len)?);
        reached(self.host.copy(from, to, len))
    }

    fn copy_nontemporal(
        &self,
        from: u64,
        target: &Self,
        to: u64,
        len: usize,
    ) -> Result<(), AccessError> {
        let (from, to) = (self.locate(from, len)?, target.locate(to, len)?);
        reached(self.host.copy_nontemporal(from, to, len))
    }

    #[inline]
    fn submits_from(&self) -> u32 {
        match &self.copiers {
            Copiers::Processor => u32::MAX,
            Copiers::Channel(copies) => copies.from(),
            Copiers::Workers(workers) => workers.from(),
        }
    }

    #[inline]
    fn submits_shared_from(&self) -> u32 {
        match &self.copiers {
            Copiers::Workers(workers) => workers.from(),
            Copiers::Processor | Copiers::Channel(_) => u32::MAX,
        }
    }

    fn submit_copy(
        &self,
        from: u64,
        target: &Self,
        to: u64,
        len: usize,
    ) -> Result<(), AccessError> {
        let (from, to) = (self.locate(from, len)?, target.locate(to, len)?);
        reached(match &self.copiers {
            Copiers::Processor => self.host.copy(from, to, len),
            Copiers::Channel(copies) => copies.submit(&self.host, from, to, len),
            Copiers::Workers(workers) => {
                workers.submit(from, to, len);
                Ok(())
            }
        })
    }

    fn finish_copies(&self) -> Result<(), Undone> {
        match &self.copiers {
            Copiers::Channel(copies) if !copies.finish() => Err(Undone::Unfinished),
            Copiers::Workers(workers) if !workers.finish() => Err(Undone::Failed),
            _ => Ok(()),
        }
    }
}

impl WordMemory for NodeMemory {
    #[inline]
    fn load_acquire(&self, addr: u64) -> Result<u32, AccessError> {
        reached(self.host.load_acquire(self.locate(addr, size_of::<u32>())?))
    }

    fn compare_exchange(&self, addr: u64, expected: u32, value: u32) -> Result<bool, AccessError> {
        let at = self.locate(addr, size_of::<u32>())?;
        reached(self.host.compare_exchange(at, expected, value))
    }

    fn check(&self, addr: u64, len: usize) -> Result<(), AccessError> {
        reached(self.host.check(self.locate(addr, len)?, len))
    }
}
