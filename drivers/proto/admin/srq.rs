// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Shared receive queues.

use super::PageList;
use zerocopy::little_endian::{U16, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Creates a shared receive queue (RC and UD).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateSrq {
    /// Ring memory: entries as in a receive queue.
    pub ring: PageList,
    /// Protection domain: that of the entries' keys.
    pub pd: U32,
    /// Doorbell page pair.
    pub doorbell_page: U32,
    /// Doorbell slot.
    pub doorbell_slot: U16,
    /// log2 of the entries.
    pub log_entries: u8,
    /// log2 of the bytes of an entry.
    pub log_stride: u8,
    /// `QP_FLAG_PRIVILEGED` or 0: entries may use [`crate::ident::DMA_LKEY`].
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 3],
}
assert_size!(CreateSrq, 32);

/// Arms the limit of a shared receive queue: the first time that fewer entries than this are left, an `SrqLimit` event
/// is raised and the limit becomes 0 (none).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ModifySrq {
    /// Shared receive queue.
    pub srqn: U32,
    /// Entries.
    pub limit: U32,
}
assert_size!(ModifySrq, 8);

/// Result of `QuerySrq`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SrqState {
    /// The limit, 0 if none is armed.
    pub limit: U32,
    /// Index up to which the device has taken entries.
    pub index: U32,
}
assert_size!(SrqState, 8);
