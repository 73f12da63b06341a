// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Device memory: pieces of the controller's own, and such that nodes share.

use core::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::slice;

use nupa_proto::doorbell::PAGE_SIZE;
use nupa_proto::pool::sharing::DmHandle;
use nupa_proto::uabi::{
    RegionPlace, ALLOC_DM_IMPORT, ALLOC_DM_KEY, ALLOC_DM_MMAP_OFFSET, ALLOC_DM_REGION,
    ALLOC_DM_RING,
};
use rustix::io::Errno;
use zerocopy::FromZeros;

use super::errno::{check, code, pointer};
use super::ioctl::{self, object_id, Attributes};
use super::memory::Pages;
use super::object::{Object, Pending};
use super::sys;

/// The object that commands about device memory are of.
pub(super) const OBJECT: u16 = object_id(sys::UVERBS_OBJECT_DM);

/// A mapped piece of device memory.
struct DeviceMemory {
    pages: Pages,
    len: usize,
}

type DmObject = Object<sys::verbs_dm, DeviceMemory>;

/// The structure around a `struct ibv_dm` of this provider, which begins with it.
pub(super) fn as_verbs(dm: *mut sys::ibv_dm) -> *mut sys::verbs_dm {
    dm.cast()
}

/// Where device memory comes from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// It is the node's own, and new.
    Own,
    /// Somebody's, who exported it.
    Shared(&'a DmHandle),
    /// The process ring that the peer of the queue pair with this handle receives from.
    RingOfPeer(u32),
}

/// Has the kernel allocate device memory, or import some; where it can be mapped.
///
/// # Safety
///
/// `context` is one of this provider's, `attr` the program's.
unsafe fn command(
    context: *mut sys::ibv_context,
    attr: *const sys::ibv_alloc_dm_attr,
    source: Source<'_>,
    base: *mut sys::verbs_dm,
) -> Result<u64, Errno> {
    let mut offset = 0u64;
    let mut handle = match source {
        Source::Shared(handle) => *handle,
        Source::Own | Source::RingOfPeer(_) => DmHandle::new_zeroed(),
    };
    let (count, second) = match source {
        // The second one is left out.
        Source::Own => (1, ioctl::value(ALLOC_DM_IMPORT, &raw mut handle)),
        Source::Shared(_) => (2, ioctl::value(ALLOC_DM_IMPORT, &raw mut handle)),
        Source::RingOfPeer(qp) => (2, ioctl::object(ALLOC_DM_RING, qp)),
    };
    let mut attributes =
        Attributes::new([ioctl::value(ALLOC_DM_MMAP_OFFSET, &raw mut offset), second]);
    let link = attributes.link(count);
    // SAFETY: the caller's word; the attributes and what they point to live across the call.
    check(unsafe { sys::ibv_cmd_alloc_dm(context, attr, base, link) })?;
    // SAFETY: the kernel may have written it behind the compiler's back.
    Ok(unsafe { (&raw const offset).read_volatile() })
}

/// Maps the region of a queue pair's peer that a key names, if the kernel finds it. If this fails the kernel knows nothing of `base`.
///
/// # Safety
///
/// The kernel made the queue pair for this provider, and it exists; `base` is a structure of the caller's that the kernel knows nothing of.
pub(super) unsafe fn map_region(
    qp: *mut sys::ibv_qp,
    key: u32,
    base: *mut sys::verbs_dm,
) -> Result<(Pages, RegionPlace), Errno> {
    let attr = sys::ibv_alloc_dm_attr {
        length: 0,
        log_align_req: 0,
        comp_mask: 0,
    };
    // SAFETY: the caller's word.
    let (context, handle) = unsafe { ((*qp).context, (*qp).handle) };
    let (mut offset, mut place) = (0u64, RegionPlace::default());
    let mut attributes = Attributes::new([
        ioctl::value(ALLOC_DM_MMAP_OFFSET, &raw mut offset),
        ioctl::value(ALLOC_DM_REGION, &raw mut place),
        ioctl::object(ALLOC_DM_RING, handle),
        ioctl::number(ALLOC_DM_KEY, key),
    ]);
    let link = attributes.link(4);
    // SAFETY: as above; the attributes and what they point to live across the call.
    check(unsafe { sys::ibv_cmd_alloc_dm(context, &raw const attr, base, link) })?;
    // SAFETY: the kernel may have written them behind the compiler's back.
    let (offset, place) = unsafe {
        (
            (&raw const offset).read_volatile(),
            (&raw const place).read_volatile(),
        )
    };
    let len = usize::try_from(place.len.get()).unwrap_or(0);
    // SAFETY: as above; the kernel has made the object just now.
    let pages = unsafe { map_or_free(context, offset, len, base) }?;
    Ok((pages, place))
}

/// Maps device memory that the kernel has made just now, of whole pages, or has it forget that.
///
/// # Safety
///
/// The kernel has made it as `base`, for `context`, which is open, and nobody else knows it.
unsafe fn map_or_free(
    context: *mut sys::ibv_context,
    offset: u64,
    len: usize,
    base: *mut sys::verbs_dm,
) -> Result<Pages, Errno> {
    // SAFETY: the file of an open context is open.
    let file = unsafe { BorrowedFd::borrow_raw((*context).cmd_fd) };
    Pages::of_file(file, offset, len).inspect_err(|_| {
        // SAFETY: the caller's word.
        unsafe { sys::ibv_cmd_free_dm(base) };
    })
}

