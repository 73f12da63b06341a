// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The requester's half of what is asked of nodes of other hosts: requests on their way out.

use super::{
    fill::{Place, Unmoved},
    GONE,
};
use crate::{
    hal::Storage,
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        check::WcError,
        qp::Wait,
        request::{Outcome, Request},
    },
};
use nupa_pool::Outgoing;
use nupa_proto::{
    pool::{
        message::{
            has_operand, is_short, RequestBody, OPERAND_SIZE, REQUEST_BYPASSED, REQUEST_SOLICITED,
            REQUEST_START,
        },
        Class,
    },
    wqe::Opcode,
};

/// Bytes that the next entry of a request is about, and those that it carries: that of a READ carries none. `piece`: most that it may be.
fn next_part(request: &Request, done: u32, piece: u32) -> (u32, u32) {
    if request.opcode == Opcode::Read {
        return (request.len.saturating_sub(done).min(piece), 0);
    }
    let part = request.payload().saturating_sub(done).min(piece);
    (part, part)
}

impl Engine {
    /// Puts the next part of the current request, of a connected queue pair, into a ring to a node of another host. Others have their
    /// turn before the part behind it.
    #[inline(never)]
    pub(crate) fn send_request<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        destination: u16,
    ) -> Outcome {
        if let Some(outcome) = self.write_directly(nodes, destination) {
            return outcome;
        }
        let source = self.request.source;
        let Some((node, _)) = nodes.node(source.node) else {
            return Outcome::Failed(GONE);
        };
        let Some(qp) = node.qps.get(source.qpn) else {
            return Outcome::Failed(GONE);
        };
        let (inflight, done) = (qp.send.inflight, qp.send.done);
        if done != 0 {
            // Of what was written directly in part, all goes through the ring.
            self.set_done(nodes, 0);
        }
        // The epoch that the queue pair is connected to is not said in every entry: an entry is for that of its link.
        let epoch = Some(self.request.destination.epoch);
        let peer = nodes.peer_mut(destination);
        let Some(piece) = peer
            .filter(|peer| peer.epoch() == epoch)
            .map(|peer| peer.piece())
        else {
            // Those that are under way come first.
            return self.send_failed(nodes, GONE);
        };
        let (opcode, total) = (self.request.opcode, self.request.len);
        let long = !is_short(opcode, total) || inflight.follows_long();
        let class = if long {
            Class::Request
        } else {
            Class::ShortRequest
        };
        let done = inflight.sent.unwrap_or(0);
        let (part, payload) = next_part(&self.request, done, piece);
        if opcode == Opcode::Read && !inflight.may_ask(done) {
            return Outcome::Later;
        }
        let place = match self.must_wait_for_ring(nodes, destination, class) {
            true => None,
            false => nodes
                .peer_mut(destination)
                .and_then(|peer| match inflight.sent {
                    Some(_) => peer.reserve(class, payload),
                    None => peer.reserve_first(class, payload),
                }),
        };
        let full = Outcome::RingFull {
            node: destination,
            class,
            need: payload,
        };
        let Some(place) = place else {
            return full;
        };
        self.request.local.skip(done);
        match self.fill_part(nodes, Place::Entry(destination, class), place, payload) {
            Ok(()) => {}
            Err(Unmoved::Held) => return full,
            Err(Unmoved::Failed(error)) => return self.send_failed(nodes, error),
        }
        let begins = inflight.sent.is_none();
        let sent = done.saturating_add(part);
        self.commit_part(nodes, destination, class, begins, sent);
        match sent >= self.request.asked() {
            true => Outcome::Sent,
            false => Outcome::Turn,
        }
    }

    /// Hands the next part of the current request over, all of which up to `sent` is under way then.
    fn commit_part<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        destination: u16,
        class: Class,
        begins: bool,
        sent: u32,
    ) {
        let source = self.request.source;
        let mut body = self.request_body();
        let mut offset = 0;
        if let Some((node, _)) = nodes.node_mut(source.node) {
            if let Some(qp) = node.qps.get_mut(source.qpn) {
                let index = qp.send.index;
                let inflight = &mut qp.send.inflight;
                if begins {
                    body.flags |= if inflight.started { 0 } else { REQUEST_START };
                    let (opcode, len) = (self.request.opcode, self.request.len);
                    let begun = (opcode, len, self.request.bypassed);
                    inflight.begin(index, begun, class == Class::Request);
                }
                body.sequence.set(inflight.sequence.wrapping_sub(1));
                offset = inflight.sent.replace(sent).unwrap_or(0);
            }
        }
        if let Some(peer) = nodes.peer_mut(destination) {
            peer.commit(class, &Outgoing::Request(&body), offset);
        }
        if begins {
            self.expect_progress(nodes, destination);
        }
    }

    /// The current request cannot be read.
    #[cold]
    fn send_failed<N: NodeTable>(&self, nodes: &mut N, error: WcError) -> Outcome {
        let there = nodes.node_mut(self.request.source.node);
        match there.is_some_and(|(node, _)| node.not_sent(&self.request)) {
            true => Outcome::Later,
            false => Outcome::Failed(error),
        }
    }

    /// All of the current request is on its way. Returns whether its send queue can be served further.
    pub(crate) fn sent_off<N: NodeTable>(&self, nodes: &mut N) -> bool {
        match nodes.node_mut(self.request.source.node) {
            Some((node, _)) => {
                node.sent_off(&self.request);
                true
            }
            None => false,
        }
    }

    /// The current request has to wait for responses to those before it.
    pub(crate) fn waits_for_responses<N: NodeTable>(&self, nodes: &mut N) {
        let source = self.request.source;
        if let Some((node, _)) = nodes.node_mut(source.node) {
            node.park(source.qpn, Wait::Responses, u64::MAX);
        }
    }

    /// What is said of the current request, but for its sequence.
    ///
    /// All of it is written once: a load of what was stored in parts waits until the stores before it have reached the cache, those to lines of the pool
    /// that another processor has among them.
    #[inline]
    pub(super) fn request_body(&self) -> RequestBody {
        let request = &self.request;
        let solicited = match request.solicited {
            true => REQUEST_SOLICITED,
            false => 0,
        };
        let bypassed = match request.bypassed {
            0 => 0,
            _ => REQUEST_BYPASSED,
        };
        RequestBody {
            opcode: request.opcode.to_wire(),
            flags: solicited | bypassed,
            vlan_id: 0.into(),
            sequence: 0.into(),
            source_qpn: request.source.qpn.into(),
            target_qpn: request.destination.qpn.into(),
            target_epoch: request.destination.epoch.into(),
            len: request.len.into(),
            remote_addr: request.remote_addr.into(),
            remote_key: request.remote_key.into(),
            imm_or_key: request.imm.into(),
            operand: self.operand(),
            psn: request.source.psn.into(),
            reserved1: [0; 4],
        }
    }

    /// What the current request has for [`RequestBody::operand`].
    #[inline]
    fn operand(&self) -> [u8; OPERAND_SIZE] {
        let mut operand = [0; OPERAND_SIZE];
        if has_operand(self.request.opcode) {
            let said = self.wqe.operand(self.request.opcode).iter();
            operand
                .iter_mut()
                .zip(said)
                .for_each(|(to, from)| *to = *from);
        } else if let Some(to) = operand.first_chunk_mut() {
            *to = self.request.bypassed.to_le_bytes();
        }
        operand
    }
}

impl<S: Storage> Node<S> {
    /// All of the current request is on its way.
    pub(crate) fn sent_off(&mut self, request: &Request) {
        if let Some(qp) = self.qps.get_mut(request.source.qpn) {
            qp.send.index = request.behind;
            qp.send.inflight.sent = None;
        }
    }

    /// The current request cannot be sent: if part of it was, that does not count. Returns whether there are others under
    /// way, which come first.
    pub(crate) fn not_sent(&mut self, request: &Request) -> bool {
        let Some(qp) = self.qps.get_mut(request.source.qpn) else {
            return false;
        };
        qp.send.inflight.take_back();
        qp.send.inflight.count != 0
    }
}
