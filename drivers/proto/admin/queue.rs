// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Event and completion queues.

use super::PageList;
use zerocopy::little_endian::{U16, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Creates an event queue.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateEq {
    /// Ring memory.
    pub ring: PageList,
    /// Doorbell page pair.
    pub doorbell_page: U32,
    /// Doorbell slot.
    pub doorbell_slot: U16,
    /// MSI-X vector that it raises.
    pub vector: U16,
    /// log2 of the entries.
    pub log_entries: u8,
    /// Zero.
    pub reserved: [u8; 7],
}
assert_size!(CreateEq, 32);

/// Creates a completion queue.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateCq {
    /// Ring memory, zeroed.
    pub ring: PageList,
    /// Doorbell page pair.
    pub doorbell_page: U32,
    /// Doorbell slot.
    pub doorbell_slot: U16,
    /// log2 of the entries.
    pub log_entries: u8,
    /// `CQ_FLAG_*`.
    pub flags: u8,
    /// Event queue that takes its events.
    pub eqn: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(CreateCq, 32);

/// There is always room: the device overwrites entries that the owner has not taken. Only with
/// [`CAP_CQ_OVERRUN`](crate::regs::CAP_CQ_OVERRUN).
pub const CQ_FLAG_IGNORE_OVERRUN: u8 = 1 << 0;
/// Completions carry a [`Timestamp`](crate::cqe::Timestamp). Only with [`CAP_TIMESTAMP`](crate::regs::CAP_TIMESTAMP).
pub const CQ_FLAG_TIMESTAMP: u8 = 1 << 1;

/// Sets event moderation of a completion queue: an armed queue raises its event when `max_count` entries have come in
/// or `usecs` microseconds after the first, whichever is earlier. 0 and 1 mean no waiting.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ModifyCq {
    /// Completion queue.
    pub cqn: U32,
    /// Longest wait in microseconds.
    pub usecs: U16,
    /// Entries that end the wait.
    pub max_count: U16,
}
assert_size!(ModifyCq, 8);

/// Gives a completion queue another ring, which what its owner has not taken moves to. Its owner does not touch the
/// consumer index meanwhile, and goes on with index 0 in the new ring, where the oldest of those is.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ResizeCq {
    /// New ring memory, zeroed.
    pub ring: PageList,
    /// Completion queue.
    pub cqn: U32,
    /// log2 of the entries of the new ring.
    pub log_entries: u8,
    /// Zero.
    pub reserved: [u8; 3],
}
assert_size!(ResizeCq, 24);
