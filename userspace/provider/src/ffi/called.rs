// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Entry points for devices whose engine is called, since nobody traps stores for it (see `super::kick`): those that hand
//! over requests, and those that wait for completions, around the usual ones.
//!
//! A poll that finds no completion runs the engine in the caller's context, because on a busy processor it may not run otherwise. Of the
//! completion queues that a program polls in turn, one does so (`super::empty_polls`).

use core::ffi::c_int;

use rustix::io::Errno;

use super::driver::NO_OPS;
use super::kick::Called;
use super::qp::pair;
use super::{cq, cq_ex, kick, post, post_recv, qp_ex, srq, sys};

/// What `ibv_start_poll()` returns where there is no completion.
const NONE: c_int = Errno::NOENT.raw_os_error();

/// What takes the place of the usual functions of a context.
pub(super) static OPS: sys::verbs_context_ops = sys::verbs_context_ops {
    poll_cq: Some(poll_cq),
    post_recv: Some(post_recv),
    post_send: Some(post_send),
    post_srq_recv: Some(post_srq_recv),
    ..NO_OPS
};

/// Does what may ring a queue, and calls if that is wanted.
fn around<T>(call: Option<&Called>, ring: impl FnOnce() -> T) -> T {
    match call {
        Some(call) => call.around(ring),
        None => ring(),
    }
}

/// `verbs_context_ops::post_send`
pub(super) unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    list: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: `qp` is one of this provider's, and what comes with it is passed on as it came.
    unsafe {
        let call = pair(qp).calls.queue.as_ref();
        around(call, || post::post_send(qp, list, bad))
    }
}

/// `verbs_context_ops::post_recv`
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    list: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let call = pair(qp).calls.recv.as_ref();
        around(call, || post_recv::post_recv(qp, list, bad))
    }
}

/// `verbs_context_ops::post_srq_recv`
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::ibv_srq,
    list: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let call = srq::calls(srq).queue.as_ref();
        around(call, || post_recv::post_srq_recv(srq, list, bad))
    }
}

/// `verbs_context_ops::poll_cq`
pub(super) unsafe extern "C" fn poll_cq(
    queue: *mut sys::ibv_cq,
    entries: c_int,
    wc: *mut sys::ibv_wc,
) -> c_int {
    // SAFETY: `queue` is one of this provider's, and what comes with it is passed on as it came.
    unsafe {
        match cq::poll_cq(queue, entries, wc) {
            0 if entries > 0 && !cq::found_nothing(queue) && kick::work(queue) => {
                cq::poll_cq(queue, entries, wc)
            }
            found => found,
        }
    }
}

/// `ibv_cq_ex::start_poll`
pub(super) unsafe extern "C" fn start_poll(
    queue: *mut sys::ibv_cq_ex,
    attr: *mut sys::ibv_poll_cq_attr,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        match cq_ex::start_poll(queue, attr) {
            NONE if !cq::found_nothing(queue) && kick::work(queue.cast()) => {
                cq_ex::start_poll(queue, attr)
            }
            result => result,
        }
    }
}

/// `ibv_qp_ex::wr_complete`
pub(super) unsafe extern "C" fn wr_complete(qp: *mut sys::ibv_qp_ex) -> c_int {
    // SAFETY: as above; the program has started a batch, and ends it.
    unsafe {
        let call = pair(qp).calls.queue.as_ref();
        around(call, || qp_ex::wr_complete(qp))
    }
}

/// `ibv_qp_ex::wr_abort`: what was left to the end of the batch is done then.
pub(super) unsafe extern "C" fn wr_abort(qp: *mut sys::ibv_qp_ex) {
    // SAFETY: as above; the program has started a batch, and gives it up.
    unsafe {
        let call = pair(qp).calls.queue.as_ref();
        around(call, || qp_ex::wr_abort(qp));
    }
}
