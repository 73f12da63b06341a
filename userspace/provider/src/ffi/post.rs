// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posting send requests.

use core::ffi::{c_int, c_uint};
use std::slice;

use nupa_engine::rings::{Data, Operation, PostError, SendRequest};
use nupa_proto::wqe::{Sge, MAX_INLINE, WQE_FENCE, WQE_SIGNALED, WQE_SOLICITED};

use super::address::Address;
use super::errno::of_post;
use super::qp::pair;
use super::sys;
use super::window::bind_segment;
use crate::queue::{gather, QueuePair, Refused, SendQueue, MAX_SGE};

const _: () = assert!(size_of::<Sge>() == size_of::<sys::ibv_sge>());

/// Scatter/gather entries of a program, which have the descriptor's layout already.
///
/// # Safety
///
/// `list` points to `count` entries, or `count` is not above 0.
#[inline(always)]
pub(super) unsafe fn sges<'a>(
    list: *const sys::ibv_sge,
    count: c_int,
) -> Result<&'a [Sge], PostError> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= MAX_SGE => {
            // SAFETY: the caller's word; both structures are address, length and key, and ours asks for no alignment.
            // The host is little-endian, as the layout is.
            Ok(unsafe { slice::from_raw_parts(list.cast::<Sge>(), count) })
        }
        _ => Err(PostError::Invalid),
    }
}

/// The bytes that an entry means.
///
/// # Safety
///
/// They are readable memory of the process, or their length is 0.
#[inline(always)]
unsafe fn bytes<'a>(sge: &Sge) -> &'a [u8] {
    let len = sge.len.get() as usize;
    let addr = usize::try_from(sge.addr.get()).unwrap_or(0);
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's word.
    unsafe { slice::from_raw_parts(std::ptr::with_exposed_provenance(addr), len) }
}

/// Flags of a descriptor.
#[inline(always)]
pub(super) fn flags(send_flags: c_uint) -> u8 {
    const {
        assert!(sys::IBV_SEND_FENCE == 1 && sys::IBV_SEND_SIGNALED == 2);
        assert!(sys::IBV_SEND_SOLICITED == 4);
        assert!(WQE_SIGNALED == 1 && WQE_SOLICITED == 2 && WQE_FENCE == 4);
    }
    let [low, ..] = send_flags.to_le_bytes();
    ((low >> 1) & (WQE_SIGNALED | WQE_SOLICITED)) | ((low & 1) << 2)
}

/// What a request of an RC queue pair asks for.
///
/// # Safety
///
/// `wr` is filled for its opcode.
#[inline(always)]
unsafe fn operation(wr: &sys::ibv_send_wr) -> Result<Operation, PostError> {
    // SAFETY: which member of a union counts follows from the opcode (the caller's word).
    unsafe {
        let (rdma, atomic) = (&wr.wr.rdma, &wr.wr.atomic);
        let (addr, rkey) = (rdma.remote_addr, rdma.rkey);
        let imm = || wr.__bindgen_anon_1.imm_data;
        let key = || wr.__bindgen_anon_1.invalidate_rkey;
        Ok(match wr.opcode {
            sys::IBV_WR_RDMA_WRITE => Operation::Write {
                addr,
                rkey,
                imm: None,
            },
            sys::IBV_WR_SEND => Operation::Send { imm: None },
            sys::IBV_WR_RDMA_READ => Operation::Read { addr, rkey },
            sys::IBV_WR_RDMA_WRITE_WITH_IMM => Operation::Write {
                addr,
                rkey,
                imm: Some(imm()),
            },
            sys::IBV_WR_SEND_WITH_IMM => Operation::Send { imm: Some(imm()) },
            sys::IBV_WR_SEND_WITH_INV => Operation::SendInv { key: key() },
            sys::IBV_WR_ATOMIC_CMP_AND_SWP => Operation::CompareSwap {
                addr: atomic.remote_addr,
                rkey: atomic.rkey,
                compare: atomic.compare_add,
                swap: atomic.swap,
            },
            sys::IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::FetchAdd {
                addr: atomic.remote_addr,
                rkey: atomic.rkey,
                add: atomic.compare_add,
            },
            sys::IBV_WR_LOCAL_INV => Operation::LocalInv { key: key() },
            sys::IBV_WR_BIND_MW => Operation::BindMw {
                key: wr.__bindgen_anon_2.bind_mw.rkey,
                bind: bind_segment(&wr.__bindgen_anon_2.bind_mw.bind_info)?,
            },
            _ => return Err(PostError::Invalid),
        })
    }
}

