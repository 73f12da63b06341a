// SPDX-License-Identifier: GPL-2.0
//! Protection domains, memory regions, memory windows.

use super::VTable;
use crate::{
    bindings,
    device::Device,
    driver::{MemoryKeys, Rereg, UserRegion},
    error::unsupported,
    kernel_verbs::KernelVerbs,
    object::{Layout, Mr, Pd},
    umem::Pins,
    Access, Driver,
};
use core::{ffi::c_int, ptr};
use kernel::{
    error::{from_result, to_result},
    prelude::*,
};

/// Passes a new region, or why there is none, to the core.
pub(super) fn region_or_error(result: Result<*mut bindings::ib_mr>) -> *mut bindings::ib_mr {
    match result {
        Ok(mr) => mr,
        Err(error) => error.to_ptr(),
    }
}

impl<D: KernelVerbs> VTable<D> {
    pub(super) unsafe extern "C" fn alloc_pd(
        ib: *mut bindings::ib_pd,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above; `udata` may be null.
            to_result(unsafe { bindings::nk_rdma_no_udata(udata) })?;
            // SAFETY: See the module above.
            let dev = unsafe { Device::<D>::from_raw((*ib).device) };
            // Users in the kernel have none.
            let data = match udata.is_null() {
                true => D::alloc_pd(dev),
                false => D::alloc_user_pd(dev),
            }?;
            // SAFETY: The core allocated `SIZE` bytes.
            unsafe { Layout::init(ib, None, Pins::default(), data) };
            Ok(0)
        })
    }
}

impl<D: Driver> VTable<D> {
    pub(super) unsafe extern "C" fn dealloc_pd(
        ib: *mut bindings::ib_pd,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: This is the core's last use of the domain.
        unsafe { Layout::<_, D::Pd>::finish(ib) };
        0
    }

    /// Completes a region in memory of its own.
    pub(super) fn new_region(
        pins: Pins,
        register: impl FnOnce(&Pins) -> Result<D::Mr>,
    ) -> Result<*mut bindings::ib_mr> {
        let memory = Layout::<bindings::ib_mr, D::Mr>::allocate()?;
        let data = register(&pins)?;
        let keys = data.keys();
        let ib = KBox::into_raw(memory).cast::<bindings::ib_mr>();
        // SAFETY: The memory is fresh, zeroed and large enough.
        unsafe {
            Layout::init(ib, None, pins, data);
            (*ib).lkey = keys.local;
            (*ib).rkey = keys.remote;
        }
        Ok(ib)
    }

    pub(super) unsafe extern "C" fn reg_user_mr(
        pd: *mut bindings::ib_pd,
        start: u64,
        len: u64,
        iova: u64,
        access: c_int,
        dmah: *mut bindings::ib_dmah,
        udata: *mut bindings::ib_udata,
    ) -> *mut bindings::ib_mr {
        region_or_error((|| {
            if !dmah.is_null() {
                return Err(unsupported());
            }
            // SAFETY: See the module above; `udata` may be null.
            to_result(unsafe { bindings::nk_rdma_no_udata(udata) })?;
            // SAFETY: See the module above.
            let (dev, pd) = unsafe { (Device::<D>::from_raw((*pd).device), Pd::from_raw(pd)) };
            let access = Access::from_raw(access);
            let region = UserRegion { iova, len, access };
            Self::new_region(Pins::default(), |pins| {
                if let Some(made) = D::reg_pfnmap_mr(dev, pd, start, &region)? {
                    return Ok(made);
                }
                let umem = pins.pin(dev, start, usize::try_from(len)?, access)?;
                D::reg_user_mr(dev, pd, umem, &region)
            })
        })())
    }

    pub(super) unsafe extern "C" fn reg_user_mr_dmabuf(
        pd: *mut bindings::ib_pd,
        offset: u64,
        len: u64,
        iova: u64,
        fd: c_int,
        access: c_int,
        dmah: *mut bindings::ib_dmah,
        attrs: *mut bindings::uverbs_attr_bundle,
    ) -> *mut bindings::ib_mr {
        region_or_error((|| {
            if !dmah.is_null() {
                return Err(unsupported());
            }
            // SAFETY: See the module above.
            to_result(unsafe {
                bindings::nk_rdma_no_udata(bindings::nk_rdma_bundle_udata(attrs))
            })?;
            // SAFETY: See the module above.
            let (dev, pd) = unsafe { (Device::<D>::from_raw((*pd).device), Pd::from_raw(pd)) };
            let access = Access::from_raw(access);
            let region = UserRegion { iova, len, access };
            let ib = Self::new_region(Pins::default(), |pins| {
                if let Some(made) = D::reg_own_dmabuf_mr(dev, pd, fd, offset, &region)? {
                    return Ok(made);
                }
                let umem = pins.pin_dmabuf(dev, fd, offset, usize::try_from(len)?, access)?;
                D::reg_user_mr(dev, pd, umem, &region)
            })?;
            // What `rdma resource` shows; of other regions the core sets it.
            // SAFETY: The core does not know the region yet.
            unsafe {
                (*ib).iova = iova;
                (*ib).length = len;
            }
            Ok(ib)
        })())
    }

