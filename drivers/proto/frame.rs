// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Offload state of an Ethernet frame on a raw queue pair.
//!
//! The fabric neither cuts frames nor touches their bytes. A frame that its sender's stack left unsegmented
//! (`gso_type`) or without a checksum ([`FRAME_NEEDS_CSUM`]) keeps that state on the way, and the receiving stack goes
//! on from it, as with `struct virtio_net_hdr` (include/uapi/linux/virtio_net.h). A receiver trusts none of it: every
//! field is checked against the frame before it reaches an skb.

use zerocopy::little_endian::{U16, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

wire_enum! {
    /// How a frame larger than the MTU is to be segmented, should it ever be.
    GsoType: u8 {
        /// Not at all.
        None = 0,
        /// TCP over IPv4.
        TcpV4 = 1,
        /// TCP over IPv6.
        TcpV6 = 4,
        /// UDP datagrams of equal size (`SKB_GSO_UDP_L4`).
        UdpL4 = 5,
    }
}

/// The transport checksum is to be filled in at `csum_start + csum_offset` over everything from `csum_start`.
pub const FRAME_NEEDS_CSUM: u8 = 1 << 0;
/// The sender vouches for the transport checksum.
pub const FRAME_CSUM_VALID: u8 = 1 << 1;
/// TCP super-frame with ECN (CWR only in the first segment).
pub const FRAME_GSO_ECN: u8 = 1 << 2;
/// `vlan_tci` is to be taken as an 802.1Q tag in front of the frame's ethertype.
pub const FRAME_VLAN: u8 = 1 << 3;
/// `hash` is a flow hash over the transport header.
pub const FRAME_L4_HASH: u8 = 1 << 4;

/// Longest frame of one packet: 64 KiB - 1 of IP packet, an Ethernet header and two VLAN tags. Every function carries it.
pub const MAX_FRAME: u32 = 65535 + 14 + 8;
/// Longest super-frame that any function carries (BIG TCP): three segments of the largest size, with room to spare.
pub const MAX_SUPER_FRAME: u32 = 50 * SUPER_FRAME_UNIT;
/// What the longest super-frame of a function is counted in.
pub const SUPER_FRAME_UNIT: u32 = 4096;
/// Shortest frame: an Ethernet header.
pub const MIN_FRAME: u32 = 14;

/// Offload state that travels with a frame, from the send descriptor to the receive completion.
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
pub struct FrameMeta {
    /// A [`GsoType`].
    pub gso_type: u8,
    /// `FRAME_*`.
    pub flags: u8,
    /// Payload bytes of each segment.
    pub gso_size: U16,
    /// Bytes of all headers up to the payload.
    pub header_len: U16,
    /// Offset of the transport header that the checksum starts at.
    pub csum_start: U16,
    /// Offset of the checksum field from `csum_start`.
    pub csum_offset: U16,
    /// VLAN tag control information.
    pub vlan_tci: U16,
    /// Flow hash: picks the receive queue at the target, and is handed to its stack.
    pub hash: U32,
}
assert_size!(FrameMeta, 16);
