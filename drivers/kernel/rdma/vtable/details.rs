// SPDX-License-Identifier: GPL-2.0
//! Details of objects for those who list them.

use super::VTable;
use crate::{
    bindings,
    details::Details,
    object::{Cq, Mr, Qp},
    KernelVerbs,
};
use core::ffi::c_int;
use kernel::error::from_result;

impl<D: KernelVerbs> VTable<D> {
    pub(super) unsafe extern "C" fn fill_res_qp_entry(
        message: *mut bindings::sk_buff,
        ib: *mut bindings::ib_qp,
    ) -> c_int {
        // SAFETY: See the module above; the message is the core's, in this call.
        let described =
            unsafe { Details::write(message, |details| D::describe_qp(Qp::from_raw(ib), details)) };
        from_result(|| described.map(|()| 0))
    }

    pub(super) unsafe extern "C" fn fill_res_cq_entry(
        message: *mut bindings::sk_buff,
        ib: *mut bindings::ib_cq,
    ) -> c_int {
        // SAFETY: As above.
        let described =
            unsafe { Details::write(message, |details| D::describe_cq(Cq::from_raw(ib), details)) };
        from_result(|| described.map(|()| 0))
    }

    pub(super) unsafe extern "C" fn fill_res_mr_entry(
        message: *mut bindings::sk_buff,
        ib: *mut bindings::ib_mr,
    ) -> c_int {
        // SAFETY: As above.
        let described =
            unsafe { Details::write(message, |details| D::describe_mr(Mr::from_raw(ib), details)) };
        from_result(|| described.map(|()| 0))
    }
}