/// What a request of a UD queue pair asks for.
///
/// # Safety
///
/// As for [`operation`].
unsafe fn datagram(wr: &sys::ibv_send_wr) -> Result<Operation, PostError> {
    // SAFETY: the caller's word.
    let (ud, imm) = unsafe { (&wr.wr.ud, wr.__bindgen_anon_1.imm_data) };
    let imm = match wr.opcode {
        sys::IBV_WR_SEND => None,
        sys::IBV_WR_SEND_WITH_IMM => Some(imm),
        _ => return Err(PostError::Invalid),
    };
    if ud.ah.is_null() {
        return Err(PostError::Invalid);
    }
    // SAFETY: as above.
    let (to, grh) = unsafe { Address::of(ud.ah) }.segments(ud.remote_qpn, ud.remote_qkey);
    Ok(Operation::Datagram { to, grh, imm })
}

/// Posts a request whose data goes into the descriptor.
fn post_inline(
    queue: &mut SendQueue,
    request: &SendRequest<'_>,
    entries: &[Sge],
    last: bool,
) -> Result<(), Refused> {
    // SAFETY: the program's entries mean memory of its own with `IBV_SEND_INLINE`.
    let mut parts = entries.iter().map(|entry| unsafe { bytes(entry) });
    let mut buffer = [0; MAX_INLINE];
    let data = match parts.len() {
        0 | 1 => parts.next().unwrap_or_default(),
        _ => gather(&mut buffer, parts)
            .and_then(|len| buffer.get(..len))
            .ok_or(PostError::Invalid)?,
    };
    let data = Data::Inline(data);
    queue.post(&SendRequest { data, ..*request }, last)
}

/// Posts a request of a program. If `last` says so it is handed over with all before it, else [`SendQueue::ring`] does
/// that.
///
/// # Safety
///
/// `wr` is filled for its opcode.
#[inline(never)]
unsafe fn post_one(
    queue: &mut SendQueue,
    datagrams: bool,
    wr: &sys::ibv_send_wr,
    last: bool,
) -> Result<(), Refused> {
    if !datagrams && is_usual_send(wr) {
        // SAFETY: the caller's word: the request has one entry.
        return post_usual_send(queue, wr, unsafe { sges(wr.sg_list, 1)? }, last);
    }
    // SAFETY: the caller's word.
    let (operation, entries) = unsafe {
        let operation = if datagrams {
            datagram(wr)?
        } else {
            operation(wr)?
        };
        (operation, sges(wr.sg_list, wr.num_sge)?)
    };
    let request = SendRequest {
        wr_id: wr.wr_id,
        flags: flags(wr.send_flags),
        operation,
        data: Data::Sges(entries),
    };
    if wr.send_flags & sys::IBV_SEND_INLINE != 0 {
        post_inline(queue, &request, entries, last)
    } else {
        queue.post(&request, last)
    }
}

/// Whether it is what most requests of lists are: a SEND of one entry.
#[inline(always)]
fn is_usual_send(wr: &sys::ibv_send_wr) -> bool {
    wr.opcode == sys::IBV_WR_SEND && wr.num_sge == 1 && wr.send_flags & sys::IBV_SEND_INLINE == 0
}

/// As [`post_one`], knowing the operation: what is known where this is compiled is not written down and read back.
#[inline(never)]
fn post_usual_send(
    queue: &mut SendQueue,
    wr: &sys::ibv_send_wr,
    entries: &[Sge],
    last: bool,
) -> Result<(), Refused> {
    let request = SendRequest {
        wr_id: wr.wr_id,
        flags: flags(wr.send_flags),
        operation: Operation::Send { imm: None },
        data: Data::Sges(entries),
    };
    queue.post(&request, last)
}

