// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the node receives and sends as: addresses, spreading, GIDs.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// [`SetGid::flags`]: the entry is in use; without, it is cleared.
pub const GID_VALID: u16 = 1 << 0;
/// [`SetGid::flags`]: the address is one in a VLAN.
pub const GID_VLAN: u16 = 1 << 1;
/// Largest VLAN id.
pub const MAX_VLAN_ID: u16 = 4095;

/// Sets an entry of the GID table, which source addresses of datagrams are taken from.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SetGid {
    /// GID in network order; an IPv4 address is mapped (::ffff:a.b.c.d).
    pub gid: [u8; 16],
    /// Entry, below [`super::DeviceLimits::max_gids`].
    pub index: U32,
    /// `GID_*`, or 0 to clear the entry.
    pub flags: U16,
    /// VLAN id, with `GID_VLAN`; else 0.
    pub vlan_id: U16,
}
assert_size!(SetGid, 24);

/// Take frames for any unicast address.
pub const RX_PROMISC: u32 = 1 << 0;
/// Take frames for any multicast address.
pub const RX_ALL_MULTICAST: u32 = 1 << 1;
/// Take broadcast frames.
pub const RX_BROADCAST: u32 = 1 << 2;

/// Sets the receive filter. Until the first call nothing is received.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SetRxFilter {
    /// Array of `count` addresses of 6 bytes each, unicast or multicast; may be null with count 0.
    pub addresses: U64,
    /// Addresses.
    pub count: U32,
    /// `RX_*`.
    pub flags: U32,
}
assert_size!(SetRxFilter, 16);

/// Sets the spreading table: a frame with hash `h` goes to raw queue pair `table[h % count]`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SetRss {
    /// Array of `count` queue pair numbers of 4 bytes each; count 0 stops reception.
    pub table: U64,
    /// Entries, at most [`super::DeviceLimits::rss_entries`].
    pub count: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(SetRss, 16);
