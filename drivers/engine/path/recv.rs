// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Reception: the entries that a message or frame is put into, and their completion.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    state::{
        check::WcError,
        copy::Spans,
        kept::Held,
        request::{Received, Request},
        rq::{check_kept, Fill, RecvQueue, RqError},
    },
};
use nupa_proto::cqe::{Cqe, CqeOpcode};
use zerocopy::little_endian::{U16, U32, U64};

impl<S: Storage> Node<S> {
    /// Where the receive entries of a queue pair come from.
    #[inline]
    pub(crate) fn recv_queue(&mut self, qpn: u32) -> Option<&mut RecvQueue<S::Pages>> {
        let recv = &mut self.qps.get_mut(qpn)?.recv;
        match recv.srqn {
            None => recv.queue.as_mut(),
            Some(srqn) => self.srqs.get_mut(srqn).map(|srq| &mut srq.queue),
        }
    }

    /// Prepares receive entries of a queue pair for a request. Nothing is consumed yet, see [`Node::received`]; but entries of a shared queue whose
    /// owner takes them as well are the queue pair's then.
    #[inline]
    pub(crate) fn prepare_receive(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        qpn: u32,
        fill: Fill,
        spans: &mut Spans,
    ) -> Result<Received, RqError> {
        let Self { qps, srqs, mrs, .. } = self;
        let qp = qps.get_mut(qpn).ok_or(RqError::Empty)?;
        let own = qp.holder();
        let kept = &mut qp.recv.kept;
        let (queue, holder) = match (&mut qp.recv.queue, qp.recv.srqn) {
            (Some(queue), _) => (queue, own),
            (None, Some(srqn)) => {
                let srq = srqs.get_mut(srqn).ok_or(RqError::Doorbell)?;
                if srq.queue.is_shared_with_owner() {
                    return self.prepare_shared(platform, request, (qpn, srqn), fill, spans);
                }
                // Which entries others have taken, nobody can count.
                if request.bypassed != 0 {
                    return Err(RqError::Bypassed);
                }
                // What has left the queue does not depend on it any more.
                if let Some(kept) = kept.as_ref().filter(|kept| kept.is_held()) {
                    let wr_id = check_kept::<S>(kept, mrs, srq.holder, fill, spans)?;
                    return Ok(Received::one(wr_id, 0));
                }
                if srq.dead {
                    return Err(RqError::Doorbell);
                }
                (&mut srq.queue, srq.holder)
            }
            (None, None) => return Err(RqError::Empty),
        };
        if let Some(kept) = kept.as_mut().filter(|_| fill == Fill::Part) {
            queue.fetch(platform, kept)?;
            let wr_id = check_kept::<S>(kept, mrs, holder, fill, spans)?;
            return Ok(Received::one(wr_id, 0));
        }
        let memory = platform.memory();
        let first = queue.skip(platform, request.bypassed)?;
        let (mut wr_id, mut entries) = (0, 0u16);
        while entries == 0 || (fill == Fill::Many && spans.total() < request.len) {
            let index = first.wrapping_add(u32::from(entries));
            if !queue.is_posted(platform, index)? {
                return Err(RqError::Empty);
            }
            let id = queue.read_entry::<S>(memory, mrs, holder, index, fill, spans)?;
            if entries == 0 {
                wr_id = id;
            }
            entries = entries.wrapping_add(1);
        }
        Ok(Received {
            wr_id,
            first,
            entries,
        })
    }

    /// Receive entries of a queue pair that are posted and not filled, or as many as can be said.
    pub(crate) fn credits(&mut self, platform: &impl Platform, qpn: u32) -> u16 {
        let left = self.recv_queue(qpn).map(|queue| queue.left(platform));
        match left {
            Some(Ok(left)) => u16::try_from(left).unwrap_or(u16::MAX),
            _ => 0,
        }
    }

    /// As [`Node::credits`], for the requester on another host, which is told of them.
    pub(crate) fn tell_credits(&mut self, platform: &impl Platform, qpn: u32) -> u16 {
        let credits = self.credits(platform, qpn);
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.recv.credits.tell(credits);
        }
        credits
    }

    /// Consumes receive entries and writes their completion; `entry` has everything but queue pair, index and counts.
    #[inline]
    pub(crate) fn received(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
        received: Received,
        entry: Cqe,
        urgent: bool,
    ) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        qp.recv.stall.end(platform);
        let (cqn, srqn) = (qp.recv.cqn, qp.recv.srqn);
        let taken = match &mut qp.recv.queue {
            Some(queue) => Held {
                behind: queue.take(received.first, received.entries),
                count: received.entries,
            },
            None => self.take_srq_entries(qpn, received.entries),
        };
        let entry = Cqe {
            wr_id: U64::new(received.wr_id),
            qpn: U32::new(qpn),
            queue_index: U32::new(taken.behind),
            buffers: U16::new(taken.count),
            ..entry
        };
        self.complete(platform, cqn, &entry, urgent);
        if let Some(srqn) = srqn {
            self.check_limit(platform, srqn);
        }
    }

    /// Completes a receive entry, and none behind it, with an error of its own; the queue pair goes to the error state.
    #[cold]
    pub(crate) fn fail_receive(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
        received: Received,
        error: WcError,
    ) {
        self.counters.bad_descriptors.add(1);
        let entry = Cqe {
            opcode: CqeOpcode::Recv.to_wire(),
            status: error.status.to_wire(),
            vendor_error: error.check as u8,
            ..Cqe::default()
        };
        self.received(platform, qpn, received, entry, true);
        self.fail(platform, qpn);
    }
}
