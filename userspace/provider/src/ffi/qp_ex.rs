// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests made piece by piece (`ibv_wr_start()` and what follows). The lock is held from start to complete or abort.

use core::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::slice;

use nupa_engine::rings::{Operation, PostError};
use nupa_proto::wqe::{FlushSegment, Sge};

use super::address::Address;
use super::errno::{code, of_post};
use super::lock::Guard;
use super::post::flags;
use super::qp::pair;
use super::sys;
use super::window::bind_segment;
use crate::queue::SendQueue;

/// Requests that a UD queue pair can have.
const DATAGRAM_OPS: u32 = sys::IBV_QP_EX_WITH_SEND | sys::IBV_QP_EX_WITH_SEND_WITH_IMM;
/// Requests that an RC queue pair can have.
const CONNECTED_OPS: u32 = DATAGRAM_OPS
    | sys::IBV_QP_EX_WITH_RDMA_WRITE
    | sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | sys::IBV_QP_EX_WITH_RDMA_READ
    | sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | sys::IBV_QP_EX_WITH_LOCAL_INV
    | sys::IBV_QP_EX_WITH_BIND_MW
    | sys::IBV_QP_EX_WITH_SEND_WITH_INV
    | sys::IBV_QP_EX_WITH_FLUSH
    | sys::IBV_QP_EX_WITH_ATOMIC_WRITE;

/// Whether queue pairs of a type have all these requests (`IBV_QP_EX_WITH_*`).
pub(super) fn supports(qp_type: sys::ibv_qp_type, ops: u64) -> bool {
    let supported = if qp_type == sys::IBV_QPT_UD {
        DATAGRAM_OPS
    } else {
        CONNECTED_OPS
    };
    ops & !u64::from(supported) == 0
}

/// Puts the functions of this file into an object, but for those that hand over, if the engine is `called` then.
pub(super) fn set_functions(qp: &mut sys::ibv_qp_ex, called: bool) {
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(if called {
        super::called::wr_complete
    } else {
        wr_complete
    });
    qp.wr_abort = Some(if called {
        super::called::wr_abort
    } else {
        wr_abort
    });
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_flush = Some(wr_flush);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
}

/// The queue that `ibv_wr_start()` locked; it stays locked.
///
/// # Safety
///
/// `qp` is one of this provider's, and the calling thread is between start and end of a batch on it.
#[inline(always)]
unsafe fn started<'a>(qp: *mut sys::ibv_qp_ex) -> ManuallyDrop<Guard<'a, SendQueue>> {
    // SAFETY: the caller's word: `wr_start` kept the lock.
    ManuallyDrop::new(unsafe { pair(qp).send.resume() })
}

/// Begins a request with the identification and flags that the program set.
///
/// # Safety
///
/// As for [`started`].
#[inline(always)]
unsafe fn begin(qp: *mut sys::ibv_qp_ex, operation: Operation) {
    // SAFETY: the caller's word.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, flags((*qp).wr_flags));
        started(qp).begin(wr_id, flags, operation);
    }
}

unsafe extern "C" fn wr_start(qp: *mut sys::ibv_qp_ex) {
    // SAFETY: `qp` is one of this provider's.
    let (pair, state) = unsafe { (pair(qp), (*qp).qp_base.state) };
    pair.send.keep();
    // SAFETY: this thread has just locked it.
    let mut queue = unsafe { started(qp) };
    queue.start();
    if state < sys::IBV_QPS_RTS {
        queue.draft().refuse(PostError::Invalid);
    }
}

pub(super) unsafe extern "C" fn wr_complete(qp: *mut sys::ibv_qp_ex) -> c_int {
    // SAFETY: the program has started a batch, and ends it.
    let mut queue = ManuallyDrop::into_inner(unsafe { started(qp) });
    code(queue.complete().map_err(of_post))
}

pub(super) unsafe extern "C" fn wr_abort(qp: *mut sys::ibv_qp_ex) {
    // SAFETY: as above.
    let mut queue = ManuallyDrop::into_inner(unsafe { started(qp) });
    queue.abort();
}

/// Defines functions that begin a request.
macro_rules! operations {
    ($($name:ident($($arg:ident: $type:ty),*) => $operation:expr;)+) => {$(
        unsafe extern "C" fn $name(qp: *mut sys::ibv_qp_ex, $($arg: $type),*) {
            // SAFETY: the program has started a batch.
            unsafe { begin(qp, $operation) }
        }
    )+};
}

