// SPDX-License-Identifier: GPL-2.0
//! Counters of a port.

use crate::bindings;
use kernel::prelude::*;

/// What the port has moved (`PortCountersExtended` of InfiniBand's performance management).
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Bytes sent.
    pub xmit_bytes: u64,
    /// Bytes received.
    pub rcv_bytes: u64,
    /// Messages sent.
    pub xmit_packets: u64,
    /// Messages received.
    pub rcv_packets: u64,
}

impl Traffic {
    pub(crate) fn to_raw(self) -> bindings::nk_rdma_traffic {
        bindings::nk_rdma_traffic {
            xmit_bytes: self.xmit_bytes,
            rcv_bytes: self.rcv_bytes,
            xmit_packets: self.xmit_packets,
            rcv_packets: self.rcv_packets,
        }
    }
}

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
