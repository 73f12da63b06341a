// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The requester's half of what is asked of nodes of other hosts: answers.

use super::{Incoming, Turn};
use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        check::{Check, WcError},
        copy::{CopyError, Span},
        inflight::counts_as_read,
        qp::{Remote, Wait},
        request::Request,
        wqe::{malformed, Wqe},
    },
};
use nupa_pool::{Acknowledged, Body};
use nupa_proto::{
    admin::QpStateCode,
    eqe::EventType,
    pool::{
        message::{Reply, ResponseBody, NOTIFY_ALL, NOTIFY_EVENT},
        Class,
    },
    status::WcStatus,
    wqe::Opcode,
};

/// Microseconds after which a request that was NAKed as not ready is sent again if no notification comes: 50 times in the half second
/// that it may wait.
const RETRY_US: u64 = 10_000;
/// Turns in which rings of responses are emptied before a queue pair fails, at most: with what a turn takes of each, more than rings of
/// the usual size hold. A peer that goes on meanwhile has the rest flushed.
const RESPONSE_TURNS: u32 = 64;

impl Engine {
    /// Takes the responses that a peer has put into a ring. Returns whether there was one.
    pub(super) fn take_responses<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        class: Class,
    ) -> bool {
        let (mut turn, mut found) = (Turn::of(class), false);
        while (!found || self.has_another(nodes, id, class)) && self.goes_on(&turn) {
            let Some(incoming) = self.next(nodes, id, class) else {
                break;
            };
            self.take_response(nodes, id, &incoming);
            self.release(nodes, id, class);
            self.spend_on_peer(nodes, incoming.home, &mut turn, incoming.arrival.len);
            found = true;
        }
        self.moved = 0;
        if found {
            self.note_progress(nodes, id);
        }
        found
    }

    /// Takes what a peer has said so far of the requests of a queue pair that is to fail: those were done before. A channel adapter takes
    /// acknowledgements as they come. Here they lie in rings until the engine's next turn, and what has the program give the queue pair up,
    /// such as the peer's wish to disconnect, can have come to it by another way before.
    pub(crate) fn take_all_responses<N: NodeTable>(&mut self, nodes: &mut N, home: u16, qpn: u32) {
        for _ in 0..RESPONSE_TURNS {
            let there = nodes.node(home).and_then(|(node, _)| node.qps.get(qpn));
            let under_way = there.filter(|qp| qp.send.inflight.count != 0);
            let Some(remote) = under_way.and_then(|qp| qp.remote) else {
                return;
            };
            // The command has a turn of its own.
            self.begin_turn();
            let mut found = self.take_responses(nodes, remote.node, Class::ShortResponse);
            found |= self.take_responses(nodes, remote.node, Class::Response);
            if !found {
                return;
            }
        }
    }

    fn take_response<N: NodeTable>(&mut self, nodes: &mut N, id: u16, incoming: &Incoming) {
        match &incoming.arrival.body {
            Body::Response(_, _, body) => {
                let answered = Acknowledged {
                    sequence: body.sequence.get(),
                    source_qpn: body.source_qpn.get(),
                    target_qpn: body.target_qpn.get(),
                };
                if self.is_under_way(nodes, id, incoming.home, &answered)
                    && self.finish_before(nodes, id, incoming.home, answered)
                {
                    self.finish_inflight(nodes, id, incoming, body);
                }
            }
            Body::Done(done) => {
                let behind = Acknowledged {
                    sequence: done.sequence.wrapping_add(1),
                    ..*done
                };
                if self.is_under_way(nodes, id, incoming.home, done) {
                    self.finish_before(nodes, id, incoming.home, behind);
                }
            }
            Body::Notify(body) => {
                match body.qpn.get() {
                    NOTIFY_ALL => self.begin_waking_refused(nodes, id),
                    qpn => {
                        if let Some((node, _)) = nodes.node_mut(incoming.home) {
                            node.notified(body.source_qpn.get(), id, qpn);
                        }
                    }
                }
                if body.flags & NOTIFY_EVENT != 0 {
                    self.take_event(nodes, id, incoming.home, body);
                }
            }
            _ => self.refuse(nodes, id),
        }
    }

    /// Whether a request of a queue pair is under way to a peer.
    fn is_under_way<N: NodeTable>(
        &self,
        nodes: &N,
        id: u16,
        home: u16,
        answered: &Acknowledged,
    ) -> bool {
        let qp = nodes
            .node(home)
            .and_then(|(node, _)| node.qps.get(answered.source_qpn));
        qp.is_some_and(|qp| {
            let peer = |remote: Remote| (remote.node, remote.qpn) == (id, answered.target_qpn);
            matches!(qp.state, QpStateCode::Rts | QpStateCode::Sqd)
                && qp.remote.is_some_and(peer)
                && qp.send.inflight.has(answered.sequence)
        })
    }

    /// Completes the requests of a queue pair before one that was answered, or is done: where nothing is said of those that are done, that is
    /// said by it. Responses come in the order of requests, so nothing was said against them. False if that one is not the oldest then.
    fn finish_before<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        home: u16,
        answered: Acknowledged,
    ) -> bool {
        let qpn = answered.source_qpn;
        let peer = nodes.peer_mut(id);
        let is_said = peer.is_some_and(|peer| peer.is_acknowledged());
        loop {
            let Some((node, platform)) = nodes.node_mut(home) else {
                return false;
            };
            let Some(qp) = node.qps.get(qpn) else {
                return false;
            };
            let inflight = &qp.send.inflight;
            if inflight.oldest() == answered.sequence {
                return true;
            }
            if !is_said || inflight.count == 0 {
                return false;
            }
            // Of those before it, one entry may say that there are many.
            self.budget.spend(platform, 0);
            let Self { wqe, request, .. } = self;
            let fetched = node.refetch(platform, qpn, inflight.head, wqe, request);
            let result = match request.opcode {
                opcode if counts_as_read(opcode) => {
                    Err(WcError::new(WcStatus::RemoteOperation, Check::Peer))
                }
                // A descriptor that cannot be read any more has no end.
                Opcode::Nop => fetched,
                _ => Ok(()),
            };
            node.finish_send(platform, request, result);
            if node.drained(platform, qpn) {
                node.schedule(qpn);
            }
            if result.is_err() {
                return false;
            }
        }
    }

    /// Does what an answer says to the request that it is for.
    fn finish_inflight<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        incoming: &Incoming,
        body: &ResponseBody,
    ) {
        let (home, qpn) = (incoming.home, body.source_qpn.get());
        let reply = Reply::try_from(body.reply).unwrap_or(Reply::Complete);
        if reply != Reply::Complete {
            return self.send_again(nodes, id, home, body, reply);
        }
        let Some((node, platform)) = nodes.node_mut(home) else {
            return;
        };
        let Self { wqe, request, .. } = self;
        let at = node.qps.get(qpn).map_or(0, |qp| qp.send.inflight.head);
        let fetched = node.refetch(platform, qpn, at, wqe, request);
        let result = match WcStatus::try_from(body.status) {
            Ok(WcStatus::Success) => self.take_result(nodes, id, incoming, body, fetched),
            Ok(status) => Err(WcError::new(status, Check::from_wire(body.check))),
            Err(_) => Err(WcError::new(WcStatus::General, Check::Peer)),
        };
        if result == Ok(false) {
            self.keep_grant(nodes, id, body);
        }
        let Some((node, platform)) = nodes.node_mut(home) else {
            return;
        };
        match result {
            // More of it is to come.
            Ok(true) => {
                if let Some(qp) = node.qps.get_mut(qpn) {
                    let arrival = &incoming.arrival;
                    qp.send.inflight.received = arrival.offset.saturating_add(arrival.len);
                }
            }
            result => {
                node.finish_send(platform, &self.request, result.map(|_| ()));
                if let Some(qp) = node.qps.get_mut(qpn) {
                    qp.send.inflight.grant_credits(body.credits.get());
                }
            }
        }
        if node.drained(platform, qpn) {
            node.schedule(qpn);
        }
    }

    /// Puts what was handed back into the requester's memory. Returns whether more of it is to come.
    fn take_result<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        incoming: &Incoming,
        body: &ResponseBody,
        fetched: Result<(), WcError>,
    ) -> Result<bool, WcError> {
        let arrival = &incoming.arrival;
        match self.request.opcode {
            Opcode::CompareSwap | Opcode::FetchAdd => {
                fetched?;
                self.put_word(nodes, body.found.get()).map(|()| false)
            }
            Opcode::Read => {
                fetched?;
                let received = nodes.node(incoming.home).and_then(|(node, _)| {
                    let qp = node.qps.get(self.request.source.qpn)?;
                    Some(qp.send.inflight.received)
                });
                let left = self.request.len.saturating_sub(arrival.offset);
                let piece = nodes.peer_mut(id).map_or(0, |peer| peer.piece());
                if received != Some(arrival.offset) || arrival.len != left.min(piece) {
                    return Err(WcError::new(WcStatus::RemoteOperation, Check::Length));
                }
                self.request.local.skip(arrival.offset);
                self.accepted
                    .set(Span::direct(arrival.payload, arrival.len));
                let moved = self.move_arrived(nodes, incoming.home, arrival.len);
                let unreachable = WcError::new(WcStatus::LocalProtection, Check::LocalMemory);
                if moved == Err(CopyError::Source) {
                    self.unreadable(nodes, id, arrival);
                }
                moved.map_err(|_| unreachable)?;
                Ok(arrival.len < left)
            }
            // What it took from here was taken when it was sent. A descriptor that cannot be read any more has no end.
            Opcode::Nop => fetched.map(|()| false),
            _ => Ok(false),
        }
    }

    /// The oldest request of a queue pair was not carried out, so none behind it was: they are sent again, when they may be.
    fn send_again<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        home: u16,
        body: &ResponseBody,
        reply: Reply,
    ) {
        let qpn = body.source_qpn.get();
        let destination = body.target_qpn.get();
        let Some((node, platform)) = nodes.node_mut(home) else {
            return;
        };
        let Some(qp) = node.qps.get_mut(qpn) else {
            return;
        };
        qp.rewind();
        if qp.state == QpStateCode::Sqd {
            node.drained(platform, qpn);
            return;
        }
        let waits = match reply {
            Reply::NoBuffer => {
                let wait = Wait::Rnr {
                    node: id,
                    qpn: destination,
                };
                let waits = node.wait_for_rnr(platform, qpn, wait, body.rnr_timer);
                let waits = waits.waits.then_some(());
                waits.ok_or((WcStatus::RnrRetryExceeded, Check::NoBuffer))
            }
            Reply::NotReady => {
                let wait = Wait::Peer {
                    node: id,
                    qpn: destination,
                };
                let waits = node.wait_for_peer(platform, qpn, wait, RETRY_US);
                waits
                    .then_some(())
                    .ok_or((WcStatus::RetryExceeded, Check::PeerState))
            }
            Reply::RingHeld => {
                let wait = Wait::Peer {
                    node: id,
                    qpn: destination,
                };
                node.wait_for_process(platform, qpn, wait, RETRY_US);
                Ok(())
            }
            Reply::OutOfSequence | Reply::Complete => {
                node.schedule(qpn);
                Ok(())
            }
        };
        if let Err((status, check)) = waits {
            self.give_up(nodes, home, qpn, WcError::new(status, check));
        }
    }

    /// Completes the request at the head of a send queue, none of which is under way, with an error.
    pub(super) fn give_up<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        home: u16,
        qpn: u32,
        error: WcError,
    ) {
        let Some((node, platform)) = nodes.node_mut(home) else {
            return;
        };
        let Self { wqe, request, .. } = self;
        let at = node.qps.get(qpn).map_or(0, |qp| qp.send.index);
        // Of a descriptor that is not what it was, the error is still this one.
        let _ = node.refetch(platform, qpn, at, wqe, request);
        node.unpark(qpn);
        node.finish_send(platform, &self.request, Err(error));
    }
}