operations! {
    wr_send() => Operation::Send { imm: None };
    wr_send_imm(imm: u32) => Operation::Send { imm: Some(imm) };
    wr_send_inv(key: u32) => Operation::SendInv { key };
    wr_rdma_write(rkey: u32, addr: u64) => Operation::Write { addr, rkey, imm: None };
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) => Operation::Write { addr, rkey, imm: Some(imm) };
    wr_rdma_read(rkey: u32, addr: u64) => Operation::Read { addr, rkey };
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =>
        Operation::CompareSwap { addr, rkey, compare, swap };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) => Operation::FetchAdd { addr, rkey, add };
    wr_local_inv(key: u32) => Operation::LocalInv { key };
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut sys::ibv_qp_ex,
    rkey: u32,
    addr: u64,
    value: *const c_void,
) {
    // SAFETY: the program passes 8 bytes, and has started a batch.
    unsafe {
        let value = u64::from_le_bytes(value.cast::<[u8; 8]>().read());
        begin(qp, Operation::AtomicWrite { addr, rkey, value });
    }
}

unsafe extern "C" fn wr_flush(
    qp: *mut sys::ibv_qp_ex,
    rkey: u32,
    addr: u64,
    len: usize,
    kind: u8,
    level: u8,
) {
    let segment = FlushSegment {
        addr: addr.into(),
        rkey: rkey.into(),
        len: u32::try_from(len).unwrap_or(u32::MAX).into(),
        kind,
        level,
        reserved: [0; 6],
    };
    // SAFETY: the program has started a batch.
    unsafe {
        begin(qp, Operation::Flush(segment));
        if u32::try_from(len).is_err() {
            started(qp).draft().refuse(PostError::Invalid);
        }
    }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut sys::ibv_qp_ex,
    _mw: *mut sys::ibv_mw,
    key: u32,
    info: *const sys::ibv_mw_bind_info,
) {
    // SAFETY: the program passes what to bind, of objects of its own, and has started a batch.
    unsafe {
        match bind_segment(&*info) {
            Ok(bind) => begin(qp, Operation::BindMw { key, bind }),
            Err(error) => started(qp).draft().refuse(error),
        }
    }
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut sys::ibv_qp_ex,
    ah: *mut sys::ibv_ah,
    qpn: u32,
    qkey: u32,
) {
    // SAFETY: the handle is one of this provider's, and the program has started a batch.
    unsafe {
        let (to, grh) = Address::of(ah).segments(qpn, qkey);
        started(qp).draft().address(to, grh);
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut sys::ibv_qp_ex, lkey: u32, addr: u64, len: u32) {
    let sge = Sge {
        addr: addr.into(),
        len: len.into(),
        lkey: lkey.into(),
    };
    // SAFETY: the program has started a batch.
    unsafe { started(qp) }.draft().set_sges(&[sge]);
}

unsafe extern "C" fn wr_set_sge_list(
    qp: *mut sys::ibv_qp_ex,
    count: usize,
    list: *const sys::ibv_sge,
) {
    // SAFETY: the program has started a batch and passes `count` entries, whose layout is that of `Sge`
    // (`post::sges`).
    unsafe {
        let sges = match count {
            0 => &[],
            count => slice::from_raw_parts(list.cast::<Sge>(), count),
        };
        started(qp).draft().set_sges(sges);
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut sys::ibv_qp_ex, addr: *mut c_void, len: usize) {
    let buffer = sys::ibv_data_buf { addr, length: len };
    // SAFETY: the program has started a batch and passes `len` bytes.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const buffer) }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut sys::ibv_qp_ex,
    count: usize,
    list: *const sys::ibv_data_buf,
) {
    // SAFETY: the program has started a batch and passes `count` buffers.
    unsafe {
        let buffers = match count {
            0 => &[],
            count => slice::from_raw_parts(list, count),
        };
        started(qp)
            .draft()
            .set_inline(buffers.iter().map(|buffer| bytes(buffer)));
    }
}

/// The bytes of a buffer.
///
/// # Safety
///
/// They are readable memory of the process, or their length is 0.
unsafe fn bytes<'a>(buffer: &sys::ibv_data_buf) -> &'a [u8] {
    match buffer.length {
        0 => &[],
        // SAFETY: the caller's word.
        len => unsafe { slice::from_raw_parts(buffer.addr.cast::<u8>(), len) },
    }
}
