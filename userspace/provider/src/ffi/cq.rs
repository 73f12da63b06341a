// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues.

use core::ffi::c_int;
use std::sync::Arc;

use nupa_proto::cqe::{Cqe, CQE_SIZE};
use nupa_proto::uabi::{CreateCqRequest, CreateCqResponse, ResizeCqRequest};
use rustix::io::Errno;

use super::command::exchange;
use super::context::Context;
use super::cq_ex;
use super::doorbells::Slots;
use super::errno::{check, code, pointer};
use super::kick::Owner;
use super::lock::{Guard, Lock};
use super::memory::Pages;
use super::object::{Object, Pending, Plain, StartOf};
use super::wc;
use super::{abi, sys};
use crate::queue::{log_of, CompletionQueue, SharedCompletions};

pub(super) type CqObject = Object<sys::verbs_cq, SharedCompletions>;

/// The completion queue of a `struct ibv_cq`.
///
/// # Safety
///
/// `cq` is one of this provider's and exists as long as the reference is used.
#[inline(always)]
pub(super) unsafe fn completions<'a, S: StartOf<sys::verbs_cq>>(
    cq: *mut S,
) -> &'a SharedCompletions {
    // SAFETY: the caller's word.
    unsafe { CqObject::of(cq) }
}

/// `verbs_context_ops::create_cq`
pub(super) unsafe extern "C" fn create_cq(
    context: *mut sys::ibv_context,
    cqe: c_int,
    channel: *mut sys::ibv_comp_channel,
    comp_vector: c_int,
) -> *mut sys::ibv_cq {
    let (Ok(cqe), Ok(comp_vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
        return pointer(Err(Errno::INVAL));
    };
    let mut attr = sys::ibv_cq_init_attr_ex {
        cqe,
        channel,
        comp_vector,
        ..sys::ibv_cq_init_attr_ex::zeroed()
    };
    // SAFETY: `context` and `channel` are the caller's.
    let made = unsafe { create(context, &mut attr) };
    pointer(made.map(|cq| cq.cast::<sys::ibv_cq>()))
}

/// `verbs_context_ops::create_cq_ex`
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_cq_init_attr_ex,
) -> *mut sys::ibv_cq_ex {
    // SAFETY: the program passes its attributes.
    let attr = unsafe { &mut *attr };
    let timestamps = u64::from(
        sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
            | sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    );
    if attr.wc_flags & !(u64::from(sys::IBV_WC_STANDARD_FLAGS) | timestamps) != 0 {
        return pointer(Err(Errno::OPNOTSUPP));
    }
    // SAFETY: `context` is one of this provider's.
    let has_clock = unsafe { Context::of(context) }.info.clock_khz.get() != 0;
    if attr.wc_flags & timestamps != 0 && !has_clock {
        return pointer(Err(Errno::OPNOTSUPP));
    }
    if attr.comp_mask & sys::IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
        // The one is advice for a provider, the other one the kernel's to answer.
        let known =
            sys::IBV_CREATE_CQ_ATTR_SINGLE_THREADED | sys::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        if attr.flags & !known != 0 {
            return pointer(Err(Errno::OPNOTSUPP));
        }
    }
    // SAFETY: `context` is the caller's, and what its attributes name.
    let made = unsafe { create(context, attr) };
    if let Ok(cq) = made {
        // SAFETY: `context` is one of this provider's; the object is new and not yet the program's.
        unsafe {
            let called = Context::of(context).is_called();
            if attr.wc_flags & timestamps != 0 {
                completions(cq.cast::<sys::ibv_cq>())
                    .lock()
                    .set_timestamps();
            }
            cq_ex::set_functions(&mut (*cq).__bindgen_anon_1.cq_ex, called);
        }
    }
    pointer(made.map(|cq| cq.cast::<sys::ibv_cq_ex>()))
}

