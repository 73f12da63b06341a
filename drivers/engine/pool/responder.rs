// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The target's half of what nodes of other hosts ask for. The checks are those of a request from this host; every request of a
//! connected queue pair is answered once, and none is taken that an answer could not be given to.

use super::Incoming;
use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::Fabric,
    path::{
        atomic::Operand,
        engine::{spend, Engine, BUDGET},
    },
    state::{
        check::Refusal,
        copy::Fault,
        peer::{Receiving, Serving},
        qp::Remote,
        request::{Declined, Request},
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

/// Why a request from another host is not carried out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Denied {
    /// As one of this host would not be.
    Declined(Declined),
    /// One before it was not.
    OutOfSequence,
}

impl From<Declined> for Denied {
    fn from(declined: Declined) -> Self {
        Self::Declined(declined)
    }
}

impl Engine {
    /// Serves the requests that a peer has sent. Returns whether there was one.
    pub(super) fn take_requests<F: Fabric>(&mut self, fabric: &mut F, id: u16) -> bool {
        let (mut budget, mut found) = (BUDGET, false);
        while budget > 0 {
            if !self.settle_answers(fabric, id, &mut budget, &mut found) {
                break;
            }
            let Some(incoming) = self.next(fabric, id, Class::Request) else {
                break;
            };
            if !self.take_request(fabric, id, &incoming) {
                break;
            }
            self.release(fabric, id, Class::Request);
            let written_back = core::mem::take(&mut self.request.written_back);
            let len = incoming.arrival.len.saturating_add(written_back);
            (budget, found) = (spend(budget, len), true);
        }
        found
    }

    /// Deals with the entry at the head of a ring. False if it has to wait, for room to answer it.
    fn take_request<F: Fabric>(&mut self, fabric: &mut F, id: u16, incoming: &Incoming) -> bool {
        let Some(peer) = fabric.peer_mut(id) else {
            return false;
        };
        let arrival = &incoming.arrival;
        let receiving = match &arrival.body {
            Body::Request(opcode, body) if body.flags & REQUEST_DATAGRAM != 0 => {
                if arrival.last {
                    self.take_datagram(fabric, id, *opcode, body, incoming);
                }
                return true;
            }
            Body::Request(_, body) => Receiving {
                body: *body,
                answered: false,
            },
            Body::Data => match peer.progress.receiving {
                Some(receiving) => receiving,
                None => return true,
            },
            Body::Abort => {
                peer.progress.receiving = None;
                return true;
            }
            _ => {
                self.refuse(fabric, id);
                return false;
            }
        };
        if !receiving.answered && peer.reserve(Class::Response, 0).is_none() {
            return false;
        }
        let answered = receiving.answered || self.serve_part(fabric, id, &receiving.body, incoming);
        if let Some(peer) = fabric.peer_mut(id) {
            peer.progress.receiving = (!arrival.last).then_some(Receiving {
                answered,
                ..receiving
            });
        }
        true
    }

    /// Makes what a peer's request says the request at hand. Returns false if it says what none can.
    pub(super) fn adopt(&mut self, id: u16, body: &RequestBody, incoming: &Incoming) -> bool {
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
        request.came(opcode, source, incoming.home, &incoming.arrival);
        request.target.qpn = body.target_qpn.get();
        request.target.epoch = body.target_epoch.get();
        request.len = body.len.get();
        request.imm = body.imm_or_key.get();
        request.remote_addr = body.remote_addr.get();
        request.remote_key = body.remote_key.get();
        request.solicited = body.flags & REQUEST_SOLICITED != 0;
        true
    }

