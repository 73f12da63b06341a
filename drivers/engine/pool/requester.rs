// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The requester's half of what is asked of nodes of other hosts: requests on their way out.

use super::{FRAGMENT, GONE};
use crate::{
    hal::Storage,
    node::Node,
    nodes::NodeTable,
    path::{budget::SLICE, engine::Engine},
    state::{
        check::WcError,
        peer::{Peer, Sending},
        request::{Outcome, Request},
    },
};
use nupa_pool::Outgoing;
use nupa_proto::{
    pool::{
        message::{RequestBody, REQUEST_SOLICITED, REQUEST_START},
        Class,
    },
    wqe::Opcode,
};
use zerocopy::FromZeros;

impl Engine {
    /// Puts the current request, of a connected queue pair, into the ring to a node of another host, or as much of it as there is
    /// room for.
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
        let mut sent = qp.send.inflight.sent;
        let Some(peer) = nodes
            .peer_mut(destination)
            .filter(|peer| peer.epoch().is_some())
        else {
            return Outcome::Failed(GONE);
        };
        let first = peer.transit.sending.map(|sending| sending.qpn);
        if first != sent.map(|_| source.qpn) {
            // A message that is there in part comes first.
            peer.transit.others_blocked = true;
            return Outcome::RingFull { node: destination };
        }
        self.request.local.skip(sent.unwrap_or(0));
        let total = self.request.payload();
        loop {
            let left = total.saturating_sub(sent.unwrap_or(0));
            let len = left.min(FRAGMENT);
            let place = nodes
                .peer_mut(destination)
                .and_then(|peer| peer.reserve(Class::Request, len));
            let Some(place) = place else {
                return Outcome::RingFull { node: destination };
            };
            if let Err(error) = self.fill_part(nodes, place, len) {
                return self.send_failed(nodes, error);
            }
            let done = sent.unwrap_or(0).saturating_add(len);
            self.commit_part(nodes, destination, sent.is_none(), total);
            sent = Some(done);
            self.note_sent(nodes, destination, done, total);
            if done >= total {
                return Outcome::Sent;
            }
            if self.moved >= SLICE {
                return Outcome::Turn;
            }
        }
    }

    /// Copies the next `len` bytes of the current request.
    pub(super) fn fill_part<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        place: u64,
        len: u32,
    ) -> Result<(), WcError> {
        if len != 0 {
            self.fill(nodes, place, len)?;
            self.request.local.skip(len);
        }
        Ok(())
    }

    fn commit_part<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        destination: u16,
        first: bool,
        total: u32,
    ) {
        if !first {
            if let Some(peer) = nodes.peer_mut(destination) {
                peer.commit(Class::Request, &Outgoing::Data, total);
            }
            return;
        }
        let source = self.request.source;
        let mut body = self.request_body();
        if let Some((node, _)) = nodes.node_mut(source.node) {
            if let Some(qp) = node.qps.get_mut(source.qpn) {
                let index = qp.send.index;
                let inflight = &mut qp.send.inflight;
                body.flags |= if inflight.started { 0 } else { REQUEST_START };
                let sequence = inflight.begin(index, self.request.opcode);
                body.sequence.set(sequence);
            }
        }
        if let Some(peer) = nodes.peer_mut(destination) {
            peer.commit(Class::Request, &Outgoing::Request(&body), total);
        }
        self.expect_progress(nodes, destination);
    }

    /// Notes that so much of the current request is on its way.
    fn note_sent<N: NodeTable>(&self, nodes: &mut N, destination: u16, done: u32, total: u32) {
        let source = self.request.source;
        if let Some((node, _)) = nodes.node_mut(source.node) {
            if let Some(qp) = node.qps.get_mut(source.qpn) {
                qp.send.inflight.sent = Some(done);
            }
        }
        if let Some(peer) = nodes.peer_mut(destination) {
            let qpn = source.qpn;
            peer.transit.sending = (done < total).then_some(Sending { qpn, total });
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

    /// The current request has to wait for answers to those before it.
    pub(crate) fn waits_for_responses<N: NodeTable>(&self, nodes: &mut N) {
        let source = self.request.source;
        if let Some((node, _)) = nodes.node_mut(source.node) {
            node.park(source.qpn, crate::state::qp::Wait::Responses, u64::MAX);
        }
    }

    /// Gives up a message that is in the ring in part, if its sender does not go on with it.
    pub(super) fn abandon_message<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let Some(peer) = nodes.peer_mut(id) else {
            return;
        };
        let home = peer.home();
        if let Some(Sending { qpn, total }) = peer.transit.sending {
            let qp = nodes.node(home).and_then(|(node, _)| node.qps.get(qpn));
            let goes_on = qp.is_some_and(|qp| qp.send.inflight.sent.is_some());
            let Some(peer) = nodes.peer_mut(id).filter(|_| !goes_on) else {
                return;
            };
            if peer.reserve(Class::Request, 0).is_none() {
                return;
            }
            peer.commit(Class::Request, &Outgoing::Abort, total);
            peer.transit.sending = None;
        }
        if nodes.peer_mut(id).is_some_and(Peer::is_clear_again) {
            self.wake_ring(nodes, id);
        }
    }

    /// What is said of the current request, but for its sequence.
    pub(super) fn request_body(&self) -> RequestBody {
        let request = &self.request;
        let mut body = RequestBody::new_zeroed();
        body.opcode = request.opcode.to_wire();
        body.flags = if request.solicited {
            REQUEST_SOLICITED
        } else {
            0
        };
        body.source_qpn.set(request.source.qpn);
        body.target_qpn.set(request.destination.qpn);
        body.target_epoch.set(request.destination.epoch);
        body.psn.set(request.source.psn);
        body.len.set(request.len);
        body.remote_addr.set(request.remote_addr);
        body.remote_key.set(request.remote_key);
        body.imm_or_key.set(request.imm);
        if matches!(
            request.opcode,
            Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite | Opcode::Flush
        ) {
            let operand = self.wqe.operand(request.opcode).iter();
            body.operand
                .iter_mut()
                .zip(operand)
                .for_each(|(to, from)| *to = *from);
        }
        body
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
        qp.send.inflight.revoke_grants();
        qp.send.inflight.count != 0
    }
}
