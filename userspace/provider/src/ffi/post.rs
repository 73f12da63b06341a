// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posting send requests.

use core::ffi::{c_int, c_uint};
use std::slice;

use nupa_engine::client::{Data, Operation, PostError, SendRequest};
use nupa_proto::wqe::{Sge, MAX_INLINE, WQE_FENCE, WQE_SIGNALED, WQE_SOLICITED};
use rustix::io::Errno;

use super::address::Address;
use super::errno::of_post;
use super::qp::pair;
use super::sys;
use super::window::bind_segment;
use crate::queue::{gather, SendQueue, MAX_SGE};

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

/// Posts one request, which is handed over at once if it is alone.
#[inline(always)]
fn post(queue: &mut SendQueue, request: &SendRequest<'_>, alone: bool) -> Result<(), PostError> {
    if alone {
        queue.post_alone(request)
    } else {
        queue.post(request)
    }
}

/// Posts a request whose data goes into the descriptor.
#[inline(never)]
fn post_inline(
    queue: &mut SendQueue,
    request: &SendRequest<'_>,
    entries: &[Sge],
    alone: bool,
) -> Result<(), PostError> {
    let mut buffer = [0; MAX_INLINE];
    // SAFETY: the program's entries mean memory of its own with `IBV_SEND_INLINE`.
    let parts = entries.iter().map(|entry| unsafe { bytes(entry) });
    let len = gather(&mut buffer, parts).ok_or(PostError::Invalid)?;
    let data = Data::Inline(buffer.get(..len).ok_or(PostError::Invalid)?);
    post(queue, &SendRequest { data, ..*request }, alone)
}

/// Posts a request of a program.
///
/// # Safety
///
/// `wr` is filled for its opcode.
#[inline(always)]
unsafe fn post_one(
    queue: &mut SendQueue,
    datagrams: bool,
    wr: &sys::ibv_send_wr,
    alone: bool,
) -> Result<(), PostError> {
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
        return post_inline(queue, &request, entries, alone);
    }
    post(queue, &request, alone)
}

/// `verbs_context_ops::post_send`
pub(super) unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    list: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: `qp` is one of this provider's.
    let (pair, state) = unsafe { (pair(qp), (*qp).state) };
    let mut queue = pair.send.lock();
    let mut result = if state < sys::IBV_QPS_RTS {
        Err(Errno::INVAL)
    } else {
        Ok(())
    };
    let mut next = list;
    // SAFETY: the program's list ends with null.
    let alone = unsafe { list.as_ref() }.is_some_and(|wr| wr.next.is_null());
    while result.is_ok() {
        // SAFETY: as above.
        let Some(wr) = (unsafe { next.as_ref() }) else {
            break;
        };
        // SAFETY: the requests are the program's, filled as verbs say.
        match unsafe { post_one(&mut queue, pair.datagrams, wr, alone) } {
            Ok(()) => next = wr.next,
            Err(error) => result = Err(of_post(error)),
        }
    }
    if !alone {
        queue.ring();
    }
    match result {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: the program wants to know which request was refused.
            unsafe { *bad = next };
            error.raw_os_error()
        }
    }
}
