// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory regions. All work on them is the kernel's; which memory of the process they are is kept for messages that go past the engine
//! ([`Regions`]).

use core::ffi::{c_int, c_uint, c_void};
use std::ptr;

use super::context::Context;
use super::device_memory::{as_verbs, mapping};
use super::errno::{check, code, pointer};
use super::object::{Object, Pending, Plain};
use super::process_bytes::ProcessBytes;
use super::sys;
use crate::queue::{Region, Regions};

type MrObject = Object<sys::verbs_mr, ()>;

/// Memory as the process has it: its address and bytes.
type Place = (usize, usize);

/// Hands a region to the program if the kernel made it. It begins at `start` for requests, and is at `place` in the process, if it is mapped there.
///
/// # Safety
///
/// `pd` is one of this provider's, and the program has registered what is at `place`.
unsafe fn finish(
    pd: *mut sys::ibv_pd,
    pending: Pending<sys::verbs_mr, ()>,
    result: c_int,
    start: u64,
    place: Option<Place>,
    access: u32,
) -> *mut sys::ibv_mr {
    if let Err(error) = check(result) {
        return pointer(Err(error));
    }
    // SAFETY: the caller's word; the kernel has made the region.
    let (regions, key) = unsafe { (regions((*pd).context), (*pending.base()).ibv_mr.lkey) };
    if let Some(place) = place {
        // SAFETY: as above.
        regions.insert(key, unsafe { region(pd, start, place, access) });
    }
    pending.finish(()).cast()
}

/// The regions of a context.
///
/// # Safety
///
/// It is one of this provider's, and stays open as long as the reference is used.
unsafe fn regions<'a>(context: *mut sys::ibv_context) -> &'a Regions {
    // SAFETY: the caller's word.
    unsafe { Context::of(context) }.regions()
}

/// A region of memory that the process has mapped.
///
/// # Safety
///
/// As for [`finish`].
unsafe fn region(pd: *mut sys::ibv_pd, start: u64, (addr, len): Place, access: u32) -> Region {
    // SAFETY: the caller's word.
    unsafe {
        Region {
            domain: (*pd).handle,
            start,
            memory: ProcessBytes::new(addr, len),
            writable: access & sys::IBV_ACCESS_LOCAL_WRITE != 0,
            remote_writable: access & sys::IBV_ACCESS_REMOTE_WRITE != 0,
        }
    }
}

/// Flags as the kernel takes them.
fn bits(access: c_int) -> u32 {
    u32::from_ne_bytes(access.to_ne_bytes())
}

/// `verbs_context_ops::reg_mr`
pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut sys::ibv_mr {
    let pending = Pending::new();
    let mut request = sys::ibv_reg_mr::zeroed();
    let mut response = sys::ib_uverbs_reg_mr_resp::zeroed();
    // SAFETY: `pd` is the caller's, the kernel checks the range; our structures live across the call, and the sizes
    // are theirs.
    let result = unsafe {
        sys::ibv_cmd_reg_mr(
            pd,
            addr,
            length,
            iova,
            access,
            pending.base(),
            &raw mut request,
            size_of::<sys::ibv_reg_mr>(),
            &raw mut response,
            size_of::<sys::ib_uverbs_reg_mr_resp>(),
        )
    };
    let place = (addr.addr(), length);
    // SAFETY: as above.
    unsafe { finish(pd, pending, result, iova, Some(place), bits(access)) }
}

/// `verbs_context_ops::reg_dmabuf_mr`
pub(super) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut sys::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut sys::ibv_mr {
    let pending = Pending::new();
    // SAFETY: as in `reg_mr`.
    let result = unsafe {
        let base = pending.base();
        sys::ibv_cmd_reg_dmabuf_mr(pd, offset, length, iova, fd, access, base, ptr::null_mut())
    };
    // SAFETY: as above.
    unsafe { finish(pd, pending, result, iova, None, bits(access)) }
}

