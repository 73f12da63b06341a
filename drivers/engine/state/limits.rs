// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How many objects a node may have, and how large.

use crate::state::{
    filter::{MAX_ADDRESSES, RSS_ENTRIES},
    ring::RingSize,
};
use nupa_proto::{
    admin::DeviceLimits,
    cqe::CQE_SIZE,
    eqe::EQE_SIZE,
    frame::{MAX_SUPER_FRAME, SUPER_FRAME_UNIT},
    wqe::{BLOCK_SIZE, MAX_RECV_STRIDE, MIN_RECV_STRIDE},
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
    /// Page addresses that all memory keys and rings store, 8 bytes of the host's memory each.
    pub max_pages: u64,
    /// Pages of a key that FAST_REG binds.
    pub max_fast_reg_pages: u32,
    /// log2 of the entries of any ring but those of completion queues.
    pub max_log_ring: u8,
    /// log2 of the entries of a completion queue. Many queue pairs may complete in one, so there are larger ones.
    pub max_log_cq: u8,
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
            max_log_cq: 22,
            max_srq: 65536,
            max_gids: 256,
            max_rd_atomic: 16,
            max_frame: MAX_SUPER_FRAME,
        }
    }
}

impl Limits {
    /// A send ring of so many blocks, if there may be one.
    pub(crate) fn send_ring(&self, log_blocks: u8) -> Option<RingSize> {
        ring(log_blocks, BLOCK_SIZE, self.max_log_ring)
    }

    /// A ring of so many receive entries of `1 << log_stride` bytes, if there may be one.
    pub(crate) fn recv_ring(&self, log_entries: u8, log_stride: u8) -> Option<RingSize> {
        let stride = 1usize.checked_shl(log_stride.into())?;
        let valid = (MIN_RECV_STRIDE..=MAX_RECV_STRIDE).contains(&stride);
        let size = ring(log_entries, stride, self.max_log_ring);
        size.filter(|_| valid)
    }

    /// A ring of so many completions, if there may be one.
    pub(crate) fn completion_ring(&self, log_entries: u8) -> Option<RingSize> {
        ring(log_entries, CQE_SIZE, self.max_log_cq)
    }

    /// A ring of so many events, if there may be one.
    pub(crate) fn event_ring(&self, log_entries: u8) -> Option<RingSize> {
        ring(log_entries, EQE_SIZE, self.max_log_ring)
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
            max_log_cq: self.max_log_cq,
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

/// A ring of entries whose size is a power of two, if it is not too long.
fn ring(log_entries: u8, entry: usize, max_log: u8) -> Option<RingSize> {
    let fits = log_entries <= max_log.min(MAX_LOG_RING);
    let log_size = entry.trailing_zeros() as u8;
    fits.then_some(RingSize::new(log_entries, log_size))
}
