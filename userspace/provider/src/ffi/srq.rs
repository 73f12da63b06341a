// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shared receive queues.

use core::ffi::c_int;
use std::sync::Arc;

use nupa_proto::uabi::{CreateSrqRequest, CreateSrqResponse};
use rustix::io::Errno;

use super::command::exchange;
use super::context::Context;
use super::doorbells::Slots;
use super::errno::{check, code, pointer};
use super::kick::{Calls, Owner};
use super::lock::Lock;
use super::memory::Pages;
use super::object::{Object, Pending, Plain};
use super::sys;
use crate::queue::{RecvQueue, RecvSize};

pub(super) type SrqObject = Object<sys::verbs_srq, SharedQueue>;

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct SharedQueue {
    pub(super) entries: Arc<Lock<RecvQueue>>,
    pub(super) calls: Calls,
}

/// The queue of a `struct ibv_srq`.
///
/// # Safety
///
/// `srq` is one of this provider's and exists as long as the reference is used.
#[inline(always)]
pub(super) unsafe fn entries<'a>(srq: *mut sys::ibv_srq) -> &'a Arc<Lock<RecvQueue>> {
    // SAFETY: the caller's word.
    &unsafe { SrqObject::of(srq) }.entries
}

/// How the queue of a `struct ibv_srq` is kicked if not by itself.
///
/// # Safety
///
/// As for [`entries`].
pub(super) unsafe fn calls<'a>(srq: *mut sys::ibv_srq) -> &'a Calls {
    // SAFETY: the caller's word.
    &unsafe { SrqObject::of(srq) }.calls
}

/// `verbs_context_ops::create_srq`
pub(super) unsafe extern "C" fn create_srq(
    pd: *mut sys::ibv_pd,
    attr: *mut sys::ibv_srq_init_attr,
) -> *mut sys::ibv_srq {
    // SAFETY: the program passes a domain and attributes of its own.
    pointer(unsafe { create(pd, &mut *attr) })
}

/// `verbs_context_ops::create_srq_ex`: basic ones only.
pub(super) unsafe extern "C" fn create_srq_ex(
    _context: *mut sys::ibv_context,
    attr: *mut sys::ibv_srq_init_attr_ex,
) -> *mut sys::ibv_srq {
    const MASK: u32 = sys::IBV_SRQ_INIT_ATTR_TYPE | sys::IBV_SRQ_INIT_ATTR_PD;
    // SAFETY: the program passes its attributes.
    let attr = unsafe { &mut *attr };
    let typed = attr.comp_mask & sys::IBV_SRQ_INIT_ATTR_TYPE != 0;
    let basic = !typed || attr.srq_type == sys::IBV_SRQT_BASIC;
    if attr.comp_mask & !MASK != 0 || !basic {
        return pointer(Err(Errno::OPNOTSUPP));
    }
    if attr.comp_mask & sys::IBV_SRQ_INIT_ATTR_PD == 0 {
        return pointer(Err(Errno::INVAL));
    }
    let mut plain = sys::ibv_srq_init_attr {
        srq_context: attr.srq_context,
        attr: attr.attr,
    };
    // SAFETY: as above.
    let made = unsafe { create(attr.pd, &mut plain) };
    attr.attr = plain.attr;
    pointer(made)
}

