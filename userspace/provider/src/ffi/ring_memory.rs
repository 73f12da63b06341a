// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory of process rings: device memory that the program does not see.

use std::cell::UnsafeCell;

use nupa_proto::pool::sharing::DmHandle;
use nupa_proto::process_ring::RING_SIZE;
use nupa_proto::uabi::{
    RegionPlace, EXPORT_DM, EXPORT_DM_HANDLE, EXPORT_DM_RING, METHOD_DM_EXPORT,
};
use rustix::io::Errno;
use zerocopy::FromZeros;

use super::device_memory::{make_mapped, map_region, Source, OBJECT};
use super::ioctl::{self, Attributes};
use super::memory::Pages;
use super::object::Plain;
use super::sys;

/// The kernel's object behind a ring's memory, freed when this is dropped. What is mapped stays until it is unmapped.
///
/// # Invariants
///
/// The kernel made the object for an open context, which is open for as long as this exists.
pub(crate) struct RingObject {
    /// In a place of its own: rdma-core writes to it.
    dm: Box<UnsafeCell<sys::verbs_dm>>,
}

// SAFETY: the structure is a handle and a pointer to the context, which any thread may name in a command.
unsafe impl Send for RingObject {}
// SAFETY: as above; it is not changed once it is made.
unsafe impl Sync for RingObject {}

impl std::fmt::Debug for RingObject {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("RingObject").finish_non_exhaustive()
    }
}

/// Memory for a ring of a queue pair's context.
///
/// # Safety
///
/// The kernel made the pair for this provider. Its context is open for as long as what this returns exists.
unsafe fn make_from(
    qp: *mut sys::ibv_qp,
    source: Source<'_>,
) -> Result<(Pages, RingObject), Errno> {
    let attr = sys::ibv_alloc_dm_attr {
        length: RING_SIZE,
        log_align_req: 0,
        comp_mask: 0,
    };
    let dm = Box::new(UnsafeCell::new(sys::verbs_dm::zeroed()));
    // SAFETY: the caller's word; the structure is new, and the attributes live across the call.
    let pages = unsafe { make_mapped((*qp).context, &raw const attr, source, dm.get()) }?;
    // INVARIANT: the kernel has just made it, and the caller keeps the context open.
    Ok((pages, RingObject { dm }))
}

/// Makes memory of zeroes for the ring that a queue pair receives from. Nobody else finds it before [`RingObject::publish`].
///
/// # Safety
///
/// The kernel made the pair for this provider. Its context is open for as long as what this returns exists.
pub(crate) unsafe fn make(qp: *mut sys::ibv_qp) -> Result<(Pages, RingObject), Errno> {
    // SAFETY: the caller's word.
    unsafe { make_from(qp, Source::Own) }
}

/// Finds the ring that a queue pair's peer receives from. `ENOENT` if there is none (yet).
///
/// # Safety
///
/// As for [`make`].
pub(crate) unsafe fn find(qp: *mut sys::ibv_qp) -> Result<(Pages, RingObject), Errno> {
    // SAFETY: the caller's word.
    unsafe { make_from(qp, Source::RingOfPeer((*qp).handle)) }
}

/// Maps the region of a queue pair's peer that a key names. `ENOENT` if there is none (yet).
///
/// # Safety
///
/// As for [`make`].
pub(crate) unsafe fn map(
    qp: *mut sys::ibv_qp,
    key: u32,
) -> Result<(Pages, RegionPlace, RingObject), Errno> {
    let dm = Box::new(UnsafeCell::new(sys::verbs_dm::zeroed()));
    // SAFETY: the caller's word; the structure is new.
    let (pages, place) = unsafe { map_region(qp, key, dm.get()) }?;
    // INVARIANT: the kernel has just made it, and the caller keeps the context open.
    Ok((pages, place, RingObject { dm }))
}

impl RingObject {
    /// Lets the peer of a queue pair find the ring, whose control page is written.
    ///
    /// # Safety
    ///
    /// The kernel made the pair for this provider, in the context of the one that the memory was made for, and it exists.
    pub(crate) unsafe fn publish(&self, qp: *mut sys::ibv_qp) -> Result<(), Errno> {
        // The kernel writes zeroes: there is no handle of a ring.
        let mut none = DmHandle::new_zeroed();
        // SAFETY: the caller's word; the structure is not written to any more.
        let (context, pair, memory) =
            unsafe { ((*qp).context, (*qp).handle, (*self.dm.get()).handle) };
        let attributes = Attributes::new([
            ioctl::object(EXPORT_DM, memory),
            ioctl::value(EXPORT_DM_HANDLE, &raw mut none),
            ioctl::object(EXPORT_DM_RING, pair),
        ]);
        // SAFETY: as above; a pair belongs to an open context, and `none` lives.
        unsafe { attributes.execute(context, OBJECT, METHOD_DM_EXPORT) }
    }
}

impl Drop for RingObject {
    fn drop(&mut self) {
        // SAFETY: the kernel made it for a context that is open (invariant). An error says that the device is gone, and the object with it.
        unsafe { sys::ibv_cmd_free_dm(self.dm.get()) };
    }
}
