// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The initiator's half of what is asked of nodes of other hosts: answers.

use super::Incoming;
use crate::{
    hal::{Clock, Platform, Storage},
    node::Node,
    nodes::Fabric,
    path::engine::{spend, Engine, BUDGET},
    state::{
        check::{Check, Refusal},
        copy::{Fault, Span},
        qp::{Remote, Wait},
        request::Request,
        wqe::{malformed, Descriptor},
    },
};
use nupa_pool::Body;
use nupa_proto::eqe::EventType;
use nupa_proto::{
    admin::QpStateCode,
    pool::{
        message::{Reply, ResponseBody, NOTIFY_ALL},
        Class,
    },
    status::WcStatus,
    wqe::Opcode,
};

/// How often a request that found its target not connected yet is sent again, should nobody tell that it may be.
const RETRY_US: u64 = 10_000;

impl Engine {
    /// Takes the answers that a peer has given. Returns whether there was one.
    pub(super) fn take_answers<F: Fabric>(&mut self, fabric: &mut F, id: u16) -> bool {
        let (mut budget, mut found) = (BUDGET, false);
        while budget > 0 {
            let Some(incoming) = self.next(fabric, id, Class::Response) else {
                break;
            };
            self.take_answer(fabric, id, &incoming);
            self.release(fabric, id, Class::Response);
            (budget, found) = (spend(budget, incoming.arrival.len), true);
        }
        if found {
            self.note_news(fabric, id);
        }
        found
    }

    fn take_answer<F: Fabric>(&mut self, fabric: &mut F, id: u16, incoming: &Incoming) {
        let Some(peer) = fabric.peer_mut(id) else {
            return;
        };
        let body = match &incoming.arrival.body {
            Body::Response(_, _, body) => *body,
            Body::Data => match peer.progress.landing.take() {
                Some(body) => body,
                None => return,
            },
            Body::Abort => {
                peer.progress.landing = None;
                return;
            }
            Body::Notify(body) => {
                match body.qpn.get() {
                    NOTIFY_ALL => self.wake_node(fabric, id),
                    qpn => self.wake(fabric, id, qpn),
                }
                return;
            }
            _ => return self.refuse(fabric, id),
        };
        if self.is_awaited(fabric, id, incoming.home, &body) {
            self.conclude(fabric, id, incoming, &body);
        }
    }

    /// Whether this is the answer to the oldest request that is under way of a queue pair.
    fn is_awaited<F: Fabric>(&self, fabric: &F, id: u16, home: u16, body: &ResponseBody) -> bool {
        let pair = fabric
            .node(home)
            .and_then(|(node, _)| node.pairs.get(body.source_qpn.get()));
        pair.is_some_and(|pair| {
            let flight = &pair.send.flight;
            let peer = |remote: crate::state::qp::Remote| {
                (remote.node, remote.qpn) == (id, body.target_qpn.get())
            };
            matches!(pair.state, QpStateCode::Rts | QpStateCode::Sqd)
                && pair.remote.is_some_and(peer)
                && flight.count != 0
                && flight.oldest() == body.sequence.get()
        })
    }

