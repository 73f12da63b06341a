// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects that no kernel made, for tests on the host: the entry points work on them as on any other.

#![allow(clippy::arithmetic_side_effects, reason = "a test may fail loudly")]

use core::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;

use nupa_proto::wqe::GrhSegment;

use super::address::Address;
use super::cq::CqObject;
use super::object::Pending;
use super::qp::QpObject;
use super::srq::{SharedQueue, SrqObject};
use super::{called, cq, cq_ex, post, post_recv, qp_ex};
use crate::ffi::{Calls, Lock, Pages, ProcessBytes};
use crate::queue::{CompletionQueue, QueuePair, RecvQueue, SharedCompletions};

pub(crate) use super::sys;

/// A completion queue.
pub(crate) struct Cq(*mut sys::verbs_cq);

// SAFETY: any thread may call verbs, and free the object; its functions lock what they use.
unsafe impl std::marker::Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    pub(crate) fn new(queue: CompletionQueue) -> Self {
        let pending = Pending::<sys::verbs_cq, SharedCompletions>::new();
        // SAFETY: the object is new.
        let functions = unsafe { &mut (*pending.base()).__bindgen_anon_1.cq_ex };
        cq_ex::set_functions(functions, false);
        Self(pending.finish(Arc::new(Lock::new(queue))))
    }

    pub(crate) fn shared(&self) -> SharedCompletions {
        // SAFETY: the object lives as long as `self`.
        Arc::clone(unsafe { cq::completions(self.0.cast::<sys::ibv_cq>()) })
    }

    /// `ibv_poll_cq()`
    pub(crate) fn poll(&self, entries: usize) -> Vec<sys::ibv_wc> {
        let mut wc = Vec::with_capacity(entries);
        // SAFETY: the vector has room; what was polled is initialised.
        unsafe {
            let count = c_int::try_from(entries).unwrap();
            let taken = cq::poll_cq(self.0.cast(), count, wc.as_mut_ptr());
            wc.set_len(usize::try_from(taken).unwrap());
        }
        wc
    }

    /// `ibv_poll_cq()` of as many completions as there are places; returns how many there were.
    pub(crate) fn poll_into(&self, wc: &mut [sys::ibv_wc]) -> usize {
        let count = c_int::try_from(wc.len()).unwrap();
        // SAFETY: the object lives as long as `self`; there is room for so many.
        let taken = unsafe { cq::poll_cq(self.0.cast(), count, wc.as_mut_ptr()) };
        usize::try_from(taken).unwrap()
    }

    /// `ibv_poll_cq()` of one completion, into a place for it: whether there was one.
    pub(crate) fn poll_one(&self, wc: &mut sys::ibv_wc) -> bool {
        // SAFETY: the object lives as long as `self`; there is room for one.
        let taken = unsafe { cq::poll_cq(self.0.cast(), 1, wc) };
        taken == 1
    }

    /// Whether the engine need not work although the queue was found empty.
    pub(crate) fn found_nothing(&self) -> bool {
        // SAFETY: the object lives as long as `self`.
        unsafe { cq::found_nothing(self.0.cast::<sys::ibv_cq>()) }
    }

    /// `ibv_req_notify_cq()`
    pub(crate) fn arm(&self, solicited_only: bool) {
        // SAFETY: the object lives as long as `self`.
        let result = unsafe { cq::req_notify_cq(self.0.cast(), c_int::from(solicited_only)) };
        assert_eq!(result, 0);
    }

    /// `ibv_start_poll()` to `ibv_end_poll()`: what each completion read as.
    pub(crate) fn poll_ex(&self) -> Vec<sys::ibv_wc> {
        let cq = self.0.cast::<sys::ibv_cq_ex>();
        let mut attr = sys::ibv_poll_cq_attr { comp_mask: 0 };
        let mut wc = Vec::new();
        // SAFETY: the functions are those that were set, called in the order that verbs want.
        unsafe {
            let mut result = (*cq).start_poll.unwrap()(cq, &raw mut attr);
            if result != 0 {
                return wc;
            }
            while result == 0 {
                wc.push(sys::ibv_wc {
                    wr_id: (*cq).wr_id,
                    status: (*cq).status,
                    opcode: (*cq).read_opcode.unwrap()(cq),
                    vendor_err: (*cq).read_vendor_err.unwrap()(cq),
                    byte_len: (*cq).read_byte_len.unwrap()(cq),
                    __bindgen_anon_1: sys::ibv_wc__bindgen_ty_1 {
                        imm_data: (*cq).read_imm_data.unwrap()(cq),
                    },
                    qp_num: (*cq).read_qp_num.unwrap()(cq),
                    src_qp: (*cq).read_src_qp.unwrap()(cq),
                    wc_flags: (*cq).read_wc_flags.unwrap()(cq),
                    pkey_index: 0,
                    slid: 0,
                    sl: (*cq).read_sl.unwrap()(cq),
                    dlid_path_bits: 0,
                });
                result = (*cq).next_poll.unwrap()(cq);
            }
            (*cq).end_poll.unwrap()(cq);
        }
        wc
    }

    /// `ibv_start_poll()` to `ibv_end_poll()`: when each completion was written.
    pub(crate) fn timestamps(&self) -> Vec<u64> {
        let cq = self.0.cast::<sys::ibv_cq_ex>();
        let mut attr = sys::ibv_poll_cq_attr { comp_mask: 0 };
        let mut found = Vec::new();
        // SAFETY: as in `poll_ex`.
        unsafe {
            let mut result = (*cq).start_poll.unwrap()(cq, &raw mut attr);
            if result != 0 {
                return found;
            }
            while result == 0 {
                found.push((*cq).read_completion_ts.unwrap()(cq));
                result = (*cq).next_poll.unwrap()(cq);
            }
            (*cq).end_poll.unwrap()(cq);
        }
        found
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: `new` made it, and nobody else has it.
        unsafe { CqObject::free(self.0.cast::<sys::ibv_cq>()) }
    }
}

