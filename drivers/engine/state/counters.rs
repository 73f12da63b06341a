// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Counters of a node's port.

use nupa_proto::admin::{PortCounters, LATENCY_CLASSES};
use zerocopy::little_endian::U64;

/// A count that wraps around.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count(u64);

impl Count {
    #[inline]
    pub(crate) fn add(&mut self, n: u32) {
        self.add_all(n.into());
    }

    /// As [`Count::add`], of many at a time.
    #[inline]
    pub(crate) fn add_all(&mut self, n: u64) {
        self.0 = self.0.wrapping_add(n);
    }
}

/// Declares [`Counters`] with the fields of [`PortCounters`].
macro_rules! counters {
    ($($name:ident,)+) => {
        /// Counters of a node's port; fields as in [`PortCounters`].
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Count,)+
            /// Requests that were measured, by how long they took.
            pub(crate) tx_latency: [Count; LATENCY_CLASSES],
        }

        impl Counters {
            pub(crate) fn to_wire(self) -> PortCounters {
                PortCounters {
                    $($name: U64::new(self.$name.0),)+
                    tx_latency: self.tx_latency.map(|count| U64::new(count.0)),
                }
            }
        }
    };
}

counters! {
    tx_frames,
    tx_bytes,
    rx_frames,
    rx_bytes,
    rx_no_buffer,
    rx_filtered,
    tx_rnr_waits,
    tx_errors,
    tx_messages,
    tx_message_bytes,
    rx_messages,
    rx_message_bytes,
    remote_access_errors,
    bad_descriptors,
    kicks,
    interrupts,
    rx_reads,
    rx_read_bytes,
    rx_atomics,
    rx_rnr_naks,
    rx_datagram_drops,
    tx_retry_exceeded,
    flushed,
    cq_overflows,
    tx_direct_writes,
    tx_read_bytes,
}

/// Frames and messages, and the bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Frames and messages.
    pub items: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Counters {
    /// What came and what went since the last reset, wrapping around.
    pub(crate) fn moved(&self) -> [Volume; 2] {
        [
            Volume {
                items: self.rx_frames.0.wrapping_add(self.rx_messages.0),
                bytes: self.rx_bytes.0.wrapping_add(self.rx_message_bytes.0),
            },
            Volume {
                items: self.tx_frames.0.wrapping_add(self.tx_messages.0),
                bytes: self.tx_bytes.0.wrapping_add(self.tx_message_bytes.0),
            },
        ]
    }
}
