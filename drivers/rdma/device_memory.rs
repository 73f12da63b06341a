// SPDX-License-Identifier: GPL-2.0
//! Device memory: pieces of the controller's own, for processes, and pieces that nodes share.

use crate::{context::Mapping, device::Rdma, region::Region};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use nk::mmap::MmapRange;
use nk_rdma::{error::unsupported, Access, Context, Device, DmHandle, Pd, UserRegion};
use nupa_fabric::{AllocatedMemory, Charge, ExportedMemory, ImportedMemory, Quota};
use nupa_proto::pool::sharing;
use zerocopy::{FromBytes, IntoBytes};

/// Device memory that a process has.
pub(crate) struct Piece {
    memory: Memory,
    /// Bytes of it, as the process sees it.
    len: u64,
}

/// Whose memory it is.
enum Memory {
    /// The node's own.
    Own(Pin<KBox<Own>>),
    /// Some process's, that has exported it.
    Imported {
        memory: ImportedMemory,
        handle: sharing::DmHandle,
        /// Dropped after `memory`.
        _charge: Charge,
    },
}

/// A part of the node's own memory.
#[pin_data]
struct Own {
    /// Once it is exported. Taken back before the memory is free.
    #[pin]
    exported: Mutex<Option<Exported>>,
    /// Counts exports.
    exports: Arc<Quota>,
    allocated: AllocatedMemory,
}

/// An export. Fields are dropped in order.
struct Exported {
    memory: ExportedMemory,
    _charge: Charge,
}

impl Piece {
    /// Allocates `len` bytes of zeroes, aligned to `1 << alignment`, for a process, and lets it map them. Returns the offset for
    /// `mmap()` too. `EOPNOTSUPP` without device memory, `ENOMEM` if there is no room or the user has its share.
    pub(crate) fn for_user(
        dev: &Device<Rdma>,
        context: &Context<Rdma>,
        len: u64,
        alignment: u32,
    ) -> Result<(Arc<Self>, u64)> {
        let memory = dev.device_memory().ok_or_else(unsupported)?;
        let align = 1u64.checked_shl(alignment).ok_or(EINVAL)?;
        let own = try_pin_init!(Own {
            exported <- new_mutex!(None),
            exports: dev.limits().exports.clone(),
            allocated: memory.alloc(len, align)?,
        });
        let own = KBox::try_pin_init(own, GFP_KERNEL_ACCOUNT)?;
        let window = own.allocated.window();
        Self::offer(context, Memory::Own(own), len, window)
    }

    /// The same with memory of `len` bytes that is exported under `handle`. `EOPNOTSUPP` where none can be, `EINVAL` if it has
    /// another length or the handle is none, `EDQUOT` if the user has its share of imports, else as
    /// [`Port::import_memory`] says.
    pub(crate) fn import(
        dev: &Device<Rdma>,
        context: &Context<Rdma>,
        len: u64,
        handle: &DmHandle,
    ) -> Result<(Arc<Self>, u64)> {
        let handle = sharing::DmHandle::read_from_bytes(handle).map_err(|_| EINVAL)?;
        let charge = dev.limits().imports.charge_user()?;
        let memory = dev.port().import_memory(&handle)?;
        if memory.size() != len {
            return Err(EINVAL);
        }
        let window = memory.window();
        let memory = Memory::Imported {
            memory,
            handle,
            _charge: charge,
        };
        Self::offer(context, memory, len, window)
    }

    /// Lets a process map a piece.
    fn offer(
        context: &Context<Rdma>,
        memory: Memory,
        len: u64,
        window: MmapRange,
    ) -> Result<(Arc<Self>, u64)> {
        let piece = Arc::new(Self { memory, len }, GFP_KERNEL_ACCOUNT)?;
        let offset = context.offer(window, Mapping::memory(piece.clone()))?;
        Ok((piece, offset))
    }

    /// Lets whoever has the handle that this returns use the memory, for as long as the piece exists. `EDQUOT` if the user has
    /// its share of exports, else as [`AllocatedMemory::export`] says.
    pub(crate) fn export(&self) -> Result<DmHandle> {
        let own = match &self.memory {
            Memory::Own(own) => own,
            // Who may use it may pass it on.
            Memory::Imported { handle, .. } => return bytes(handle),
        };
        let mut exported = own.exported.lock();
        if let Some(exported) = &*exported {
            return bytes(exported.memory.handle());
        }
        let charge = own.exports.charge_user()?;
        let export = Exported {
            memory: own.allocated.export(self.len)?,
            _charge: charge,
        };
        bytes(exported.insert(export).memory.handle())
    }

    /// Where the controller has it.
    fn address(&self) -> Result<u64> {
        match &self.memory {
            Memory::Own(own) => own.allocated.address(),
            Memory::Imported { memory, .. } => Ok(memory.address()),
        }
    }

    /// Registers `len` bytes at `offset` in the piece; the caller has checked that they lie inside.
    pub(crate) fn register(
        &self,
        dev: &Device<Rdma>,
        pd: &Pd<Rdma>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Region> {
        let address = self.address()?.checked_add(offset).ok_or(EINVAL)?;
        let region = UserRegion {
            iova: 0,
            len,
            access,
        };
        Region::of_device_memory(dev, pd, address, &region)
    }
}

/// A handle as the RDMA core passes it.
fn bytes(handle: &sharing::DmHandle) -> Result<DmHandle> {
    handle.as_bytes().try_into().map_err(|_| EINVAL)
}