impl<S: Storage> Node<S> {
    /// Reads the descriptor at block `at`, of a request that is under way or was, once more. Fails if it is not what it was.
    pub(crate) fn refetch(
        &self,
        platform: &impl Platform,
        qpn: u32,
        at: u32,
        wqe: &mut Wqe,
        request: &mut Request,
    ) -> Result<(), WcError> {
        let missing = malformed(Check::Peer);
        let qp = self.qps.get(qpn).ok_or(missing)?;
        request.source = Remote {
            node: self.id(),
            qpn,
            epoch: self.epoch,
            psn: qp.psn,
        };
        request.home = self.id();
        let mrs = &self.mrs;
        qp.decode::<S>(platform, mrs, at, None, wqe, request)?;
        request.check(true, self.limits().max_frame)
    }

    /// What is left to do once requests of a queue pair were answered or taken back. Returns whether its send queue waited
    /// for that and goes on.
    pub(crate) fn drained(&mut self, platform: &impl Platform, qpn: u32) -> bool {
        let Some(qp) = self.qps.get(qpn) else {
            return false;
        };
        if qp.state == QpStateCode::Sqd && qp.send.inflight.count == 0 {
            self.report(platform, EventType::SqDrained, 0, qpn);
            return false;
        }
        let waited = qp.send.wait == Wait::Responses;
        if waited {
            self.unpark(qpn);
        }
        waited
    }
}
