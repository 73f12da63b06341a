// SPDX-License-Identifier: GPL-2.0
//! Receive half of a channel. All of it is in the channel's poll function.
//!
//! Receive buffers are of a page pool. A frame fills as many as it needs; they become fragments of its packet as they are.
//! What is left of the last one is cut off and posted again, unless it is too small, so that a socket is charged little more than what its
//! packets take: with a whole buffer for each datagram, a socket of the default size would be full after half as many.
//! What takes a small part of a buffer is copied, and all of the buffer is posted again.
//!
//! While a program is attached, buffers have room around the frame, and none is for two frames (`xdp`).

use crate::{
    frame::{self, Wanted},
    nic::Nic,
    stats::RxStats,
    xdp::Xdp,
};
use kernel::{page::PAGE_SIZE, prelude::*};
use nk::net::{Device, Features, NapiContext, PagePool, RxBuffer, RxSkb, MAX_FRAGS};
use nupa_fabric::{Cq, RecvQueue};
use nupa_proto::{cqe::Cqe, frame::MAX_SUPER_FRAME, status::WcStatus};

/// Bytes of the pool's pages, each a buffer to begin with. A frame of the largest MTU fills two, the longest super-frame seven: where
/// the engine is software on this processor, it is the number of buffers that costs.
pub(crate) const PAGE: usize = 32 << 10;
/// The processor's pages of one of these, as log2.
pub(crate) const PAGE_ORDER: u32 = PAGE.div_ceil(PAGE_SIZE).ilog2();
/// Bytes of the smallest buffer. The longest super-frame fits into one packet even if all its buffers are that small.
const LEAST: u32 = 12 << 10;
const _: () = assert!(LEAST as usize * MAX_FRAGS >= MAX_SUPER_FRAME as usize);
/// Frames up to this size are copied.
pub(crate) const COPY_LIMIT: u32 = 2 << 10;
/// Buffers that are posted at once.
const REFILL_BATCH: u32 = 8;

/// Receive queue of a channel.
pub(crate) struct Rx {
    ring: RecvQueue,
    cq: Cq,
    /// Number of the channel.
    index: u16,
    /// Posted buffers by their number modulo the size, a power of two.
    posted: KVVec<Option<RxBuffer>>,
    /// Number of the next buffer to post; free-running.
    head: u32,
    /// Number of the oldest posted buffer.
    tail: u32,
    /// Buffers to post before the pool is asked.
    spares: KVVec<RxBuffer>,
    pub(crate) pool: PagePool,
    /// The program that sees frames first.
    pub(crate) xdp: Option<Xdp>,
}

impl Rx {
    /// A queue of `entries` buffers (a power of two), all posted.
    pub(crate) fn new(
        index: u16,
        ring: RecvQueue,
        cq: Cq,
        mut pool: PagePool,
        entries: u32,
        xdp: Option<Xdp>,
    ) -> Result<Self> {
        let mut posted = KVVec::with_capacity(entries as usize, GFP_KERNEL)?;
        for _ in 0..entries {
            posted.push(None, GFP_KERNEL)?;
        }
        let mut spares = KVVec::with_capacity(entries as usize, GFP_KERNEL)?;
        pool.fill(entries, &mut spares)?;
        let mut rx = Self {
            ring,
            cq,
            index,
            posted,
            head: 0,
            tail: 0,
            spares,
            pool,
            xdp,
        };
        rx.refill(None);
        if rx.is_starved() {
            return Err(ENOMEM);
        }
        Ok(rx)
    }

    /// Number of the channel.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// Gives up the queue's part of the controller's objects; the buffers, which these may still write, are left.
    pub(crate) fn into_buffers(self) -> (KVVec<Option<RxBuffer>>, PagePool) {
        (self.posted, self.pool)
    }

    /// Asks for an event at the next frame. Returns whether there are frames already.
    #[inline]
    pub(crate) fn arm(&mut self) -> bool {
        self.cq.arm(false)
    }

    /// Whether no buffer is posted, so that no event will come.
    pub(crate) fn is_starved(&self) -> bool {
        self.head == self.tail
    }

    #[inline]
    fn slot(&mut self, number: u32) -> Option<&mut Option<RxBuffer>> {
        let mask = self.posted.len().wrapping_sub(1);
        self.posted.get_mut(number as usize & mask)
    }

    /// Posts buffers if a batch of them is missing, without a context those that are there. Returns whether there was memory
    /// for them.
    #[inline]
    pub(crate) fn refill(&mut self, context: Option<&NapiContext<'_>>) -> bool {
        let free = self.ring.free_entries();
        if free < REFILL_BATCH && !self.is_starved() {
            return true;
        }
        let mut enough = true;
        for _ in 0..free {
            let buffer = self.spare();
            let Some(buffer) = buffer.or_else(|| self.pool.alloc(context?)) else {
                enough = false;
                break;
            };
            let number = self.head;
            if self
                .ring
                .post(number.into(), buffer.dma_address(), buffer.size())
                .is_err()
            {
                break;
            }
            if let Some(slot) = self.slot(number) {
                *slot = Some(buffer);
            }
            self.head = number.wrapping_add(1);
        }
        self.ring.ring();
        enough
    }

    /// Takes the oldest posted buffer.
    pub(crate) fn take(&mut self) -> Option<RxBuffer> {
        let number = self.tail;
        self.tail = number.wrapping_add(1);
        self.slot(number)?.take()
    }

