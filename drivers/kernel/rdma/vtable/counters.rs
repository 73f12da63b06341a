// SPDX-License-Identifier: GPL-2.0
//! Counters of the port.

use super::VTable;
use crate::{bindings, counters::Traffic, device::Device, kernel_verbs::KernelVerbs};
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
        Self::alloc_stats()
    }

    /// Room for all counters, zeroed; null if there is no memory.
    pub(super) fn alloc_stats() -> *mut bindings::rdma_hw_stats {
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

    pub(super) unsafe extern "C" fn process_mad(
        ib: *mut bindings::ib_device,
        _flags: c_int,
        _port: u32,
        wc: *const bindings::ib_wc,
        _grh: *const bindings::ib_grh,
        request: *const bindings::ib_mad,
        answer: *mut bindings::ib_mad,
        _answer_size: *mut usize,
        _answer_pkey_index: *mut u16,
    ) -> c_int {
        // SAFETY: See the module above; a request has no completion if the core itself makes it.
        let (dev, asked) = unsafe {
            (
                Device::<D>::from_raw(ib),
                bindings::nk_rdma_asks_for_traffic(wc, request),
            )
        };
        let traffic = match asked {
            true => D::traffic(dev),
            false => Ok(Traffic::default()),
        };
        let Ok(traffic) = traffic else {
            return bindings::ib_mad_result_IB_MAD_RESULT_FAILURE as c_int;
        };
        // SAFETY: As above; the core has cleared the answer.
        unsafe { bindings::nk_rdma_answer_perf(wc, request, answer, &traffic.to_raw()) }
    }
}
