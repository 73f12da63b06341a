// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The responder's half of what nodes of other hosts ask for. The checks are those of a request from this host; every request of a
//! connected queue pair is answered once, and none is taken that an answer could not be given to.

use super::{Asked, Incoming, Turn};
use crate::{
    hal::{Platform, Storage},
    link::Arrival,
    node::Node,
    nodes::NodeTable,
    path::{
        atomic::{Operand, Served},
        engine::Engine,
    },
    state::{
        check::WcError,
        copy::CopyError,
        nak::Nak,
        qp::{CreditsTold, Remote},
        request::{Part, Request},
        slice::SLICE,
    },
};
use nupa_pool::{Body, Outgoing};
use nupa_proto::{
    pool::{
        message::{
            takes_entry, Reply, RequestBody, ResponseBody, REQUEST_DATAGRAM, REQUEST_SOLICITED,
            REQUEST_START,
        },
        Class,
    },
    status::WcStatus,
    wqe::Opcode,
};
use zerocopy::FromZeros;

/// Slices of a flush after which its requester is told something, which means nothing to it but that this host is at work.
const FLUSH_SIGN: u32 = 1024;

/// How far an entry was dealt with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It is done with.
    Taken,
    /// A slice of what it asks for is done.
    InPart,
    /// There is no room to answer it.
    Blocked,
}