/// Makes a completion queue.
///
/// # Safety
///
/// `context` is one of this provider's; `attr` names objects that exist.
unsafe fn create(
    context: *mut sys::ibv_context,
    attr: &mut sys::ibv_cq_init_attr_ex,
) -> Result<*mut sys::verbs_cq, Errno> {
    // SAFETY: the caller's word.
    let own = unsafe { Context::of(context) };
    if attr.cqe == 0 {
        return Err(Errno::INVAL);
    }
    let log_entries = log_of(attr.cqe, own.info.max_log_cq).ok_or(Errno::INVAL)?;
    let memory = Pages::anonymous(CQE_SIZE << log_entries)?;
    let pending = Pending::new();
    // The doorbell slot may be one of a queue pair that is being destroyed, whose messages it is still used for.
    let _numbers = own.hold_numbers();
    let response = {
        let tail = CreateCqRequest {
            ring: memory.address().into(),
            log_entries,
            reserved: [0; 7],
        };
        // SAFETY: as above.
        unsafe { command(context, attr, &pending, tail)? }
    };
    // SAFETY: `context` is that of `own`.
    let slot = unsafe { own.slots(context, &response.doorbell, Owner::Completions) };
    match slot {
        Ok(Slots { slot, .. }) => {
            // SAFETY: the object is new and ours.
            unsafe { (*pending.base()).__bindgen_anon_1.cq.cqe = 1 << log_entries };
            let mut queue = CompletionQueue::new(memory, slot, log_entries);
            if attr.channel.is_null() {
                queue.set_silent();
            }
            Ok(pending.finish(Arc::new(Lock::new(queue))))
        }
        Err(error) => {
            // SAFETY: the kernel made it above, and nobody else knows it.
            unsafe { sys::ibv_cmd_destroy_cq(pending.base().cast()) };
            Err(error)
        }
    }
}

/// Has the kernel make a completion queue.
///
/// # Safety
///
/// As for [`create`].
unsafe fn command(
    context: *mut sys::ibv_context,
    attr: &sys::ibv_cq_init_attr_ex,
    pending: &Pending<sys::verbs_cq, SharedCompletions>,
    tail: CreateCqRequest,
) -> Result<CreateCqResponse, Errno> {
    exchange(tail, |request, request_size, response, response_size| {
        // SAFETY: the caller's word; the structures live across the call, and the sizes are theirs.
        unsafe {
            abi::create_cq_ex(
                context,
                attr,
                pending.base(),
                request,
                request_size,
                response,
                response_size,
                0,
            )
        }
    })
}

/// `verbs_context_ops::resize_cq`
pub(super) unsafe extern "C" fn resize_cq(cq: *mut sys::ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: `cq` is one of this provider's.
    code(unsafe { resize(cq, cqe) })
}

/// Gives a completion queue another ring, with room for `cqe` entries at least.
///
/// # Safety
///
/// `cq` is one of this provider's.
unsafe fn resize(cq: *mut sys::ibv_cq, cqe: c_int) -> Result<(), Errno> {
    // SAFETY: the caller's word; the context of an object is open.
    let (own, queue) = unsafe { (Context::of((*cq).context), completions(cq)) };
    let entries = u32::try_from(cqe).ok().filter(|&entries| entries != 0);
    let log_entries = entries.and_then(|entries| log_of(entries, own.info.max_log_cq));
    let log_entries = log_entries.ok_or(Errno::INVAL)?;
    let memory = Pages::anonymous(CQE_SIZE << log_entries)?;
    let tail = ResizeCqRequest {
        ring: memory.address().into(),
        log_entries,
        reserved: [0; 7],
    };
    // Nobody polls or arms the queue meanwhile, so the controller may write the consumer index.
    let mut queue = queue.lock();
    queue.publish();
    let () = exchange(tail, |request, request_size, response, response_size| {
        // SAFETY: the caller's word; the structures live across the call, and the sizes are theirs.
        unsafe { sys::ibv_cmd_resize_cq(cq, cqe, request, request_size, response, response_size) }
    })?;
    queue.resize(memory, log_entries);
    // SAFETY: as above; the lock is held.
    unsafe { (*cq).cqe = 1 << log_entries };
    Ok(())
}

/// `verbs_context_ops::destroy_cq`
pub(super) unsafe extern "C" fn destroy_cq(cq: *mut sys::ibv_cq) -> c_int {
    // SAFETY: `cq` is one of this provider's, and the program gives it up.
    let result = check(unsafe { sys::ibv_cmd_destroy_cq(cq) });
    if result.is_ok() {
        // SAFETY: as above; the kernel has forgotten it, so no queue pair uses it.
        unsafe { CqObject::free(cq) };
    }
    code(result)
}

