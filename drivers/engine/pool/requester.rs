// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The initiator's half of what is asked of nodes of other hosts: requests on their way out.

use super::{FRAGMENT, GONE};
use crate::{
    hal::Storage,
    node::Node,
    nodes::Fabric,
    path::engine::Engine,
    state::{
        check::Refusal,
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
    /// Puts the request at hand, of a connected queue pair, into the ring to a node of another host, or as much of it as there is
    /// room for.
    #[inline(never)]
    pub(crate) fn send_request<F: Fabric>(&mut self, fabric: &mut F, target: u16) -> Outcome {
        if let Some(outcome) = self.write_directly(fabric, target) {
            return outcome;
        }
        let source = self.request.source;
        let Some((node, _)) = fabric.node(source.node) else {
            return Outcome::Refused(GONE);
        };
        let Some(pair) = node.pairs.get(source.qpn) else {
            return Outcome::Refused(GONE);
        };
        let mut sent = pair.send.flight.sent;
        let Some(peer) = fabric
            .peer_mut(target)
            .filter(|peer| peer.epoch().is_some())
        else {
            return Outcome::Refused(GONE);
        };
        let first = peer.progress.sending.map(|sending| sending.qpn);
        if first != sent.map(|_| source.qpn) {
            // A message that is there in part comes first.
            peer.progress.crowded = true;
            return Outcome::Full { node: target };
        }
        self.request.local.skip(sent.unwrap_or(0));
        let total = self.request.payload();
        loop {
            let left = total.saturating_sub(sent.unwrap_or(0));
            let len = left.min(FRAGMENT);
            let place = fabric
                .peer_mut(target)
                .and_then(|peer| peer.reserve(Class::Request, len));
            let Some(place) = place else {
                return Outcome::Full { node: target };
            };
            if let Err(refusal) = self.fill_part(fabric, place, len) {
                return self.send_failed(fabric, refusal);
            }
            let done = sent.unwrap_or(0).saturating_add(len);
            self.commit_part(fabric, target, sent.is_none(), total);
            sent = Some(done);
            self.note_sent(fabric, target, done, total);
            if done >= total {
                return Outcome::Sent;
            }
        }
    }

    /// Copies the next `len` bytes of the request at hand.
    pub(super) fn fill_part<F: Fabric>(
        &mut self,
        fabric: &mut F,
        place: u64,
        len: u32,
    ) -> Result<(), Refusal> {
        if len != 0 {
            self.fill(fabric, place, len)?;
            self.request.local.skip(len);
        }
        Ok(())
    }

    fn commit_part<F: Fabric>(&mut self, fabric: &mut F, target: u16, first: bool, total: u32) {
        if !first {
            if let Some(peer) = fabric.peer_mut(target) {
                peer.commit(Class::Request, &Outgoing::Data, total);
            }
            return;
        }
        let source = self.request.source;
        let mut body = self.request_body();
        if let Some((node, _)) = fabric.node_mut(source.node) {
            if let Some(pair) = node.pairs.get_mut(source.qpn) {
                let index = pair.send.index;
                let flight = &mut pair.send.flight;
                body.flags |= if flight.started { 0 } else { REQUEST_START };
                let sequence = flight.begin(index, self.request.opcode);
                body.sequence.set(sequence);
            }
        }
        if let Some(peer) = fabric.peer_mut(target) {
            peer.commit(Class::Request, &Outgoing::Request(&body), total);
        }
        self.expect_news(fabric, target);
    }

    /// Notes that so much of the request at hand is on its way.
    fn note_sent<F: Fabric>(&self, fabric: &mut F, target: u16, done: u32, total: u32) {
        let source = self.request.source;
        if let Some((node, _)) = fabric.node_mut(source.node) {
            if let Some(pair) = node.pairs.get_mut(source.qpn) {
                pair.send.flight.sent = Some(done);
            }
        }
        if let Some(peer) = fabric.peer_mut(target) {
            let qpn = source.qpn;
            peer.progress.sending = (done < total).then_some(Sending { qpn, total });
        }
    }

    /// The request at hand cannot be read.
    #[cold]
    fn send_failed<F: Fabric>(&self, fabric: &mut F, refusal: Refusal) -> Outcome {
        let there = fabric.node_mut(self.request.source.node);
        match there.is_some_and(|(node, _)| node.not_sent(&self.request)) {
            true => Outcome::Later,
            false => Outcome::Refused(refusal),
        }
    }

    /// All of the request at hand is on its way. Returns whether its send queue can be served further.
    pub(crate) fn sent_off<F: Fabric>(&self, fabric: &mut F) -> bool {
        match fabric.node_mut(self.request.source.node) {
            Some((node, _)) => {
                node.sent_off(&self.request);
                true
            }
            None => false,
        }
    }

    /// The request at hand has to wait for answers to those before it.
    pub(crate) fn comes_later<F: Fabric>(&self, fabric: &mut F) {
        let source = self.request.source;
        if let Some((node, _)) = fabric.node_mut(source.node) {
            node.park(source.qpn, crate::state::qp::Wait::Answers);
        }
    }

    /// Gives up a message that is in the ring in part, if its sender does not go on with it.
    pub(super) fn abandon_message<F: Fabric>(&mut self, fabric: &mut F, id: u16) {
        let Some(peer) = fabric.peer_mut(id) else {
            return;
        };
        let home = peer.home();
        if let Some(Sending { qpn, total }) = peer.progress.sending {
            let pair = fabric.node(home).and_then(|(node, _)| node.pairs.get(qpn));
            let goes_on = pair.is_some_and(|pair| pair.send.flight.sent.is_some());
            let Some(peer) = fabric.peer_mut(id).filter(|_| !goes_on) else {
                return;
            };
            if peer.reserve(Class::Request, 0).is_none() {
                return;
            }
            peer.commit(Class::Request, &Outgoing::Abort, total);
            peer.progress.sending = None;
        }
        if fabric.peer_mut(id).is_some_and(Peer::is_clear_again) {
            self.wake_room(fabric, id);
        }
    }

    /// What is said of the request at hand, but for its sequence.
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
        body.target_qpn.set(request.target.qpn);
        body.target_epoch.set(request.target.epoch);
        body.psn.set(request.source.psn);
        body.len.set(request.len);
        body.remote_addr.set(request.remote_addr);
        body.remote_key.set(request.remote_key);
        body.imm_or_key.set(request.imm);
        if matches!(
            request.opcode,
            Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite | Opcode::Flush
        ) {
            let operand = self.descriptor.operand(request.opcode).iter();
            body.operand
                .iter_mut()
                .zip(operand)
                .for_each(|(to, from)| *to = *from);
        }
        body
    }
}

impl<S: Storage> Node<S> {
    /// All of the request at hand is on its way.
    pub(crate) fn sent_off(&mut self, request: &Request) {
        if let Some(pair) = self.pairs.get_mut(request.source.qpn) {
            pair.send.index = request.behind;
            pair.send.flight.sent = None;
        }
    }

    /// The request at hand cannot be sent: if part of it was, that does not count. Returns whether there are others under
    /// way, which come first.
    pub(crate) fn not_sent(&mut self, request: &Request) -> bool {
        let Some(pair) = self.pairs.get_mut(request.source.qpn) else {
            return false;
        };
        pair.send.flight.take_back();
        pair.send.flight.count != 0
    }
}
