// SPDX-License-Identifier: GPL-2.0
//! Received frames while a program is attached (XDP).
//!
//! A program sees a frame as it would be on a wire, with its VLAN tag and its checksum: what the sender's stack has left to be done is
//! done here before. So a super-frame is segmented. Buffers have room in front of the frame and behind it, which programs may use, and
//! each is for one frame only.

use crate::{
    frame,
    offload::{self, Offload, Refused},
    rx::{is_multicast, Destination, Rx, COPY_LIMIT, PAGE_ORDER},
    stats::TxStats,
    tx,
};
use kernel::prelude::*;
use nk::net::{
    xdp::{self, ExtAck, Program, Verdict, XdpBuff, XdpFrame},
    SkBuff,
};
use nupa_proto::{
    cqe::Cqe,
    frame::{FrameMeta, FRAME_CSUM_VALID, FRAME_L4_HASH, FRAME_VLAN},
};

/// Largest MTU with a program that takes no fragments.
pub(crate) const MAX_MTU_WITHOUT_FRAGS: u32 = 32000;
// One buffer takes it, with its Ethernet header and two VLAN tags.
const _: () = assert!(MAX_MTU_WITHOUT_FRAGS + 14 + 8 <= xdp::room(PAGE_ORDER));
/// Segments of a super-frame at most. BIG TCP makes 382 of the smallest that hosts must be able to receive, of 536 bytes.
pub(crate) const MAX_SEGMENTS: u32 = 512;
/// Frames that are sent at once.
const BATCH: usize = 16;

/// Whether a program can be attached at an MTU.
pub(crate) fn check(program: &Program, mtu: u32, extack: &mut ExtAck<'_>) -> Result {
    if !program.takes_frags() && mtu > MAX_MTU_WITHOUT_FRAGS {
        extack.set(c"a program without xdp.frags needs an MTU of 32000 or less: set that first");
        return Err(EINVAL);
    }
    Ok(())
}

/// A channel's program, and what it sends.
pub(crate) struct Xdp {
    program: Program,
    /// Frames to send where they came from.
    outgoing: KVec<XdpFrame>,
    /// Frames were redirected.
    redirected: bool,
    /// Frames that the program has judged since somebody asked.
    judged: u32,
}

impl Xdp {
    pub(crate) fn new(program: Program) -> Result<Self> {
        Ok(Self {
            program,
            outgoing: KVec::with_capacity(BATCH, GFP_KERNEL)?,
            redirected: false,
            judged: 0,
        })
    }

    /// Takes another program.
    pub(crate) fn replace(&mut self, program: Program) {
        self.program = program;
    }

    /// How many frames the program has judged since the last time: a super-frame is as many as it has segments.
    pub(crate) fn take_judged(&mut self) -> u32 {
        core::mem::take(&mut self.judged)
    }

    /// Sends what is to be sent, on the channel of this number. Of the poll function, at its end.
    pub(crate) fn flush(&mut self, to: &Destination<'_>, stats: &TxStats, channel: usize) {
        self.send(to, stats, channel);
        if core::mem::take(&mut self.redirected) {
            to.context.flush_redirected();
        }
    }

    fn send(&mut self, to: &Destination<'_>, stats: &TxStats, channel: usize) {
        if self.outgoing.is_empty() {
            return;
        }
        let mut guard = to.dev.tx_queue(channel).map(|queue| queue.lock());
        let mut queue = guard.as_mut().and_then(|guard| guard.queue());
        for frame in self.outgoing.drain_all() {
            let left = match &mut queue {
                Some(queue) => tx::xmit_xdp(to.dev, queue, stats, frame),
                None => Err(frame),
            };
            match left {
                Ok(()) => to.stats.xdp.tx.add(1),
                Err(frame) => {
                    drop(frame);
                    to.stats.xdp.errors.add(1);
                    self.program.report(to.dev, Verdict::Tx);
                }
            }
        }
        if let Some(queue) = &mut queue {
            tx::flush(queue, stats);
        }
    }
}

