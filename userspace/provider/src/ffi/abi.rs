// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What differs between the versions of rdma-core's provider interface that this provider is built for, one library each.
//!
//! The build script reads the version of the headers; `rdma_core_N` says that it is N or newer.

#[cfg(rdma_core_57)]
use core::ffi::c_int;
use core::ptr;

use super::sys;

/// Tells libibverbs of the provider. Its name has the version of the interface.
pub(super) use sys::verbs_register_driver as register_driver;

#[cfg(not(rdma_core_57))]
pub(super) use sys::ibv_cmd_get_context as get_context;

/// Opens the kernel's part of a context. Since 57 it can be told of open files that others handed over.
///
/// # Safety
///
/// That of `ibv_cmd_get_context()`.
#[cfg(rdma_core_57)]
pub(super) unsafe fn get_context(
    context: *mut sys::verbs_context,
    request: *mut sys::ibv_get_context,
    request_size: usize,
    response: *mut sys::ib_uverbs_get_context_resp,
    response_size: usize,
) -> c_int {
    // SAFETY: the caller's word; there are no files.
    unsafe {
        sys::ibv_cmd_get_context(
            context,
            request,
            request_size,
            ptr::null_mut(),
            response,
            response_size,
        )
    }
}

#[cfg(not(rdma_core_59))]
pub(super) use sys::ibv_cmd_create_cq_ex as create_cq_ex;

/// Makes a completion queue. Since 59 it can be told of memory for the entries, which ours gives in its own request.
///
/// # Safety
///
/// That of `ibv_cmd_create_cq_ex()`.
#[cfg(rdma_core_59)]
#[expect(clippy::too_many_arguments, reason = "those of the function in C")]
pub(super) unsafe fn create_cq_ex(
    context: *mut sys::ibv_context,
    attr: *const sys::ibv_cq_init_attr_ex,
    cq: *mut sys::verbs_cq,
    request: *mut sys::ibv_create_cq_ex,
    request_size: usize,
    response: *mut sys::ib_uverbs_ex_create_cq_resp,
    response_size: usize,
    flags: u32,
) -> c_int {
    // SAFETY: the caller's word; there is no other memory.
    unsafe {
        sys::ibv_cmd_create_cq_ex(
            context,
            attr,
            ptr::null_mut(),
            cq,
            request,
            request_size,
            response,
            response_size,
            flags,
        )
    }
}

#[cfg(not(rdma_core_64))]
pub(super) use sys::ibv_cmd_create_qp_ex2 as create_qp_ex2;

/// Makes a queue pair. Since 64 it can be told of attributes of the driver's.
///
/// # Safety
///
/// That of `ibv_cmd_create_qp_ex2()`.
#[cfg(rdma_core_64)]
pub(super) unsafe fn create_qp_ex2(
    context: *mut sys::ibv_context,
    qp: *mut sys::verbs_qp,
    attr: *mut sys::ibv_qp_init_attr_ex,
    request: *mut sys::ibv_create_qp_ex,
    request_size: usize,
    response: *mut sys::ib_uverbs_ex_create_qp_resp,
    response_size: usize,
) -> c_int {
    // SAFETY: the caller's word; there are no such attributes.
    unsafe {
        sys::ibv_cmd_create_qp_ex2(
            context,
            qp,
            attr,
            request,
            request_size,
            response,
            response_size,
            ptr::null_mut(),
        )
    }
}

/// Tells libibverbs that a queue pair takes requests piece by piece, once its functions are set.
///
/// The flag for that lies behind the functions. Flush came with rdma-core 45 and atomic write with 44, and both times the interface kept its
/// number, 34. So an older library looks for the flag where now there is a function, which it does not know, nor do programs that were built for it.
///
/// # Safety
///
/// `qp` is one of this provider's, which the program does not have yet.
pub(super) unsafe fn announce_qp_ex(qp: *mut sys::verbs_qp) {
    // SAFETY: the caller's word; libibverbs reads the object only.
    unsafe {
        (*qp).comp_mask |= sys::VERBS_QP_EX;
        let functions = &raw mut (*qp).__bindgen_anon_1.qp_ex;
        let unknown = [
            (&raw mut (*functions).wr_flush).cast::<u32>(),
            (&raw mut (*functions).wr_atomic_write).cast::<u32>(),
        ];
        for flag in unknown {
            if !sys::ibv_qp_to_qp_ex(qp.cast::<sys::ibv_qp>()).is_null() {
                return;
            }
            ptr::write(flag, sys::VERBS_QP_EX);
        }
    }
}
