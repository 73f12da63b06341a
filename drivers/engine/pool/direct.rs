// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The requester's half of direct writes: what a peer lets this host write to is written to here, and the peer does nothing.

use super::fill::{Place, Unmoved};
use crate::{
    link::Link,
    nodes::NodeTable,
    path::engine::Engine,
    state::{grant::GrantHeld, peer::Peer, request::Outcome, slice::SLICE},
};
use nupa_pool::Grant;
use nupa_proto::{
    pool::{message::ResponseBody, GRANT_STEP},
    wqe::Opcode,
};

// A revocation waits for one step at most, which is no longer than a slice.
const _: () = assert!(GRANT_STEP <= SLICE);

/// What became of a step of a WRITE.
enum Step {
    Done,
    /// The grant holds no more.
    Over,
    /// It is to be tried again in another turn.
    Held,
    Failed(Outcome),
}

impl<L: Link> Peer<L> {
    /// The grant for a WRITE of `len` bytes at `addr` between two queue pairs, and its DMA address.
    fn find_grant(&self, qpns: (u32, u32), key: u32, addr: u64, len: u32) -> Option<(Grant, u64)> {
        let fits = |held: &&GrantHeld| held.qpns == qpns && held.grant.key == key;
        let held = self.grants_held.iter().flatten().find(fits)?;
        let at = held.grant.locate(addr, len)?;
        let before = at.checked_sub(held.grant.offset)?;
        Some((held.grant, held.dma.checked_add(before)?))
    }

    /// A connection of a queue pair of this host has ended.
    fn forget_grants_of(&mut self, qpn: u32) {
        for place in &mut self.grants_held {
            place.take_if(|held| held.qpns.0 == qpn);
        }
    }
}

impl Engine {
    /// A queue pair of a node is about to be reset or destroyed. What it was granted is not for who has its number next: the peer's queue pair, which
    /// was not told, may stand for long.
    pub(crate) fn forget_grants<N: NodeTable>(&self, nodes: &mut N, home: u16, qpn: u32) {
        let qp = nodes.node(home).and_then(|(node, _)| node.qps.get(qpn));
        let Some(remote) = qp.and_then(|qp| qp.remote) else {
            return;
        };
        if let Some(peer) = nodes.peer_mut(remote.node) {
            peer.forget_grants_of(qpn);
        }
    }

    /// Keeps the grant that the answer to a WRITE or READ brings, if it does.
    pub(super) fn keep_grant<N: NodeTable>(&self, nodes: &mut N, id: u16, body: &ResponseBody) {
        let may_bring = matches!(self.request.opcode, Opcode::Write | Opcode::Read);
        let Some(grant) = Grant::read(body).filter(|_| may_bring) else {
            return;
        };
        let Some(peer) = nodes.peer_mut(id) else {
            return;
        };
        let taken = peer.link_mut().direct().and_then(|link| link.take(&grant));
        let place = peer.grants_held.get_mut(usize::from(grant.slot));
        if let Some((dma, place)) = taken.zip(place) {
            *place = Some(GrantHeld {
                grant,
                dma,
                qpns: (body.source_qpn.get(), body.target_qpn.get()),
            });
        }
    }

    /// Carries the current request out, if it is a WRITE that can be done here. `None` if it is for the ring.
    pub(super) fn write_directly<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        destination: u16,
    ) -> Option<Outcome> {
        let request = &self.request;
        // One that comes behind others in a process ring has the peer's engine take those.
        if request.opcode != Opcode::Write || request.len == 0 || request.bypassed != 0 {
            return None;
        }
        let len = request.len;
        let source = request.source.node;
        let qpns = (request.source.qpn, request.destination.qpn);
        let (key, addr) = (request.remote_key, request.remote_addr);
        let epoch = request.destination.epoch;
        let (node, _) = nodes.node(source)?;
        let send = &node.qps.get(qpns.0)?.send;
        // Those before it are to be seen before it is.
        if send.inflight.count != 0 {
            return None;
        }
        let before = send.done;
        let peer = nodes.peer_mut(destination);
        let peer = peer.filter(|peer| peer.epoch() == Some(epoch))?;
        if peer.is_held() {
            return Some(Outcome::Turn);
        }
        if before == 0 && !peer.may_begin() {
            return None;
        }
        let (grant, dma) = peer.find_grant(qpns, key, addr, len)?;
        let mut done = before.min(len);
        self.request.local.skip(done);
        loop {
            let step = len.saturating_sub(done).min(GRANT_STEP);
            let to = dma.wrapping_add(u64::from(done));
            match self.write_step(nodes, destination, &grant, to, step) {
                Step::Done => done = done.saturating_add(step),
                // Nothing was taken off the request yet.
                Step::Over if done == 0 => return None,
                Step::Over => {
                    self.set_done(nodes, 0);
                    return Some(Outcome::Turn);
                }
                Step::Held => break,
                Step::Failed(outcome) => {
                    self.set_done(nodes, 0);
                    return Some(outcome);
                }
            }
            if done == len {
                self.set_done(nodes, 0);
                if let Some((node, _)) = nodes.node_mut(source) {
                    node.counters.tx_direct_writes.add(1);
                }
                return Some(Outcome::Done);
            }
            // While no other queue has work this goes on to the end of the turn: to look at queue and request again would cost a tenth of a step.
            if !self.is_alone(nodes, source) {
                break;
            }
            let moved = self.charge(nodes, source);
            self.slice.spend(0, moved);
            if self.budget.is_spent() {
                break;
            }
        }
        self.set_done(nodes, done);
        Some(Outcome::Turn)
    }

    /// Copies the next `len` bytes of the current request to the peer's memory, if it still may.
    fn write_step<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        destination: u16,
        grant: &Grant,
        to: u64,
        len: u32,
    ) -> Step {
        let Some(peer) = nodes.peer_mut(destination) else {
            return Step::Over;
        };
        let holds = |link: &mut dyn crate::link::DirectLink| link.begin(grant);
        if !peer.link_mut().direct().is_some_and(holds) {
            if let Some(place) = peer.grants_held.get_mut(usize::from(grant.slot)) {
                *place = None;
            }
            return Step::Over;
        }
        let copied = self.fill_part(nodes, Place::Granted(destination), to, len);
        if copied == Err(Unmoved::Held) {
            // So its owner goes on to wait for this host.
            return Step::Held;
        }
        if let Some(link) = nodes
            .peer_mut(destination)
            .and_then(|peer| peer.link_mut().direct())
        {
            link.end();
        }
        match copied {
            Ok(()) => Step::Done,
            Err(Unmoved::Failed(error)) => Step::Failed(Outcome::Failed(error)),
            Err(Unmoved::Held) => Step::Held,
        }
    }
}
