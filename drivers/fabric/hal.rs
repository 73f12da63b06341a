// SPDX-License-Identifier: GPL-2.0
//! The function below the driver, whatever it is: what differs between kinds of functions is here.

mod pci;
mod pool;

pub(crate) use self::{
    pci::Driver,
    pool::{DaxDriver, IvshmemDriver},
};

use core::ops::Range;
use kernel::{bindings, prelude::*};
use nk::{mmap::MmapRange, sched::cond_resched};
use nupa_engine::MappedGrant;
use nupa_proto::{
    pool::sharing::{DmHandle, RingOwner},
    regs::REG_CLOCK,
};

/// What is said of what a function cannot do (`EOPNOTSUPP`).
pub(crate) fn unsupported() -> Error {
    Error::from_errno(-(bindings::EOPNOTSUPP as i32))
}

/// A function that follows `Documentation/controller.md`: control registers (BAR 0), doorbell pages and device memory
/// (BAR 2), the right to use memory. Once the driver is unbound nothing here has an effect any more.
///
/// It is called through a table: next to a kick or a register access that is nothing, and rings and doorbells in memory
/// are reached without it.
pub(crate) trait Function: Send + Sync {
    /// Reads a 32-bit control register, `REG_*` of [`nupa_proto::regs`]; all ones if the function is gone. May sleep.
    /// `ENODEV` once the driver is unbound, also of the others.
    fn read32(&self, register: usize) -> Result<u32>;

    /// Reads a 64-bit control register. May sleep.
    fn read64(&self, register: usize) -> Result<u64>;

    /// Writes a 32-bit control register. May sleep.
    fn write32(&self, register: usize, value: u32) -> Result;

    /// Writes a 64-bit control register. May sleep.
    fn write64(&self, register: usize, value: u64) -> Result;

    /// Reads the function's clock, if it has one ([`REG_CLOCK`]). May sleep.
    fn clock(&self) -> Result<u64> {
        self.read64(REG_CLOCK)
    }

    /// Lets the function read and write memory and raise interrupts. May sleep.
    fn allow_dma(&self);

    /// Ends that, however broken the function is. May sleep.
    fn revoke_dma(&self);

    /// The host goes to sleep: the function, which was reset, does nothing by itself until [`Function::resume`], and whatever
    /// is asked of it meanwhile is in vain. Sleeps.
    fn suspend(&self) {}

    /// Undoes that. An error if the function lost its place in the fabric meanwhile. Sleeps.
    fn resume(&self) -> Result {
        Ok(())
    }

    /// The machine goes down: leaves the fabric for good. Sleeps.
    fn shutdown(&self) {
        self.revoke_dma();
    }

    /// Doorbell page pairs that there is room for.
    fn doorbell_room(&self) -> u32;

    /// Loads a word of shared doorbell pages that are not in memory of ours; `offset` is one in BAR 2. Any context.
    fn load32(&self, offset: usize) -> u32;

    /// Stores a word there. Any context.
    fn store32(&self, offset: usize, value: u32);

    /// Stores 8 bytes there. Any context.
    fn store64(&self, offset: usize, value: u64);

    /// Tells the function that the queue of this doorbell page and slot has work up to the free-running `index`; `push`
    /// if the last descriptor of it is in the push slot. Any context.
    fn kick(&self, page: u32, slot: u16, index: u32, push: bool);

    /// Tells the peer of a connected queue pair of ours that there is a message in its process ring, for which it waits. Nothing where there are
    /// no such rings, or if the pair is not connected. Sleeps.
    fn kick_peer(&self, _qpn: u32) {}

    /// Makes the event of a connected queue pair's receive completion queue, if that is armed: a message in its process ring has waited for a receive
    /// entry, and there is one. Nothing where there are no such rings. Sleeps.
    fn kick_event(&self, _qpn: u32) {}

    /// As [`Function::kick`], and has it looked at before this returns where that is possible. May sleep.
    fn kick_now(&self, page: u32, slot: u16, index: u32) {
        self.kick(page, slot, index, false);
    }

    /// Does what there is to do for a function that has no processor of its own, in the caller's time; nothing for others.
    /// For whoever waits for a completion. May sleep.
    fn service(&self) {}

    /// Where the CPU has `len` bytes at `offset` of BAR 2; `None` if it has not. Without trapped pages there, user contexts
    /// kick by way of the driver; device memory is where it would be behind them. Any context.
    fn window(&self, offset: usize, len: u64) -> Option<MmapRange>;

    /// Whether device memory is known to outlive a loss of power. Any context.
    fn is_persistent(&self) -> bool;

