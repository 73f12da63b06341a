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
        &mut self,
        platform: &impl Platform,
        list: &PageList,
        log_entries: u8,
        log_size: u8,
    ) -> Result<Ring<S::Pages>, AdminStatus> {
        if !self.limits().takes_ring(log_entries) {
            return Err(AdminStatus::InvalidField);
        }
        let (len, align) = ring_range(log_entries, log_size);
        let map = self
            .resources
            .load(platform.memory(), list, 0, len, align)?;
        Ok(Ring::new(map, log_entries, log_size))
    }

    /// Takes the memory of a ring of receive entries over.
    pub(crate) fn recv_ring(
        &mut self,
        platform: &impl Platform,
        list: &PageList,
        log_entries: u8,
        log_stride: u8,
    ) -> Result<Ring<S::Pages>, AdminStatus> {
        if !stride_is_valid(log_stride) {
            return Err(AdminStatus::InvalidField);
        }
        self.make_ring(platform, list, log_entries, log_stride)
    }
}

/// Bytes of a ring, and what it is aligned to.
pub(super) fn ring_range(log_entries: u8, log_size: u8) -> (u64, u64) {
    let entry = 1u64 << log_size.min(31);
    (entry << log_entries.min(31), entry)
}

/// Whether receive entries may have so many bytes.
pub(super) fn stride_is_valid(log_stride: u8) -> bool {
    let stride = 1usize.checked_shl(u32::from(log_stride)).unwrap_or(0);
    (MIN_RECV_STRIDE..=MAX_RECV_STRIDE).contains(&stride)
}
