// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs: making, changing and destroying them.

use core::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nupa_proto::uabi::{CreateQpRequest, CreateQpResponse};
use nupa_proto::wqe::BLOCK_SIZE;
use rustix::io::Errno;

use super::command::exchange;
use super::context::Context;
use super::cq::completions;
use super::errno::{check, code, pointer};
use super::kick::Owner;
use super::memory::Pages;
use super::object::{Object, Pending, Plain, StartOf};
use super::ring_source::{rings_of, Mode};
use super::srq::entries;
use super::{abi, qp_ex, sys};
use crate::queue::{
    Connection, Lookup, QueuePair, Received, RecvQueue, RecvSize, SendQueue, SendSize,
};

/// How long a queue pair on its way to the SQD state waits for WRITEs in its ring to be taken: much longer than a receiver's engine takes.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for a send queue that is locked.
const LOCKED_TIMEOUT: Duration = Duration::from_millis(10);
/// How long between two looks at that.
const DRAIN_STEP: Duration = Duration::from_micros(200);

pub(super) type QpObject = Object<sys::verbs_qp, QueuePair>;

/// The queue pair of a `struct ibv_qp`.
///
/// # Safety
///
/// `qp` is one of this provider's and exists as long as the reference is used.
#[inline(always)]
pub(super) unsafe fn pair<'a, S: StartOf<sys::verbs_qp>>(qp: *mut S) -> &'a QueuePair {
    // SAFETY: the caller's word.
    unsafe { QpObject::of(qp) }
}

/// Rings of a queue pair that is being made.
struct Rings {
    datagrams: bool,
    send: (SendSize, Pages),
    recv: Option<(RecvSize, Pages)>,
}

impl Rings {
    /// Allocates what the attributes ask for.
    fn new(context: &Context, attr: &sys::ibv_qp_init_attr_ex) -> Result<Self, Errno> {
        let datagrams = match attr.qp_type {
            sys::IBV_QPT_RC => false,
            sys::IBV_QPT_UD => true,
            _ => return Err(Errno::OPNOTSUPP),
        };
        let (cap, info) = (&attr.cap, &context.info);
        // Requests that have the engine take what is in a process ring: one with a completion, and one without.
        let more = if context.takes_writes() && !datagrams {
            2
        } else {
            0
        };
        let send = SendSize::new(
            cap.max_send_wr,
            (cap.max_send_sge, cap.max_inline_data),
            datagrams,
            more,
            info.max_log_sq,
        )
        .ok_or(Errno::INVAL)?;
        let recv = if attr.srq.is_null() {
            let size = RecvSize::new(cap.max_recv_wr, cap.max_recv_sge, info.max_log_rq);
            let size = size.ok_or(Errno::INVAL)?;
            Some((size, Pages::anonymous(size.bytes())?))
        } else {
            None
        };
        Ok(Self {
            datagrams,
            send: (send, Pages::anonymous(BLOCK_SIZE << send.log_blocks)?),
            recv,
        })
    }

    /// What the kernel is told of them.
    fn request(&self) -> CreateQpRequest {
        let (size, memory) = &self.send;
        let send = CreateQpRequest {
            send_ring: memory.address().into(),
            log_send_blocks: size.log_blocks,
            ..CreateQpRequest::default()
        };
        match &self.recv {
            None => send,
            Some((size, memory)) => CreateQpRequest {
                recv_ring: memory.address().into(),
                log_recv_entries: size.log_entries,
                log_recv_stride: size.log_stride,
                ..send
            },
        }
    }

    /// Says in the attributes how large they are.
    fn report(&self, cap: &mut sys::ibv_qp_cap) {
        cap.max_send_wr = self.send.0.requests;
        cap.max_recv_wr = self
            .recv
            .as_ref()
            .map_or(0, |(size, _)| 1 << size.log_entries);
    }
}

/// `verbs_context_ops::create_qp`
pub(super) unsafe extern "C" fn create_qp(
    pd: *mut sys::ibv_pd,
    attr: *mut sys::ibv_qp_init_attr,
) -> *mut sys::ibv_qp {
    // SAFETY: the program passes a domain and attributes of its own.
    let (context, attr) = unsafe { ((*pd).context, &mut *attr) };
    let mut full = sys::ibv_qp_init_attr_ex {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: sys::IBV_QP_INIT_ATTR_PD,
        pd,
        ..sys::ibv_qp_init_attr_ex::zeroed()
    };
    // SAFETY: as above.
    let made = unsafe { create(context, &mut full) };
    attr.cap = full.cap;
    pointer(made.map(|qp| qp.cast::<sys::ibv_qp>()))
}

