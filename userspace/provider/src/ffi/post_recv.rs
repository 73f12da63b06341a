// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posting receive requests.

use core::ffi::c_int;

use nupa_engine::rings::PostError;
use rustix::io::Errno;

use super::errno::of_post;
use super::lock::Lock;
use super::post::sges;
use super::qp::pair;
use super::srq::entries;
use super::sys;
use crate::queue::RecvQueue;

/// `verbs_context_ops::post_recv`
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    list: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: `qp` is one of this provider's.
    let (pair, state) = unsafe { (pair(qp), (*qp).state) };
    match &pair.recv {
        Some(queue) if state != sys::IBV_QPS_RESET => {
            // SAFETY: the program's list ends with null.
            unsafe { post(queue, list, bad) }
        }
        _ => {
            // SAFETY: the program wants to know which request was refused.
            unsafe { *bad = list };
            Errno::INVAL.raw_os_error()
        }
    }
}

/// `verbs_context_ops::post_srq_recv`
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::ibv_srq,
    list: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: `srq` is one of this provider's; the program's list ends with null.
    unsafe { post(entries(srq), list, bad) }
}

/// Posts a list of requests up to the first that is refused.
///
/// # Safety
///
/// `list` ends with null, its requests are filled as verbs say, and `bad` can be written.
#[inline(always)]
unsafe fn post(
    queue: &Lock<RecvQueue>,
    list: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    let mut queue = queue.lock();
    let mut next = list;
    let mut result = 0;
    // SAFETY: the caller's word.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        if let Err(error) = unsafe { post_one(&mut queue, wr) } {
            // SAFETY: as above.
            unsafe { *bad = next };
            result = of_post(error).raw_os_error();
            break;
        }
        next = wr.next;
    }
    queue.ring();
    result
}

/// # Safety
///
/// `wr` is filled as verbs say.
#[inline(always)]
unsafe fn post_one(queue: &mut RecvQueue, wr: &sys::ibv_recv_wr) -> Result<(), PostError> {
    // SAFETY: the caller's word.
    let sges = unsafe { sges(wr.sg_list, wr.num_sge)? };
    queue.post(wr.wr_id, sges)
}
