// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Counters of a port.

use zerocopy::little_endian::U64;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Counters of a node's port since the function was reset.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PortCounters {
    /// Frames sent.
    pub tx_frames: U64,
    /// Bytes of those.
    pub tx_bytes: U64,
    /// Frames received.
    pub rx_frames: U64,
    /// Bytes of those.
    pub rx_bytes: U64,
    /// Frames that found no receive buffer in time and were given up.
    pub rx_no_buffer: U64,
    /// Frames that this node's receive filter refused.
    pub rx_filtered: U64,
    /// Sends that had to wait for a receive buffer at the target.
    pub tx_rnr_waits: U64,
    /// Sends that ended in an error; copies of datagrams for a group that found no room on their way to another host.
    pub tx_errors: U64,
    /// RC and UD messages (SEND, WRITE, READ, atomics) sent, those that were put into process rings included.
    pub tx_messages: U64,
    /// Bytes of those.
    pub tx_message_bytes: U64,
    /// RC and UD messages served as target.
    pub rx_messages: U64,
    /// Bytes of those.
    pub rx_message_bytes: U64,
    /// Remote requests that this node refused.
    pub remote_access_errors: U64,
    /// Malformed descriptors.
    pub bad_descriptors: U64,
    /// Kicks.
    pub kicks: U64,
    /// Interrupts raised.
    pub interrupts: U64,
    /// READs served as target.
    pub rx_reads: U64,
    /// Bytes of those.
    pub rx_read_bytes: U64,
    /// Atomics and atomic writes served as target.
    pub rx_atomics: U64,
    /// Requests that found no receive entry.
    pub rx_rnr_naks: U64,
    /// Datagrams that arrived and were dropped: queue key, state, or no or too short an entry.
    pub rx_datagram_drops: U64,
    /// Requests that failed because the peer was gone.
    pub tx_retry_exceeded: U64,
    /// Requests and receive entries that completed with a flush error.
    pub flushed: U64,
    /// Completion queues that overflowed.
    pub cq_overflows: U64,
    /// WRITEs that this node has carried out by itself, in memory of the target that both share; they count as sent, too.
    pub tx_direct_writes: U64,
    /// Bytes of `tx_message_bytes` that were read, so came in.
    pub tx_read_bytes: U64,
    /// Of each queue pair's RC and UD messages about one of 64 is measured, from when the device first takes the request to its completion. Those
    /// that took less than 1 microsecond, less than 2, less than 4, and so on; the last one has all that took longer.
    pub tx_latency: [U64; LATENCY_CLASSES],
}
assert_size!(PortCounters, 304);

/// Classes of [`PortCounters::tx_latency`].
pub const LATENCY_CLASSES: usize = 12;

/// Index of the first of [`PortCounters::tx_latency`] among [`PORT_COUNTER_NAMES`].
pub const FIRST_LATENCY: usize = PORT_COUNTER_NAMES.len() - LATENCY_CLASSES;

/// Names of [`PortCounters`]' counters, in order; used by every tool that shows them.
pub const PORT_COUNTER_NAMES: [&str; 38] = [
    "tx_frames",
    "tx_bytes",
    "rx_frames",
    "rx_bytes",
    "rx_no_buffer",
    "rx_filtered",
    "tx_rnr_waits",
    "tx_errors",
    "tx_messages",
    "tx_message_bytes",
    "rx_messages",
    "rx_message_bytes",
    "remote_access_errors",
    "bad_descriptors",
    "kicks",
    "interrupts",
    "rx_reads",
    "rx_read_bytes",
    "rx_atomics",
    "rx_rnr_naks",
    "rx_datagram_drops",
    "tx_retry_exceeded",
    "flushed",
    "cq_overflows",
    "tx_direct_writes",
    "tx_read_bytes",
    "tx_latency_below_1us",
    "tx_latency_below_2us",
    "tx_latency_below_4us",
    "tx_latency_below_8us",
    "tx_latency_below_16us",
    "tx_latency_below_32us",
    "tx_latency_below_64us",
    "tx_latency_below_128us",
    "tx_latency_below_256us",
    "tx_latency_below_512us",
    "tx_latency_below_1024us",
    "tx_latency_longer",
];
