// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Multicast groups of UD queue pairs.

use zerocopy::little_endian::U32;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Attachments that a function has room for: pairs of a group and a queue pair.
pub const MAX_ATTACHMENTS: u32 = 256;
/// Queue pairs of a function that one group can have, since each gets a copy of every datagram.
pub const MAX_GROUP_MEMBERS: u32 = 32;

/// A queue pair as a member of a multicast group. Only with [`CAP_MULTICAST`](crate::regs::CAP_MULTICAST).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct GroupMember {
    /// The group's GID (MGID) in network order; an IPv4 address is mapped (::ffff:a.b.c.d).
    pub gid: [u8; 16],
    /// A UD queue pair.
    pub qpn: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(GroupMember, 24);
