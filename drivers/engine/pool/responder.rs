// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The responder's half of what nodes of other hosts ask for. The checks are those of a request from this host; every request of a
//! connected queue pair is answered once, and none is taken that an answer could not be given to.

use super::{Incoming, Share};
use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::{
        atomic::{Operand, Served},
        budget::SLICE,
        engine::Engine,
    },
    state::{
        check::WcError,
        copy::CopyError,
        nak::Nak,
        peer::{Receiving, Serving},
        qp::Remote,
        request::{Part, Request},
    },
};
use nupa_pool::{Body, Outgoing};
use nupa_proto::{
    pool::{
        message::{
            Reply, RequestBody, ResponseBody, REQUEST_DATAGRAM, REQUEST_SOLICITED, REQUEST_START,
        },
        Class,
    },
    status::WcStatus,
    wqe::Opcode,
};
use zerocopy::FromZeros;

impl Engine {
    /// Serves the requests that a peer has sent. Returns whether there was one.
    pub(super) fn take_requests<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        share: &mut Share,
    ) -> bool {
        let mut found = false;
        while self.goes_on(share) {
            if !self.send_owed_responses(nodes, id, share, &mut found) {
                break;
            }
            let Some(incoming) = self.next(nodes, id, Class::Request) else {
                break;
            };
            let taken = self.take_request(nodes, id, &incoming);
            let moved = core::mem::take(&mut self.moved);
            self.spend_on_peer(nodes, incoming.home, share, moved);
            if taken {
                self.release(nodes, id, Class::Request);
                found = true;
            } else if nodes
                .peer_mut(id)
                .is_none_or(|peer| peer.transit.slices == 0)
            {
                break;
            }
        }
        found
    }

    /// Deals with the entry at the head of a ring. False if it has to wait, for room to answer it, or until the rest of it is done.
    fn take_request<N: NodeTable>(&mut self, nodes: &mut N, id: u16, incoming: &Incoming) -> bool {
        let Some(peer) = nodes.peer_mut(id) else {
            return false;
        };
        let arrival = &incoming.arrival;
        let receiving = match &arrival.body {
            Body::Request(opcode, body) if body.flags & REQUEST_DATAGRAM != 0 => {
                if arrival.last {
                    self.take_datagram(nodes, id, *opcode, body, incoming);
                }
                return true;
            }
            Body::Request(_, body) => Receiving {
                body: *body,
                answered: false,
            },
            Body::Data => match peer.transit.receiving {
                Some(receiving) => receiving,
                None => return true,
            },
            Body::Abort => {
                peer.transit.receiving = None;
                return true;
            }
            _ => {
                self.refuse(nodes, id);
                return false;
            }
        };
        if !receiving.answered && peer.reserve(Class::Response, 0).is_none() {
            return false;
        }
        let answered = receiving.answered || self.serve_part(nodes, id, &receiving.body, incoming);
        if let Some(peer) = nodes.peer_mut(id) {
            if peer.transit.slices != 0 {
                return false;
            }
            peer.transit.receiving = (!arrival.last).then_some(Receiving {
                answered,
                ..receiving
            });
        }
        true
    }

    /// Makes what a peer's request says the current request. Returns false if it says what none can.
    pub(super) fn load_request(
        &mut self,
        id: u16,
        body: &RequestBody,
        incoming: &Incoming,
    ) -> bool {
        let Ok(opcode) = Opcode::try_from(body.opcode) else {
            return false;
        };
        let source = Remote {
            node: id,
            qpn: body.source_qpn.get(),
            epoch: incoming.epoch,
            psn: body.psn.get(),
        };
        let request = &mut self.request;
        request.load_arrival(opcode, source, incoming.home, &incoming.arrival);
        request.destination.qpn = body.target_qpn.get();
        request.destination.epoch = body.target_epoch.get();
        request.len = body.len.get();
        request.imm = body.imm_or_key.get();
        request.remote_addr = body.remote_addr.get();
        request.remote_key = body.remote_key.get();
        request.solicited = body.flags & REQUEST_SOLICITED != 0;
        true
    }

    /// Carries out what has arrived of a request. Returns whether it was answered.
    fn serve_part<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        body: &RequestBody,
        incoming: &Incoming,
    ) -> bool {
        let home = incoming.home;
        if !self.load_request(id, body, incoming) {
            self.refuse(nodes, id);
            return false;
        }
        let Some((node, platform)) = nodes.node_mut(home) else {
            return false;
        };
        let begins = incoming.arrival.offset == 0;
        if let Err(nak) = node.in_sequence(platform, &self.request, body, begins) {
            self.deny(nodes, id, body, nak);
            return true;
        }
        match self.request.opcode {
            Opcode::Read => {
                if let Some(peer) = nodes.peer_mut(id) {
                    peer.transit.serving = Some(Serving {
                        body: *body,
                        done: 0,
                    });
                }
                true
            }
            Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite | Opcode::Flush => {
                self.serve_word(nodes, id, body)
            }
            _ => self.place_part(nodes, id, body, incoming),
        }
    }

    /// Carries out an atomic operation or a flush, or a slice of that. Returns whether it was answered.
    fn serve_word<N: NodeTable>(&mut self, nodes: &mut N, id: u16, body: &RequestBody) -> bool {
        let slices = nodes.peer_mut(id).map_or(0, |peer| peer.transit.slices);
        let Some((node, platform)) = nodes.node_mut(self.request.home) else {
            return false;
        };
        let operand = Operand::read(self.request.opcode, &body.operand);
        let served = match operand {
            Ok(operand) => node.serve_atomic(platform, &self.request, &operand, slices),
            Err(error) => Err(Nak::Failed(error)),
        };
        if let Some(peer) = nodes.peer_mut(id) {
            peer.transit.slices = match served {
                Ok(Served::InPart) => slices.saturating_add(1),
                _ => 0,
            };
        }
        match served {
            Ok(Served::InPart) => {
                self.moved = SLICE;
                return false;
            }
            Ok(Served::Done) => self.ack(nodes, id, body, 0),
            Ok(Served::Found(found)) => self.ack(nodes, id, body, found),
            Err(nak) => self.deny(nodes, id, body, nak),
        }
        true
    }

    /// Puts a part of a SEND or WRITE where it belongs. Returns whether it was answered.
    fn place_part<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        body: &RequestBody,
        incoming: &Incoming,
    ) -> bool {
        let (home, arrival) = (incoming.home, &incoming.arrival);
        let Some((node, platform)) = nodes.node_mut(home) else {
            return false;
        };
        let part = Part {
            offset: arrival.offset,
            last: arrival.last,
        };
        let accepted = node.accept(platform, &self.request, part, &mut self.accepted);
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(nak) => {
                self.deny(nodes, id, body, nak);
                return true;
            }
        };
        self.accepted.skip(arrival.offset);
        let moved = self.move_data(nodes, home, arrival.len);
        if moved == Err(CopyError::Source) {
            self.unreadable(nodes, id, arrival);
        }
        let Some((node, platform)) = nodes.node_mut(home) else {
            return false;
        };
        match moved {
            Ok(()) if !arrival.last => {
                if accepted.received.is_some() && self.request.opcode != Opcode::WriteImm {
                    node.keep_entry(accepted.qpn);
                }
                false
            }
            Ok(()) => {
                node.arrived(platform, &self.request, &accepted);
                self.ack(nodes, id, body, 0);
                true
            }
            Err(fault) => {
                let error = node.transfer_failed(platform, &self.request, &accepted, fault);
                self.deny(nodes, id, body, Nak::Failed(error));
                true
            }
        }
    }

    /// Answers that a request is done.
    pub(super) fn ack<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        body: &RequestBody,
        found: u64,
    ) {
        self.set_expected(nodes, Some(body.sequence.get().wrapping_add(1)));
        let mut response = response_to(body);
        response.found.set(found);
        if let Some(grant) = self.grant_for_response(nodes, id) {
            grant.write(&mut response);
        }
        self.respond(nodes, id, &response);
    }

    /// Answers that a request was not carried out.
    pub(super) fn deny<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        body: &RequestBody,
        nak: Nak,
    ) {
        let mut response = response_to(body);
        let mut refused = false;
        let reply = match nak {
            Nak::OutOfSequence => Reply::OutOfSequence,
            Nak::Rnr { .. } => {
                refused = true;
                if let Some((node, _)) = nodes.node_mut(self.request.home) {
                    node.counters.rx_rnr_naks.add(1);
                }
                Reply::NoBuffer
            }
            Nak::NotReady { .. } => {
                refused = true;
                Reply::NotReady
            }
            Nak::Failed(WcError { status, check }) => {
                (response.status, response.check) = (status.to_wire(), check as u8);
                Reply::Complete
            }
            // Only frames are.
            Nak::Filtered => Reply::Complete,
        };
        response.reply = reply.to_wire();
        let qpn = self.request.destination.qpn;
        let there = nodes.node_mut(self.request.home).map(|(node, _)| node);
        if let Some(node) = there {
            if refused {
                node.note_waiter(qpn, (id, self.request.source.qpn));
            }
            let Some(qp) = node.qps.get_mut(qpn) else {
                return self.respond(nodes, id, &response);
            };
            if reply == Reply::NoBuffer {
                response.rnr_timer = qp.min_rnr_timer;
            }
            if qp.remote == Some(self.request.source) {
                qp.recv.expected = None;
            }
        }
        self.respond(nodes, id, &response);
    }

    /// Notes the number that the next request to the current queue pair must have.
    pub(super) fn set_expected<N: NodeTable>(&self, nodes: &mut N, sequence: Option<u32>) {
        let there = nodes.node_mut(self.request.home);
        if let Some(qp) = there.and_then(|(node, _)| node.qps.get_mut(self.request.destination.qpn))
        {
            qp.recv.expected = sequence;
        }
    }

    /// Gives an answer, for which there is room in the ring, or soon.
    fn respond<N: NodeTable>(&self, nodes: &mut N, id: u16, response: &ResponseBody) {
        let Some(peer) = nodes.peer_mut(id) else {
            return;
        };
        match peer.reserve(Class::Response, 0) {
            Some(_) => peer.commit(Class::Response, &Outgoing::Response(response), 0),
            None => peer.transit.owed_response = Some(*response),
        }
    }

    /// Gives the answers that are due before the next request is taken. False if there is no room.
    fn send_owed_responses<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        share: &mut Share,
        found: &mut bool,
    ) -> bool {
        let Some(peer) = nodes.peer_mut(id) else {
            return false;
        };
        if let Some(response) = peer.transit.owed_response {
            if peer.reserve(Class::Response, 0).is_none() {
                return false;
            }
            peer.transit.owed_response = None;
            peer.commit(Class::Response, &Outgoing::Response(&response), 0);
            *found = true;
        }
        while let Some(serving) = nodes.peer_mut(id).and_then(|peer| peer.transit.serving) {
            if !self.goes_on(share) {
                return false;
            }
            let home = nodes.peer_mut(id).map_or(0, |peer| peer.home());
            let Some(len) = self.read_part(nodes, id, &serving) else {
                return false;
            };
            self.spend_on_peer(nodes, home, share, len);
            *found = true;
        }
        nodes
            .peer_mut(id)
            .is_some_and(|peer| peer.transit.owed_response.is_none())
    }
}

/// The answer that a request is done.
pub(super) fn response_to(body: &RequestBody) -> ResponseBody {
    let mut response = ResponseBody::new_zeroed();
    response.reply = Reply::Complete.to_wire();
    response.status = WcStatus::Success.to_wire();
    response.sequence = body.sequence;
    response.source_qpn = body.source_qpn;
    response.target_qpn = body.target_qpn;
    response
}

impl<S: Storage> Node<S> {
    /// Whether a request comes from the queue pair that it may come from, and is the next one of it. `begins`: this is its first
    /// part; a queue pair that was reset since that one must not take the others.
    fn in_sequence(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        body: &RequestBody,
        begins: bool,
    ) -> Result<(), Nak> {
        self.check_peer(platform, request)?;
        let qp = self.qps.get_mut(request.destination.qpn);
        let Some(qp) = qp else {
            return Err(Nak::OutOfSequence);
        };
        let sequence = body.sequence.get();
        if begins && body.flags & REQUEST_START != 0 {
            qp.recv.expected = Some(sequence);
        }
        match qp.recv.expected {
            Some(expected) if expected == sequence => Ok(()),
            _ => Err(Nak::OutOfSequence),
        }
    }
}
