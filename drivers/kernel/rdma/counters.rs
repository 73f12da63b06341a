// SPDX-License-Identifier: GPL-2.0
//! Counters of a port.

use crate::bindings;
use kernel::prelude::*;

/// Name of a counter, as sysfs and `rdma statistic` show it (`struct rdma_stat_desc`).
#[repr(transparent)]
pub struct CounterName(bindings::rdma_stat_desc);

// SAFETY: Constant, with pointers to what is constant and lives for ever.
unsafe impl Sync for CounterName {}

impl CounterName {
    /// The counter of this name.
    pub const fn new(name: &'static CStr) -> Self {
        Self(bindings::rdma_stat_desc {
            name: name.to_bytes_with_nul().as_ptr(),
            flags: 0,
            priv_: core::ptr::null(),
        })
    }
}
