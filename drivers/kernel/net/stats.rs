// SPDX-License-Identifier: GPL-2.0
//! Interface statistics.

use crate::bindings;

/// What `get_stats64` adds to (`struct rtnl_link_stats64`, which arrives zeroed).
pub struct LinkStats<'a>(&'a mut bindings::rtnl_link_stats64);

macro_rules! adders {
    ($($(#[$meta:meta])* $name:ident => $field:ident;)+) => {
        $($(#[$meta])* pub fn $name(&mut self, n: u64) {
            self.0.$field = self.0.$field.wrapping_add(n);
        })+
    };
}

impl<'a> LinkStats<'a> {
    pub(super) fn new(raw: &'a mut bindings::rtnl_link_stats64) -> Self {
        Self(raw)
    }

    adders! {
        /// Packets received.
        add_rx_packets => rx_packets;
        /// Bytes received.
        add_rx_bytes => rx_bytes;
        /// Packets that arrived and were dropped for want of memory.
        add_rx_dropped => rx_dropped;
        /// Malformed packets.
        add_rx_errors => rx_errors;
        /// Multicast packets received.
        add_multicast => multicast;
        /// Packets sent.
        add_tx_packets => tx_packets;
        /// Bytes sent.
        add_tx_bytes => tx_bytes;
        /// Packets that were dropped before they were sent.
        add_tx_dropped => tx_dropped;
        /// Packets whose transmission failed.
        add_tx_errors => tx_errors;
    }
}
