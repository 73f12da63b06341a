// SPDX-License-Identifier: GPL-2.0
//! Device memory.

use super::VTable;
use crate::{
    bindings,
    context::Context,
    device::Device,
    object::{Dm, Layout, Offered, Pd, Qp},
    umem::Pins,
    Access, DmHandle, Driver,
};
use core::{ffi::c_int, ptr};
use kernel::{error::to_result, prelude::*};

/// What a process asks for by the attributes of an allocation.
enum Source<'a, D: Driver> {
    /// Memory of the device's own.
    Own,
    /// What was exported under a handle.
    Shared(DmHandle),
    /// What the queue pair's peer receives from.
    Ring(&'a Qp<D>),
    /// The region of the queue pair's peer with a key.
    Region(&'a Qp<D>, u32),
}

impl<D: Driver> Source<'_, D> {
    /// # Safety
    ///
    /// `attrs` are those of a call of `alloc_dm` for a device of `D`, which takes longer than this value lives.
    unsafe fn read(attrs: *mut bindings::uverbs_attr_bundle) -> Result<Self> {
        let mut handle = bindings::nk_rdma_dm_handle::default();
        let mut qp = ptr::null_mut();
        let mut key = 0;
        // SAFETY: By this function's contract; the variables live.
        let given = unsafe {
            [
                bindings::nk_rdma_dm_import(attrs, &mut handle),
                bindings::nk_rdma_dm_ring(attrs, &mut qp),
                bindings::nk_rdma_dm_key(attrs, &mut key),
            ]
        };
        // SAFETY: The core has found it among the objects of the process, and keeps it for the time of the call.
        let qp = || unsafe { Qp::from_raw(qp) };
        match given {
            [0, 0, 0] => Ok(Self::Own),
            [1, 0, 0] => Ok(Self::Shared(handle.bytes)),
            [0, 1, 0] => Ok(Self::Ring(qp())),
            [0, 1, 1] => Ok(Self::Region(qp(), key)),
            given => {
                given
                    .into_iter()
                    .try_for_each(|one| to_result(one.min(0)))?;
                Err(EINVAL)
            }
        }
    }
}

impl<D: Driver> VTable<D> {
    pub(super) unsafe extern "C" fn alloc_dm(
        ib: *mut bindings::ib_device,
        context: *mut bindings::ib_ucontext,
        attr: *mut bindings::ib_dm_alloc_attr,
        attrs: *mut bindings::uverbs_attr_bundle,
    ) -> *mut bindings::ib_dm {
        let allocate = || {
            // SAFETY: See the module above.
            let (dev, context, attr) = unsafe {
                (
                    Device::<D>::from_raw(ib),
                    Context::from_raw(context),
                    &*attr,
                )
            };
            let memory = Layout::<bindings::ib_dm, Offered<D::Dm>>::allocate()?;
            // SAFETY: See the module above.
            let (data, offset) = match unsafe { Source::<D>::read(attrs) }? {
                Source::Own => D::alloc_dm(dev, context, attr.length, attr.alignment)?,
                Source::Shared(handle) => D::import_dm(dev, context, attr.length, &handle)?,
                Source::Ring(qp) => D::find_ring(dev, context, attr.length, qp)?,
                Source::Region(qp, key) => {
                    let (data, offset, place) = D::find_region(dev, context, qp, key)?;
                    let len = place.end.saturating_sub(place.start);
                    // SAFETY: See the module above.
                    to_result(unsafe { bindings::nk_rdma_answer_region(attrs, place.start, len) })
                        .inspect_err(|_| context.withdraw(offset))?;
                    (data, offset)
                }
            };
            // SAFETY: See the module above.
            to_result(unsafe { bindings::nk_rdma_answer_dm(attrs, offset) })
                .inspect_err(|_| context.withdraw(offset))?;
            let dm = KBox::into_raw(memory).cast::<bindings::ib_dm>();
            // SAFETY: The memory is fresh, zeroed and large enough.
            unsafe { Layout::init(dm, None, Pins::default(), Offered { data, offset }) };
            Ok(dm)
        };
        allocate().unwrap_or_else(|error: Error| error.to_ptr())
    }

    pub(super) unsafe extern "C" fn dealloc_dm(
        ib: *mut bindings::ib_dm,
        _attrs: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        // SAFETY: This is the core's last use of the allocation, which came from `alloc_dm`; its context is still
        // there.
        unsafe {
            let offset = Layout::<_, Offered<D::Dm>>::data(ib).offset;
            Context::<D>::from_raw((*(*ib).uobject).context).withdraw(offset);
            Layout::<_, Offered<D::Dm>>::finish(ib);
            Layout::<_, Offered<D::Dm>>::free(ib);
        }
        0
    }

    pub(super) unsafe extern "C" fn reg_dm_mr(
        pd: *mut bindings::ib_pd,
        dm: *mut bindings::ib_dm,
        attr: *mut bindings::ib_dm_mr_attr,
        _attrs: *mut bindings::uverbs_attr_bundle,
    ) -> *mut bindings::ib_mr {
        super::memory::region_or_error(Self::new_region(Pins::default(), |_| {
            // SAFETY: See the module above.
            let (dev, pd, dm, attr) = unsafe {
                (
                    Device::<D>::from_raw((*pd).device),
                    Pd::from_raw(pd),
                    Dm::from_raw(dm),
                    &*attr,
                )
            };
            let access = Access::from_raw(attr.access_flags as i32).without(Access::ZERO_BASED);
            D::reg_dm_mr(dev, pd, dm, attr.offset, attr.length, access)
        }))
    }
}
