// SPDX-License-Identifier: GPL-2.0
//! What processes ask for by methods of the driver's own (`struct nk_rdma_methods`).
//!
//! Each method's reference to its object keeps it for the time of the call.

use super::VTable;
use crate::{
    bindings,
    device::Device,
    object::{Dm, Qp, Srq},
    KernelVerbs,
};
use core::ffi::c_int;
use kernel::error::from_result;

impl<D: KernelVerbs> VTable<D> {
    /// The table, one per driver.
    pub(crate) const METHODS: &'static bindings::nk_rdma_methods = &bindings::nk_rdma_methods {
        export_dm: Some(Self::export_dm),
        export_ring: Some(Self::export_ring),
        kick_qp: Some(Self::kick_qp),
        kick_peer: Some(Self::kick_peer),
        kick_event: Some(Self::kick_event),
        kick_srq: Some(Self::kick_srq),
        poll_cq: Some(Self::poll_user_cq),
        query_clock: Some(Self::query_clock),
    };

    unsafe extern "C" fn export_dm(
        dm: *mut bindings::ib_dm,
        handle: *mut bindings::nk_rdma_dm_handle,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let bytes = D::export_dm(unsafe { Dm::<D>::from_raw(dm) })?;
            // SAFETY: The caller's structure, for the time of the call.
            unsafe { (*handle).bytes = bytes };
            Ok(0)
        })
    }

    unsafe extern "C" fn export_ring(dm: *mut bindings::ib_dm, qp: *mut bindings::ib_qp) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let (dm, qp) = unsafe { (Dm::<D>::from_raw(dm), Qp::<D>::from_raw(qp)) };
            D::export_ring(dm, qp).map(|()| 0)
        })
    }

    unsafe extern "C" fn kick_qp(qp: *mut bindings::ib_qp, send: bool, recv: bool) -> c_int {
        // SAFETY: See the module above.
        from_result(|| D::kick_qp(unsafe { Qp::<D>::from_raw(qp) }, send, recv).map(|()| 0))
    }

    unsafe extern "C" fn kick_peer(qp: *mut bindings::ib_qp) {
        // SAFETY: See the module above.
        D::kick_peer(unsafe { Qp::<D>::from_raw(qp) });
    }

    unsafe extern "C" fn kick_event(qp: *mut bindings::ib_qp) {
        // SAFETY: See the module above.
        D::kick_event(unsafe { Qp::<D>::from_raw(qp) });
    }

    unsafe extern "C" fn kick_srq(srq: *mut bindings::ib_srq) {
        // SAFETY: See the module above.
        D::kick_srq(unsafe { Srq::<D>::from_raw(srq) });
    }

    unsafe extern "C" fn poll_user_cq(cq: *mut bindings::ib_cq) {
        // SAFETY: See the module above.
        D::work(unsafe { Device::<D>::from_raw((*cq).device) });
    }

    unsafe extern "C" fn query_clock(ib: *mut bindings::ib_device, clock: *mut u64) -> c_int {
        from_result(|| {
            // SAFETY: The caller's context keeps the device for the time of the call.
            let now = D::query_clock(unsafe { Device::<D>::from_raw(ib) })?;
            // SAFETY: The caller's variable, for the time of the call.
            unsafe { *clock = now };
            Ok(0)
        })
    }
}
