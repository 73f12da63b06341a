// SPDX-License-Identifier: GPL-2.0
//! Transmit half of a channel. All of it is under the transmit lock of its queue.
//!
//! What was sent is reclaimed at the next transmit and in the channel's poll function. An event is asked for where
//! frames are left after that; it is moderated, since the next transmit or receive mostly comes first.

use crate::{frame, nic::Nic, stats::TxStats};
use kernel::{device, prelude::*};
use nk::net::{
    xdp::XdpFrame, Device, Packet, Segment, SkBuff, Transmit, TxFifo, TxQueue, MAX_SEGMENTS,
};
use nupa_fabric::{dma_sge, Cq, PortInfo, SendQueue, SendReclaim};
use nupa_proto::{
    cqe::Cqe,
    status::WcStatus,
    wqe::{Sge, MAX_SEND_SGE},
};

const _: () = assert!(MAX_SEGMENTS == MAX_SEND_SGE);

/// Blocks of the largest frame.
const MAX_BLOCKS: u32 = SendQueue::blocks_for(MAX_SEND_SGE);

/// Transmit queue of a channel.
pub(crate) struct Tx {
    ring: SendQueue,
    reclaim: SendReclaim,
    cq: Cq,
    fifo: TxFifo,
    /// Blocks that must be free before a stopped queue is woken.
    wake_blocks: u32,
    /// An event was asked for and has not come yet.
    armed: bool,
    max_nodes: u16,
    /// Bytes of the longest frame.
    max_frame: u32,
    /// Frames get a flow hash even if it has to be computed, for targets with several queues.
    hash: bool,
    /// Frames of XDP that were sent, and whose memory could not be given back yet.
    sent: KVVec<XdpFrame>,
}

impl Tx {
    /// A queue of up to `packets` packets.
    pub(crate) fn new(
        device: &device::Device,
        ring: SendQueue,
        reclaim: SendReclaim,
        cq: Cq,
        packets: u32,
        info: &PortInfo,
        hash: bool,
    ) -> Result<Self> {
        let fifo = TxFifo::new(device, packets)?;
        Ok(Self {
            ring,
            reclaim,
            cq,
            fifo,
            wake_blocks: packets.max(MAX_BLOCKS),
            armed: false,
            max_nodes: info.max_nodes,
            max_frame: info.limits.max_frame(),
            hash,
            sent: KVVec::with_capacity(packets as usize, GFP_KERNEL)?,
        })
    }

    /// Gives up the queue's part of the controller's objects; the packets, which these may still read, are left.
    pub(crate) fn into_packets(self) -> TxFifo {
        self.fifo
    }

    fn has_room(&mut self) -> bool {
        !self.fifo.is_full() && self.ring.free_blocks() >= MAX_BLOCKS
    }

    /// Maps a packet and writes its descriptor. Returns its bytes, and whether it is a super-frame. On failure it is dropped.
    #[inline]
    fn post(&mut self, mut skb: SkBuff) -> Result<(u32, bool)> {
        let node = frame::target(&skb, self.max_nodes).ok_or(EINVAL)?;
        let meta = frame::encode(&mut skb, self.max_frame, self.hash)?;
        skb.tx_timestamp();
        let len = skb.len();
        let number = u64::from(self.fifo.next_number());
        let mut pieces = [Sge::default(); MAX_SEND_SGE];
        let count = describe(self.fifo.push(Packet::Skb(skb)), &mut pieces).map_err(|(_, e)| e)?;
        let pieces = pieces.get(..count).unwrap_or_default();
        if let Err(e) = self.ring.post_frame(node, &meta, pieces, true, number) {
            drop(self.fifo.pop_newest());
            return Err(e);
        }
        Ok((len, meta.gso_type != 0))
    }

    /// The same for a frame of XDP, which comes back on failure.
    fn post_xdp(&mut self, dev: &Device<Nic>, frame: XdpFrame) -> Result<u32, XdpFrame> {
        let len = frame.len();
        let hash = if self.hash {
            frame.hash(dev)
        } else {
            (0, false)
        };
        let Some((node, meta)) = frame::encode_xdp(&frame, hash, self.max_nodes) else {
            return Err(frame);
        };
        let number = u64::from(self.fifo.next_number());
        let mut pieces = [Sge::default(); MAX_SEND_SGE];
        let back = match describe(self.fifo.push(Packet::Xdp(frame)), &mut pieces) {
            Ok(count) => {
                let pieces = pieces.get(..count).unwrap_or_default();
                match self.ring.post_frame(node, &meta, pieces, true, number) {
                    Ok(_) => return Ok(len),
                    Err(_) => self.fifo.pop_newest(),
                }
            }
            Err((packet, _)) => Some(packet),
        };
        match back {
            Some(Packet::Xdp(frame)) => Err(frame),
            // It was what was pushed.
            _ => Ok(0),
        }
    }

    /// Gives back the memory of such frames, if interrupts are on.
    #[inline]
    fn free_sent(&mut self) {
        while let Some(frame) = self.sent.pop() {
            if let Err(frame) = frame.try_free() {
                let _ = self.sent.push_within_capacity(frame);
                break;
            }
        }
    }

