// SPDX-License-Identifier: GPL-2.0
//! What a user can set, and its limits.

use nk::net::ethtool::Coalesce;
use nupa_fabric::PortInfo;

/// Receive buffers of a queue at most (128 MiB).
pub(crate) const MAX_RX: u32 = 4096;
/// Packets in flight of a queue at most.
pub(crate) const MAX_TX: u32 = 4096;
/// Fewest of both: one frame of the largest size must fit several times.
pub(crate) const MIN_RING: u32 = 64;
/// log2 of the send ring's blocks per packet slot: a packet of the most fragments takes six blocks, an average one two.
const LOG_BLOCKS_PER_PACKET: u32 = 1;

/// Smallest MTU (RFC 791).
pub(crate) const MIN_MTU: u32 = 68;
/// Largest MTU: what an IP header can say.
pub(crate) const MAX_MTU: u32 = 65535;
/// MTU to start with, as IP over InfiniBand has in connected mode.
///
/// Frames travel whole, so a large one costs nothing but makes everything that is counted in packets cheaper: TCP fills
/// 64 KiB super-frames without a small remainder (with 9000 it is seven segments and a rest), datagrams are not cut.
/// With its Ethernet header such a frame fills two receive buffers exactly. Bridges and routers to networks with a
/// smaller MTU are a matter of path MTU discovery, or of setting this one.
pub(crate) const DEFAULT_MTU: u32 = 65520;

/// Receive buffers that are spread over the channels to start with (64 MiB).
const DEFAULT_RX_TOTAL: u32 = 2048;
/// Of these, most per channel: 128 frames of the largest MTU. More only make the working set larger than the caches.
const DEFAULT_RX: u32 = 256;
/// Packets in flight per channel to start with.
const DEFAULT_TX: u32 = 512;
/// Transmit moderation to start with. Packets are mostly reclaimed at the next transmit or receive poll; the interrupt
/// is for the tail, and for a queue that is stopped.
const DEFAULT_TX_USECS: u32 = 1000;
/// An eighth of the queue, so that a full one is woken well before it runs empty.
const DEFAULT_TX_FRAMES: u32 = 64;

/// Settings that survive a restart of the queues.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// Channels in use.
    pub(crate) channels: u32,
    /// Receive buffers per channel, a power of two.
    pub(crate) rx: u32,
    /// Packets in flight per channel, a power of two.
    pub(crate) tx: u32,
    /// Interrupt moderation.
    pub(crate) coalesce: Coalesce,
}

impl Settings {
    /// What a port starts with: one channel per vector.
    pub(crate) fn new(info: &PortInfo) -> Self {
        let rx = DEFAULT_RX_TOTAL
            .checked_div(info.vectors)
            .map_or(DEFAULT_RX, |share| share.clamp(1 << 7, DEFAULT_RX));
        Self {
            channels: info.vectors,
            rx: max_rx(info).min(1 << rx.ilog2()),
            tx: max_tx(info).min(DEFAULT_TX),
            coalesce: Coalesce {
                rx_usecs: 0,
                rx_frames: 0,
                adaptive_rx: true,
                tx_usecs: DEFAULT_TX_USECS,
                tx_frames: DEFAULT_TX_FRAMES,
            },
        }
    }

    /// log2 of the send ring's blocks.
    pub(crate) fn log_send_blocks(&self) -> u32 {
        // Of a power of two, and unlike `ilog2()` without a panic for 0, which objtool does not know to end there.
        let log_packets = self.tx.trailing_zeros();
        log_packets.saturating_add(LOG_BLOCKS_PER_PACKET)
    }
}

/// Receive buffers per channel that the port allows.
pub(crate) fn max_rx(info: &PortInfo) -> u32 {
    let log_cq = u32::from(info.limits.max_log_cq).saturating_sub(1);
    power(u32::from(info.limits.max_log_rq).min(log_cq), MAX_RX)
}

/// Packets in flight per channel that the port allows.
pub(crate) fn max_tx(info: &PortInfo) -> u32 {
    let log_cq = u32::from(info.limits.max_log_cq).saturating_sub(1);
    let log_sq = u32::from(info.limits.max_log_sq).saturating_sub(LOG_BLOCKS_PER_PACKET);
    power(log_sq.min(log_cq), MAX_TX)
}

fn power(log: u32, most: u32) -> u32 {
    1u32.checked_shl(log).unwrap_or(most).min(most)
}
