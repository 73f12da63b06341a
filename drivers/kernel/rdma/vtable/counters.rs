// SPDX-License-Identifier: GPL-2.0
//! Counters of the port.

use super::VTable;
use crate::{bindings, device::Device, kernel_verbs::KernelVerbs};
use kernel::{
    error::from_result,
    ffi::{c_int, c_ulong},
    prelude::*,
};

impl<D: KernelVerbs> VTable<D> {
    pub(super) unsafe extern "C" fn alloc_hw_port_stats(
        _ib: *mut bindings::ib_device,
        _port: u32,
    ) -> *mut bindings::rdma_hw_stats {
        // SAFETY: The names are constant; `CounterName` is a transparent wrapper.
        unsafe {
            bindings::rdma_alloc_hw_stats_struct(
                D::COUNTERS.as_ptr().cast(),
                D::COUNTERS.len() as c_int,
                bindings::RDMA_HW_STATS_DEFAULT_LIFESPAN as c_ulong,
            )
        }
    }

    pub(super) unsafe extern "C" fn get_hw_stats(
        ib: *mut bindings::ib_device,
        stats: *mut bindings::rdma_hw_stats,
        port: u32,
        _index: c_int,
    ) -> c_int {
        from_result(|| {
            if port != crate::device::PORT {
                return Err(EINVAL);
            }
            // SAFETY: See the module above; the core holds the lock of the structure, which has as many values as it
            // says.
            let (dev, values) = unsafe {
                let count = usize::try_from((*stats).num_counters)?;
                let values = (*stats).value.as_mut_slice(count);
                (Device::<D>::from_raw(ib), values)
            };
            D::counters(dev, values)?;
            i32::try_from(values.len()).map_err(|_| EINVAL)
        })
    }
}
