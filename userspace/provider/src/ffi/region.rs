// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory regions. All work on them is the kernel's.

use core::ffi::{c_int, c_uint, c_void};
use std::ptr;

use super::device_memory::as_verbs;
use super::errno::{check, code, pointer};
use super::object::{Object, Pending, Plain};
use super::sys;

type MrObject = Object<sys::verbs_mr, ()>;

/// Hands a region to the program if the kernel made it.
fn finish(pending: Pending<sys::verbs_mr, ()>, result: c_int) -> *mut sys::ibv_mr {
    pointer(check(result).map(|()| pending.finish(()).cast::<sys::ibv_mr>()))
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
    finish(pending, result)
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
    finish(pending, result)
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
    finish(pending, result)
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
    // SAFETY: as in `reg_mr`; `mr` is one of this provider's.
    unsafe {
        sys::ibv_cmd_rereg_mr(
            mr,
            u32::from_ne_bytes(flags.to_ne_bytes()),
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
    }
}

/// `verbs_context_ops::dereg_mr`
pub(super) unsafe extern "C" fn dereg_mr(mr: *mut sys::verbs_mr) -> c_int {
    // SAFETY: `mr` is one of this provider's, and the program gives it up.
    let result = check(unsafe { sys::ibv_cmd_dereg_mr(mr) });
    if result.is_ok() {
        // SAFETY: as above; the kernel has forgotten it.
        unsafe { MrObject::free(mr) };
    }
    code(result)
}
