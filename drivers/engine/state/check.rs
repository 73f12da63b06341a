// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the engine refuses, and why.

use nupa_proto::status::WcStatus;

/// The check that a request failed; goes into [`nupa_proto::cqe::Cqe::vendor_error`] for people to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Check {
    /// Block count of a descriptor.
    Blocks = 1,
    /// Opcode unknown, or not for this kind of queue pair.
    Opcode = 2,
    /// Undefined or contradictory flags.
    Flags = 3,
    /// Number of entries or inline bytes.
    DataCount = 4,
    /// A reserved field is not zero.
    Reserved = 5,
    /// The descriptor could not be read from memory.
    DescriptorMemory = 6,
    /// The producer index lies outside of the ring.
    Doorbell = 7,
    /// READs, atomics and flushes are not allowed on this queue pair, or on its peer.
    ReadLimit = 8,
    /// The source GID index names no GID.
    Gid = 9,
    /// Local key.
    LocalKey = 16,
    /// Range within the local region.
    LocalRange = 17,
    /// Right of the local region.
    LocalRight = 18,
    /// Message or frame length.
    Length = 19,
    /// Local memory could not be reached.
    LocalMemory = 20,
    /// Page size, number of pages or page address of a fast registration.
    PageList = 21,
    /// The key is bound already, or to another queue pair, or windows are bound to it.
    KeyState = 22,
    /// Remote key, its tag or its domain.
    RemoteKey = 32,
    /// Range within the remote region.
    RemoteRange = 33,
    /// Right of the remote region or queue pair.
    RemoteRight = 34,
    /// Remote memory could not be reached.
    RemoteMemory = 35,
    /// The operand of an atomic operation is not aligned.
    Alignment = 36,
    /// The node is down, or it or we were reset since the connection was made.
    Node = 48,
    /// No such queue pair at the peer, or not connected to this one.
    Peer = 49,
    /// The peer's queue pair does not receive in its state.
    PeerState = 50,
    /// No receive buffer.
    NoBuffer = 51,
    /// The receive buffer is too short.
    BufferLength = 52,
    /// The receive descriptor is malformed.
    BufferDescriptor = 53,
    /// The request skips receive entries that are not posted, or goes back; or the process ring does not have the WRITEs that it says come before it.
    Bypassed = 54,
    /// The queue pair was in the error state.
    Flushed = 64,
}

impl Check {
    const ALL: &[Self] = &[
        Self::Blocks,
        Self::Opcode,
        Self::Flags,
        Self::DataCount,
        Self::Reserved,
        Self::DescriptorMemory,
        Self::Doorbell,
        Self::ReadLimit,
        Self::Gid,
        Self::LocalKey,
        Self::LocalRange,
        Self::LocalRight,
        Self::Length,
        Self::LocalMemory,
        Self::PageList,
        Self::KeyState,
        Self::RemoteKey,
        Self::RemoteRange,
        Self::RemoteRight,
        Self::RemoteMemory,
        Self::Alignment,
        Self::Node,
        Self::Peer,
        Self::PeerState,
        Self::NoBuffer,
        Self::BufferLength,
        Self::BufferDescriptor,
        Self::Bypassed,
        Self::Flushed,
    ];

    /// The check that a peer names; [`Check::Peer`] if it names none.
    pub(crate) fn from_wire(value: u8) -> Self {
        let mut all = Self::ALL.iter().copied();
        all.find(|check| *check as u8 == value)
            .unwrap_or(Self::Peer)
    }
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WcError {
    /// What the completion says.
    pub status: WcStatus,
    /// Why.
    pub check: Check,
}

impl WcError {
    #[inline]
    pub(crate) const fn new(status: WcStatus, check: Check) -> Self {
        Self { status, check }
    }
}
