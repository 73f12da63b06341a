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
        qp::RecvSide,
        request::{Received, Request},
        rq::{check_kept, Fill, RecvQueue, RqError, UNREADABLE},
        seats::Seats,
    },
};
use nupa_proto::doorbell::SLOT_NONE;

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
            true if request.bypassed != qp.recv.seats.taken() => return Err(RqError::Bypassed),
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
        let told = (qp.has_rings && qp.send.slot != SLOT_NONE).then_some((qp.page, qp.send.slot));
        let RecvSide { kept, seats, .. } = &mut qp.recv;
        let kept = kept.as_mut().ok_or(RqError::Empty)?;
        // The owner may say more of them each time.
        let ahead = || match told {
            Some((page, slot)) => {
                seats.tell(platform.load(page, slot, SlotWord::Arm), bypassed);
                seats.unseated(bypassed).ok_or(RqError::Bypassed)
            }
            None if bypassed != 0 => Err(RqError::Bypassed),
            None => Ok(0),
        };
        let (held, read) = srq.queue.take_shared(platform, kept, ahead)?;
        kept.hold(held);
        seats.seat(bypassed);
        self.entry_left(platform, qpn, srqn);
        read.map_err(|AccessError| UNREADABLE)
    }

    /// A message before which so many went past the engines found too few entries, and its queue's owner, who was asked for more, has posted none. The
    /// owner may have taken some for those, and be about to say so: then what is left may be enough, and the message is tried again soon. That counts as
    /// a retry for want of entries only after the time of [`Seats::doubt`].
    #[cold]
    pub(super) fn too_few_entries(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
        bypassed: u32,
    ) -> Nak {
        let any_left = |queue: &mut RecvQueue<_>| {
            queue.is_shared_with_owner() && queue.left(platform).is_ok_and(|left| left != 0)
        };
        if !self.recv_queue(qpn).is_some_and(any_left) {
            return Nak::Rnr { qpn };
        }
        let seats: Option<&mut Seats> = self.qps.get_mut(qpn).map(|qp| &mut qp.recv.seats);
        let now = platform.now_us();
        match seats.and_then(|seats| seats.doubt(bypassed, now)) {
            None => Nak::Rnr { qpn },
            Some(until) if now < until => self.overtaken(platform, qpn),
            Some(_) => {
                self.try_soon(platform, qpn);
                Nak::Rnr { qpn }
            }
        }
    }

    /// A message got no entry because the owner of the shared receive queue was quicker, or may have been: it is tried again soon, even if nothing is
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