/// A shared receive queue.
pub(crate) struct Srq(*mut sys::ibv_srq);

impl Srq {
    pub(crate) fn new(mut queue: RecvQueue, calls: Calls) -> Self {
        let pending = Pending::<sys::verbs_srq, SharedQueue>::new();
        queue.set_call(calls.queue.clone());
        let entries = Arc::new(Lock::new(queue));
        Self(pending.finish(SharedQueue { entries, calls }).cast())
    }

    pub(crate) fn entries(&self) -> Arc<Lock<RecvQueue>> {
        // SAFETY: the object lives as long as `self`.
        Arc::clone(unsafe { super::srq::entries(self.0) })
    }

    /// `ibv_post_srq_recv()`
    pub(crate) fn post(&self, requests: &mut [Recv]) -> Result<(), (c_int, usize)> {
        // SAFETY: the object lives as long as `self`, the list as long as the call.
        post_list(requests, |list, bad| unsafe {
            match super::srq::calls(self.0).queue {
                None => post_recv::post_srq_recv(self.0, list, bad),
                Some(_) => called::post_srq_recv(self.0, list, bad),
            }
        })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: `new` made it, and nobody else has it.
        unsafe { SrqObject::free(self.0) }
    }
}

/// An address handle.
pub(crate) struct Ah(*mut sys::ibv_ah);

impl Ah {
    pub(crate) fn new(node: u16, grh: GrhSegment) -> Self {
        Self(Pending::<sys::ibv_ah, Address>::new().finish(Address::new(node, grh)))
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: `new` made it, and nobody else has it.
        unsafe { super::address::AhObject::free(self.0) }
    }
}

/// A list of requests of C.
pub(crate) trait Request {
    fn set_next(&mut self, next: *mut Self);
}

pub(crate) type Send = sys::ibv_send_wr;
pub(crate) type Recv = sys::ibv_recv_wr;

impl Request for Send {
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }
}

impl Request for Recv {
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }
}

/// Posts requests as a list. An error comes with the place of the request that was refused.
fn post_list<R: Request>(
    requests: &mut [R],
    post: impl FnOnce(*mut R, *mut *mut R) -> c_int,
) -> Result<(), (c_int, usize)> {
    let base = requests.as_mut_ptr();
    for (n, request) in requests.iter_mut().enumerate().rev().skip(1) {
        request.set_next(base.wrapping_add(n + 1));
    }
    let mut bad = ptr::null_mut();
    match post(base, &raw mut bad) {
        0 => Ok(()),
        error => Err((error, (bad.addr() - base.addr()) / size_of::<R>())),
    }
}

/// A send request without data.
pub(crate) fn send(wr_id: u64, opcode: sys::ibv_wr_opcode, flags: c_uint) -> Send {
    // SAFETY: integers, pointers and unions of them.
    let zero: Send = unsafe { std::mem::zeroed() };
    Send {
        wr_id,
        opcode,
        send_flags: flags,
        ..zero
    }
}

