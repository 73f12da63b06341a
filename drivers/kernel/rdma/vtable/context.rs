// SPDX-License-Identifier: GPL-2.0
//! User contexts and what they map.

use super::VTable;
use crate::{
    bindings,
    context::{Context, Entry},
    device::Device,
    Driver, Udata,
};
use core::{ffi::c_int, ptr::NonNull};
use kernel::{error::from_result, prelude::*};

impl<D: Driver> VTable<D> {
    pub(super) unsafe extern "C" fn alloc_ucontext(
        ib: *mut bindings::ib_ucontext,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            let udata = NonNull::new(udata).ok_or(EINVAL)?;
            // SAFETY: See the module above.
            let (dev, mut udata) =
                unsafe { (Device::<D>::from_raw((*ib).device), Udata::from_raw(udata)) };
            let data = D::alloc_context(dev, &mut udata)?;
            // SAFETY: The core allocated `SIZE` bytes.
            unsafe { Context::<D>::init(ib, data) }?;
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn dealloc_ucontext(ib: *mut bindings::ib_ucontext) {
        // SAFETY: All objects of the context are gone.
        unsafe { Context::<D>::finish(ib) };
    }

    /// That it is there tells the core that programs can do without the device: it unmaps what they have mapped and
    /// destroys their objects, which is all there is to do.
    pub(super) unsafe extern "C" fn disassociate_ucontext(_ib: *mut bindings::ib_ucontext) {}

    pub(super) unsafe extern "C" fn mmap(
        ib: *mut bindings::ib_ucontext,
        vma: *mut bindings::vm_area_struct,
    ) -> c_int {
        // SAFETY: See the module above.
        from_result(|| unsafe { Context::<D>::from_raw(ib).mmap(vma) }.map(|()| 0))
    }

    pub(super) unsafe extern "C" fn mmap_free(entry: *mut bindings::rdma_user_mmap_entry) {
        // SAFETY: All entries of this device are of contexts of `D`, and this is the core's last use of this one.
        unsafe { Entry::<D>::free(entry) };
    }
}
