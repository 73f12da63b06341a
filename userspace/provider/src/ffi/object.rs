// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects that rdma-core holds pointers to.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

use super::sys;

/// C structures for which all zero bytes are a value, as `calloc()` makes them.
///
/// # Safety
///
/// The structure consists of integers, pointers, function pointers and unions and arrays of such.
pub(super) unsafe trait Plain: Sized {
    /// The value of all zeroes.
    fn zeroed() -> Self {
        // SAFETY: the trait's contract.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

/// C structures that begin with another one, or are another one, so that pointers to both are the same.
///
/// # Safety
///
/// A pointer to a `B` is a pointer to a `Self`.
pub(super) unsafe trait StartOf<B> {}

// SAFETY: consists of nothing.
unsafe impl Plain for () {}

macro_rules! plain {
    ($($name:ident),+ $(,)?) => {
        // SAFETY: C structures of rdma-core: integers, pointers, and arrays and unions of them.
        $(unsafe impl Plain for sys::$name {})+
    };
}

macro_rules! starts {
    ($($start:ident of $name:ident),+ $(,)?) => {
        // SAFETY: it is the first member of the structure, or of the union that is its first member.
        $(unsafe impl StartOf<sys::$name> for sys::$start {})+
    };
}

plain! {
    ibv_ah, ibv_alloc_mw, ibv_alloc_pd, ibv_command_buffer, ibv_cq_init_attr_ex, ibv_create_cq_ex, ibv_create_qp_ex, ibv_create_srq,
    ibv_create_xsrq, ibv_get_context, ibv_modify_qp, ibv_modify_srq, ibv_mw, ibv_pd, ibv_qp_init_attr_ex, ibv_query_port,
    ibv_query_qp, ibv_query_srq, ibv_reg_mr, ibv_resize_cq, ibv_rereg_mr, ibv_td, ibv_wc, ib_uverbs_alloc_mw_resp,
    ib_uverbs_alloc_pd_resp, ib_uverbs_create_ah_resp, ib_uverbs_create_srq_resp, ib_uverbs_ex_create_cq_resp,
    ib_uverbs_ex_create_qp_resp, ib_uverbs_ex_query_device_resp, ib_uverbs_get_context_resp, ib_uverbs_reg_mr_resp,
    ib_uverbs_rereg_mr_resp, ib_uverbs_resize_cq_resp, verbs_cq, verbs_device, verbs_dm, verbs_mr, verbs_qp,
    verbs_srq,
}

starts! {
    ibv_ah of ibv_ah,
    ibv_cq of verbs_cq,
    ibv_cq_ex of verbs_cq,
    ibv_dm of verbs_dm,
    ibv_mr of verbs_mr,
    ibv_mw of ibv_mw,
    ibv_pd of ibv_pd,
    ibv_qp of verbs_qp,
    ibv_qp_ex of verbs_qp,
    ibv_srq of verbs_srq,
    ibv_td of ibv_td,
    verbs_context of verbs_context,
    verbs_device of verbs_device,
    verbs_mr of verbs_mr,
}

/// A C structure `B`, which is rdma-core's, and what this provider keeps beside it.
#[repr(C)]
pub(super) struct Object<B, T> {
    base: UnsafeCell<B>,
    own: T,
}

impl<B, T> Object<B, T> {
    /// What the provider keeps.
    ///
    /// # Safety
    ///
    /// `start` came from [`Pending::finish`] or [`Object::complete`] of this type and was not given to [`Object::free`] since, nor will be
    /// before the reference is done with.
    #[inline(always)]
    pub(super) unsafe fn of<'a, S: StartOf<B>>(start: *mut S) -> &'a T {
        // SAFETY: the caller's word; `base` comes first, so the address is the object's. No exclusive reference to it
        // exists, because only this function and C reach it.
        unsafe { &(*start.cast::<Self>()).own }
    }

    /// Completes an object in memory that rdma-core allocated.
    ///
    /// # Safety
    ///
    /// `start` is memory of this type, whose C part rdma-core filled, and nobody else's.
    pub(super) unsafe fn complete<S: StartOf<B>>(start: *mut S, own: T) {
        // SAFETY: the caller's word.
        unsafe { (&raw mut (*start.cast::<Self>()).own).write(own) };
    }

    /// Drops what the provider keeps in an object of [`Object::complete`]; the memory stays.
    ///
    /// # Safety
    ///
    /// As for [`Object::of`]; nobody uses the object any more.
    pub(super) unsafe fn empty<S: StartOf<B>>(start: *mut S) {
        // SAFETY: the caller's word; `complete` put it there.
        unsafe { (&raw mut (*start.cast::<Self>()).own).drop_in_place() };
    }

    /// Frees a finished object.
    ///
    /// # Safety
    ///
    /// `start` came from [`Pending::finish`] of this type, and nobody uses the object any more.
    pub(super) unsafe fn free<S: StartOf<B>>(start: *mut S) {
        // SAFETY: the caller's word; the memory is that of a `Box` of this type ([`Pending::finish`]).
        drop(unsafe { Box::from_raw(start.cast::<Self>()) });
    }
}

/// An object whose C part is being filled; its address is final.
pub(super) struct Pending<B, T> {
    object: *mut Object<B, MaybeUninit<T>>,
}

impl<B: Plain, T> Pending<B, T> {
    /// A new object, all zero.
    pub(super) fn new() -> Self {
        let object = Object {
            base: UnsafeCell::new(B::zeroed()),
            own: MaybeUninit::uninit(),
        };
        Self {
            object: Box::into_raw(Box::new(object)),
        }
    }

    /// Address of the C part.
    pub(super) fn base(&self) -> *mut B {
        self.object.cast()
    }

    /// Completes the object and gives it to rdma-core; [`Object::free`] ends it.
    pub(super) fn finish(self, own: T) -> *mut B {
        // SAFETY: the object is allocated and nobody else's; the field is written before it is read.
        unsafe { (&raw mut (*self.object).own).write(MaybeUninit::new(own)) };
        let base = self.base();
        std::mem::forget(self);
        base
    }
}

impl<B, T> Drop for Pending<B, T> {
    fn drop(&mut self) {
        // SAFETY: the memory is that of a `Box` of this type, and `finish` did not take it.
        drop(unsafe { Box::from_raw(self.object) });
    }
}