/// A receive request.
pub(crate) fn recv(wr_id: u64, sges: &mut [sys::ibv_sge]) -> Recv {
    Recv {
        wr_id,
        next: ptr::null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge: c_int::try_from(sges.len()).unwrap(),
    }
}

/// A call of an entry point with everything prepared.
pub(crate) trait Call: FnOnce() {}
impl<T: FnOnce()> Call for T {}

/// `ibv_post_send()` of one request, and `ibv_poll_cq()` of one completion, as programs call them: what they cost.
pub(crate) fn post_call<'a>(qp: &'a Qp, request: &'a mut Send) -> impl Call + 'a {
    let mut bad = ptr::null_mut();
    move || {
        // SAFETY: object and request live as long as the call can be made.
        let result = unsafe { post::post_send(qp.0.cast(), request, &raw mut bad) };
        assert_eq!(result, 0);
    }
}

/// As [`post_call`], by `ibv_wr_start()` to `ibv_wr_complete()`: a WRITE.
pub(crate) fn batch_call(qp: &Qp, sge: sys::ibv_sge, rkey: u32, addr: u64) -> impl Call + '_ {
    move || {
        let result = qp.batch(true, |batch| {
            batch
                .next(1, sys::IBV_SEND_SIGNALED)
                .write(rkey, addr)
                .sge(sge);
        });
        assert_eq!(result, 0);
    }
}

/// As [`post_call`].
pub(crate) fn poll_call<'a>(cq: &'a Cq, wc: &'a mut sys::ibv_wc) -> impl Call + 'a {
    move || assert!(cq.poll_one(wc))
}

/// Memory that a test has mapped, as a program's.
pub(crate) fn process_bytes(pages: &Pages, len: usize) -> ProcessBytes {
    let addr = usize::try_from(pages.address()).unwrap();
    // SAFETY: it is mapped; tests keep it until they end.
    unsafe { ProcessBytes::new(addr, len) }
}

/// Room for a completion.
pub(crate) fn no_completion() -> sys::ibv_wc {
    <sys::ibv_wc as super::object::Plain>::zeroed()
}

/// Immediate data of a completion.
pub(crate) fn imm(wc: &sys::ibv_wc) -> u32 {
    // SAFETY: both members of the union are 32-bit integers.
    unsafe { wc.__bindgen_anon_1.imm_data }
}

/// What a program adds to a send request.
pub(crate) trait SendExt {
    fn with(self, sges: &mut [sys::ibv_sge]) -> Self;
    fn remote(self, addr: u64, rkey: u32) -> Self;
    fn imm(self, imm: u32) -> Self;
    fn atomic(self, addr: u64, rkey: u32, compare_add: u64, swap: u64) -> Self;
    fn to(self, ah: &Ah, qpn: u32, qkey: u32) -> Self;
}

impl SendExt for Send {
    fn with(mut self, sges: &mut [sys::ibv_sge]) -> Self {
        self.sg_list = sges.as_mut_ptr();
        self.num_sge = c_int::try_from(sges.len()).unwrap();
        self
    }

    fn remote(mut self, addr: u64, rkey: u32) -> Self {
        self.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: addr,
            rkey,
        };
        self
    }

    fn imm(mut self, imm: u32) -> Self {
        self.__bindgen_anon_1.imm_data = imm;
        self
    }

    fn atomic(mut self, addr: u64, rkey: u32, compare_add: u64, swap: u64) -> Self {
        self.wr.atomic = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: addr,
            compare_add,
            swap,
            rkey,
        };
        self
    }

    fn to(mut self, ah: &Ah, qpn: u32, qkey: u32) -> Self {
        self.wr.ud = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah: ah.0,
            remote_qpn: qpn,
            remote_qkey: qkey,
        };
        self
    }
}

/// A queue pair.
pub(crate) struct Qp(*mut sys::verbs_qp);

// SAFETY: as of a completion queue.
unsafe impl Sync for Qp {}

impl Qp {
    pub(crate) fn new(pair: QueuePair) -> Self {
        let pending = Pending::<sys::verbs_qp, QueuePair>::new();
        // SAFETY: the object is new.
        let functions = unsafe { &mut (*pending.base()).__bindgen_anon_1.qp_ex };
        qp_ex::set_functions(functions, pair.calls.queue.is_some());
        Self(pending.finish(pair))
    }

    pub(crate) fn pair(&self) -> &QueuePair {
        // SAFETY: the object lives as long as `self`.
        unsafe { super::qp::pair(self.0.cast::<sys::ibv_qp>()) }
    }

