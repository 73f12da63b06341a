// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How many objects a node may have, and how large.

use crate::state::filter::{MAX_ADDRESSES, RSS_ENTRIES};
use nupa_proto::{
    admin::DeviceLimits,
    frame::{MAX_SUPER_FRAME, SUPER_FRAME_UNIT},
};
use zerocopy::little_endian::{U16, U32, U64};

/// log2 of the entries of a ring, whatever the host's limit: indices are free-running 32-bit numbers, so a ring has to hold far fewer than
/// 2^31 entries.
const MAX_LOG_RING: u8 = 24;

/// Limits of a node, chosen by its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Event queues.
    pub max_eq: u32,
    /// Memory regions, below `1 << KEY_INDEX_BITS`.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Bytes of a memory region.
    pub max_mr_size: u64,
    /// Page addresses that all memory regions store, 8 bytes of the host's memory each.
    pub max_pages: u64,
    /// Pages of a key that FAST_REG binds.
    pub max_fast_reg_pages: u32,
    /// log2 of the entries of any ring.
    pub max_log_ring: u8,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Entries of the GID table.
    pub max_gids: u16,
    /// READs, atomics and flushes in flight per queue pair, as requester and as responder.
    pub max_rd_atomic: u8,
    /// Bytes of a frame.
    pub max_frame: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qp: 65536,
            max_cq: 65536,
            max_eq: 65,
            max_mr: 1 << 17,
            max_pd: 65536,
            max_mr_size: 1 << 40,
            max_pages: 1 << 26,
            max_fast_reg_pages: 1024,
            max_log_ring: 17,
            max_srq: 65536,
            max_gids: 256,
            max_rd_atomic: 16,
            max_frame: MAX_SUPER_FRAME,
        }
    }
}

impl Limits {
    /// Whether a ring may have so many entries.
    pub(crate) fn takes_ring(&self, log_entries: u8) -> bool {
        log_entries <= self.max_log_ring.min(MAX_LOG_RING)
    }

    /// As `QueryDevice` reports them. The firmware version is the host's to fill in.
    pub fn to_wire(&self) -> DeviceLimits {
        DeviceLimits {
            max_qp: U32::new(self.max_qp),
            max_cq: U32::new(self.max_cq),
            max_eq: U32::new(self.max_eq),
            max_mr: U32::new(self.max_mr),
            max_pd: U32::new(self.max_pd),
            max_mr_size: U64::new(self.max_mr_size),
            max_log_sq: self.max_log_ring,
            max_log_rq: self.max_log_ring,
            max_log_cq: self.max_log_ring,
            max_log_eq: self.max_log_ring,
            max_rx_addresses: U16::new(MAX_ADDRESSES as u16),
            rss_entries: U16::new(RSS_ENTRIES as u16),
            max_fast_reg_pages: U32::new(self.max_fast_reg_pages),
            max_rd_atomic: U16::new(u16::from(self.max_rd_atomic)),
            max_gids: U16::new(self.max_gids),
            max_srq: U32::new(self.max_srq),
            max_log_srq: self.max_log_ring,
            max_super_frame: u8::try_from(self.max_frame / SUPER_FRAME_UNIT).unwrap_or(u8::MAX),
            ..DeviceLimits::default()
        }
    }
}