/// What is known of a frame that a program sees.
struct Known {
    /// Its transport checksum is right.
    checksum: bool,
    /// Hash of its flow, and whether that covers the transport header.
    hash: (u32, bool),
}

impl Rx {
    /// Shows the program a frame, or what a super-frame consists of, and does what it says.
    pub(crate) fn examine(&mut self, to: &Destination<'_>, cqe: &Cqe, buffers: u32) -> Result {
        let meta = &cqe.frame;
        let mut frame = self.gather(to, cqe.byte_len.get(), buffers)?;
        let offload = check_offload(&frame, meta, cqe.byte_len.get()).inspect_err(|_| {
            to.stats.bad_offload.add(1);
        })?;
        let hash = (meta.hash.get(), meta.flags & FRAME_L4_HASH != 0);
        if let Some(segments) = offload.segments {
            if cqe.byte_len.get().div_ceil(segments.size.max(1).into()) > MAX_SEGMENTS {
                to.stats.xdp.errors.add(1);
                return Ok(());
            }
            return self.examine_segments(to, meta, frame, hash);
        }
        if let Some((start, offset)) = offload.checksum {
            frame.fill_checksum(start, offset)?;
        }
        insert_tag(&mut frame, meta);
        let known = Known {
            checksum: offload.checksum.is_some() || meta.flags & FRAME_CSUM_VALID != 0,
            hash,
        };
        self.judge(to, frame, &known)
    }