/// `verbs_context_ops::poll_cq`
pub(super) unsafe extern "C" fn poll_cq(
    cq: *mut sys::ibv_cq,
    entries: c_int,
    wc: *mut sys::ibv_wc,
) -> c_int {
    // SAFETY: `cq` is one of this provider's.
    let completions = unsafe { completions(cq) };
    let Some(mut queue) = completions.try_lock() else {
        // SAFETY: the program's array has `entries` elements.
        return unsafe { wait_and_poll(completions, entries, wc) };
    };
    let show = |cqe: &Cqe| {
        // SAFETY: as above, and that is one at least.
        unsafe { wc::complete(cqe, wc) };
    };
    let first = entries > 0 && queue.take_usual(show) == Some(true);
    if first && entries == 1 {
        queue.publish();
        return 1;
    }
    // SAFETY: as above.
    unsafe { poll(queue, c_int::from(first), entries, wc) }
}

/// [`poll_cq`] where others use the queue.
///
/// # Safety
///
/// As for [`poll`].
#[cold]
#[inline(never)]
unsafe fn wait_and_poll(
    completions: &SharedCompletions,
    entries: c_int,
    wc: *mut sys::ibv_wc,
) -> c_int {
    // SAFETY: the caller's word.
    unsafe { poll(completions.lock(), 0, entries, wc) }
}

/// Takes completions, at most `entries`, of which `taken` were taken already; how many there were. A function of its own, so that a single one has
/// no registers to save.
///
/// # Safety
///
/// `wc` has room for `entries` elements.
#[inline(never)]
unsafe fn poll(
    mut queue: Guard<'_, CompletionQueue>,
    taken: c_int,
    entries: c_int,
    wc: *mut sys::ibv_wc,
) -> c_int {
    let mut left = entries.wrapping_sub(taken);
    let mut to = wc.wrapping_add(usize::try_from(taken).unwrap_or(0));
    // SAFETY: the caller's word: `to` has room for `left` elements.
    while left > 0 && queue.take(|cqe| unsafe { wc::complete(cqe, to) }) {
        to = to.wrapping_add(1);
        left = left.wrapping_sub(1);
    }
    queue.publish();
    if left == entries && queue.is_lost() {
        // SAFETY: as above.
        return unsafe { poll_lost(queue, entries, wc) };
    }
    entries.wrapping_sub(left)
}

/// Whether the engine need not be asked to work although a queue was found empty ([`CompletionQueue::found_nothing`]).
///
/// # Safety
///
/// `cq` is one of this provider's.
#[inline(always)]
pub(super) unsafe fn found_nothing<S: StartOf<sys::verbs_cq>>(cq: *mut S) -> bool {
    // SAFETY: the caller's word.
    let queue = unsafe { completions(cq) }.try_lock();
    queue.is_some_and(|mut queue| queue.found_nothing())
}

/// [`poll`] after the device went.
///
/// # Safety
///
/// As for [`poll`].
#[cold]
#[inline(never)]
unsafe fn poll_lost(
    mut queue: Guard<'_, CompletionQueue>,
    entries: c_int,
    wc: *mut sys::ibv_wc,
) -> c_int {
    let (mut left, mut to) = (entries, wc);
    // SAFETY: the caller's word: `to` has room for `left` elements.
    while left > 0 && queue.take_lost(|cqe| unsafe { wc::complete(cqe, to) }) {
        to = to.wrapping_add(1);
        left = left.wrapping_sub(1);
    }
    entries.wrapping_sub(left)
}

/// `verbs_context_ops::req_notify_cq`: a store to the doorbell page, no system call.
pub(super) unsafe extern "C" fn req_notify_cq(
    cq: *mut sys::ibv_cq,
    solicited_only: c_int,
) -> c_int {
    // SAFETY: `cq` is one of this provider's.
    unsafe { completions(cq) }.lock().arm(solicited_only != 0);
    0
}
