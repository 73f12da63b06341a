// SPDX-License-Identifier: GPL-2.0
//! GIDs and address handles.

use super::VTable;
use crate::{
    address::{AhAttributes, GidAttributes},
    bindings,
    device::Device,
    object::{Ah, Layout},
    umem::Pins,
    Driver, Udata,
};
use core::{
    ffi::{c_int, c_void},
    ptr::NonNull,
};
use kernel::{error::from_result, prelude::*};

impl<D: Driver> VTable<D> {
    pub(super) unsafe extern "C" fn add_gid(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: See the module above.
        let (dev, attr) = unsafe { (Device::<D>::from_raw((*attr).device), &*attr) };
        from_result(|| D::add_gid(dev, &GidAttributes::from_raw(attr)).map(|()| 0))
    }

    pub(super) unsafe extern "C" fn del_gid(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: See the module above.
        let (dev, attr) = unsafe { (Device::<D>::from_raw((*attr).device), &*attr) };
        D::del_gid(dev, &GidAttributes::from_raw(attr));
        0
    }

    pub(super) unsafe extern "C" fn create_user_ah(
        ib: *mut bindings::ib_ah,
        init: *mut bindings::rdma_ah_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            let (dev, address) = unsafe {
                (
                    Device::<D>::from_raw((*ib).device),
                    AhAttributes::from_raw(&*(*init).ah_attr),
                )
            };
            let udata = NonNull::new(udata).ok_or(EINVAL)?;
            // SAFETY: See the module above.
            let mut udata = unsafe { Udata::from_raw(udata) };
            let data = D::create_user_ah(dev, &address.ok_or(EINVAL)?, &mut udata)?;
            // SAFETY: The core allocated `SIZE` bytes.
            unsafe { Layout::init(ib, None, Pins::default(), data) };
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn query_ah(
        ib: *mut bindings::ib_ah,
        attr: *mut bindings::rdma_ah_attr,
    ) -> c_int {
        // SAFETY: See the module above.
        let (ah, attr) = unsafe { (Ah::<D>::from_raw(ib), &mut *attr) };
        D::query_ah(ah).to_raw(attr);
        0
    }

    pub(super) unsafe extern "C" fn destroy_ah(ib: *mut bindings::ib_ah, _flags: u32) -> c_int {
        // SAFETY: This is the core's last use of the handle.
        unsafe { Layout::<_, D::Ah>::finish(ib) };
        0
    }
}
