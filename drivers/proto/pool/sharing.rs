// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Device memory that programs of several nodes use: what a node lets others use, and what it uses of others'.
//!
//! Both are tables in the node's own [directory](super::DIRECTORY_SIZE), of one line each, which nobody else writes.

use super::{DIRECTORY_SIZE, LINE};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Offset in a directory of the [`Export`]s.
pub const EXPORT_TABLE: u64 = 0x8000;
/// Exports of a node.
pub const EXPORTS: u16 = 256;
/// Offset in a directory of the [`Hold`]s.
pub const HOLD_TABLE: u64 = 0xc000;
/// Holds of a node.
pub const HOLDS: u16 = 256;
/// Exports of a node, and holds, that may be process rings.
pub const MAX_RINGS: u16 = EXPORTS / 2;
const _: () = assert!(EXPORT_TABLE + EXPORTS as u64 * LINE == HOLD_TABLE);
const _: () = assert!(HOLD_TABLE + HOLDS as u64 * LINE == DIRECTORY_SIZE);

/// Memory of the node's that whoever knows the secret may use.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Export {
    /// Random; 0: nothing. It is written last, and cleared first.
    pub secret: U64,
    /// Where the memory begins, from the pool's start; a multiple of a page.
    pub offset: U64,
    /// Its bytes.
    pub len: U64,
    /// Epoch of the node. Under another one the export does not count.
    pub epoch: U64,
    /// If it is a [process ring](crate::process_ring), whose; else zeroes.
    pub ring: RingOwner,
    /// Zero.
    pub reserved: [u8; 16],
}
assert_size!(Export, LINE as usize);

/// The connection that a process ring is for.
#[derive(
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
)]
#[repr(C)]
pub struct RingOwner {
    /// Queue pair of the node, which receives.
    pub qpn: U32,
    /// Queue pair that sends.
    pub peer_qpn: U32,
    /// Packet sequence number that the sender's connection begins with.
    pub psn: U32,
    /// Node of the queue pair that sends.
    pub peer: U16,
    /// 1: it is a ring.
    pub is_ring: U16,
}
assert_size!(RingOwner, 16);

/// Memory, the node's own or another's, that programs of the node use: nobody gives it to anybody else.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Hold {
    /// Its bytes; 0: nothing. Written last.
    pub len: U64,
    /// Where it begins, from the pool's start.
    pub offset: U64,
    /// Zero.
    pub reserved: [u8; 48],
}
assert_size!(Hold, LINE as usize);

/// Names an export for programs. Whoever has it may use the memory.
#[derive(
    FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct DmHandle {
    /// [`Export::secret`].
    pub secret: U64,
    /// [`super::Superblock::fabric_id`].
    pub fabric_id: U64,
    /// [`Export::len`].
    pub len: U64,
    /// [`Export::epoch`], the lower half.
    pub epoch: U32,
    /// Node whose memory it is.
    pub node: U16,
    /// Number of the export in the node's table.
    pub index: U16,
}
assert_size!(DmHandle, 32);