    /// Does what an answer says to the request that it is for.
    fn conclude<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        incoming: &Incoming,
        body: &ResponseBody,
    ) {
        let (home, qpn) = (incoming.home, body.source_qpn.get());
        let reply = Reply::try_from(body.reply).unwrap_or(Reply::Complete);
        if reply != Reply::Complete {
            return self.send_again(fabric, id, home, body, reply);
        }
        let Some((node, platform)) = fabric.node_mut(home) else {
            return;
        };
        let Self {
            descriptor,
            request,
            ..
        } = self;
        let at = node.pairs.get(qpn).map_or(0, |pair| pair.send.flight.head);
        let fetched = node.refetch(platform, qpn, at, descriptor, request);
        let result = match WcStatus::try_from(body.status) {
            Ok(WcStatus::Success) => self.take_result(fabric, id, incoming, body, fetched),
            Ok(status) => Err(Refusal::new(status, Check::from_wire(body.check))),
            Err(_) => Err(Refusal::new(WcStatus::General, Check::Peer)),
        };
        if result == Ok(true) {
            if let Some(peer) = fabric.peer_mut(id) {
                peer.progress.landing = Some(*body);
            }
            return;
        }
        if result.is_ok() {
            self.borrow(fabric, id, body);
        }
        let Some((node, platform)) = fabric.node_mut(home) else {
            return;
        };
        node.finish_send(platform, &self.request, result.map(|_| ()));
        if node.landed(platform, qpn) {
            self.serve(fabric, home, qpn, None);
        }
    }

    /// Puts what was handed back into the initiator's memory. Returns whether more of it is to come.
    fn take_result<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        incoming: &Incoming,
        body: &ResponseBody,
        fetched: Result<(), Refusal>,
    ) -> Result<bool, Refusal> {
        let arrival = &incoming.arrival;
        match self.request.opcode {
            Opcode::CompareSwap | Opcode::FetchAdd => {
                fetched?;
                self.put_word(fabric, body.found.get()).map(|()| false)
            }
            Opcode::Read => {
                fetched?;
                let end = arrival.offset.saturating_add(arrival.len);
                let fits = end <= self.request.len && arrival.last == (end == self.request.len);
                if !fits {
                    return Err(Refusal::new(WcStatus::RemoteOperation, Check::Length));
                }
                self.request.local.skip(arrival.offset);
                self.landing.set(Span::direct(arrival.payload, arrival.len));
                let moved = self.move_data(fabric, incoming.home, arrival.len);
                let unreachable = Refusal::new(WcStatus::LocalProtection, Check::LocalMemory);
                if moved == Err(Fault::Source) {
                    self.unreadable(fabric, id, arrival);
                }
                moved.map_err(|_| unreachable).map(|()| !arrival.last)
            }
            // What it took from here was taken when it was sent. A descriptor that cannot be read any more has no end.
            Opcode::Nop => fetched.map(|()| false),
            _ => Ok(false),
        }
    }

    /// The oldest request of a queue pair was not carried out, so none behind it was: they are sent again, when they may be.
    fn send_again<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        home: u16,
        body: &ResponseBody,
        reply: Reply,
    ) {
        let qpn = body.source_qpn.get();
        let target = body.target_qpn.get();
        let Some((node, platform)) = fabric.node_mut(home) else {
            return;
        };
        let Some(pair) = node.pairs.get_mut(qpn) else {
            return;
        };
        pair.ground();
        if pair.state == QpStateCode::Sqd {
            node.landed(platform, qpn);
            return;
        }
        let waits = match reply {
            Reply::NoBuffer => {
                let wait = Wait::Buffers {
                    node: id,
                    qpn: target,
                    srqn: None,
                };
                let waits = node.wait_for_buffers(platform, qpn, wait, body.rnr_timer);
                waits
                    .map(|_| ())
                    .ok_or((WcStatus::RnrRetryExceeded, Check::NoBuffer))
            }
            Reply::NotReady => {
                let wait = Wait::Peer {
                    node: id,
                    qpn: target,
                    again: platform.now_us().saturating_add(RETRY_US),
                };
                let waits = node.wait_for_peer(platform, qpn, wait);
                waits
                    .then_some(())
                    .ok_or((WcStatus::RetryExceeded, Check::PeerState))
            }
            Reply::OutOfSequence | Reply::Complete => {
                node.schedule(qpn);
                Ok(())
            }
        };
        if let Err((status, check)) = waits {
            self.give_up(fabric, home, qpn, Refusal::new(status, check));
        }
    }

    /// Completes the request at the head of a send queue, none of which is under way, with an error.
    pub(super) fn give_up<F: Fabric>(
        &mut self,
        fabric: &mut F,
        home: u16,
        qpn: u32,
        refusal: Refusal,
    ) {
        let Some((node, platform)) = fabric.node_mut(home) else {
            return;
        };
        let Self {
            descriptor,
            request,
            ..
        } = self;
        let at = node.pairs.get(qpn).map_or(0, |pair| pair.send.index);
        // Of a descriptor that is not what it was, the error is still this one.
        let _ = node.refetch(platform, qpn, at, descriptor, request);
        node.unpark(qpn);
        node.finish_send(platform, &self.request, Err(refusal));
    }
}

impl<S: Storage> Node<S> {
    /// Reads the descriptor at block `at`, of a request that is under way or was, once more. Fails if it is not what it was.
    pub(crate) fn refetch(
        &self,
        platform: &impl Platform,
        qpn: u32,
        at: u32,
        descriptor: &mut Descriptor,
        request: &mut Request,
    ) -> Result<(), Refusal> {
        let missing = malformed(Check::Peer);
        let pair = self.pairs.get(qpn).ok_or(missing)?;
        request.source = Remote {
            node: self.id(),
            qpn,
            epoch: self.epoch,
            psn: pair.psn,
        };
        request.home = self.id();
        let regions = &self.regions;
        pair.compose::<S>(platform, regions, at, None, descriptor, request)?;
        request.check(true, self.limits().max_frame)
    }

    /// What is left to do once requests of a queue pair were answered or taken back. Returns whether its send queue waited
    /// for that and goes on.
    pub(crate) fn landed(&mut self, platform: &impl Platform, qpn: u32) -> bool {
        let Some(pair) = self.pairs.get(qpn) else {
            return false;
        };
        if pair.state == QpStateCode::Sqd && pair.send.flight.count == 0 {
            self.report(platform, EventType::SqDrained, 0, qpn);
            return false;
        }
        let waited = pair.send.wait == Wait::Answers;
        if waited {
            self.unpark(qpn);
        }
        waited
    }
}