/// `verbs_context_ops::create_qp_ex`
pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_qp_init_attr_ex,
) -> *mut sys::ibv_qp {
    const MASK: u32 = sys::IBV_QP_INIT_ATTR_PD
        | sys::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    // SAFETY: the program passes its attributes.
    let attr = unsafe { &mut *attr };
    let flagged = attr.comp_mask & sys::IBV_QP_INIT_ATTR_CREATE_FLAGS != 0;
    if attr.comp_mask & !MASK != 0 || (flagged && attr.create_flags != 0) {
        return pointer(Err(Errno::OPNOTSUPP));
    }
    if attr.comp_mask & sys::IBV_QP_INIT_ATTR_PD == 0 {
        return pointer(Err(Errno::INVAL));
    }
    let piecemeal = attr.comp_mask & sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    if piecemeal && !qp_ex::supports(attr.qp_type, attr.send_ops_flags) {
        return pointer(Err(Errno::OPNOTSUPP));
    }
    // SAFETY: `context` is the caller's, and what its attributes name.
    let made = unsafe { create(context, attr) };
    if let (Ok(qp), true) = (made, piecemeal) {
        // SAFETY: the object is new and not yet the program's.
        unsafe {
            let called = pair(qp.cast::<sys::ibv_qp>()).calls.queue.is_some();
            qp_ex::set_functions(&mut (*qp).__bindgen_anon_1.qp_ex, called);
            abi::announce_qp_ex(qp);
        }
    }
    pointer(made.map(|qp| qp.cast::<sys::ibv_qp>()))
}

/// Makes a queue pair, and says in `attr` how large its queues are.
///
/// # Safety
///
/// `context` is one of this provider's; `attr` names objects that exist.
unsafe fn create(
    context: *mut sys::ibv_context,
    attr: &mut sys::ibv_qp_init_attr_ex,
) -> Result<*mut sys::verbs_qp, Errno> {
    if attr.send_cq.is_null() || attr.recv_cq.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's word.
    let own = unsafe { Context::of(context) };
    let rings = Rings::new(own, attr)?;
    let pending = Pending::new();
    let _numbers = own.hold_numbers();
    // SAFETY: the caller's word.
    let response = unsafe { command(context, attr, &pending, rings.request())? };
    rings.report(&mut attr.cap);
    // SAFETY: as above; the kernel made the queue pair.
    match unsafe { assemble(context, attr, pending.base(), rings, &response) } {
        Ok(pair) => Ok(pending.finish(pair)),
        Err(error) => {
            // SAFETY: the kernel made it above, and nobody else knows it.
            unsafe { sys::ibv_cmd_destroy_qp(pending.base().cast()) };
            Err(error)
        }
    }
}

/// Puts rings, doorbells and completion queues together.
///
/// # Safety
///
/// As for [`create`]; `base` is the queue pair that the kernel made.
unsafe fn assemble(
    context: *mut sys::ibv_context,
    attr: &sys::ibv_qp_init_attr_ex,
    base: *mut sys::verbs_qp,
    rings: Rings,
    response: &CreateQpResponse,
) -> Result<QueuePair, Errno> {
    let owner = Owner::Pair(base.cast());
    // SAFETY: the caller's word; who posts to the queue pair is given the object.
    let slots = unsafe { Context::of(context).slots(context, &response.doorbell, owner)? };
    let (size, memory) = rings.send;
    let requests = size.requests;
    let (shared, rings_slot) = match &slots.recv {
        Some(slot) => (false, slot.clone()),
        None => (true, slots.slot.clone()),
    };
    let send_slot = slots.slot.clone();
    let send = SendQueue::new(memory, slots.slot, size, attr.sq_sig_all != 0);
    let recv = match rings.recv {
        Some((size, memory)) => {
            let slot = slots.recv.ok_or(Errno::IO)?;
            Received::own(RecvQueue::new(memory, slot, size))
        }
        // SAFETY: the caller's word: there are no rings only if there is a shared queue.
        None => Received::Shared(Arc::clone(unsafe { entries(attr.srq) })),
    };
    // SAFETY: as above.
    let cqs = unsafe { [completions(attr.send_cq), completions(attr.recv_cq)] };
    // SAFETY: the kernel's answer was put there.
    let number = unsafe { (*base).__bindgen_anon_1.qp.qp_num };
    let pair = QueuePair::new(
        number,
        rings.datagrams,
        send,
        recv,
        cqs.map(Arc::clone),
        slots.calls,
    );
    // SAFETY: as above.
    let (own, domain) = unsafe { (Context::of(context), (*attr.pd).handle) };
    let recv_domain = match attr.srq.is_null() {
        true => domain,
        // SAFETY: as above: the queue exists, and with it its domain.
        false => unsafe { (*(*attr.srq).pd).handle },
    };
    if !rings.datagrams && own.mode() != Mode::Off {
        let lookup = |domain| Lookup::new(Arc::clone(own.regions()), domain);
        pair.bypass(Connection {
            // SAFETY: as above; whoever posts and polls has the object.
            source: unsafe { rings_of(base.cast()) },
            lookup: lookup(domain),
            recv_lookup: lookup(recv_domain),
            shared,
            slot: rings_slot,
            send_slot,
            requests,
            bypass_state: Arc::default(),
            with_events: own.mode() != Mode::Polled,
            writes: own.takes_writes(),
            mixed: own.mode() == Mode::Mixed,
        });
    }
    Ok(pair)
}