    /// Whether the function can reach `len` bytes of the host's memory at a DMA address, at least one, as far as this host
    /// knows. Any context.
    fn can_reach(&self, address: u64, len: usize, write: bool) -> bool;

    /// Zeroes `len` bytes of device memory at `offset` of BAR 2, a multiple of 8, as everybody sees them who is given them
    /// afterwards. `EINVAL` if they are not inside, `ENODEV` once the function is lost or the driver is unbound. Sleeps.
    fn clear(&self, offset: usize, len: u64) -> Result;

    /// The processor of the thread that does nothing but poll for the function, if there is one. Any context.
    fn poll_cpu(&self) -> Option<u32> {
        None
    }

    /// Has a thread on this processor poll, or none. `EOPNOTSUPP` for a function that nobody polls for, `EINVAL` if the processor is not
    /// online, `ENODEV` while the host sleeps and once the driver is unbound, `ENOMEM` if no thread can be started: then the function polls as by
    /// default. Sleeps.
    fn set_poll_cpu(&self, _cpu: Option<u32>) -> Result {
        Err(unsupported())
    }

    /// What lets functions of other hosts use this one's device memory, if they can.
    fn sharing(&self) -> Option<&dyn Sharing>;
}

/// Device memory that functions share. All of this sleeps. What is taken goes back by its number; of things that were taken
/// before the driver was unbound nothing is left then.
pub(crate) trait Sharing: Send + Sync {
    /// Lets others use `len` bytes of the function's device memory at `offset`, which is at the start of a page. Returns the
    /// number of the export, too. `EINVAL` if they are not inside, `ENOSPC` if there are too many exports. If `ring` is not zeroes
    /// they are a process ring, and only for the connection that it says: `EOPNOTSUPP` where there can be none.
    fn export(&self, offset: u64, len: u64, ring: &RingOwner) -> Result<(u16, DmHandle)>;

    /// Takes an export of `memory`, from its start on, back: nobody on this host uses it any more, and others may go on. A process ring is
    /// closed.
    fn withdraw(&self, export: u16, memory: &MmapRange);

    /// Whether there can be process rings. Any context.
    fn has_rings(&self) -> bool;

    /// Nobody on this host uses `memory`, which is this function's, any more, and others may go on.
    fn let_go(&self, memory: &MmapRange);

    /// Takes a hold on what another function, or this one, exports, until it is released. `EINVAL` if the handle is none of
    /// this fabric, `ENOENT` if nothing is exported under it, `ESTALE` if the node that exported is not the same any more,
    /// `ENOSPC` if there are too many holds.
    fn import(&self, handle: &DmHandle) -> Result<(u16, Held)>;

    /// The same with the process ring that a node exports for a connection. `EOPNOTSUPP` where there can be none, `ENOENT` if there is no such.
    fn import_ring(&self, node: u16, ring: &RingOwner) -> Result<(u16, Held)>;

    /// Ends a hold on `memory`: nobody on this host uses it any more.
    fn release(&self, hold: u16, memory: &Held);

    /// Lets a process map memory of another function's that a queue pair of this one has a grant for, by its key, until it is released. `ENOENT` if there is no
    /// grant (yet), or the memory cannot be mapped, `ENOSPC` if there are too many holds.
    fn map_grant(&self, qpn: u32, key: u32) -> Result<(Granted, MmapRange)>;

    /// Whether the process may go on; else it is to stop soon.
    fn is_granted(&self, granted: &Granted) -> bool;

    /// No process has the memory mapped any more.
    fn unmap_grant(&self, granted: &Granted);

    /// Tells what of the function's device memory is held by whomever, in pieces that may overlap. What was withdrawn before
    /// and is not told is nobody's.
    fn held(&self, found: &mut dyn FnMut(Range<u64>));
}

/// A grant whose memory a process has mapped.
#[derive(Clone, Copy)]
pub(crate) struct Granted {
    /// Number of the hold.
    pub(crate) hold: u16,
    pub(crate) mapped: MappedGrant,
}

/// Memory that this host holds.
#[derive(Clone)]
pub(crate) struct Held {
    /// Where the CPU has it.
    pub(crate) window: MmapRange,
    /// Where the function has it.
    pub(crate) address: u64,
    /// Bytes that were exported.
    pub(crate) len: u64,
}

/// Calls `f` with pieces of a range, one after the other, and lets others run in between. Sleeps.
fn in_steps(range: Range<usize>, step: usize, mut f: impl FnMut(Range<usize>) -> Result) -> Result {
    let mut start = range.start;
    while start < range.end {
        let end = start.saturating_add(step).min(range.end);
        f(start..end)?;
        cond_resched();
        start = end;
    }
    Ok(())
}
