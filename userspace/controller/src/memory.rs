// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A node's memory as the engine sees it.

use std::cell::Cell;

use guestmem::{GuestMemory, Rights};
use nupa_control::Fault;
use nupa_engine::hal::{AccessError, Atomic, Memory};
use nupa_function::WordMemory;

use crate::random;

/// Guest memory, and the fault that spoils what the device writes to rings.
#[derive(Debug, Default)]
pub(crate) struct NodeMemory {
    guest: GuestMemory,
    /// Bus Master Enable is off: nothing can be reached.
    revoked: Cell<bool>,
    /// How the controller misbehaves.
    fault: Cell<Fault>,
    /// While a fault is on: where the last write began and how long it was.
    last_write: Cell<(u64, usize)>,
}

/// Bytes of a completion before its valid word.
const CQE_HEAD: usize = nupa_proto::cqe::CQE_VALID_OFFSET;
/// Bytes of an event before its valid word.
const EQE_HEAD: usize = nupa_proto::eqe::EQE_VALID_OFFSET;

impl NodeMemory {
    /// The guest's memory, to change what is mapped.
    pub(crate) fn guest_mut(&mut self) -> &mut GuestMemory {
        &mut self.guest
    }

    /// The guest's memory.
    pub(crate) fn guest(&self) -> &GuestMemory {
        &self.guest
    }

    /// Follows Bus Master Enable.
    pub(crate) fn set_reachable(&self, on: bool) {
        self.revoked.set(!on);
    }

    /// Whether the function may access memory.
    #[inline]
    pub(crate) fn is_reachable(&self) -> bool {
        !self.revoked.get()
    }

    /// The guest's memory, if the function may access it.
    #[inline]
    fn reach(&self) -> Result<&GuestMemory, AccessError> {
        if self.revoked.get() {
            return Err(AccessError);
        }
        Ok(&self.guest)
    }

    /// How the controller misbehaves.
    pub(crate) fn fault(&self) -> Fault {
        self.fault.get()
    }

    /// Misbehaves from now on: spoils ring entries, if the fault is of that kind.
    pub(crate) fn set_fault(&self, fault: Fault) {
        self.fault.set(fault);
        self.last_write.set((0, 0));
    }

    /// Whether ring entries of this many bytes before the valid word are to be spoiled.
    fn spoils(&self, head: usize) -> bool {
        match self.fault.get() {
            Fault::Garbage => head == CQE_HEAD || head == EQE_HEAD,
            Fault::Cqe => head == CQE_HEAD,
            _ => false,
        }
    }

    /// Overwrites the ring entry that the word at `valid` is about to hand over.
    #[cold]
    fn spoil(&self, valid: u64) -> Result<(), AccessError> {
        let (start, len) = self.last_write.get();
        let head = u64::try_from(len).unwrap_or(0);
        if !self.spoils(len) || start.checked_add(head) != Some(valid) {
            return Ok(());
        }
        let mut junk = [0; CQE_HEAD];
        random::fill(&mut junk);
        let junk = junk.get(..len).unwrap_or_default();
        self.guest.write(start, junk).map_err(|_| AccessError)
    }

    /// Whether writes have to be remembered.
    #[inline]
    fn is_faulty(&self) -> bool {
        matches!(self.fault.get(), Fault::Garbage | Fault::Cqe)
    }
}

impl Memory for NodeMemory {
    #[inline]
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        self.reach()?.read(addr, buf).map_err(|_| AccessError)
    }

    #[inline]
    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        if self.is_faulty() {
            self.last_write.set((addr, bytes.len()));
        }
        self.reach()?.write(addr, bytes).map_err(|_| AccessError)
    }

    #[inline]
    fn store_release(&self, addr: u64, value: u32) -> Result<(), AccessError> {
        if self.is_faulty() {
            self.spoil(addr)?;
        }
        let stored = self.reach()?.store_u32(addr, value.to_le());
        stored.map_err(|_| AccessError)
    }

    fn atomic(&self, addr: u64, operation: Atomic) -> Result<u64, AccessError> {
        let guest = self.reach()?;
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
        GuestMemory::copy(self.reach()?, from, target.reach()?, to, len).map_err(|_| AccessError)
    }
}

impl WordMemory for NodeMemory {
    #[inline]
    fn load_acquire(&self, addr: u64) -> Result<u32, AccessError> {
        let word = self.reach()?.load_u32(addr);
        word.map(u32::from_le).map_err(|_| AccessError)
    }

    fn compare_exchange(&self, addr: u64, expected: u32, value: u32) -> Result<bool, AccessError> {
        let (expected, value) = (expected.to_le(), value.to_le());
        let old = self.reach()?.compare_exchange_u32(addr, expected, value);
        old.map_or(Err(AccessError), |old| Ok(old == expected))
    }

    fn check(&self, addr: u64, len: usize) -> Result<(), AccessError> {
        let checked = self.reach()?.check(addr, len, Rights::ReadWrite);
        checked.map_err(|_| AccessError)
    }
}