/// Has the kernel make a queue pair.
///
/// # Safety
///
/// As for [`create`].
unsafe fn command(
    context: *mut sys::ibv_context,
    attr: &mut sys::ibv_qp_init_attr_ex,
    pending: &Pending<sys::verbs_qp, QueuePair>,
    tail: CreateQpRequest,
) -> Result<CreateQpResponse, Errno> {
    exchange(tail, |request, request_size, response, response_size| {
        // SAFETY: the caller's word; the structures live across the call, and the sizes are theirs.
        unsafe {
            abi::create_qp_ex2(
                context,
                pending.base(),
                attr,
                request,
                request_size,
                response,
                response_size,
            )
        }
    })
}

/// Has the receiver take the WRITEs that are in the ring of a queue pair on its way to the SQD state: they are to be complete when the kernel says that the queue pair is
/// drained. Gives up after [`DRAIN_TIMEOUT`], because a receiver may never take them, or after [`LOCKED_TIMEOUT`], because this thread may have a batch open.
fn drain(pair: &QueuePair) {
    let start = Instant::now();
    // When the send queue was last seen not to be locked.
    let mut free = start;
    loop {
        match pair.drain() {
            Some(true) => return,
            Some(false) => free = Instant::now(),
            None if free.elapsed() >= LOCKED_TIMEOUT => return,
            None => {}
        }
        if start.elapsed() >= DRAIN_TIMEOUT {
            return;
        }
        std::thread::sleep(DRAIN_STEP);
    }
}

/// `verbs_context_ops::modify_qp`. May sleep: up to [`DRAIN_TIMEOUT`] on the way to the SQD state.
pub(super) unsafe extern "C" fn modify_qp(
    qp: *mut sys::ibv_qp,
    attr: *mut sys::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: `qp` is one of this provider's and the attributes are the program's.
    let (pair, attributes) = unsafe { (pair(qp), &*attr) };
    let has = |bit: sys::ibv_qp_attr_mask| mask & c_int::from_ne_bytes(bit.to_ne_bytes()) != 0;
    let state = has(sys::IBV_QP_STATE).then_some(attributes.qp_state);
    let drains = state == Some(sys::IBV_QPS_SQD) && pair.begin_drain();
    if drains {
        drain(pair);
    }
    let mut request = sys::ibv_modify_qp::zeroed();
    let size = size_of_val(&request);
    // SAFETY: as above; ours live across the call.
    let result = check(unsafe { sys::ibv_cmd_modify_qp(qp, attr, mask, &raw mut request, size) });
    match state {
        Some(state) if result.is_ok() => {
            if state == sys::IBV_QPS_RESET {
                pair.reset();
            }
            pair.changed(state == sys::IBV_QPS_RTS, state == sys::IBV_QPS_ERR);
        }
        _ if drains => pair.end_drain(),
        _ => {}
    }
    if result.is_ok() && has(sys::IBV_QP_ACCESS_FLAGS) {
        pair.allow_writes(attributes.qp_access_flags & sys::IBV_ACCESS_REMOTE_WRITE != 0);
    }
    code(result)
}

/// `verbs_context_ops::query_qp`
pub(super) unsafe extern "C" fn query_qp(
    qp: *mut sys::ibv_qp,
    attr: *mut sys::ibv_qp_attr,
    mask: c_int,
    init_attr: *mut sys::ibv_qp_init_attr,
) -> c_int {
    let mut request = sys::ibv_query_qp::zeroed();
    let size = size_of_val(&request);
    // SAFETY: pointers of the caller are passed on as they came; ours live across the call.
    let result =
        unsafe { sys::ibv_cmd_query_qp(qp, attr, mask, init_attr, &raw mut request, size) };
    let result = check(result);
    if result.is_ok() {
        // SAFETY: `qp` is one of this provider's; the call has filled in both structures.
        unsafe {
            // The kernel knows how large the ring is, and not what of it is for the program.
            let requests = pair(qp).requests;
            (*attr).cap.max_send_wr = requests;
            (*init_attr).cap.max_send_wr = requests;
        }
    }
    code(result)
}

/// `verbs_context_ops::destroy_qp`
pub(super) unsafe extern "C" fn destroy_qp(qp: *mut sys::ibv_qp) -> c_int {
    // SAFETY: `qp` is one of this provider's, and the program gives it up; its context is open.
    let (context, pair) = unsafe { (Context::of((*qp).context), pair(qp)) };
    let numbers = context.hold_numbers();
    // SAFETY: as above.
    let result = check(unsafe { sys::ibv_cmd_destroy_qp(qp) });
    if result.is_ok() {
        pair.leave();
        drop(numbers);
        // SAFETY: as above; neither the kernel nor the completion queues know it any more.
        unsafe { QpObject::free(qp) };
    }
    code(result)
}
