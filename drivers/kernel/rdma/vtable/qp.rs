// SPDX-License-Identifier: GPL-2.0
//! Queue pairs.

use super::VTable;
use crate::{
    bindings,
    device::Device,
    driver::QueuePair,
    error::unsupported,
    event::Notifier,
    object::{Layout, Qp},
    queue::{QpAttributes, QpInit},
    umem::Pins,
    KernelVerbs, QpHandle, QpMask, Udata,
};
use core::{ffi::c_int, ptr::NonNull};
use kernel::{
    error::{from_result, to_result},
    prelude::*,
};

impl<D: KernelVerbs> VTable<D> {
    pub(super) unsafe extern "C" fn create_qp(
        ib: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let (dev, attr, mut init) = unsafe {
                let init = QpInit::<D>::from_raw((*ib).pd, &*attr)?;
                (Device::<D>::from_raw((*ib).device), &mut *attr, init)
            };
            let pins = Pins::default();
            // SAFETY: Failing or not, this is detached before the core frees the pair.
            let notifier = unsafe { Notifier::new(ib) }?;
            let data = match NonNull::new(udata) {
                Some(udata) => {
                    // SAFETY: See the module above.
                    let mut udata = unsafe { Udata::from_raw(udata) };
                    D::create_user_qp(dev, &mut init, &notifier, &pins, &mut udata)
                }
                None => {
                    let handle = QpHandle::new(NonNull::new(ib).ok_or(EINVAL)?);
                    D::create_qp(dev, &mut init, &notifier, handle)
                }
            };
            let data = data.inspect_err(|_| notifier.detach())?;
            init.capabilities.to_raw(&mut attr.cap);
            // SAFETY: The core allocated `SIZE` bytes.
            unsafe {
                (*ib).qp_num = data.number();
                Layout::init(ib, Some(notifier), pins, data);
            }
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn modify_qp(
        ib: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above; `udata` may be null.
            to_result(unsafe { bindings::nk_rdma_no_udata(udata) })?;
            let mask = QpMask::from_raw(mask as u32);
            if !mask.without(QpMask::STANDARD).is_empty() {
                return Err(unsupported());
            }
            // SAFETY: See the module above.
            let (dev, qp, attr) = unsafe {
                (
                    Device::<D>::from_raw((*ib).device),
                    Qp::from_raw(ib),
                    &*attr,
                )
            };
            D::modify_qp(dev, qp, &QpAttributes::from_raw(attr, mask)?, mask)?;
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn query_qp(
        ib: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        _mask: c_int,
        init: *mut bindings::ib_qp_init_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let (qp, attr, init) = unsafe { (Qp::<D>::from_raw(ib), &mut *attr, &mut *init) };
            let (attributes, capabilities, signal_all) = D::query_qp(qp)?;
            attributes.to_raw(attr);
            capabilities.to_raw(&mut attr.cap);
            capabilities.to_raw(&mut init.cap);
            init.sq_sig_type = match signal_all {
                true => bindings::ib_sig_type_IB_SIGNAL_ALL_WR,
                false => bindings::ib_sig_type_IB_SIGNAL_REQ_WR,
            };
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn attach_mcast(
        ib: *mut bindings::ib_qp,
        gid: *mut bindings::ib_gid,
        _lid: u16,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above; all variants of the union are 16 bytes without meaning of their own.
            let (dev, qp, group) = unsafe {
                (
                    Device::<D>::from_raw((*ib).device),
                    Qp::from_raw(ib),
                    (*gid).raw,
                )
            };
            D::attach_mcast(dev, qp, &group).map(|()| 0)
        })
    }

    pub(super) unsafe extern "C" fn detach_mcast(
        ib: *mut bindings::ib_qp,
        gid: *mut bindings::ib_gid,
        _lid: u16,
    ) -> c_int {
        from_result(|| {
            // SAFETY: As above.
            let (qp, group) = unsafe { (Qp::<D>::from_raw(ib), (*gid).raw) };
            D::detach_mcast(qp, &group).map(|()| 0)
        })
    }

    pub(super) unsafe extern "C" fn destroy_qp(
        ib: *mut bindings::ib_qp,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: This is the core's last use of the pair.
        unsafe { Layout::<_, D::Qp>::finish(ib) };
        0
    }
}
