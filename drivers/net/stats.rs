// SPDX-License-Identifier: GPL-2.0
//! Counters of a channel.

use nk::{
    counter::Counter,
    net::{RxQueueStats, TxQueueStats},
};

/// Counters of one direction that both have.
#[derive(Default)]
pub(crate) struct Traffic {
    /// Packets, super-frames counting as one.
    pub(crate) packets: Counter,
    /// Bytes of frames.
    pub(crate) bytes: Counter,
}

impl Traffic {
    /// One more packet.
    #[inline]
    pub(crate) fn add(&self, bytes: u32) {
        self.packets.add(1);
        self.bytes.add(bytes.into());
    }
}

/// Counters of a transmit queue; written under its transmit lock.
#[derive(Default)]
pub(crate) struct TxStats {
    /// Packets that went to the fabric.
    pub(crate) sent: Traffic,
    /// Of those, super-frames.
    pub(crate) gso: Traffic,
    /// Of those, frames of XDP.
    pub(crate) xdp: Counter,
    /// Packets that were dropped before.
    pub(crate) dropped: Counter,
    /// Frames that completed with an error: node down, no receive buffer in time.
    pub(crate) errors: Counter,
    /// Frames whose target had no receive buffer in time; part of the errors.
    pub(crate) no_receiver: Counter,
    /// Times that the queue was full and stopped.
    pub(crate) stopped: Counter,
    /// Doorbells that went to the controller as a kick.
    pub(crate) kicks: Counter,
}

/// Counters of a receive queue; written by its poll function.
#[derive(Default)]
pub(crate) struct RxStats {
    /// Packets that went to the stack, or to a program before.
    pub(crate) received: Traffic,
    /// Of those, with a multicast or broadcast destination.
    pub(crate) multicast: Counter,
    /// Super-frames that came in. A program sees their segments, which count as received then.
    pub(crate) gso: Counter,
    /// Packets that were dropped for want of memory.
    pub(crate) dropped: Counter,
    /// Frames that were malformed.
    pub(crate) errors: Counter,
    /// Of those, frames whose offload words do not fit them.
    pub(crate) bad_offload: Counter,
    /// Times that a receive buffer could not be allocated.
    pub(crate) alloc_failed: Counter,
    /// What programs have made of frames.
    pub(crate) xdp: XdpStats,
}

/// What programs have made of frames.
#[derive(Default)]
pub(crate) struct XdpStats {
    /// They went to the stack.
    pub(crate) pass: Counter,
    /// They were dropped.
    pub(crate) drop: Counter,
    /// They went out where they came from.
    pub(crate) tx: Counter,
    /// They went out elsewhere.
    pub(crate) redirect: Counter,
    /// They were dropped, since the program failed.
    pub(crate) aborted: Counter,
    /// What a program wanted could not be done, or a frame could not be shown to it: they were dropped.
    pub(crate) errors: Counter,
}

/// Counters of a channel. They survive a restart of the queues.
#[derive(Default)]
pub(crate) struct ChannelStats {
    pub(crate) tx: TxStats,
    pub(crate) rx: RxStats,
}

/// Finds a counter.
type Getter = fn(&ChannelStats) -> &Counter;

/// The sum of a counter of several channels.
fn sum(channels: &[ChannelStats], counter: Getter) -> u64 {
    let add = |sum: u64, channel| sum.wrapping_add(counter(channel).get());
    channels.iter().fold(0, add)
}

/// What the network core shows of receive queues.
pub(crate) fn report_rx(channels: &[ChannelStats], stats: &mut RxQueueStats<'_>) {
    stats.set_packets(sum(channels, |channel| &channel.rx.received.packets));
    stats.set_bytes(sum(channels, |channel| &channel.rx.received.bytes));
    let buffers = sum(channels, |channel| &channel.rx.alloc_failed);
    let packets = sum(channels, |channel| &channel.rx.dropped);
    stats.set_alloc_fail(buffers.wrapping_add(packets));
}

/// What the network core shows of transmit queues.
pub(crate) fn report_tx(channels: &[ChannelStats], stats: &mut TxQueueStats<'_>) {
    stats.set_packets(sum(channels, |channel| &channel.tx.sent.packets));
    stats.set_bytes(sum(channels, |channel| &channel.tx.sent.bytes));
    stats.set_hw_gso_packets(sum(channels, |channel| &channel.tx.gso.packets));
    stats.set_hw_gso_bytes(sum(channels, |channel| &channel.tx.gso.bytes));
    stats.set_stop(sum(channels, |channel| &channel.tx.stopped));
}

/// Name and place of each counter that `ethtool -S` shows per channel.
pub(crate) const NAMED: &[(&str, Getter)] = &[
    ("tx_packets", |s| &s.tx.sent.packets),
    ("tx_bytes", |s| &s.tx.sent.bytes),
    ("tx_gso", |s| &s.tx.gso.packets),
    ("tx_xdp", |s| &s.tx.xdp),
    ("tx_dropped", |s| &s.tx.dropped),
    ("tx_errors", |s| &s.tx.errors),
    ("tx_no_receiver", |s| &s.tx.no_receiver),
    ("tx_stopped", |s| &s.tx.stopped),
    ("tx_kicks", |s| &s.tx.kicks),
    ("rx_packets", |s| &s.rx.received.packets),
    ("rx_bytes", |s| &s.rx.received.bytes),
    ("rx_multicast", |s| &s.rx.multicast),
    ("rx_gso", |s| &s.rx.gso),
    ("rx_dropped", |s| &s.rx.dropped),
    ("rx_errors", |s| &s.rx.errors),
    ("rx_bad_offload", |s| &s.rx.bad_offload),
    ("rx_alloc_failed", |s| &s.rx.alloc_failed),
    ("rx_xdp_pass", |s| &s.rx.xdp.pass),
    ("rx_xdp_drop", |s| &s.rx.xdp.drop),
    ("rx_xdp_tx", |s| &s.rx.xdp.tx),
    ("rx_xdp_redirect", |s| &s.rx.xdp.redirect),
    ("rx_xdp_aborted", |s| &s.rx.xdp.aborted),
    ("rx_xdp_errors", |s| &s.rx.xdp.errors),
];