/// Makes a shared receive queue, and says in `attr` how large it is.
///
/// # Safety
///
/// `pd` is a domain of one of this provider's contexts.
unsafe fn create(
    pd: *mut sys::ibv_pd,
    attr: &mut sys::ibv_srq_init_attr,
) -> Result<*mut sys::ibv_srq, Errno> {
    // SAFETY: the caller's word.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    let own = unsafe { Context::of(context) };
    if attr.attr.max_wr == 0 {
        return Err(Errno::INVAL);
    }
    let size = RecvSize::new(attr.attr.max_wr, attr.attr.max_sge, own.info.max_log_rq)
        .ok_or(Errno::INVAL)?;
    let memory = Pages::anonymous(size.bytes())?;
    let pending = Pending::new();
    let tail = CreateSrqRequest {
        ring: memory.address().into(),
        log_entries: size.log_entries,
        log_stride: size.log_stride,
        reserved: [0; 6],
    };
    // The doorbell slot may be one of a queue pair that is being destroyed, whose messages it is still used for.
    let _numbers = own.hold_numbers();
    // SAFETY: the caller's word.
    let response = unsafe { command(pd, attr, &pending, tail)? };
    let owner = Owner::Shared(pending.base().cast());
    // SAFETY: `context` is that of `own`; the kernel made the queue, and who posts to it is given the object.
    match unsafe { own.slots(context, &response.doorbell, owner) } {
        Ok(Slots { slot, calls, .. }) => {
            attr.attr.max_wr = 1 << size.log_entries;
            let mut entries = RecvQueue::new(memory, slot, size);
            entries.set_call(calls.queue.clone());
            let entries = Arc::new(Lock::new(entries));
            Ok(pending.finish(SharedQueue { entries, calls }).cast())
        }
        Err(error) => {
            // SAFETY: the kernel made it above, and nobody else knows it.
            unsafe { sys::ibv_cmd_destroy_srq(pending.base().cast()) };
            Err(error)
        }
    }
}

/// Has the kernel make a shared receive queue.
///
/// # Safety
///
/// As for [`create`].
unsafe fn command(
    pd: *mut sys::ibv_pd,
    attr: &mut sys::ibv_srq_init_attr,
    pending: &Pending<sys::verbs_srq, SharedQueue>,
    tail: CreateSrqRequest,
) -> Result<CreateSrqResponse, Errno> {
    exchange(tail, |request, request_size, response, response_size| {
        // SAFETY: the caller's word; the structures live across the call, and the sizes are theirs.
        unsafe {
            sys::ibv_cmd_create_srq(
                pd,
                pending.base().cast(),
                attr,
                request,
                request_size,
                response,
                response_size,
            )
        }
    })
}

/// `verbs_context_ops::modify_srq`
pub(super) unsafe extern "C" fn modify_srq(
    srq: *mut sys::ibv_srq,
    attr: *mut sys::ibv_srq_attr,
    mask: c_int,
) -> c_int {
    let mut request = sys::ibv_modify_srq::zeroed();
    let size = size_of_val(&request);
    // SAFETY: pointers of the caller are passed on as they came; ours live across the call.
    let result = unsafe { sys::ibv_cmd_modify_srq(srq, attr, mask, &raw mut request, size) };
    let limit = c_int::from_ne_bytes(sys::IBV_SRQ_LIMIT.to_ne_bytes());
    if result == 0 && mask & limit != 0 {
        // SAFETY: `srq` is one of this provider's, and the attributes are the program's.
        unsafe { entries(srq).lock().set_limit((*attr).srq_limit) };
    }
    result
}

/// `verbs_context_ops::query_srq`
pub(super) unsafe extern "C" fn query_srq(
    srq: *mut sys::ibv_srq,
    attr: *mut sys::ibv_srq_attr,
) -> c_int {
    let mut request = sys::ibv_query_srq::zeroed();
    let size = size_of_val(&request);
    // SAFETY: as above.
    unsafe { sys::ibv_cmd_query_srq(srq, attr, &raw mut request, size) }
}

/// `verbs_context_ops::destroy_srq`
pub(super) unsafe extern "C" fn destroy_srq(srq: *mut sys::ibv_srq) -> c_int {
    // SAFETY: `srq` is one of this provider's, and the program gives it up.
    let result = check(unsafe { sys::ibv_cmd_destroy_srq(srq) });
    if result.is_ok() {
        // SAFETY: as above; the kernel has forgotten it, so no queue pair uses it.
        unsafe { SrqObject::free(srq) };
    }
    code(result)
}