/// Makes device memory and maps it. If this fails the kernel knows nothing of `base`.
///
/// # Safety
///
/// `context` is one of this provider's and open, `attr` the caller's, and `base` a structure of the caller's that the kernel knows nothing of.
pub(super) unsafe fn make_mapped(
    context: *mut sys::ibv_context,
    attr: *const sys::ibv_alloc_dm_attr,
    source: Source<'_>,
    base: *mut sys::verbs_dm,
) -> Result<Pages, Errno> {
    // SAFETY: the caller's word.
    let len = unsafe { (*attr).length };
    let mapped = len
        .checked_next_multiple_of(PAGE_SIZE)
        .filter(|&len| len > 0);
    let mapped = mapped.ok_or(Errno::INVAL)?;
    // SAFETY: as above.
    let offset = unsafe { command(context, attr, source, base) }?;
    // SAFETY: as above; the kernel has made it just now.
    unsafe { map_or_free(context, offset, mapped, base) }
}

/// Makes device memory, of its own or what somebody shares, and maps it.
///
/// # Safety
///
/// `context` is one of this provider's, `attr` the program's.
pub(super) unsafe fn make(
    context: *mut sys::ibv_context,
    attr: *const sys::ibv_alloc_dm_attr,
    source: Source<'_>,
) -> Result<*mut sys::ibv_dm, Errno> {
    let pending = Pending::<sys::verbs_dm, DeviceMemory>::new();
    // SAFETY: the caller's word; the structure is new.
    let pages = unsafe { make_mapped(context, attr, source, pending.base()) }?;
    // SAFETY: the object is new and ours, the attributes the caller's.
    let (dm, len) = unsafe { (&mut (*pending.base()).dm, (*attr).length) };
    dm.memcpy_to_dm = Some(memcpy_to_dm);
    dm.memcpy_from_dm = Some(memcpy_from_dm);
    Ok(pending.finish(DeviceMemory { pages, len }).cast())
}

/// `verbs_context_ops::alloc_dm`
pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_alloc_dm_attr,
) -> *mut sys::ibv_dm {
    // SAFETY: the program passes its attributes.
    pointer(unsafe { make(context, attr, Source::Own) })
}

/// Where memory is mapped, and its bytes.
///
/// # Safety
///
/// `dm` is one of this provider's.
pub(super) unsafe fn mapping(dm: *mut sys::ibv_dm) -> (u64, usize) {
    // SAFETY: the caller's word.
    let memory = unsafe { DmObject::of(dm) };
    (memory.pages.address(), memory.len)
}

/// `verbs_context_ops::free_dm`
pub(super) unsafe extern "C" fn free_dm(dm: *mut sys::ibv_dm) -> c_int {
    // SAFETY: `dm` is one of this provider's, and the program gives it up.
    let result = check(unsafe { sys::ibv_cmd_free_dm(as_verbs(dm)) });
    if result.is_ok() {
        // SAFETY: as above; the kernel has forgotten it.
        unsafe { DmObject::free(dm) };
    }
    code(result)
}

/// The memory and a place in it, if a copy of `len` bytes stays inside.
///
/// # Safety
///
/// `dm` is one of this provider's and exists as long as the reference is used.
unsafe fn place<'a>(
    dm: *mut sys::ibv_dm,
    offset: u64,
    len: usize,
) -> Result<(&'a DeviceMemory, usize), Errno> {
    // SAFETY: the caller's word.
    let memory = unsafe { DmObject::of(dm) };
    let start = usize::try_from(offset).map_err(|_| Errno::FAULT)?;
    match start.checked_add(len) {
        Some(end) if end <= memory.len => Ok((memory, start)),
        _ => Err(Errno::FAULT),
    }
}

/// `ibv_dm::memcpy_to_dm`
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut sys::ibv_dm,
    offset: u64,
    from: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: `dm` is one of this provider's.
    code(unsafe { place(dm, offset, len) }.map(|(memory, start)| {
        if len > 0 {
            // SAFETY: the program passes `len` readable bytes.
            let bytes = unsafe { slice::from_raw_parts(from.cast::<u8>(), len) };
            memory.pages.write_device(start, bytes);
        }
    }))
}

/// `ibv_dm::memcpy_from_dm`
unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut sys::ibv_dm,
    offset: u64,
    len: usize,
) -> c_int {
    // SAFETY: `dm` is one of this provider's.
    code(unsafe { place(dm, offset, len) }.map(|(memory, start)| {
        if len > 0 {
            // SAFETY: the program passes room for `len` bytes, which nobody else uses meanwhile.
            unsafe { ptr::write_bytes(to.cast::<u8>(), 0, len) };
            // SAFETY: as above; the bytes are initialised now.
            let bytes = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), len) };
            memory.pages.read_device(start, bytes);
        }
    }))
}
