// SPDX-License-Identifier: GPL-2.0
//! Completion queues and shared receive queues.

use super::VTable;
use crate::{
    bindings,
    device::Device,
    driver::CompletionQueue,
    error::unsupported,
    event::{CqNotifier, Notifier},
    object::{Cq, Layout, Pd, Srq},
    queue::{CqInit, SrqAttributes, SrqInit},
    umem::Pins,
    KernelVerbs, Udata,
};
use core::{
    ffi::{c_int, c_uint},
    ptr::NonNull,
};
use kernel::{error::from_result, prelude::*, sync::Arc};

impl<D: KernelVerbs> VTable<D> {
    pub(super) unsafe extern "C" fn create_user_cq(
        ib: *mut bindings::ib_cq,
        attr: *const bindings::ib_cq_init_attr,
        attrs: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let (dev, attr) = unsafe { (Device::<D>::from_raw((*ib).device), &*attr) };
            // SAFETY: See the module above.
            let udata = NonNull::new(unsafe { bindings::nk_rdma_bundle_udata(attrs) });
            // SAFETY: See the module above.
            let mut udata = unsafe { Udata::from_raw(udata.ok_or(EINVAL)?) };
            let ignore_overrun =
                bindings::ib_uverbs_ex_create_cq_flags_IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN;
            let timestamps =
                bindings::ib_uverbs_ex_create_cq_flags_IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION;
            if attr.flags & !(ignore_overrun | timestamps) != 0 {
                return Err(unsupported());
            }
            let init = CqInit {
                entries: attr.cqe,
                vector: attr.comp_vector,
                ignore_overrun: attr.flags & ignore_overrun != 0,
                timestamps: attr.flags & timestamps != 0,
            };
            let pins = Pins::default();
            // SAFETY: Failing or not, this is detached before the core frees the queue.
            let notifier = unsafe { Notifier::new(ib) }?;
            let data = D::create_user_cq(dev, &init, &notifier, &pins, &mut udata)
                .inspect_err(|_| notifier.detach())?;
            // SAFETY: The core allocated `SIZE` bytes.
            unsafe { Self::complete_cq(ib, notifier, pins, data) };
            Ok(0)
        })
    }

    /// Completes a new queue.
    ///
    /// # Safety
    ///
    /// `ib` is the start of memory for a `Cq<D>` that the core has just allocated.
    pub(super) unsafe fn complete_cq(
        ib: *mut bindings::ib_cq,
        notifier: Arc<CqNotifier>,
        pins: Pins,
        data: D::Cq,
    ) {
        // SAFETY: By this function's contract.
        unsafe {
            (*ib).cqe = i32::try_from(data.entries()).unwrap_or(i32::MAX);
            Layout::init(ib, Some(notifier), pins, data);
        }
    }

    pub(super) unsafe extern "C" fn modify_cq(
        ib: *mut bindings::ib_cq,
        count: u16,
        micros: u16,
    ) -> c_int {
        // SAFETY: See the module above.
        from_result(|| D::modify_cq(unsafe { Cq::from_raw(ib) }, count, micros).map(|()| 0))
    }

    pub(super) unsafe extern "C" fn resize_user_cq(
        ib: *mut bindings::ib_cq,
        entries: c_uint,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let (dev, cq, notifier) = unsafe {
                let notifier = Layout::<_, D::Cq>::notifier(ib);
                (
                    Device::<D>::from_raw((*ib).device),
                    Cq::from_raw(ib),
                    notifier,
                )
            };
            // SAFETY: See the module above.
            let mut udata = unsafe { Udata::from_raw(NonNull::new(udata).ok_or(EINVAL)?) };
            notifier.ok_or(EINVAL)?.exclusive(|| {
                let pins = Pins::default();
                let entries = D::resize_user_cq(dev, cq, entries, &pins, &mut udata)?;
                // SAFETY: Nobody else uses the pins or sets the size: whoever comes here holds the notifier's lock, and
                // the core does not destroy the queue during this call.
                unsafe {
                    drop(Layout::<_, D::Cq>::replace_pins(ib, pins));
                    (*ib).cqe = i32::try_from(entries).unwrap_or(i32::MAX);
                }
                Ok(0)
            })
        })
    }

    pub(super) unsafe extern "C" fn destroy_cq(
        ib: *mut bindings::ib_cq,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: This is the core's last use of the queue.
        unsafe { Layout::<_, D::Cq>::finish(ib) };
        0
    }

    /// For queues of `ib_alloc_cq()`, before the core cancels what their handler has started: nothing may start it again.
    pub(super) unsafe extern "C" fn pre_destroy_cq(ib: *mut bindings::ib_cq) -> c_int {
        // SAFETY: The queue exists until `post_destroy_cq`.
        if let Some(notifier) = unsafe { Layout::<_, D::Cq>::notifier(ib) } {
            notifier.detach();
        }
        0
    }

    /// What comes after it, in place of `destroy_cq`.
    pub(super) unsafe extern "C" fn post_destroy_cq(ib: *mut bindings::ib_cq) {
        // SAFETY: As in `destroy_cq`.
        unsafe { Layout::<_, D::Cq>::finish(ib) };
    }

    pub(super) unsafe extern "C" fn create_srq(
        ib: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let (dev, pd, attr) = unsafe {
                (
                    Device::<D>::from_raw((*ib).device),
                    Pd::from_raw((*ib).pd),
                    &mut *attr,
                )
            };
            if attr.srq_type != bindings::ib_srq_type_IB_SRQT_BASIC {
                return Err(unsupported());
            }
            let mut init = SrqInit {
                pd,
                attributes: SrqAttributes::from_raw(&attr.attr),
            };
            let pins = Pins::default();
            // SAFETY: Failing or not, this is detached before the core frees the queue.
            let notifier = unsafe { Notifier::new(ib) }?;
            let data = match NonNull::new(udata) {
                Some(udata) => {
                    // SAFETY: See the module above.
                    let mut udata = unsafe { Udata::from_raw(udata) };
                    D::create_user_srq(dev, &mut init, &notifier, &pins, &mut udata)
                }
                None => D::create_srq(dev, &mut init, &notifier),
            };
            let data = data.inspect_err(|_| notifier.detach())?;
            init.attributes.to_raw(&mut attr.attr);
            // SAFETY: The core allocated `SIZE` bytes.
            unsafe { Layout::init(ib, Some(notifier), pins, data) };
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn modify_srq(
        ib: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
        mask: bindings::ib_srq_attr_mask,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let (srq, attr) = unsafe { (Srq::from_raw(ib), &*attr) };
            if mask != bindings::ib_srq_attr_mask_IB_SRQ_LIMIT {
                return Err(unsupported());
            }
            D::modify_srq(srq, attr.srq_limit)?;
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn query_srq(
        ib: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let (srq, attr) = unsafe { (Srq::from_raw(ib), &mut *attr) };
            D::query_srq(srq)?.to_raw(attr);
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn destroy_srq(
        ib: *mut bindings::ib_srq,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: This is the core's last use of the queue.
        unsafe { Layout::<_, D::Srq>::finish(ib) };
        0
    }
}
