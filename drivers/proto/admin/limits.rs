// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a function and the other nodes are: `QueryDevice` and `QueryNode`.

use crate::frame::{MAX_FRAME, MAX_SUPER_FRAME, SUPER_FRAME_UNIT};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Result of `QueryDevice`: what there is at most of each object.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DeviceLimits {
    /// Queue pairs.
    pub max_qp: U32,
    /// Completion queues.
    pub max_cq: U32,
    /// Event queues.
    pub max_eq: U32,
    /// Memory regions.
    pub max_mr: U32,
    /// Protection domains.
    pub max_pd: U32,
    /// Largest memory region in bytes.
    pub max_mr_size: U64,
    /// log2 of the blocks of a send queue.
    pub max_log_sq: u8,
    /// log2 of the entries of a receive queue.
    pub max_log_rq: u8,
    /// log2 of the entries of a completion queue.
    pub max_log_cq: u8,
    /// log2 of the entries of an event queue.
    pub max_log_eq: u8,
    /// Unicast and multicast addresses of the receive filter.
    pub max_rx_addresses: U16,
    /// Entries of the spreading table.
    pub rss_entries: U16,
    /// READs and atomics in flight per queue pair, as responder and as requester.
    pub max_rd_atomic: U16,
    /// Entries of the GID table.
    pub max_gids: U16,
    /// Firmware (controller model) version: major, minor, patch.
    pub firmware: [U16; 3],
    /// log2 of the entries of a shared receive queue.
    pub max_log_srq: u8,
    /// Longest super-frame in units of [`SUPER_FRAME_UNIT`](crate::frame::SUPER_FRAME_UNIT); 0: none is longer than
    /// [`MAX_FRAME`].
    pub max_super_frame: u8,
    /// Shared receive queues.
    pub max_srq: U32,
    /// Pages of a key that FAST_REG binds.
    pub max_fast_reg_pages: U32,
}
assert_size!(DeviceLimits, 56);

impl DeviceLimits {
    /// Bytes of the longest frame, at least [`MAX_FRAME`].
    pub fn max_frame(&self) -> u32 {
        let longest = u32::from(self.max_super_frame).saturating_mul(SUPER_FRAME_UNIT);
        longest.clamp(MAX_FRAME, MAX_SUPER_FRAME)
    }
}

/// Result of `QueryNode`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct NodeInfo {
    /// EUI-64 of the node.
    pub guid: U64,
    /// The node's epoch.
    pub epoch: U32,
    /// 1 if the node's link is up and its driver has enabled its controller.
    pub up: U32,
}
assert_size!(NodeInfo, 16);