    /// Carries out what has arrived of a request. Returns whether it was answered.
    fn serve_part<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        body: &RequestBody,
        incoming: &Incoming,
    ) -> bool {
        let home = incoming.home;
        if !self.adopt(id, body, incoming) {
            self.refuse(fabric, id);
            return false;
        }
        let Some((node, platform)) = fabric.node_mut(home) else {
            return false;
        };
        let begins = incoming.arrival.offset == 0;
        if let Err(denied) = node.in_sequence(platform, &self.request, body, begins) {
            self.deny(fabric, id, body, denied);
            return true;
        }
        match self.request.opcode {
            Opcode::Read => {
                if let Some(peer) = fabric.peer_mut(id) {
                    peer.progress.serving = Some(Serving {
                        body: *body,
                        done: 0,
                    });
                }
                true
            }
            Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite | Opcode::Flush => {
                self.serve_word(fabric, id, body);
                true
            }
            _ => self.place_part(fabric, id, body, incoming),
        }
    }

    fn serve_word<F: Fabric>(&mut self, fabric: &mut F, id: u16, body: &RequestBody) {
        let Some((node, platform)) = fabric.node_mut(self.request.home) else {
            return;
        };
        let operand = Operand::read(self.request.opcode, &body.operand);
        let served = match operand {
            Ok(operand) => {
                self.request.written_back = operand.written_back();
                node.serve_atomic(platform, &self.request, &operand)
            }
            Err(refusal) => Err(Declined::Refused(refusal)),
        };
        match served {
            Ok(found) => self.complete_answer(fabric, id, body, found.unwrap_or(0)),
            Err(declined) => self.deny(fabric, id, body, declined.into()),
        }
    }

    /// Puts a part of a SEND or WRITE where it belongs. Returns whether it was answered.
    fn place_part<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        body: &RequestBody,
        incoming: &Incoming,
    ) -> bool {
        let (home, arrival) = (incoming.home, &incoming.arrival);
        let Some((node, platform)) = fabric.node_mut(home) else {
            return false;
        };
        let accepted = node.accept(platform, &self.request, &mut self.landing);
        let landing = match accepted {
            Ok(landing) => landing,
            Err(declined) => {
                self.deny(fabric, id, body, declined.into());
                return true;
            }
        };
        self.landing.skip(arrival.offset);
        let moved = self.move_data(fabric, home, arrival.len);
        if moved == Err(Fault::Source) {
            self.unreadable(fabric, id, arrival);
        }
        let Some((node, platform)) = fabric.node_mut(home) else {
            return false;
        };
        match moved {
            Ok(()) if !arrival.last => {
                if landing.received.is_some() && self.request.opcode != Opcode::WriteImm {
                    node.keep_entry(landing.qpn);
                }
                false
            }
            Ok(()) => {
                node.arrived(platform, &self.request, &landing);
                self.complete_answer(fabric, id, body, 0);
                true
            }
            Err(fault) => {
                let refusal = node.transfer_failed(platform, &self.request, &landing, fault);
                self.deny(fabric, id, body, Declined::Refused(refusal).into());
                true
            }
        }
    }

    /// Answers that a request is done.
    pub(super) fn complete_answer<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        body: &RequestBody,
        found: u64,
    ) {
        self.set_expected(fabric, Some(body.sequence.get().wrapping_add(1)));
        let mut response = answer_to(body);
        response.found.set(found);
        if let Some(grant) = self.lend(fabric, id) {
            grant.write(&mut response);
        }
        self.answer(fabric, id, &response);
    }

    /// Answers that a request was not carried out.
    pub(super) fn deny<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        body: &RequestBody,
        denied: Denied,
    ) {
        let mut response = answer_to(body);
        let mut refused = None;
        let reply = match denied {
            Denied::OutOfSequence => Reply::OutOfSequence,
            Denied::Declined(Declined::NoBuffer { .. }) => {
                refused = Some(id);
                if let Some((node, _)) = fabric.node_mut(self.request.home) {
                    node.counters.rx_rnr_naks.add(1);
                }
                Reply::NoBuffer
            }
            Denied::Declined(Declined::NotReady { .. }) => {
                refused = Some(id);
                Reply::NotReady
            }
            Denied::Declined(Declined::Refused(Refusal { status, check })) => {
                (response.status, response.check) = (status.to_wire(), check as u8);
                Reply::Complete
            }
            // Only frames are.
            Denied::Declined(Declined::Filtered) => Reply::Complete,
        };
        response.reply = reply.to_wire();
        let there = fabric.node_mut(self.request.home);
        if let Some(pair) = there.and_then(|(node, _)| node.pairs.get_mut(self.request.target.qpn))
        {
            pair.recv.refused = refused.or(pair.recv.refused);
            if reply == Reply::NoBuffer {
                response.rnr_timer = pair.min_rnr_timer;
            }
            if pair.remote == Some(self.request.source) {
                pair.recv.expected = None;
            }
        }
        self.answer(fabric, id, &response);
    }

    /// Notes the number that the next request to the queue pair at hand must have.
    pub(super) fn set_expected<F: Fabric>(&self, fabric: &mut F, sequence: Option<u32>) {
        let there = fabric.node_mut(self.request.home);
        if let Some(pair) = there.and_then(|(node, _)| node.pairs.get_mut(self.request.target.qpn))
        {
            pair.recv.expected = sequence;
        }
    }

    /// Gives an answer, for which there is room in the ring, or soon.
    fn answer<F: Fabric>(&self, fabric: &mut F, id: u16, response: &ResponseBody) {
        let Some(peer) = fabric.peer_mut(id) else {
            return;
        };
        match peer.reserve(Class::Response, 0) {
            Some(_) => peer.commit(Class::Response, &Outgoing::Response(response), 0),
            None => peer.progress.owed = Some(*response),
        }
    }

    /// Gives the answers that are due before the next request is taken. False if there is no room.
    fn settle_answers<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        budget: &mut u32,
        found: &mut bool,
    ) -> bool {
        let Some(peer) = fabric.peer_mut(id) else {
            return false;
        };
        if let Some(response) = peer.progress.owed {
            if peer.reserve(Class::Response, 0).is_none() {
                return false;
            }
            peer.progress.owed = None;
            peer.commit(Class::Response, &Outgoing::Response(&response), 0);
            *found = true;
        }
        while let Some(serving) = fabric.peer_mut(id).and_then(|peer| peer.progress.serving) {
            if *budget == 0 {
                return false;
            }
            let Some(len) = self.read_part(fabric, id, &serving) else {
                return false;
            };
            (*budget, *found) = (spend(*budget, len), true);
        }
        fabric
            .peer_mut(id)
            .is_some_and(|peer| peer.progress.owed.is_none())
    }
}

/// The answer that a request is done.
pub(super) fn answer_to(body: &RequestBody) -> ResponseBody {
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
    ) -> Result<(), Denied> {
        self.check_peer(platform, request)?;
        let pair = self.pairs.get_mut(request.target.qpn);
        let Some(pair) = pair else {
            return Err(Denied::OutOfSequence);
        };
        let sequence = body.sequence.get();
        if begins && body.flags & REQUEST_START != 0 {
            pair.recv.expected = Some(sequence);
        }
        match pair.recv.expected {
            Some(expected) if expected == sequence => Ok(()),
            _ => Err(Denied::OutOfSequence),
        }
    }
}
