// SPDX-License-Identifier: GPL-2.0
//! Segmentation state of a packet.

use crate::bindings;

// bindgen gives the enumeration's type; the field is unsigned.
const TCPV4: u32 = bindings::SKB_GSO_TCPV4 as u32;
const TCPV6: u32 = bindings::SKB_GSO_TCPV6 as u32;
const UDP_L4: u32 = bindings::SKB_GSO_UDP_L4 as u32;
const TCP_ECN: u32 = bindings::SKB_GSO_TCP_ECN as u32;
const DODGY: u32 = bindings::SKB_GSO_DODGY as u32;

/// How a packet larger than the MTU is segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP datagrams of one size.
    UdpL4,
}

/// Segmentation state of a packet (`gso_type` and `gso_size` of `struct skb_shared_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Transport.
    pub kind: GsoKind,
    /// Payload bytes of each segment.
    pub size: u16,
    /// CWR is set in the first segment only.
    pub ecn: bool,
}

impl Gso {
    /// State of an skb, `None` if it is of a kind that [`GsoKind`] does not know.
    pub(super) fn from_raw(gso_type: u32, size: u16) -> Option<Self> {
        let kind = if gso_type & TCPV4 != 0 {
            GsoKind::TcpV4
        } else if gso_type & TCPV6 != 0 {
            GsoKind::TcpV6
        } else if gso_type & UDP_L4 != 0 {
            GsoKind::UdpL4
        } else {
            return None;
        };
        Some(Self {
            kind,
            size,
            ecn: gso_type & TCP_ECN != 0,
        })
    }

    /// `gso_type` for a received packet: whoever segments it checks its headers first (`SKB_GSO_DODGY`).
    pub(super) fn to_raw(self) -> u32 {
        let kind = match self.kind {
            GsoKind::TcpV4 => TCPV4,
            GsoKind::TcpV6 => TCPV6,
            GsoKind::UdpL4 => UDP_L4,
        };
        kind | DODGY | if self.ecn { TCP_ECN } else { 0 }
    }
}