    /// Handles one completion. `EIO` if it makes no sense.
    fn complete(&mut self, to: &Destination<'_>, cqe: &Cqe) -> Result {
        let first = self.tail;
        let buffers = self.ring.completed(cqe.queue_index.get())?;
        let plausible = buffers != 0
            && buffers == u32::from(cqe.buffers.get())
            && cqe.wr_id.get() == u64::from(first)
            && cqe.status == WcStatus::Success.to_wire();
        let done = match plausible {
            false => Err(EIO),
            true if self.xdp.is_some() => self.examine(to, cqe, buffers),
            true => self
                .collect(to.context, cqe, buffers)
                .and_then(|packet| self.deliver(to, cqe, packet)),
        };
        // Whatever became of the frame, its buffers are used up.
        while self.tail != first.wrapping_add(buffers) {
            drop(self.take());
        }
        match done {
            Err(e) if e == ENOMEM => {
                to.stats.dropped.add(1);
                Ok(())
            }
            done => done,
        }
    }

    /// Makes a packet of the buffers of a frame.
    #[inline]
    fn collect(&mut self, context: &NapiContext<'_>, cqe: &Cqe, buffers: u32) -> Result<RxSkb> {
        let len = cqe.byte_len.get();
        let linear = if len <= COPY_LIMIT {
            len
        } else {
            frame::linear_len(&cqe.frame, len)
        };
        let mut packet = context.alloc(linear).ok_or(ENOMEM)?;
        let first = self.take().ok_or(EIO)?;
        let here = len.min(first.size());
        first.sync_for_cpu(here);
        packet.copy_from(&first, 0, linear)?;
        if linear == len {
            self.keep(first);
            return Ok(packet);
        }
        if here > linear {
            self.add(&mut packet, first, linear, here)?;
        }
        self.take_rest(len.wrapping_sub(here), buffers, |rx, buffer, here| {
            rx.add(&mut packet, buffer, 0, here)
        })?;
        Ok(packet)
    }

    /// Hands on the buffers of a frame behind its first one, each with the bytes in it, which are `rest` altogether.
    #[inline]
    pub(crate) fn take_rest(
        &mut self,
        mut rest: u32,
        buffers: u32,
        mut add: impl FnMut(&mut Self, RxBuffer, u32) -> Result,
    ) -> Result {
        for _ in 1..buffers {
            let buffer = self.take().ok_or(EIO)?;
            let here = rest.min(buffer.size());
            if here == 0 {
                return Err(EIO);
            }
            buffer.sync_for_cpu(here);
            add(self, buffer, here)?;
            rest = rest.wrapping_sub(here);
        }
        match rest {
            0 => Ok(()),
            _ => Err(EIO),
        }
    }

    /// Appends what the frame has of a buffer, from `start` to `end`, to its packet.
    #[inline]
    fn add(&mut self, packet: &mut RxSkb, mut buffer: RxBuffer, start: u32, end: u32) -> Result {
        if let Some(left) = buffer.split_off(end, LEAST) {
            self.keep(left);
        }
        packet.add_buffer(buffer, start, end.wrapping_sub(start))
    }

    /// A buffer that was kept.
    #[inline]
    pub(crate) fn spare(&mut self) -> Option<RxBuffer> {
        self.spares.pop()
    }

    /// Keeps a buffer to be posted again.
    #[inline]
    pub(crate) fn keep(&mut self, buffer: RxBuffer) {
        // There is room: of the buffers that were posted, which are no more than that, each is kept at most once. Were there
        // none, it would go to the pool.
        let _ = self.spares.push_within_capacity(buffer);
    }

    /// Hands a packet to the stack.
    #[inline]
    fn deliver(&self, to: &Destination<'_>, cqe: &Cqe, mut packet: RxSkb) -> Result {
        if let Err(e) = frame::decode(&cqe.frame, &mut packet, to.wanted) {
            to.stats.bad_offload.add(1);
            return Err(e);
        }
        let multicast = is_multicast(packet.linear());
        let len = packet.len();
        self.hand_over(to, packet)?;
        to.stats.received.add(len);
        to.stats.multicast.add(multicast.into());
        to.stats.gso.add((cqe.frame.gso_type != 0).into());
        Ok(())
    }

    /// Gives the stack a packet that is complete.
    #[inline]
    pub(crate) fn hand_over(&self, to: &Destination<'_>, mut packet: RxSkb) -> Result {
        packet.set_queue(self.index);
        to.context.receive(to.dev, packet)
    }

    /// Receives up to `budget` frames and returns how many. What a program has judged counts: the last super-frame may go beyond that.
    #[inline]
    pub(crate) fn receive(&mut self, to: &Destination<'_>, budget: u32) -> u32 {
        let mut work = 0u32;
        while work < budget {
            let Some(cqe) = self.cq.poll() else { break };
            if self.complete(to, &cqe).is_err() {
                to.stats.errors.add(1);
            }
            let judged = self.xdp.as_mut().map_or(1, Xdp::take_judged);
            work = work.saturating_add(judged.max(1));
        }
        work.min(budget)
    }
}

/// Whether a frame that begins like this is for several.
#[inline]
pub(crate) fn is_multicast(head: &[u8]) -> bool {
    head.first().is_some_and(|first| first & 1 != 0)
}

/// Where received packets go.
pub(crate) struct Destination<'a> {
    pub(crate) context: &'a NapiContext<'a>,
    pub(crate) dev: &'a Device<Nic>,
    pub(crate) stats: &'a RxStats,
    pub(crate) wanted: Wanted,
}

impl<'a> Destination<'a> {
    pub(crate) fn new(
        context: &'a NapiContext<'a>,
        dev: &'a Device<Nic>,
        stats: &'a RxStats,
    ) -> Self {
        let features = dev.features();
        let wanted = Wanted {
            checksum: features.contains(Features::RXCSUM),
            hash: features.contains(Features::RXHASH),
        };
        Self {
            context,
            dev,
            stats,
            wanted,
        }
    }
}
