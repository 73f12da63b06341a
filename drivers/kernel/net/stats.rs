// SPDX-License-Identifier: GPL-2.0
//! Statistics of interfaces, and of their queues.
//!
//! C headers: `include/uapi/linux/if_link.h`, `include/net/netdev_queues.h`

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

/// Statistics of a receive queue (`struct netdev_queue_stats_rx`). What is not set is not reported.
pub struct RxQueueStats<'a>(&'a mut bindings::netdev_queue_stats_rx);

/// Statistics of a transmit queue (`struct netdev_queue_stats_tx`). What is not set is not reported.
pub struct TxQueueStats<'a>(&'a mut bindings::netdev_queue_stats_tx);

macro_rules! setters {
    ($($(#[$meta:meta])* $name:ident => $field:ident;)+) => {
        $($(#[$meta])* pub fn $name(&mut self, n: u64) {
            self.0.$field = n;
        })+
    };
}

impl<'a> RxQueueStats<'a> {
    pub(super) fn new(raw: &'a mut bindings::netdev_queue_stats_rx) -> Self {
        Self(raw)
    }

    setters! {
        /// Packets that went to the stack.
        set_packets => packets;
        /// Bytes of these.
        set_bytes => bytes;
        /// Times that there was no memory for a packet or a buffer.
        set_alloc_fail => alloc_fail;
    }
}

impl<'a> TxQueueStats<'a> {
    pub(super) fn new(raw: &'a mut bindings::netdev_queue_stats_tx) -> Self {
        Self(raw)
    }

    setters! {
        /// Packets sent.
        set_packets => packets;
        /// Bytes of these.
        set_bytes => bytes;
        /// Packets whose segmentation the stack left to the device.
        set_hw_gso_packets => hw_gso_packets;
        /// Bytes of these.
        set_hw_gso_bytes => hw_gso_bytes;
        /// Times that the queue was stopped because it was full.
        set_stop => stop;
    }
}