impl Engine {
    /// Serves the requests that a peer has put into a ring. Returns whether there was one.
    pub(super) fn take_requests<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        class: Class,
    ) -> bool {
        let (mut turn, mut found) = (Turn::of(class), false);
        while (!found || self.has_another(nodes, id, class)) && self.goes_on(&turn) {
            if !self.send_owed_response(nodes, id) {
                break;
            }
            let Some(incoming) = self.next(nodes, id, class) else {
                break;
            };
            let progress = self.take_request(nodes, id, class, &incoming);
            let moved = core::mem::take(&mut self.moved);
            match progress {
                Progress::Taken => {
                    self.release(nodes, id, class);
                    if let Some(peer) = nodes.peer_mut(id).filter(|_| class == Class::Request) {
                        // Of a flush that was refused in the middle, too.
                        peer.transit.slices = 0;
                    }
                }
                Progress::InPart => {}
                Progress::Blocked => break,
            }
            self.spend_on_peer(nodes, incoming.home, &mut turn, moved);
            found = true;
        }
        found
    }

    /// Deals with the entry at the head of a ring.
    fn take_request<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        class: Class,
        incoming: &Incoming,
    ) -> Progress {
        let Body::Request(opcode, body) = &incoming.arrival.body else {
            self.refuse(nodes, id);
            return Progress::Blocked;
        };
        if body.flags & REQUEST_DATAGRAM != 0 {
            self.take_datagram(nodes, id, *opcode, body, incoming);
            return Progress::Taken;
        }
        let asked = Asked {
            id,
            class: match class {
                Class::ShortRequest => Class::ShortResponse,
                _ => Class::Response,
            },
            opcode: *opcode,
            body,
        };
        let piece = match opcode {
            Opcode::Read => body.piece_len(incoming.arrival.offset, incoming.arrival.piece),
            _ => 0,
        };
        let room = nodes
            .peer_mut(id)
            .and_then(|peer| peer.reserve(asked.class, piece));
        let Some(room) = room else {
            return Progress::Blocked;
        };
        if *opcode != Opcode::Read {
            return self.serve_part(nodes, &asked, incoming);
        }
        // What it reads goes there.
        let arrival = Arrival {
            payload: room,
            len: piece,
            ..incoming.arrival.clone()
        };
        let incoming = Incoming {
            arrival,
            ..*incoming
        };
        self.serve_part(nodes, &asked, &incoming)
    }

    /// Makes what a peer's request says the current request.
    pub(super) fn load_request(&mut self, asked: &Asked<'_>, incoming: &Incoming) {
        let body = asked.body;
        let source = Remote {
            node: asked.id,
            qpn: body.source_qpn.get(),
            epoch: incoming.epoch,
            psn: body.psn.get(),
        };
        let request = &mut self.request;
        request.load_arrival(asked.opcode, source, incoming.home, &incoming.arrival);
        request.destination.qpn = body.target_qpn.get();
        request.destination.epoch = body.target_epoch.get();
        request.len = body.len.get();
        request.imm = body.imm_or_key.get();
        request.bypassed = body.bypassed();
        request.remote_addr = body.remote_addr.get();
        request.remote_key = body.remote_key.get();
        request.solicited = body.flags & REQUEST_SOLICITED != 0;
    }

    /// Carries out what an entry asks for.
    fn serve_part<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        asked: &Asked<'_>,
        incoming: &Incoming,
    ) -> Progress {
        self.load_request(asked, incoming);
        let Some((node, platform)) = nodes.node_mut(incoming.home) else {
            return Progress::Taken;
        };
        let Arrival { offset, last, .. } = incoming.arrival;
        if let Err(nak) = node.in_sequence(platform, &self.request, asked.body, offset) {
            // Of a request that was refused before, what lies between was answered with that.
            if offset == 0 || last {
                self.deny(nodes, asked, nak);
            }
            return Progress::Taken;
        }
        if asked.opcode == Opcode::Write && self.request.bypassed != 0 {
            if let Err(nak) = self.take_what_is_before(nodes, asked, incoming) {
                self.deny(nodes, asked, nak);
                return Progress::Taken;
            }
        }
        match asked.opcode {
            Opcode::Read => return self.respond_read(nodes, asked, incoming),
            Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite | Opcode::Flush => {
                return self.serve_atomic_or_flush(nodes, asked);
            }
            _ => self.write_part(nodes, asked, incoming),
        }
        Progress::Taken
    }

    /// Carries out an atomic operation or a flush, or a slice of that.
    fn serve_atomic_or_flush<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        asked: &Asked<'_>,
    ) -> Progress {
        let flush = asked.opcode == Opcode::Flush;
        let slices = match nodes.peer_mut(asked.id) {
            Some(peer) if flush => peer.transit.slices,
            _ => 0,
        };
        let Some((node, platform)) = nodes.node_mut(self.request.home) else {
            return Progress::Taken;
        };
        let operand = Operand::read(asked.opcode, &asked.body.operand);
        let served = match operand {
            Ok(operand) => node.serve_atomic(platform, &self.request, &operand, slices),
            Err(error) => Err(Nak::Failed(error)),
        };
        if let Some(peer) = nodes.peer_mut(asked.id).filter(|_| flush) {
            peer.transit.slices = match served {
                Ok(Served::InPart) => slices.saturating_add(1),
                _ => 0,
            };
        }
        match served {
            Ok(Served::InPart) => {
                self.moved = SLICE;
                if slices % FLUSH_SIGN == FLUSH_SIGN - 1 {
                    let (qpn, waiter) = (asked.body.target_qpn, asked.body.source_qpn);
                    self.send_notify(nodes, asked.id, qpn.get(), waiter.get());
                }
                return Progress::InPart;
            }
            Ok(Served::Done(moved)) => {
                self.moved = moved;
                self.ack(nodes, asked, 0);
            }
            Ok(Served::Found(found)) => self.ack(nodes, asked, found),
            Err(nak) => self.deny(nodes, asked, nak),
        }
        Progress::Taken
    }

    /// Puts a part of a SEND or WRITE where it belongs.
    fn write_part<N: NodeTable>(&mut self, nodes: &mut N, asked: &Asked<'_>, incoming: &Incoming) {
        let (home, arrival) = (incoming.home, &incoming.arrival);
        let Some((node, platform)) = nodes.node_mut(home) else {
            return;
        };
        let part = Part {
            offset: arrival.offset,
            last: arrival.last,
        };
        let accepted = node.accept(platform, &self.request, part, &mut self.accepted);
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(nak) => return self.deny(nodes, asked, nak),
        };
        self.accepted.skip(arrival.offset);
        let moved = self.move_arrived(nodes, home, arrival.len);
        if moved == Err(CopyError::Source) {
            self.unreadable(nodes, asked.id, arrival);
        }
        let Some((node, platform)) = nodes.node_mut(home) else {
            return;
        };
        match moved {
            Ok(()) if !arrival.last => {
                if accepted.received.is_some() {
                    node.keep_entry(platform, accepted.qpn);
                }
                self.note_taken(nodes, asked, arrival);
            }
            Ok(()) => {
                node.arrived(platform, &self.request, &accepted);
                self.ack_write(nodes, asked);
            }
            Err(fault) => {
                let error = node.transfer_failed(platform, &self.request, &accepted, fault);
                self.deny(nodes, asked, Nak::Failed(error));
            }
        }
    }

    /// Notes what the next entry of the current queue pair must be: the next part of this request, or the next request.
    pub(super) fn note_taken<N: NodeTable>(
        &self,
        nodes: &mut N,
        asked: &Asked<'_>,
        arrival: &Arrival,
    ) {
        let sequence = asked.body.sequence.get();
        let (sequence, taken) = match arrival.last {
            true => (sequence.wrapping_add(1), 0),
            false => (sequence, arrival.offset.saturating_add(arrival.len)),
        };
        self.set_expected(nodes, sequence, taken);
    }

    fn set_expected<N: NodeTable>(&self, nodes: &mut N, sequence: u32, taken: u32) {
        let there = nodes.node_mut(self.request.home);
        if let Some(qp) = there.and_then(|(node, _)| node.qps.get_mut(self.request.destination.qpn))
        {
            (qp.recv.expected, qp.recv.taken) = (Some(sequence), taken);
        }
    }

    /// Sends the response to a request that is done.
    fn ack<N: NodeTable>(&mut self, nodes: &mut N, asked: &Asked<'_>, found: u64) {
        let body = asked.body;
        self.set_expected(nodes, body.sequence.get().wrapping_add(1), 0);
        let mut response = response_to(body);
        response.found.set(found);
        self.set_credits(nodes, &mut response);
        self.respond(nodes, asked, &response);
    }

    /// A SEND or WRITE is done. If its being taken out says so, there is a response only where there is more to say.
    fn ack_write<N: NodeTable>(&mut self, nodes: &mut N, asked: &Asked<'_>) {
        let peer = nodes.peer_mut(asked.id);
        let is_said = peer.is_some_and(|peer| peer.is_acknowledged());
        let grant = self.grant_for_response(nodes, asked.id);
        let sequence = asked.body.sequence.get();
        self.set_expected(nodes, sequence.wrapping_add(1), 0);
        if is_said && !self.has_credits_to_tell(nodes, asked.opcode) && grant.is_none() {
            return;
        }
        let mut response = response_to(asked.body);
        self.set_credits(nodes, &mut response);
        if let Some(grant) = grant {
            grant.write(&mut response);
        }
        self.respond(nodes, asked, &response);
    }

    /// Says how many receive entries the current request has left.
    pub(super) fn set_credits<N: NodeTable>(&self, nodes: &mut N, response: &mut ResponseBody) {
        if let Some((node, platform)) = nodes.node_mut(self.request.home) {
            let credits = node.tell_credits(platform, self.request.destination.qpn);
            response.credits.set(credits);
        }
    }

    /// Whether the requester of the current request, which was done, is to be told how many receive entries there are.
    fn has_credits_to_tell<N: NodeTable>(&self, nodes: &mut N, opcode: Opcode) -> bool {
        if !takes_entry(opcode) {
            return false;
        }
        let qpn = self.request.destination.qpn;
        let Some((node, platform)) = nodes.node_mut(self.request.home) else {
            return false;
        };
        let Some(qp) = node.qps.get_mut(qpn) else {
            return false;
        };
        qp.recv.credits.spend();
        let (told, shared) = (qp.recv.credits, qp.recv.srqn.is_some());
        // Others take entries of a shared queue as well.
        if !shared && !told.are_few() {
            return false;
        }
        let credits = node.credits(platform, qpn);
        shared && told.are_too_many(credits) || told.are_few() && told.are_more(credits)
    }

    /// Sends a NAK.
    pub(super) fn deny<N: NodeTable>(&mut self, nodes: &mut N, asked: &Asked<'_>, nak: Nak) {
        let (id, body) = (asked.id, asked.body);
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
            Nak::RingHeld => {
                refused = true;
                Reply::RingHeld
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
                return self.respond(nodes, asked, &response);
            };
            if reply == Reply::NoBuffer {
                response.rnr_timer = qp.min_rnr_timer;
            }
            // One that is out of sequence changes nothing: it may be left over from before a refusal.
            if reply != Reply::OutOfSequence && qp.remote == Some(self.request.source) {
                (qp.recv.expected, qp.recv.taken) = (None, 0);
                // It knows of none when it begins anew.
                qp.recv.credits = CreditsTold::default();
            }
        }
        self.respond(nodes, asked, &response);
    }

    /// Sends a response, at once or as soon as the ring has room.
    fn respond<N: NodeTable>(&self, nodes: &mut N, asked: &Asked<'_>, response: &ResponseBody) {
        let Some(peer) = nodes.peer_mut(asked.id) else {
            return;
        };
        match peer.reserve(asked.class, 0) {
            Some(_) => peer.commit(asked.class, &Outgoing::Response(response), 0),
            None => peer.transit.owed_response = Some((asked.class, *response)),
        }
    }

    /// Sends the response that was put off. False if there is still no room.
    pub(super) fn send_owed_response<N: NodeTable>(&self, nodes: &mut N, id: u16) -> bool {
        let Some(peer) = nodes.peer_mut(id) else {
            return false;
        };
        let Some((class, response)) = peer.transit.owed_response else {
            return true;
        };
        if peer.reserve(class, 0).is_none() {
            return false;
        }
        peer.transit.owed_response = None;
        peer.commit(class, &Outgoing::Response(&response), 0);
        true
    }
}

/// A response of success.
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
    /// Whether a request comes from the queue pair that it may come from, and what the entry has of it, from `offset` on, is what comes
    /// next.
    fn in_sequence(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        body: &RequestBody,
        offset: u32,
    ) -> Result<(), Nak> {
        self.check_peer(platform, request)?;
        let qp = self.qps.get_mut(request.destination.qpn);
        let Some(qp) = qp else {
            return Err(Nak::OutOfSequence);
        };
        let sequence = body.sequence.get();
        if offset == 0 && body.flags & REQUEST_START != 0 {
            // Numbers go up, so one behind is left over from before its queue pair was reset. The next one is taken, whatever its number.
            let behind = |expected: u32| sequence.wrapping_sub(expected) > u32::MAX / 2;
            let stale = qp.recv.expected.is_some_and(behind);
            (qp.recv.expected, qp.recv.taken) = ((!stale).then_some(sequence), 0);
            qp.recv.credits = CreditsTold::default();
        }
        match (qp.recv.expected, qp.recv.taken) == (Some(sequence), offset) {
            true => Ok(()),
            false => Err(Nak::OutOfSequence),
        }
    }
}
