// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages for queue pairs on a shared receive queue whose owner takes entries as well (`Documentation/process-rings.md`).
//!
//! Each takes its entry at once, whether it comes in parts or not, and one for each message before it that lies in a process ring and has none.
//! Its queue pair keeps them until a completion says so: that of the message, that of its failure, or at last that of the queue pair's end.

use crate::{
    hal::{AccessError, Platform, SlotWord, Storage},
    node::Node,
    path::srq::TAKE_US,
    state::{
        copy::Spans,
        nak::Nak,
        qp::QueuePair,
        request::{Received, Request},
        rq::{check_kept, Fill, RecvQueue, RqError, UNREADABLE},
    },
};
use nupa_proto::{doorbell::SLOT_NONE, process_ring::LINES};

impl<P> QueuePair<P> {
    /// How many of the messages that went past the engines, `bypassed` until now, have no entry of the shared receive queue yet. There are no more
    /// than a ring has room for.
    fn unseated(&mut self, platform: &impl Platform, bypassed: u32) -> Result<u16, RqError> {
        if !self.has_rings && bypassed != 0 {
            return Err(RqError::Bypassed);
        }
        if self.has_rings && self.send.slot != SLOT_NONE {
            let told = platform.load(self.page, self.send.slot, SlotWord::Arm);
            self.recv.seats.tell(told, bypassed);
        }
        match bypassed.wrapping_sub(self.recv.seats.taken) {
            // So is one that goes back.
            unseated if unseated > LINES => Err(RqError::Bypassed),
            unseated => u16::try_from(unseated).map_err(|_| RqError::Bypassed),
        }
    }
}

impl<S: Storage> Node<S> {
    /// As [`Node::prepare_receive`], but the queue pair has taken and keeps the entry then, also if that is bad.
    #[inline(never)]
    pub(super) fn prepare_shared(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        (qpn, srqn): (u32, u32),
        fill: Fill,
        spans: &mut Spans,
    ) -> Result<Received, RqError> {
        let qp = self.qps.get(qpn).ok_or(RqError::Empty)?;
        match qp.recv.keeps_entry() {
            true if request.bypassed != qp.recv.seats.taken => return Err(RqError::Bypassed),
            true => {}
            false => self.take_entries(platform, request.bypassed, qpn, srqn)?,
        }
        let kept = self.qps.get(qpn).and_then(|qp| qp.recv.kept.as_ref());
        let srq = self.srqs.get(srqn).ok_or(RqError::Doorbell)?;
        let kept = kept.ok_or(RqError::Empty)?;
        let wr_id = check_kept::<S>(kept, &self.mrs, srq.holder, fill, spans)?;
        Ok(Received::one(wr_id, 0))
    }

    /// Takes an entry of a shared receive queue for a message of a queue pair, and those that messages before it need.
    fn take_entries(
        &mut self,
        platform: &impl Platform,
        bypassed: u32,
        qpn: u32,
        srqn: u32,
    ) -> Result<(), RqError> {
        let qp = self.qps.get_mut(qpn).ok_or(RqError::Empty)?;
        let srq = self.srqs.get_mut(srqn).filter(|srq| !srq.dead);
        let srq = srq.ok_or(RqError::Doorbell)?;
        let ahead = qp.unseated(platform, bypassed)?;
        let kept = qp.recv.kept.as_mut().ok_or(RqError::Empty)?;
        let (held, read) = srq.queue.take_shared(platform, kept, ahead)?;
        kept.hold(held);
        qp.recv.seats.taken = bypassed;
        self.entry_left(platform, qpn, srqn);
        read.map_err(|AccessError| UNREADABLE)
    }

    /// A message before which so many went past the engines found too few entries, and its queue's owner, who was asked for more, has posted none. If it
    /// may have taken some for those and not said so yet, what is left may be enough: then the message is tried again soon, too.
    #[cold]
    pub(super) fn too_few_entries(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
        bypassed: u32,
    ) -> Nak {
        let qp = self.qps.get(qpn);
        let any_before = qp.is_some_and(|qp| qp.recv.seats.taken != bypassed);
        let any_left = |queue: &mut RecvQueue<_>| {
            queue.is_shared_with_owner() && queue.left(platform).is_ok_and(|left| left != 0)
        };
        if any_before && self.recv_queue(qpn).is_some_and(any_left) {
            self.try_soon(platform, qpn);
        }
        Nak::Rnr { qpn }
    }

    /// A message got no entry because the owner of the shared receive queue was quicker each time: it is tried again soon, even if nothing is
    /// posted. That is no retry for want of entries, since there were some.
    #[cold]
    pub(super) fn overtaken(&mut self, platform: &impl Platform, qpn: u32) -> Nak {
        self.try_soon(platform, qpn);
        Nak::NotReady { qpn }
    }

    /// Has those who wait for entries of a queue pair's shared receive queue try again soon.
    fn try_soon(&mut self, platform: &impl Platform, qpn: u32) {
        if let Some(srqn) = self.qps.get(qpn).and_then(|qp| qp.recv.srqn) {
            self.look_after_waiters(platform, srqn, TAKE_US);
        }
    }
}
