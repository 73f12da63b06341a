// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Admin commands: they create, change and destroy the function's objects.
//!
//! The admin queue is a ring of 64-byte [`Command`]s and one of 64-byte [`Completion`]s of the same number of entries;
//! commands are executed and completed in order. A completion belongs to the driver once its phase bit is that of the
//! pass ([`crate::cqe::phase`]). If an event queue 0 exists, an `Admin` event follows each batch of completions.
//! Command and result bodies are the structures below, zero-extended to the size of the body; reserved fields are zero,
//! and a command with a non-zero reserved field is refused as `InvalidField`.

mod counters;
mod limits;
mod multicast;
mod port;
mod qp;
mod queue;
mod region;
mod srq;

pub use self::{counters::*, limits::*, multicast::*, port::*, qp::*, queue::*, region::*, srq::*};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a command.
pub const COMMAND_SIZE: usize = 64;
/// Bytes of a completion.
pub const COMPLETION_SIZE: usize = 64;
/// Bytes of a command's or result's body.
pub const BODY_SIZE: usize = 56;
/// Offset of the word that hands a completion over.
pub const COMPLETION_VALID_OFFSET: usize = 4;

wire_enum! {
    /// Admin command codes.
    AdminOpcode: u16 {
        /// [`DeviceLimits`] of the function.
        QueryDevice = 1,
        /// [`NodeInfo`] of one node; command body [`ById`] (node id).
        QueryNode = 2,
        /// Writes a bit map of the nodes that are up; command body [`BufferRef`], at least `max_nodes / 8` bytes.
        ListNodes = 3,
        /// Writes the [`PortCounters`]; command body [`BufferRef`].
        QueryCounters = 4,
        /// Creates an event queue; [`CreateEq`], result [`Created`].
        CreateEq = 8,
        /// Destroys an event queue; [`ById`].
        DestroyEq = 9,
        /// Creates a completion queue; [`CreateCq`], result [`Created`].
        CreateCq = 10,
        /// Sets event moderation of a completion queue; [`ModifyCq`].
        ModifyCq = 11,
        /// Destroys a completion queue; [`ById`].
        DestroyCq = 12,
        /// Allocates a protection domain; result [`Created`].
        AllocPd = 13,
        /// Frees a protection domain; [`ById`].
        DeallocPd = 14,
        /// Registers memory; [`CreateMr`], result [`Created`] (the key).
        CreateMr = 15,
        /// Deregisters memory; [`ById`] (the key).
        DestroyMr = 16,
        /// Creates a queue pair; its parameters, a [`CreateQp`], lie in memory: [`BufferRef`], result [`Created`].
        CreateQp = 17,
        /// Changes state and attributes of a queue pair; [`ModifyQp`].
        ModifyQp = 18,
        /// Reads state and attributes of a queue pair; [`ById`], result [`QpState`].
        QueryQp = 19,
        /// Destroys a queue pair; [`ById`].
        DestroyQp = 20,
        /// Gives a completion queue another ring; [`ResizeCq`].
        ResizeCq = 21,
        /// Sets the receive filter of the raw port; [`SetRxFilter`].
        SetRxFilter = 24,
        /// Sets the table that spreads frames over raw queue pairs; [`SetRss`].
        SetRss = 25,
        /// Creates a shared receive queue; [`CreateSrq`], result [`Created`].
        CreateSrq = 32,
        /// Sets the limit of a shared receive queue; [`ModifySrq`].
        ModifySrq = 33,
        /// Reads the state of a shared receive queue; [`ById`], result [`SrqState`].
        QuerySrq = 34,
        /// Destroys a shared receive queue; [`ById`].
        DestroySrq = 35,
        /// Replaces pages, domain or rights of a memory region; [`ModifyMr`], result [`Created`] (the new key).
        ModifyMr = 36,
        /// Allocates a key that FAST_REG or BIND_MW binds; [`AllocKey`], result [`Created`]. `DestroyMr` frees it.
        AllocKey = 37,
        /// Sets or clears an entry of the GID table; [`SetGid`].
        SetGid = 38,
        /// Attaches a queue pair to a multicast group; [`GroupMember`].
        AttachMulticast = 39,
        /// Detaches a queue pair from a multicast group; [`GroupMember`].
        DetachMulticast = 40,
    }
}

/// A command as it lies in the submission ring.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Command {
    /// An [`AdminOpcode`].
    pub opcode: U16,
    /// Handed back in the completion.
    pub command_id: U16,
    /// Zero.
    pub reserved: U32,
    /// Command body.
    pub body: [u8; BODY_SIZE],
}
assert_size!(Command, COMMAND_SIZE);

/// A completion as it lies in the completion ring.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Completion {
    /// From the command.
    pub command_id: U16,
    /// A [`crate::status::AdminStatus`].
    pub status: U16,
    /// Phase bit; stored last.
    pub valid: U32,
    /// Result body.
    pub body: [u8; BODY_SIZE],
}
assert_size!(Completion, COMPLETION_SIZE);
const _: () = assert!(core::mem::offset_of!(Completion, valid) == COMPLETION_VALID_OFFSET);

/// Names one object: node id, queue number, domain or key.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ById {
    /// The object.
    pub id: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(ById, 8);

/// A buffer in the function's DMA address space, physically contiguous for it.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct BufferRef {
    /// DMA address.
    pub addr: U64,
    /// Bytes.
    pub len: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(BufferRef, 16);

/// Number or key of a new object.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Created {
    /// The object.
    pub id: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(Created, 8);

/// Where a queue or region lies: one contiguous range, or a list of pages.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PageList {
    /// Direct (`pages` 0): DMA address of the memory. Else: DMA address of an array of `pages` 64-bit page addresses.
    pub addr: U64,
    /// Entries of the array, or 0.
    pub pages: U32,
    /// log2 of the page size, 12 to 30; 0 if direct.
    pub page_shift: u8,
    /// 0: `addr` is the array itself. 1: `addr` is an array of DMA addresses of 4 KiB pages which hold the array,
    /// [`LIST_PAGE_ENTRIES`] entries each.
    pub levels: u8,
    /// Zero.
    pub reserved: [u8; 2],
}
assert_size!(PageList, 16);

/// Page addresses in each page of a list of two levels.
pub const LIST_PAGE_ENTRIES: usize = 512;
