// SPDX-License-Identifier: GPL-2.0
//! Packets that a device is sending: mapped when they go in, unmapped when they come out, in the same order.

use super::{
    skb::{SkBuff, MAX_FRAGS},
    xdp::XdpFrame,
};
use crate::{bindings, raw};
use kernel::{device, dma::DmaAddress, prelude::*, sync::aref::ARef};

/// A piece of a packet as the device sees it.
#[derive(Clone, Copy, Default)]
pub struct Segment {
    /// DMA address.
    pub addr: DmaAddress,
    /// Bytes.
    pub len: u32,
}

/// Most pieces of a packet: its linear part and its fragments.
pub const MAX_SEGMENTS: usize = MAX_FRAGS + 1;

/// What is sent.
pub enum Packet {
    /// A packet of the stack.
    Skb(SkBuff),
    /// A frame of XDP.
    Xdp(XdpFrame),
}

/// One packet in flight and its mappings.
#[derive(Default)]
struct Slot {
    packet: Option<Packet>,
    count: usize,
    segments: [Segment; MAX_SEGMENTS],
}

impl Slot {
    fn segments(&self) -> &[Segment] {
        self.segments.get(..self.count).unwrap_or_default()
    }
}

/// A queue of packets that are mapped for a device.
///
/// It allocates when it is created and never again. Dropping it unmaps and frees everything that is left, so the device
/// must have stopped reading by then.
pub struct TxFifo {
    device: ARef<device::Device>,
    slots: KVVec<Slot>,
    /// Free-running indices.
    head: u32,
    tail: u32,
}

impl TxFifo {
    /// A queue of up to `packets` packets, which must be a power of two. May sleep.
    pub fn new(device: &device::Device, packets: u32) -> Result<Self> {
        if !packets.is_power_of_two() {
            return Err(EINVAL);
        }
        let mut slots = KVVec::with_capacity(packets as usize, GFP_KERNEL)?;
        for _ in 0..packets {
            slots.push(Slot::default(), GFP_KERNEL)?;
        }
        Ok(Self {
            device: device.into(),
            slots,
            head: 0,
            tail: 0,
        })
    }

    /// Number that the next packet gets; they are free-running.
    #[inline]
    pub fn next_number(&self) -> u32 {
        self.head
    }

    /// Number of the oldest packet, if there is one.
    #[inline]
    pub fn oldest_number(&self) -> u32 {
        self.tail
    }

    /// Packets in the queue.
    #[inline]
    pub fn len(&self) -> u32 {
        self.head.wrapping_sub(self.tail)
    }

    /// Whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether no packet fits any more.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() as usize >= self.slots.len()
    }

    /// Unmaps and takes out what lies at `index`.
    #[inline]
    fn take(&mut self, index: u32) -> Option<Packet> {
        let device = raw::device(&self.device);
        let at = index as usize & self.mask();
        let slot = self.slots.get_mut(at)?;
        unmap(device, slot);
        slot.packet.take()
    }

    /// What turns a free-running index into a slot: their number is a power of two.
    #[inline]
    fn mask(&self) -> usize {
        self.slots.len().wrapping_sub(1)
    }

    /// Maps `packet` for reading by the device and appends it. Returns its pieces in order.
    ///
    /// On failure (`ENOSPC`, or `ENOMEM` if it cannot be mapped) the packet comes back unmapped. Any context.
    #[inline]
    pub fn push(&mut self, packet: Packet) -> Result<&[Segment], (Packet, Error)> {
        if self.is_full() {
            return Err((packet, ENOSPC));
        }
        let device = raw::device(&self.device);
        let mask = self.mask();
        let Some(slot) = self.slots.get_mut(self.head as usize & mask) else {
            return Err((packet, ENOSPC));
        };
        let mapped = match &packet {
            Packet::Skb(skb) => map(device, skb, slot),
            Packet::Xdp(frame) => map_frame(device, frame, slot),
        };
        if let Err(e) = mapped {
            unmap(device, slot);
            return Err((packet, e));
        }
        slot.packet = Some(packet);
        self.head = self.head.wrapping_add(1);
        Ok(slot.segments())
    }

    /// Takes the oldest packet out and unmaps it. Any context.
    #[inline]
    pub fn pop(&mut self) -> Option<Packet> {
        if self.is_empty() {
            return None;
        }
        let tail = self.tail;
        self.tail = tail.wrapping_add(1);
        self.take(tail)
    }

    /// Takes the newest packet back and unmaps it, if the device was not told of it after all.
    pub fn pop_newest(&mut self) -> Option<Packet> {
        if self.is_empty() {
            return None;
        }
        self.head = self.head.wrapping_sub(1);
        self.take(self.head)
    }
}

impl Drop for TxFifo {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// Maps all pieces of `skb`, counting in `slot` those that are done.
#[inline]
fn map(device: *mut bindings::device, skb: &SkBuff, slot: &mut Slot) -> Result {
    for piece in 0..=skb.frags() {
        let entry = slot.segments.get_mut(piece).ok_or(EINVAL)?;
        let mapped = match piece.checked_sub(1) {
            None => {
                entry.len = skb.linear_len();
                // SAFETY: `device` is alive as the fifo counts a reference, and so is the skb, which we own.
                unsafe { bindings::nk_skb_map_head(device, skb.as_raw(), &mut entry.addr) }
            }
            Some(frag) => {
                entry.len = skb.frag_len(frag);
                // SAFETY: As above; `frag` is below `nr_frags`.
                unsafe {
                    bindings::nk_skb_map_frag(device, skb.as_raw(), frag as u32, &mut entry.addr)
                }
            }
        };
        if !mapped {
            return Err(ENOMEM);
        }
        slot.count = piece.wrapping_add(1);
    }
    Ok(())
}

/// The same for a frame of XDP.
#[inline]
fn map_frame(device: *mut bindings::device, frame: &XdpFrame, slot: &mut Slot) -> Result {
    for piece in 0..=frame.frags() {
        let entry = slot.segments.get_mut(piece).ok_or(EINVAL)?;
        // SAFETY: `device` is alive as the fifo counts a reference; there are as many fragments.
        let mapped = unsafe { frame.map(device, piece.checked_sub(1)) };
        let (addr, len) = mapped.ok_or(ENOMEM)?;
        *entry = Segment { addr, len };
        slot.count = piece.wrapping_add(1);
    }
    Ok(())
}

/// Unmaps what was mapped.
#[inline]
fn unmap(device: *mut bindings::device, slot: &mut Slot) {
    for segment in slot.segments() {
        // SAFETY: `device` is alive; each segment was mapped by `map` with this length and is unmapped once, because
        // its count is cleared below.
        unsafe {
            bindings::dma_unmap_page_attrs(
                device,
                segment.addr,
                segment.len as usize,
                bindings::dma_data_direction_DMA_TO_DEVICE,
                0,
            );
        }
    }
    slot.count = 0;
}