    /// The buffers of a frame of `len` bytes.
    #[inline]
    fn gather<'a>(&mut self, to: &Destination<'a>, len: u32, buffers: u32) -> Result<XdpBuff<'a>> {
        let first = self.take().ok_or(EIO)?;
        let here = len.min(first.size());
        first.sync_for_cpu(here);
        let mut frame = self.pool.frame(to.context, first, here)?;
        self.take_rest(len.wrapping_sub(here), buffers, |rx, buffer, here| {
            rx.pool.extend(&mut frame, buffer, here)
        })?;
        Ok(frame)
    }

    /// Shows the program the segments of a super-frame.
    #[cold]
    fn examine_segments(
        &mut self,
        to: &Destination<'_>,
        meta: &FrameMeta,
        frame: XdpBuff<'_>,
        hash: (u32, bool),
    ) -> Result {
        let linear = frame::linear_len(meta, frame.len());
        let (mut packet, left) = frame.into_packet(to.context, linear)?;
        if let Some(buffer) = left {
            self.keep(buffer);
        }
        frame::decode(meta, &mut packet, to.wanted)?;
        to.stats.gso.add(1);
        let known = Known {
            checksum: true,
            hash,
        };
        for segment in packet.segment()? {
            let done = self.copy(to, &segment).and_then(|mut frame| {
                insert_tag(&mut frame, meta);
                self.judge(to, frame, &known)
            });
            match done {
                Err(e) if e == ENOMEM => to.stats.dropped.add(1),
                Err(_) => to.stats.errors.add(1),
                Ok(()) => segment.consume(),
            }
        }
        packet.consume();
        Ok(())
    }

    /// Copies a packet to buffers.
    fn copy<'a>(&mut self, to: &Destination<'a>, packet: &SkBuff) -> Result<XdpBuff<'a>> {
        let mut frame: Option<XdpBuff<'a>> = None;
        let mut done = 0u32;
        while done < packet.len() {
            let spare = self.spare();
            let mut buffer = spare
                .or_else(|| self.pool.alloc(to.context))
                .ok_or(ENOMEM)?;
            let here = packet.len().wrapping_sub(done).min(buffer.size());
            buffer.fill(packet, done, here)?;
            match &mut frame {
                None => frame = Some(self.pool.frame(to.context, buffer, here)?),
                Some(frame) => self.pool.extend(frame, buffer, here)?,
            }
            done = done.wrapping_add(here);
        }
        frame.ok_or(EINVAL)
    }

    /// Has the program judge a frame.
    #[inline]
    fn judge(&mut self, to: &Destination<'_>, mut frame: XdpBuff<'_>, known: &Known) -> Result {
        let stats = &to.stats.xdp;
        let Some(xdp) = &mut self.xdp else {
            return Err(EINVAL);
        };
        let mut first = [0];
        let multicast = is_multicast(frame.copy_head(&mut first));
        to.stats.received.add(frame.len());
        to.stats.multicast.add(multicast.into());
        if frame.has_frags() && !xdp.program.takes_frags() {
            stats.errors.add(1);
            return Ok(());
        }
        xdp.judged = xdp.judged.wrapping_add(1);
        let before = frame.place();
        match xdp.program.run(to.dev, &mut frame) {
            Verdict::Pass => {
                stats.pass.add(1);
                return self.pass(to, frame, before, known);
            }
            Verdict::Drop => stats.drop.add(1),
            Verdict::Aborted => stats.aborted.add(1),
            Verdict::Tx => self.reflect(to, frame),
            Verdict::Redirect => match frame.redirect(to.dev, &xdp.program) {
                Ok(()) => {
                    stats.redirect.add(1);
                    xdp.redirected = true;
                }
                Err(_) => {
                    stats.errors.add(1);
                    xdp.program.report(to.dev, Verdict::Redirect);
                }
            },
        }
        Ok(())
    }

    /// Has a frame sent where it came from.
    fn reflect(&mut self, to: &Destination<'_>, frame: XdpBuff<'_>) {
        let index = usize::from(self.index());
        let Some(xdp) = &mut self.xdp else { return };
        if xdp.outgoing.len() >= BATCH {
            if let Some(stats) = to.dev.data().get_ref().channel_stats(index) {
                xdp.send(to, &stats.tx, index);
            }
        }
        let kept = frame
            .into_frame()
            .map(|frame| xdp.outgoing.push_within_capacity(frame));
        if !matches!(kept, Some(Ok(()))) {
            to.stats.xdp.errors.add(1);
            xdp.program.report(to.dev, Verdict::Tx);
        }
    }

    /// Hands a frame to the stack. What is known of it counts while the program has not moved its ends.
    #[inline]
    fn pass(
        &mut self,
        to: &Destination<'_>,
        frame: XdpBuff<'_>,
        before: (usize, u32),
        known: &Known,
    ) -> Result {
        let linear = match frame.len() {
            len if len <= COPY_LIMIT => len,
            len => frame::linear_len(&FrameMeta::default(), len),
        };
        let same = frame.place() == before;
        let (mut packet, left) = frame.into_packet(to.context, linear)?;
        if let Some(buffer) = left {
            self.keep(buffer);
        }
        if same && known.checksum && to.wanted.checksum {
            packet.set_checksum_valid();
        }
        if same && known.hash.0 != 0 && to.wanted.hash {
            packet.set_hash(known.hash.0, known.hash.1);
        }
        self.hand_over(to, packet)
    }
}

/// Checks what the sender says of a frame of `len` bytes.
#[inline]
fn check_offload(frame: &XdpBuff<'_>, meta: &FrameMeta, len: u32) -> Result<Offload> {
    let mut head = [0; frame::MAX_HEADERS as usize];
    let seen = frame::linear_len(meta, len) as usize;
    let head = frame.copy_head(head.get_mut(..seen).unwrap_or_default());
    offload::check(meta, head, len).map_err(|Refused| EINVAL)
}

/// Puts the tag into a frame that its sender has left out of it.
#[inline]
fn insert_tag(frame: &mut XdpBuff<'_>, meta: &FrameMeta) {
    if meta.flags & FRAME_VLAN != 0 {
        frame.insert_tag(meta.vlan_tci.get());
    }
}
