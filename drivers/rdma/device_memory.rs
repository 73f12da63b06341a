// SPDX-License-Identifier: GPL-2.0
//! Device memory: pieces of the controller's own, for processes, and pieces that nodes share.

use crate::{
    context::Mapping,
    device::Rdma,
    peer_region::MappedRegion,
    process_ring::{OwnRing, RingPart},
    qp::Qp,
    region::Region,
};
use core::ops::Range;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use nk::mmap::MmapRange;
use nk_rdma::{error::unsupported, Access, Context, Device, DmHandle, Pd, UserRegion};
use nupa_fabric::{AllocatedMemory, Charge, ExportedMemory, ImportedMemory, KnownRing, Quota};
use nupa_proto::{pool::sharing, process_ring::RING_SIZE};
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
    /// The process ring of a queue pair's peer. Fields are dropped in order.
    PeerRing {
        /// While the pair's controller may look at it.
        _known: RingPart<KnownRing>,
        memory: ImportedMemory,
        /// Dropped after `memory`.
        _charge: Charge,
    },
    /// A region of a queue pair's peer, which the process may map until the peer, or the pair, ends that.
    PeerRegion {
        /// Ends with the piece.
        _region: MappedRegion,
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
    /// Counts process rings.
    rings: Arc<Quota>,
    allocated: AllocatedMemory,
}

/// An export.
enum Exported {
    /// For whoever has its handle.
    Shared {
        memory: ExportedMemory,
        /// Dropped after `memory`.
        _charge: Charge,
    },
    /// For the peer of a queue pair. The peer may keep what it had of it, so this is never exported again, unless the first attempt failed: who
    /// tries that harms itself alone.
    Ring {
        /// The ring is closed when this is dropped.
        _ring: OwnRing,
        /// Dropped after `_ring`.
        _charge: Charge,
    },
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
            rings: dev.limits().rings.clone(),
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

    /// The same with the process ring that the peer of a queue pair receives from it with. `EOPNOTSUPP` where there are none, `EINVAL` for
    /// another length and for a pair that does not send to a peer, `ENOENT` if the peer has none (yet), `EDQUOT` if the user has
    /// its share of them, else as [`Port::import_ring`] says.
    pub(crate) fn find_ring(
        dev: &Device<Rdma>,
        context: &Context<Rdma>,
        len: u64,
        qp: &Qp,
    ) -> Result<(Arc<Self>, u64)> {
        if !dev.port().has_process_rings() {
            return Err(unsupported());
        }
        if len != RING_SIZE as u64 {
            return Err(EINVAL);
        }
        let (known, (memory, charge)) = qp.use_ring(dev, |node, ring| {
            let charge = dev.limits().peer_rings.charge_user()?;
            let memory = dev.port().import_ring(node, ring)?;
            Ok((memory.address(), (memory, charge)))
        })?;
        let window = memory.window();
        let memory = Memory::PeerRing {
            _known: known,
            memory,
            _charge: charge,
        };
        Self::offer(context, memory, len, window)
    }

    /// The region that a key of a queue pair's peer names, where it begins for requests of the pair, and its bytes. `EOPNOTSUPP` where there is none, `EDQUOT` if the
    /// user has its share of what is mapped of peers', else as [`Port::map_granted`] says.
    pub(crate) fn find_region(
        dev: &Device<Rdma>,
        context: &Context<Rdma>,
        qp: &Qp,
        key: u32,
    ) -> Result<(Arc<Self>, u64, Range<u64>)> {
        let charge = dev.limits().regions.charge_user()?;
        let (region, place) = qp.map_region(dev, key, charge)?;
        let offset = context.offer_revocable(region.memory())?;
        let piece = Self {
            memory: Memory::PeerRegion { _region: region },
            len: place.end.saturating_sub(place.start),
        };
        let piece = Arc::new(piece, GFP_KERNEL_ACCOUNT);
        let piece = piece.inspect_err(|_| context.withdraw(offset))?;
        Ok((piece, offset, place))
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
            Memory::PeerRing { .. } | Memory::PeerRegion { .. } => return Err(EINVAL),
        };
        let mut exported = own.exported.lock();
        match &*exported {
            Some(Exported::Shared { memory, .. }) => return bytes(memory.handle()),
            Some(Exported::Ring { .. }) => return Err(EINVAL),
            None => {}
        }
        let charge = own.exports.charge_user()?;
        let memory = own.allocated.export(self.len)?;
        let handle = bytes(memory.handle());
        *exported = Some(Exported::Shared {
            memory,
            _charge: charge,
        });
        handle
    }

    /// Lets the peer of a queue pair find the piece as the process ring that the pair receives from, for as long as both exist and the pair
    /// receives. `EINVAL` if the piece is not the node's own, of another size, or exported already, and for a pair that cannot have a ring;
    /// `EDQUOT` if the user has its share of rings, else as [`AllocatedMemory::export_ring`] says.
    pub(crate) fn export_ring(&self, qp: &Qp) -> Result {
        let Memory::Own(own) = &self.memory else {
            return Err(EINVAL);
        };
        if self.len != RING_SIZE as u64 {
            return Err(EINVAL);
        }
        let mut exported = own.exported.lock();
        if exported.is_some() {
            return Err(EINVAL);
        }
        let charge = own.rings.charge_user()?;
        let address = own.allocated.address()?;
        let ring = qp.publish_ring(address, |owner| own.allocated.export_ring(owner))?;
        *exported = Some(Exported::Ring {
            _ring: ring,
            _charge: charge,
        });
        Ok(())
    }

    /// Where the controller has it.
    fn address(&self) -> Result<u64> {
        match &self.memory {
            Memory::Own(own) => own.allocated.address(),
            Memory::Imported { memory, .. } | Memory::PeerRing { memory, .. } => {
                Ok(memory.address())
            }
            // Nobody would take away what the controller has of it.
            Memory::PeerRegion { .. } => Err(EINVAL),
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
