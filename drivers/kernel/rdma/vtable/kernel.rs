// SPDX-License-Identifier: GPL-2.0
//! What users in the kernel do with queues and regions.
//!
//! Processes post and poll by themselves: the core has no commands for that here (`uverbs_cmd_mask`).

use super::{memory::region_or_error, VTable};
use crate::{
    address::AhAttributes,
    bindings,
    device::Device,
    error::unsupported,
    event::Notifier,
    kernel_verbs::KernelVerbs,
    object::{Cq, Layout, Mr, Pd, Qp, Srq},
    queue::{CqInit, QpType},
    umem::Pins,
    Access, Completions, RecvWrs, SendWrs,
};
use core::ffi::{c_int, c_uint};
use kernel::{error::from_result, prelude::*};

impl<D: KernelVerbs> VTable<D> {
    pub(super) unsafe extern "C" fn create_cq(
        ib: *mut bindings::ib_cq,
        attr: *const bindings::ib_cq_init_attr,
        _attrs: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let (dev, attr) = unsafe { (Device::<D>::from_raw((*ib).device), &*attr) };
            if attr.flags != 0 {
                return Err(unsupported());
            }
            let init = CqInit {
                entries: attr.cqe,
                vector: attr.comp_vector,
                ignore_overrun: false,
                timestamps: false,
            };
            // SAFETY: Failing or not, this is detached before the core frees the queue.
            let notifier = unsafe { Notifier::new(ib) }?;
            let data = D::create_cq(dev, &init, &notifier).inspect_err(|_| notifier.detach())?;
            // SAFETY: The core allocated `SIZE` bytes.
            unsafe { Self::complete_cq(ib, notifier, Pins::default(), data) };
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn poll_cq(
        ib: *mut bindings::ib_cq,
        room: c_int,
        array: *mut bindings::ib_wc,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let cq = unsafe { Cq::from_raw(ib) };
            // SAFETY: The user vouches for the array.
            let mut completions = unsafe { Completions::from_raw(array, room) };
            D::poll_cq(cq, &mut completions)?;
            Ok(completions.count())
        })
    }

    pub(super) unsafe extern "C" fn req_notify_cq(
        ib: *mut bindings::ib_cq,
        flags: bindings::ib_cq_notify_flags,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let cq = unsafe { Cq::from_raw(ib) };
            let solicited = flags & bindings::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK
                == bindings::ib_cq_notify_flags_IB_CQ_SOLICITED;
            let missed = D::req_notify_cq(cq, solicited);
            let report = flags & bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;
            Ok(c_int::from(missed && report))
        })
    }

    pub(super) unsafe extern "C" fn post_send(
        ib: *mut bindings::ib_qp,
        first: *const bindings::ib_send_wr,
        bad: *mut *const bindings::ib_send_wr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let (qp, mut requests) = unsafe {
                *bad = first;
                let qp_type = QpType::from_raw((*ib).qp_type)?;
                (Qp::from_raw(ib), SendWrs::from_raw(first, qp_type))
            };
            D::post_send(qp, &mut requests).inspect_err(|_| {
                // SAFETY: As above.
                unsafe { *bad = requests.taken() };
            })?;
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn post_recv(
        ib: *mut bindings::ib_qp,
        first: *const bindings::ib_recv_wr,
        bad: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: See the module above.
        unsafe {
            let qp = Qp::<D>::from_raw(ib);
            Self::post_receives(first, bad, |requests| D::post_recv(qp, requests))
        }
    }

    pub(super) unsafe extern "C" fn post_srq_recv(
        ib: *mut bindings::ib_srq,
        first: *const bindings::ib_recv_wr,
        bad: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: See the module above.
        unsafe {
            let srq = Srq::<D>::from_raw(ib);
            Self::post_receives(first, bad, |requests| D::post_srq_recv(srq, requests))
        }
    }

    /// # Safety
    ///
    /// `first` begins a list of requests that the user vouches for; the address of one that fails can be stored to
    /// `bad`.
    unsafe fn post_receives(
        first: *const bindings::ib_recv_wr,
        bad: *mut *const bindings::ib_recv_wr,
        post: impl FnOnce(&mut RecvWrs<'_>) -> Result,
    ) -> c_int {
        // SAFETY: By this function's contract.
        let mut requests = unsafe { RecvWrs::from_raw(first) };
        from_result(|| {
            post(&mut requests).inspect_err(|_| {
                let last = requests.taken();
                // SAFETY: By this function's contract.
                unsafe { *bad = if last.is_null() { first } else { last } };
            })?;
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn create_ah(
        ib: *mut bindings::ib_ah,
        init: *mut bindings::rdma_ah_init_attr,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let (dev, address) = unsafe {
                (
                    Device::<D>::from_raw((*ib).device),
                    AhAttributes::from_raw(&*(*init).ah_attr),
                )
            };
            let data = D::create_ah(dev, &address.ok_or(EINVAL)?)?;
            // SAFETY: The core allocated `SIZE` bytes.
            unsafe { Layout::init(ib, None, Pins::default(), data) };
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn get_dma_mr(
        pd: *mut bindings::ib_pd,
        access: c_int,
    ) -> *mut bindings::ib_mr {
        // SAFETY: See the module above.
        let dev = unsafe { Device::<D>::from_raw((*pd).device) };
        region_or_error(Self::new_region(Pins::default(), |_| {
            D::dma_mr(dev, Access::from_raw(access))
        }))
    }

    pub(super) unsafe extern "C" fn alloc_mr(
        pd: *mut bindings::ib_pd,
        mr_type: bindings::ib_mr_type,
        max_pages: u32,
    ) -> *mut bindings::ib_mr {
        // SAFETY: See the module above.
        let (dev, pd) = unsafe { (Device::<D>::from_raw((*pd).device), Pd::from_raw(pd)) };
        region_or_error(Self::new_region(Pins::default(), |_| match mr_type {
            bindings::ib_mr_type_IB_MR_TYPE_MEM_REG => D::alloc_mr(dev, pd, max_pages),
            _ => Err(unsupported()),
        }))
    }

    pub(super) unsafe extern "C" fn map_mr_sg(
        ib: *mut bindings::ib_mr,
        list: *mut bindings::scatterlist,
        count: c_int,
        offset: *mut c_uint,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above; the callback is called before this returns.
            unsafe {
                D::start_pages(Mr::from_raw(ib), (*ib).page_size)?;
                Ok(bindings::ib_sg_to_pages(
                    ib,
                    list,
                    count,
                    offset,
                    Some(Self::set_page),
                ))
            }
        })
    }

    unsafe extern "C" fn set_page(ib: *mut bindings::ib_mr, addr: u64) -> c_int {
        // SAFETY: This is called by `map_mr_sg` only.
        from_result(|| D::add_page(unsafe { Mr::<D>::from_raw(ib) }, addr).map(|()| 0))
    }
}
