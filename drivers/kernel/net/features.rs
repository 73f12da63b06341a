// SPDX-License-Identifier: GPL-2.0
//! Offload feature sets.
//!
//! C header: `include/linux/netdev_features.h`

use crate::bindings;
use core::ops::BitOr;

/// A set of `NETIF_F_*`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(u64);

macro_rules! features {
    ($($(#[$meta:meta])* $name:ident = $bit:ident;)+) => {
        $($(#[$meta])* pub const $name: Self = Self(1 << bindings::$bit);)+
    };
}

impl Features {
    features! {
        /// Scatter/gather: packets may have fragments.
        SG = NETIF_F_SG_BIT;
        /// Any 16-bit ones' complement checksum is done for the stack.
        HW_CSUM = NETIF_F_HW_CSUM_BIT;
        /// Received checksums are verified.
        RXCSUM = NETIF_F_RXCSUM_BIT;
        /// Fragments may lie in high memory.
        HIGHDMA = NETIF_F_HIGHDMA_BIT;
        /// TCP over IPv4 may exceed the MTU.
        TSO = NETIF_F_TSO_BIT;
        /// TCP with ECN may exceed the MTU.
        TSO_ECN = NETIF_F_TSO_ECN_BIT;
        /// Segmentation may use any IPv4 ids.
        TSO_MANGLEID = NETIF_F_TSO_MANGLEID_BIT;
        /// TCP over IPv6 may exceed the MTU.
        TSO6 = NETIF_F_TSO6_BIT;
        /// UDP may exceed the MTU with datagrams of one size.
        GSO_UDP_L4 = NETIF_F_GSO_UDP_L4_BIT;
        /// Received packets carry a flow hash.
        RXHASH = NETIF_F_RXHASH_BIT;
        /// The VLAN tag of sent frames is taken out of band.
        VLAN_CTAG_TX = NETIF_F_HW_VLAN_CTAG_TX_BIT;
        /// The VLAN tag of received frames is given out of band.
        VLAN_CTAG_RX = NETIF_F_HW_VLAN_CTAG_RX_BIT;
    }

    pub(super) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(super) const fn as_raw(self) -> u64 {
        self.0
    }

    /// The union, for constants.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` are in the set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
