// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The initiator's half of direct writes: what a peer lets this host write to is written to here, and the peer does nothing.

use crate::{
    link::Link,
    nodes::Fabric,
    path::engine::Engine,
    state::{grant::Borrowed, peer::Peer, request::Outcome},
};
use nupa_pool::Grant;
use nupa_proto::{
    pool::{message::ResponseBody, GRANT_STEP},
    wqe::Opcode,
};

/// Steps of a WRITE that are done at one go. Then others have their turn.
const STEPS: u32 = 64;

/// What became of a step of a WRITE.
enum Step {
    Done,
    /// The grant holds no more.
    Over,
    Failed(Outcome),
}

impl<L: Link> Peer<L> {
    /// The grant with which the queue pairs' WRITE of so many bytes to a peer's address can be done, and where.
    fn borrowed(&self, qpns: (u32, u32), key: u32, addr: u64, len: u32) -> Option<(Grant, u64)> {
        let fits = |borrowed: &&Borrowed| borrowed.qpns == qpns && borrowed.grant.key == key;
        let borrowed = self.borrowed.iter().flatten().find(fits)?;
        let at = borrowed.grant.locate(addr, len)?;
        let before = at.checked_sub(borrowed.grant.offset)?;
        Some((borrowed.grant, borrowed.dma.checked_add(before)?))
    }
}

impl Engine {
    /// Keeps the grant that the answer to a WRITE brings, if it does.
    pub(super) fn borrow<F: Fabric>(&self, fabric: &mut F, id: u16, body: &ResponseBody) {
        let Some(grant) = Grant::read(body).filter(|_| self.request.opcode == Opcode::Write) else {
            return;
        };
        let Some(peer) = fabric.peer_mut(id) else {
            return;
        };
        let taken = peer.link_mut().direct().and_then(|link| link.take(&grant));
        let place = peer.borrowed.get_mut(usize::from(grant.slot));
        if let Some((dma, place)) = taken.zip(place) {
            *place = Some(Borrowed {
                grant,
                dma,
                qpns: (body.source_qpn.get(), body.target_qpn.get()),
            });
        }
    }

    /// Carries the request at hand out, if it is a WRITE that can be done here. `None` if it is for the ring.
    pub(super) fn write_directly<F: Fabric>(
        &mut self,
        fabric: &mut F,
        target: u16,
    ) -> Option<Outcome> {
        let request = &self.request;
        if request.opcode != Opcode::Write || request.len == 0 {
            return None;
        }
        let len = request.len;
        let qpns = (request.source.qpn, request.target.qpn);
        let (key, addr) = (request.remote_key, request.remote_addr);
        let epoch = request.target.epoch;
        let (node, _) = fabric.node(request.source.node)?;
        let send = &node.pairs.get(qpns.0)?.send;
        // Those before it are to be seen before it is.
        if send.flight.count != 0 {
            return None;
        }
        let before = send.direct;
        let peer = fabric.peer_mut(target);
        let peer = peer.filter(|peer| peer.epoch() == Some(epoch))?;
        let (grant, dma) = peer.borrowed(qpns, key, addr, len)?;
        let mut done = before.min(len);
        self.request.local.skip(done);
        for _ in 0..STEPS {
            let step = len.saturating_sub(done).min(GRANT_STEP);
            let to = dma.wrapping_add(u64::from(done));
            match self.write_step(fabric, target, &grant, to, step) {
                Step::Done => done = done.saturating_add(step),
                // Nothing was taken off the request yet.
                Step::Over if done == 0 => return None,
                Step::Over => {
                    self.note_direct(fabric, 0);
                    return Some(Outcome::Turn);
                }
                Step::Failed(outcome) => {
                    self.note_direct(fabric, 0);
                    return Some(outcome);
                }
            }
            if done == len {
                self.note_direct(fabric, 0);
                if let Some((node, _)) = fabric.node_mut(self.request.source.node) {
                    node.counters.tx_direct_writes.add(1);
                }
                return Some(Outcome::Done);
            }
        }
        self.note_direct(fabric, done);
        Some(Outcome::Turn)
    }

    /// Copies the next `len` bytes of the request at hand to the peer's memory, if it still may.
    fn write_step<F: Fabric>(
        &mut self,
        fabric: &mut F,
        target: u16,
        grant: &Grant,
        to: u64,
        len: u32,
    ) -> Step {
        let Some(peer) = fabric.peer_mut(target) else {
            return Step::Over;
        };
        let holds = |link: &mut dyn crate::link::DirectLink| link.begin(grant);
        if !peer.link_mut().direct().is_some_and(holds) {
            if let Some(place) = peer.borrowed.get_mut(usize::from(grant.slot)) {
                *place = None;
            }
            return Step::Over;
        }
        let copied = self.fill_part(fabric, to, len);
        if let Some(link) = fabric
            .peer_mut(target)
            .and_then(|peer| peer.link_mut().direct())
        {
            link.end();
        }
        match copied {
            Ok(()) => Step::Done,
            Err(refusal) => Step::Failed(Outcome::Refused(refusal)),
        }
    }

    /// Notes how much of the WRITE at the head of the send queue at hand is done.
    fn note_direct<F: Fabric>(&self, fabric: &mut F, done: u32) {
        let source = self.request.source;
        let there = fabric.node_mut(source.node);
        if let Some(pair) = there.and_then(|(node, _)| node.pairs.get_mut(source.qpn)) {
            pair.send.direct = done;
        }
    }
}