/// `verbs_context_ops::reg_dm_mr`
pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut sys::ibv_pd,
    dm: *mut sys::ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut sys::ibv_mr {
    let pending = Pending::new();
    // SAFETY: as in `reg_mr`; `dm` is one of this provider's.
    let result = unsafe {
        let base = pending.base();
        sys::ibv_cmd_reg_dm_mr(
            pd,
            as_verbs(dm),
            offset,
            length,
            access,
            base,
            ptr::null_mut(),
        )
    };
    // SAFETY: as above; the kernel has checked that the range is inside the memory, if it has made the region.
    unsafe {
        let (base, _) = mapping(dm);
        let addr = base
            .checked_add(offset)
            .and_then(|addr| usize::try_from(addr).ok());
        let place = addr.map(|addr| (addr, length));
        finish(pd, pending, result, 0, place, access)
    }
}

/// `verbs_context_ops::rereg_mr`
pub(super) unsafe extern "C" fn rereg_mr(
    mr: *mut sys::verbs_mr,
    flags: c_int,
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let mut request = sys::ibv_rereg_mr::zeroed();
    let mut response = sys::ib_uverbs_rereg_mr_resp::zeroed();
    // SAFETY: `mr` is one of this provider's.
    let before = unsafe { forget(mr) };
    // SAFETY: as in `reg_mr`; `mr` is one of this provider's.
    let result = unsafe {
        sys::ibv_cmd_rereg_mr(
            mr,
            bits(flags),
            addr,
            length,
            addr.addr() as u64,
            access,
            pd,
            &raw mut request,
            size_of::<sys::ibv_rereg_mr>(),
            &raw mut response,
            size_of::<sys::ib_uverbs_rereg_mr_resp>(),
        )
    };
    let changed = |mut region: Region| {
        let has = |flag| result == 0 && bits(flags) & flag != 0;
        if has(sys::IBV_REREG_MR_CHANGE_TRANSLATION) {
            region.start = addr.addr() as u64;
            // SAFETY: the program has registered it.
            region.memory = unsafe { ProcessBytes::new(addr.addr(), length) };
        }
        if has(sys::IBV_REREG_MR_CHANGE_PD) {
            // SAFETY: the program passes a domain of its own.
            region.domain = unsafe { (*pd).handle };
        }
        if has(sys::IBV_REREG_MR_CHANGE_ACCESS) {
            region.writable = bits(access) & sys::IBV_ACCESS_LOCAL_WRITE != 0;
            region.remote_writable = bits(access) & sys::IBV_ACCESS_REMOTE_WRITE != 0;
        }
        region
    };
    // SAFETY: as above. If the kernel has done it in part, the program gives the region up.
    unsafe { remember(mr, before.map(changed)) };
    result
}

/// Does not know the memory of a region any more: what names it goes to the engine. Returns what was known.
///
/// # Safety
///
/// `mr` is one of this provider's.
unsafe fn forget(mr: *mut sys::verbs_mr) -> Option<Region> {
    // SAFETY: the caller's word; its context is open.
    unsafe { regions((*mr).ibv_mr.context).remove((*mr).ibv_mr.lkey) }
}

/// Knows the memory of a region again, by the key that it has now.
///
/// # Safety
///
/// `mr` is one of this provider's.
unsafe fn remember(mr: *mut sys::verbs_mr, region: Option<Region>) {
    if let Some(region) = region {
        // SAFETY: the caller's word; its context is open.
        unsafe { regions((*mr).ibv_mr.context).insert((*mr).ibv_mr.lkey, region) };
    }
}

/// `verbs_context_ops::dereg_mr`
pub(super) unsafe extern "C" fn dereg_mr(mr: *mut sys::verbs_mr) -> c_int {
    // SAFETY: `mr` is one of this provider's.
    let before = unsafe { forget(mr) };
    // SAFETY: as above, and the program gives it up.
    let result = check(unsafe { sys::ibv_cmd_dereg_mr(mr) });
    match result {
        // SAFETY: as above; the kernel has forgotten it.
        Ok(()) => unsafe { MrObject::free(mr) },
        // SAFETY: it is there as before.
        Err(_) => unsafe { remember(mr, before) },
    }
    code(result)
}
