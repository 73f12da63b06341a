// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Polling piece by piece (`ibv_start_poll()` and what follows). The lock is held from a start that finds a completion
//! to the end.

use core::ffi::c_int;
use std::mem::ManuallyDrop;

use rustix::io::Errno;

use super::context::Context;
use super::cq::completions;
use super::lock::Guard;
use super::{called, clock, sys, wc};
use crate::queue::CompletionQueue;

/// Puts the functions of this file into an object; `called` if the engine is called.
pub(super) fn set_functions(cq: &mut sys::ibv_cq_ex, called: bool) {
    cq.start_poll = Some(if called {
        called::start_poll
    } else {
        start_poll
    });
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_zero);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_zero_byte);
    cq.read_completion_ts = Some(read_completion_ts);
    cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// The queue that `ibv_start_poll()` locked; it stays locked.
///
/// # Safety
///
/// `cq` is one of this provider's, and the calling thread is between start and end of polling it.
#[inline(always)]
unsafe fn started<'a>(cq: *mut sys::ibv_cq_ex) -> ManuallyDrop<Guard<'a, CompletionQueue>> {
    // SAFETY: the caller's word: `start_poll` kept the lock.
    ManuallyDrop::new(unsafe { completions(cq).resume() })
}

/// Makes the next completion the current one.
///
/// # Safety
///
/// As for [`started`].
#[inline(always)]
unsafe fn advance(cq: *mut sys::ibv_cq_ex) -> c_int {
    // SAFETY: the caller's word.
    let mut queue = unsafe { started(cq) };
    if !queue.advance() {
        return Errno::NOENT.raw_os_error();
    }
    let current = queue.current();
    // SAFETY: `cq` is the program's object; these fields are the provider's to set while the lock is held.
    unsafe {
        (*cq).wr_id = current.wr_id.get();
        (*cq).status = wc::status(current);
    }
    0
}

/// `ibv_cq_ex::start_poll`
pub(super) unsafe extern "C" fn start_poll(
    cq: *mut sys::ibv_cq_ex,
    attr: *mut sys::ibv_poll_cq_attr,
) -> c_int {
    // SAFETY: the program passes its attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return Errno::INVAL.raw_os_error();
    }
    // SAFETY: `cq` is one of this provider's.
    unsafe { completions(cq) }.keep();
    // SAFETY: this thread has just locked it.
    let result = unsafe { advance(cq) };
    if result != 0 {
        // SAFETY: as above. Without a completion the program does not end the polling.
        unsafe { end_poll(cq) };
    }
    result
}

unsafe extern "C" fn next_poll(cq: *mut sys::ibv_cq_ex) -> c_int {
    // SAFETY: the program has started polling.
    unsafe { advance(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut sys::ibv_cq_ex) {
    // SAFETY: the program has started polling, and ends it.
    let mut queue = ManuallyDrop::into_inner(unsafe { started(cq) });
    queue.publish();
}

/// Defines functions that read the current completion.
macro_rules! readers {
    ($($name:ident -> $result:ty: |$cqe:ident| $value:expr;)+) => {$(
        unsafe extern "C" fn $name(cq: *mut sys::ibv_cq_ex) -> $result {
            // SAFETY: the program has started polling.
            let queue = unsafe { started(cq) };
            let $cqe = queue.current();
            $value
        }
    )+};
}

readers! {
    read_opcode -> sys::ibv_wc_opcode: |cqe| wc::opcode(cqe);
    read_vendor_err -> u32: |cqe| u32::from(cqe.vendor_error);
    read_byte_len -> u32: |cqe| cqe.byte_len.get();
    read_imm_data -> u32: |cqe| cqe.imm_or_key.get();
    read_qp_num -> u32: |cqe| cqe.qpn.get();
    read_src_qp -> u32: |cqe| cqe.src_qpn.get();
    read_wc_flags -> u32: |cqe| wc::flags(cqe);
    read_sl -> u8: |cqe| wc::service_level(cqe);
    read_completion_ts -> u64: |cqe| cqe.timestamp();
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut sys::ibv_cq_ex) -> u64 {
    // SAFETY: the program has started polling; the context of an object is open.
    let (mut queue, context) = unsafe { (started(cq), (*cq).context) };
    // SAFETY: as above; the context is one of this provider's.
    let khz = unsafe { Context::of(context) }.info.clock_khz.get();
    // SAFETY: as above.
    queue.wall_ns(khz, || unsafe { clock::moment(context) })
}

/// Local identifiers do not exist on RoCE.
unsafe extern "C" fn read_zero(_cq: *mut sys::ibv_cq_ex) -> u32 {
    0
}

/// As above.
unsafe extern "C" fn read_zero_byte(_cq: *mut sys::ibv_cq_ex) -> u8 {
    0
}
