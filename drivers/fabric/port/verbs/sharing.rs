// SPDX-License-Identifier: GPL-2.0
//! Device memory that nodes share.

use crate::{
    hal::{unsupported, Function, Granted, Held, Sharing},
    Port,
};
use core::ops::Range;
use kernel::{prelude::*, sync::Arc};
use nk::mmap::MmapRange;
use nupa_proto::pool::sharing::{DmHandle, RingOwner};

/// Device memory of this node's that programs of any node may import, until this is dropped. Who has imported it by then keeps
/// it.
pub struct ExportedMemory {
    function: Arc<dyn Function>,
    number: u16,
    handle: DmHandle,
    window: MmapRange,
}

impl ExportedMemory {
    /// What a function has exported under this number: memory that the CPU has at `window`.
    pub(crate) fn new(
        function: Arc<dyn Function>,
        number: u16,
        handle: DmHandle,
        window: MmapRange,
    ) -> Self {
        Self {
            function,
            number,
            handle,
            window,
        }
    }

    /// What programs import it with: whoever has this may use the memory.
    pub fn handle(&self) -> &DmHandle {
        &self.handle
    }
}

impl Drop for ExportedMemory {
    fn drop(&mut self) {
        if let Some(sharing) = self.function.sharing() {
            sharing.withdraw(self.number, &self.window);
        }
    }
}

/// Device memory of some node's that this one holds: nobody gives it to anybody else before this is dropped, whatever becomes
/// of its owner. Until then nothing may use it any more.
pub struct ImportedMemory {
    function: Arc<dyn Function>,
    number: u16,
    held: Held,
}

impl ImportedMemory {
    /// Where the CPU has it.
    pub fn window(&self) -> MmapRange {
        self.held.window.clone()
    }

    /// Where the function has it: regions of it are registered by addresses from here on.
    pub fn address(&self) -> u64 {
        self.held.address
    }

    /// Bytes that were exported; the window has whole pages.
    pub fn size(&self) -> u64 {
        self.held.len
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        if let Some(sharing) = self.function.sharing() {
            sharing.release(self.number, &self.held);
        }
    }
}

/// Memory of another node's that a queue pair has leave to write to and to read, and a process has mapped. It is its owner's alone again when this is dropped:
/// no process may have it mapped by then. Sleeps.
pub struct GrantedMemory {
    function: Arc<dyn Function>,
    granted: Granted,
    window: MmapRange,
}

impl GrantedMemory {
    /// Where the CPU has it.
    pub fn window(&self) -> MmapRange {
        self.window.clone()
    }

    /// Addresses that requests name it by.
    pub fn place(&self) -> Range<u64> {
        let mapped = &self.granted.mapped;
        mapped.addr()..mapped.addr().saturating_add(mapped.len())
    }

    /// Whether the process may go on. If not, its owner waits, but no longer than a second. Sleeps.
    pub fn is_granted(&self) -> bool {
        let sharing = self.function.sharing();
        sharing.is_some_and(|sharing| sharing.is_granted(&self.granted))
    }
}

impl Drop for GrantedMemory {
    fn drop(&mut self) {
        if let Some(sharing) = self.function.sharing() {
            sharing.unmap_grant(&self.granted);
        }
    }
}

impl Port {
    /// Lets a process map the memory that a queue pair of its has leave to write to and to read, by the key that its peer has for it. `EOPNOTSUPP` where there is
    /// none, `ENOENT` if the queue pair has no such leave (yet), or the memory is not whole pages, `ENOSPC` if there are too many holds. Sleeps.
    pub fn map_granted(&self, qpn: u32, key: u32) -> Result<GrantedMemory> {
        let function = self.controller.doorbells().function().clone();
        let sharing = function.sharing().ok_or_else(unsupported)?;
        let (granted, window) = sharing.map_grant(qpn, key)?;
        Ok(GrantedMemory {
            function,
            granted,
            window,
        })
    }

    /// Whether connected queue pairs may have process rings. Does not sleep.
    pub fn has_process_rings(&self) -> bool {
        let doorbells = self.controller.doorbells();
        let sharing = doorbells.function().sharing();
        sharing.is_some_and(|sharing| sharing.has_rings())
    }

    /// Takes a hold on the process ring that a node exports for a connection. `EOPNOTSUPP` where there are none, `ENOENT` if there is no such, else as
    /// [`Port::import_memory`]. Sleeps.
    pub fn import_ring(&self, node: u16, ring: &RingOwner) -> Result<ImportedMemory> {
        self.import_with(|sharing| sharing.import_ring(node, ring))
    }

    /// Takes a hold on what a node has exported. `EOPNOTSUPP` where memory cannot be shared, `EINVAL` if the handle is none of this fabric, `ENOENT`
    /// if nothing is exported under it (any more), `ESTALE` if the node has left, died or was reset since, `ENOSPC` if there
    /// are too many holds.
    pub fn import_memory(&self, handle: &DmHandle) -> Result<ImportedMemory> {
        self.import_with(|sharing| sharing.import(handle))
    }

    fn import_with(
        &self,
        import: impl FnOnce(&dyn Sharing) -> Result<(u16, Held)>,
    ) -> Result<ImportedMemory> {
        let function = self.controller.doorbells().function().clone();
        let sharing = function.sharing().ok_or_else(unsupported)?;
        let (number, held) = import(sharing)?;
        Ok(ImportedMemory {
            function,
            number,
            held,
        })
    }
}