/// Posts what most requests are, and hands it over: WRITE, READ and SEND of one entry, where nobody else uses the queue
/// and there is known to be room. Each is compiled for itself, so that its descriptor is a few stores. False if it is
/// anything else, may go past the engine although it is no SEND, or was refused; then nothing was done.
///
/// # Safety
///
/// `wr` is filled for its opcode.
#[inline(always)]
unsafe fn post_common(pair: &QueuePair, wr: &sys::ibv_send_wr) -> bool {
    if pair.datagrams || wr.send_flags & sys::IBV_SEND_INLINE != 0 {
        return false;
    }
    if wr.num_sge != 1 {
        return false;
    }
    // SAFETY: the caller's word.
    let (rdma, entries) = unsafe { (&wr.wr.rdma, sges(wr.sg_list, wr.num_sge)) };
    let Ok([entry]) = entries else {
        return false;
    };
    let (addr, rkey) = (rdma.remote_addr, rdma.rkey);
    match wr.opcode {
        sys::IBV_WR_RDMA_WRITE => {
            let imm = None;
            let write = Operation::Write { addr, rkey, imm };
            post_as::<false>(pair, wr, entry, write)
        }
        sys::IBV_WR_RDMA_READ => {
            let read = Operation::Read { addr, rkey };
            post_as::<false>(pair, wr, entry, read)
        }
        sys::IBV_WR_SEND => post_common_send(pair, wr, entry),
        _ => false,
    }
}

/// A SEND may go past the engine. A function of its own, so that the others have no registers to save.
#[inline(never)]
fn post_common_send(pair: &QueuePair, wr: &sys::ibv_send_wr, entry: &Sge) -> bool {
    let send = Operation::Send { imm: None };
    post_as::<true>(pair, wr, entry, send)
}

/// As [`post_common`], knowing the operation, and whether it is a SEND.
#[inline(always)]
fn post_as<const SENDS: bool>(
    pair: &QueuePair,
    wr: &sys::ibv_send_wr,
    entry: &Sge,
    operation: Operation,
) -> bool {
    let Some(mut queue) = pair.send.try_lock() else {
        return false;
    };
    let request = SendRequest {
        wr_id: wr.wr_id,
        flags: flags(wr.send_flags),
        operation,
        data: Data::Sges(slice::from_ref(entry)),
    };
    match SENDS {
        true => queue.try_send(&request),
        false => queue.try_post(&request),
    }
}

/// Posts a list up to the first request that is refused, and hands over what was posted. Returns that one.
///
/// Where the process ring is closed that some of its requests are in, they are posted again, for the engine.
///
/// # Safety
///
/// `list` ends with null, and its requests are filled for their opcodes.
unsafe fn post_list(
    queue: &mut SendQueue,
    datagrams: bool,
    list: *mut sys::ibv_send_wr,
) -> Result<(), (PostError, *mut sys::ibv_send_wr)> {
    let (mut next, mut unconfirmed) = (list, list);
    let mut result = Ok(());
    // SAFETY: the caller's word.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        next = match unsafe { post_one(queue, datagrams, wr, wr.next.is_null()) } {
            Ok(()) => wr.next,
            // That happens once: nothing goes into the ring any more, until a queue pair is reset, which takes the lock of this queue.
            Err(Refused::Closed) => unconfirmed,
            Err(Refused::Error(_)) if !queue.confirm() => unconfirmed,
            Err(Refused::Error(error)) => {
                result = Err((error, next));
                break;
            }
        };
        if queue.is_confirmed() {
            unconfirmed = next;
        }
    }
    // What a request that was refused has left.
    queue.ring();
    result
}

/// [`post_send`] of anything. A function of its own, so that the usual request has no registers to save.
///
/// # Safety
///
/// As for [`post_send`].
#[inline(never)]
unsafe fn post_any(
    qp: *mut sys::ibv_qp,
    list: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's word.
    let (pair, state) = unsafe { (pair(qp), (*qp).state) };
    let result = if state < sys::IBV_QPS_RTS {
        Err((PostError::Invalid, list))
    } else {
        // SAFETY: as above.
        unsafe { post_list(&mut pair.send.lock(), pair.datagrams, list) }
    };
    match result {
        Ok(()) => 0,
        Err((error, wr)) => {
            // SAFETY: as above: the program wants to know which request was refused.
            unsafe { *bad = wr };
            of_post(error).raw_os_error()
        }
    }
}

/// `verbs_context_ops::post_send`
pub(super) unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    list: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: `qp` is one of this provider's, and the program's list ends with null.
    let (pair, state, first) = unsafe { (pair(qp), (*qp).state, list.as_ref()) };
    if let Some(wr) = first {
        // SAFETY: the request is the program's, filled as verbs say.
        if wr.next.is_null() && state >= sys::IBV_QPS_RTS && unsafe { post_common(pair, wr) } {
            return 0;
        }
    }
    // SAFETY: as above; the program wants to know which request was refused.
    unsafe { post_any(qp, list, bad) }
}
