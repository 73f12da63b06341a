// SPDX-License-Identifier: GPL-2.0
//! Sets of counters that queue pairs are bound to (`struct rdma_counter`).
//!
//! The core indexes the counters of a set as it does those of the port, so a set has room for all of them, and hides those that it does
//! not have. It keeps sets by numbers that the driver gives, and locks a set while it binds, unbinds or reads.

use super::VTable;
use crate::{
    bindings,
    device::{Device, PORT},
    kernel_verbs::KernelVerbs,
    object::Qp,
};
use core::{ffi::c_int, ptr};
use kernel::{error::from_result, prelude::*};

impl<D: KernelVerbs> VTable<D> {
    /// There is nothing of the driver's in it: the core frees a set that no pair could be bound to without telling.
    pub(super) unsafe extern "C" fn counter_init(_set: *mut bindings::rdma_counter) {}

    pub(super) unsafe extern "C" fn counter_alloc_stats(
        _set: *mut bindings::rdma_counter,
    ) -> *mut bindings::rdma_hw_stats {
        let stats = Self::alloc_stats();
        let hidden = D::COUNTERS.len().saturating_sub(D::SET_COUNTERS);
        if !stats.is_null() {
            // SAFETY: They were just made, for as many counters as there are names, and are nobody else's yet.
            unsafe { bindings::nk_rdma_hide_stats(stats, hidden as u32) };
        }
        stats
    }

    pub(super) unsafe extern "C" fn counter_bind_qp(
        set: *mut bindings::rdma_counter,
        ib: *mut bindings::ib_qp,
        port: u32,
    ) -> c_int {
        from_result(|| {
            if port != PORT {
                return Err(EINVAL);
            }
            // SAFETY: See the module above; the core holds the lock of the set.
            let (dev, qp, number) = unsafe {
                (
                    Device::<D>::from_raw((*ib).device),
                    Qp::from_raw(ib),
                    (*set).id,
                )
            };
            let number = D::bind_counters(dev, (number != 0).then_some(number), qp)?;
            // SAFETY: As above; the driver lets one set only have a pair.
            unsafe {
                (*set).id = number;
                (*ib).counter = set;
            }
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn counter_unbind_qp(
        ib: *mut bindings::ib_qp,
        _port: u32,
    ) -> c_int {
        // SAFETY: See the module above; the core holds the lock of the pair's set.
        unsafe {
            D::unbind_counters(Device::<D>::from_raw((*ib).device), Qp::from_raw(ib));
            (*ib).counter = ptr::null_mut();
        }
        0
    }

    pub(super) unsafe extern "C" fn counter_update_stats(
        set: *mut bindings::rdma_counter,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module above; the core holds the lock of the set, so nobody else updates its values.
            let (dev, number, stats) = unsafe {
                (
                    Device::<D>::from_raw((*set).device),
                    (*set).id,
                    (*set).stats,
                )
            };
            let read = D::read_set(dev, number)?;
            // SAFETY: As above.
            let count = usize::try_from(unsafe { (*stats).num_counters })?;
            let places = count.saturating_sub(D::SET_COUNTERS)..count;
            for (place, value) in places.zip(read.as_ref()) {
                // SAFETY: There are `count` values. Others read them meanwhile, without that lock.
                unsafe {
                    (*stats)
                        .value
                        .as_mut_ptr()
                        .add(place)
                        .write_volatile(*value)
                };
            }
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn counter_dealloc(set: *mut bindings::rdma_counter) -> c_int {
        // SAFETY: See the module above.
        unsafe { D::free_set(Device::<D>::from_raw((*set).device), (*set).id) };
        0
    }
}