    /// Gives back the memory of a frame that was sent, now or when interrupts are on.
    fn free(&mut self, frame: XdpFrame) {
        if let Err(frame) = frame.try_free() {
            // There is room for as many as can be on their way.
            let _ = self.sent.push_within_capacity(frame);
        }
    }

    /// The packets that a completion is about, as a count; 0 if it makes no sense.
    #[inline]
    fn done(&mut self, cqe: &Cqe) -> u32 {
        if self.reclaim.completed(cqe.queue_index.get()).is_err() {
            return 0;
        }
        // Completions come in order and each covers everything before it.
        let number = cqe.wr_id.get() as u32;
        let count = number
            .wrapping_sub(self.fifo.oldest_number())
            .wrapping_add(1);
        if count > self.fifo.len() {
            return 0;
        }
        count
    }
}

/// What the controller is told of the pieces of a packet: their count.
#[inline]
fn describe(
    mapped: Result<&[Segment], (Packet, Error)>,
    pieces: &mut [Sge],
) -> Result<usize, (Packet, Error)> {
    let segments = mapped?;
    for (piece, segment) in pieces.iter_mut().zip(segments) {
        *piece = dma_sge(segment.addr, segment.len);
    }
    Ok(segments.len())
}

/// Sends one packet.
#[inline]
pub(crate) fn xmit(
    queue: &mut TxQueue<'_, Nic>,
    stats: &TxStats,
    skb: SkBuff,
    more: bool,
) -> Transmit {
    if !queue.has_room() {
        stop(queue, stats);
        reap(queue, stats);
        if queue.is_stopped() {
            return Transmit::Busy(skb);
        }
    }
    match queue.post(skb) {
        Ok((bytes, gso)) => {
            stats.sent.add(bytes);
            if gso {
                stats.gso.add(bytes);
            }
            if !queue.has_room() {
                stop(queue, stats);
            }
            if queue.sent(bytes, more) || queue.is_stopped() {
                ring(queue, stats);
            }
        }
        Err(_) => {
            stats.dropped.add(1);
            if !more {
                // Those before it were told that more would follow.
                ring(queue, stats);
            }
        }
    }
    Transmit::Taken
}

/// Sends one frame of XDP, which comes back if there is no room for it or no sense in it. [`flush`] is to follow. While the stack waits
/// for room there is none: it would wait for ever if all that comes free were taken before.
pub(crate) fn xmit_xdp(
    dev: &Device<Nic>,
    queue: &mut TxQueue<'_, Nic>,
    stats: &TxStats,
    frame: XdpFrame,
) -> Result<(), XdpFrame> {
    if queue.is_stopped() || !queue.has_room() {
        ring(queue, stats);
        if queue.is_stopped() || !queue.has_room() {
            return Err(frame);
        }
    }
    let bytes = queue.post_xdp(dev, frame)?;
    queue.in_use();
    stats.sent.add(bytes);
    stats.xdp.add(1);
    Ok(())
}

/// Hands what was sent to the controller.
pub(crate) fn flush(queue: &mut TxQueue<'_, Nic>, stats: &TxStats) {
    ring(queue, stats);
}

fn stop(queue: &mut TxQueue<'_, Nic>, stats: &TxStats) {
    queue.stop();
    stats.stopped.add(1);
}

/// Hands everything to the controller and takes back what it is done with already.
#[inline]
fn ring(queue: &mut TxQueue<'_, Nic>, stats: &TxStats) {
    if queue.ring.ring() {
        stats.kicks.add(1);
    }
    reap(queue, stats);
}

/// An event came in: the next one has to be asked for.
pub(crate) fn event(queue: &mut TxQueue<'_, Nic>, stats: &TxStats) {
    queue.armed = false;
    reap(queue, stats);
}

/// Frees what was sent, wakes the queue if that makes enough room, and asks for an event if something is left.
pub(crate) fn reap(queue: &mut TxQueue<'_, Nic>, stats: &TxStats) {
    loop {
        reap_once(queue, stats);
        if queue.fifo.is_empty() || queue.armed {
            break;
        }
        queue.armed = true;
        if !queue.cq.arm(false) {
            break;
        }
        // Completions came in meanwhile, the event may not come.
        queue.armed = false;
    }
    let wake = queue.wake_blocks;
    if queue.is_stopped() && !queue.fifo.is_full() && queue.ring.free_blocks() >= wake {
        queue.wake();
    }
}

#[inline]
fn reap_once(queue: &mut TxQueue<'_, Nic>, stats: &TxStats) {
    let (mut packets, mut bytes) = (0u32, 0u32);
    queue.free_sent();
    while let Some(cqe) = queue.cq.poll() {
        let count = queue.done(&cqe);
        if cqe.status != WcStatus::Success.to_wire() {
            stats.errors.add(1);
            if cqe.status == WcStatus::RnrRetryExceeded.to_wire() {
                stats.no_receiver.add(1);
            }
        }
        for _ in 0..count {
            match queue.fifo.pop() {
                Some(Packet::Skb(skb)) => {
                    packets = packets.wrapping_add(1);
                    bytes = bytes.wrapping_add(skb.len());
                    skb.consume();
                }
                Some(Packet::Xdp(frame)) => queue.free(frame),
                None => break,
            }
        }
    }
    if packets != 0 {
        queue.completed(packets, bytes);
    }
}