    pub(super) unsafe extern "C" fn rereg_user_mr(
        ib: *mut bindings::ib_mr,
        flags: c_int,
        start: u64,
        len: u64,
        iova: u64,
        access: c_int,
        pd: *mut bindings::ib_pd,
        udata: *mut bindings::ib_udata,
    ) -> *mut bindings::ib_mr {
        region_or_error((|| {
            // SAFETY: See the module above; `udata` may be null.
            to_result(unsafe { bindings::nk_rdma_no_udata(udata) })?;
            // SAFETY: See the module above.
            let (dev, mr) = unsafe { (Device::<D>::from_raw((*ib).device), Mr::<D>::from_raw(ib)) };
            // SAFETY: See the module above. The core lets nobody else change the region during this call.
            let old = unsafe { Layout::<_, D::Mr>::pins(ib) };
            let new_access = Access::from_raw(access);
            old.check_rereg(flags, new_access)?;
            let wants = |flag| flags as u32 & flag != 0;
            let access = wants(bindings::nk_rdma_const_NK_RDMA_REREG_ACCESS).then_some(new_access);
            let pins = Pins::default();
            let memory = if wants(bindings::nk_rdma_const_NK_RDMA_REREG_TRANS) {
                // A region that keeps its rights may write as far as it could before.
                let pinned = access.unwrap_or(match old.writable() {
                    true => Access::LOCAL_WRITE,
                    false => Access::NONE,
                });
                let umem = pins.pin(dev, start, usize::try_from(len)?, pinned)?;
                Some((umem, iova, len))
            } else {
                None
            };
            let changes = Rereg {
                memory,
                pd: wants(bindings::nk_rdma_const_NK_RDMA_REREG_PD)
                    // SAFETY: See the module above.
                    .then(|| unsafe { Pd::from_raw(pd) }),
                access,
            };
            let keys = D::rereg_user_mr(mr, &changes)?;
            if changes.memory.is_some() {
                // SAFETY: The core lets nobody else use the region during this call.
                drop(unsafe { Layout::<_, D::Mr>::replace_pins(ib, pins) });
            }
            // SAFETY: As above.
            unsafe {
                (*ib).lkey = keys.local;
                (*ib).rkey = keys.remote;
            }
            // The region is still the same one.
            Ok(ptr::null_mut())
        })())
    }

    pub(super) unsafe extern "C" fn dereg_mr(
        ib: *mut bindings::ib_mr,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above.
            D::dereg_mr(unsafe { Mr::from_raw(ib) })?;
            // SAFETY: This is the core's last use of the region, which came from `new_region`.
            unsafe {
                Layout::<_, D::Mr>::finish(ib);
                Layout::<_, D::Mr>::free(ib);
            }
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn alloc_mw(
        ib: *mut bindings::ib_mw,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above; `udata` may be null.
            to_result(unsafe { bindings::nk_rdma_no_udata(udata) })?;
            // SAFETY: See the module above.
            let (dev, pd, kind) = unsafe {
                (
                    Device::<D>::from_raw((*ib).device),
                    Pd::from_raw((*ib).pd),
                    (*ib).type_,
                )
            };
            if kind != bindings::ib_mw_type_IB_MW_TYPE_2 {
                return Err(unsupported());
            }
            let data = D::alloc_mw(dev, pd)?;
            let keys = data.keys();
            // SAFETY: The core allocated `SIZE` bytes.
            unsafe {
                Layout::init(ib, None, Pins::default(), data);
                (*ib).rkey = keys.remote;
            }
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn dealloc_mw(ib: *mut bindings::ib_mw) -> c_int {
        // SAFETY: This is the core's last use of the window.
        unsafe { Layout::<_, D::Mw>::finish(ib) };
        0
    }
}
