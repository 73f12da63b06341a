// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Ring memory that comes with the creation of a queue.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    state::ring::Ring,
};
use nupa_proto::{
    admin::PageList,
    status::AdminStatus,
    wqe::{MAX_RECV_STRIDE, MIN_RECV_STRIDE},
};

impl<S: Storage> Node<S> {
    /// Takes ring memory over, after a check of its size against the limits.
    pub(crate) fn make_ring(
        &self,
        platform: &impl Platform,
        list: &PageList,
        log_entries: u8,
        log_size: u8,
    ) -> Result<Ring<S::Pages>, AdminStatus> {
        if log_entries > self.limits().max_log_ring.min(24) {
            return Err(AdminStatus::InvalidField);
        }
        Ring::new::<S>(platform.memory(), list, log_entries, log_size)
    }

    /// Takes the memory of a ring of receive entries over.
    pub(crate) fn recv_ring(
        &self,
        platform: &impl Platform,
        list: &PageList,
        log_entries: u8,
        log_stride: u8,
    ) -> Result<Ring<S::Pages>, AdminStatus> {
        let stride = 1usize.checked_shl(u32::from(log_stride)).unwrap_or(0);
        if !(MIN_RECV_STRIDE..=MAX_RECV_STRIDE).contains(&stride) {
            return Err(AdminStatus::InvalidField);
        }
        self.make_ring(platform, list, log_entries, log_stride)
    }
}