    /// What `ibv_modify_qp()` notes.
    pub(crate) fn set_state(&self, state: sys::ibv_qp_state) {
        // SAFETY: the object lives as long as `self`.
        unsafe { (*self.0).__bindgen_anon_1.qp.state = state };
    }

    /// `ibv_post_send()`
    pub(crate) fn post_send(&self, requests: &mut [Send]) -> Result<(), (c_int, usize)> {
        // SAFETY: the object lives as long as `self`, the list as long as the call.
        post_list(requests, |list, bad| unsafe {
            match self.pair().calls.queue {
                None => post::post_send(self.0.cast(), list, bad),
                Some(_) => called::post_send(self.0.cast(), list, bad),
            }
        })
    }

    /// `ibv_post_recv()`
    pub(crate) fn post_recv(&self, requests: &mut [Recv]) -> Result<(), (c_int, usize)> {
        // SAFETY: as above.
        post_list(requests, |list, bad| unsafe {
            match self.pair().calls.recv {
                None => post_recv::post_recv(self.0.cast(), list, bad),
                Some(_) => called::post_recv(self.0.cast(), list, bad),
            }
        })
    }

    /// `ibv_wr_start()`, what `fill` does with the queue pair, `ibv_wr_complete()` or `ibv_wr_abort()`.
    pub(crate) fn batch(&self, commit: bool, fill: impl FnOnce(&mut Batch)) -> c_int {
        let qp = self.0.cast::<sys::ibv_qp_ex>();
        // SAFETY: the functions are those that were set, called in the order that verbs want.
        unsafe {
            (*qp).wr_start.unwrap()(qp);
            fill(&mut Batch(qp));
            if commit {
                (*qp).wr_complete.unwrap()(qp)
            } else {
                (*qp).wr_abort.unwrap()(qp);
                0
            }
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.pair().leave();
        // SAFETY: `new` made it, and nobody else has it.
        unsafe { QpObject::free(self.0.cast::<sys::ibv_qp>()) }
    }
}

/// A started batch of `ibv_wr_*()`.
pub(crate) struct Batch(*mut sys::ibv_qp_ex);

impl Batch {
    pub(crate) fn next(&mut self, wr_id: u64, flags: c_uint) -> &mut Self {
        // SAFETY: `Qp::batch` made it of an object that lives.
        unsafe {
            (*self.0).wr_id = wr_id;
            (*self.0).wr_flags = flags;
        }
        self
    }

    pub(crate) fn write(&mut self, rkey: u32, addr: u64) -> &mut Self {
        // SAFETY: a batch was started.
        unsafe { (*self.0).wr_rdma_write.unwrap()(self.0, rkey, addr) };
        self
    }

    pub(crate) fn fetch_add(&mut self, rkey: u32, addr: u64, add: u64) -> &mut Self {
        // SAFETY: as above.
        unsafe { (*self.0).wr_atomic_fetch_add.unwrap()(self.0, rkey, addr, add) };
        self
    }

    pub(crate) fn atomic_write(&mut self, rkey: u32, addr: u64, value: [u8; 8]) -> &mut Self {
        // SAFETY: as above.
        unsafe {
            (*self.0).wr_atomic_write.unwrap()(self.0, rkey, addr, (&raw const value).cast())
        };
        self
    }

    pub(crate) fn send(&mut self) -> &mut Self {
        // SAFETY: as above.
        unsafe { (*self.0).wr_send.unwrap()(self.0) };
        self
    }

    pub(crate) fn to(&mut self, ah: &Ah, qpn: u32, qkey: u32) -> &mut Self {
        // SAFETY: as above.
        unsafe { (*self.0).wr_set_ud_addr.unwrap()(self.0, ah.0, qpn, qkey) };
        self
    }

    pub(crate) fn sge(&mut self, sge: sys::ibv_sge) -> &mut Self {
        // SAFETY: as above.
        unsafe { (*self.0).wr_set_sge.unwrap()(self.0, sge.lkey, sge.addr, sge.length) };
        self
    }

    pub(crate) fn sges(&mut self, sges: &[sys::ibv_sge]) -> &mut Self {
        // SAFETY: as above.
        unsafe { (*self.0).wr_set_sge_list.unwrap()(self.0, sges.len(), sges.as_ptr()) };
        self
    }

    pub(crate) fn inline(&mut self, bytes: &mut [u8]) -> &mut Self {
        let (addr, len) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: as above.
        unsafe { (*self.0).wr_set_inline_data.unwrap()(self.0, addr, len) };
        self
    }
}
