// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The data path: from a doorbell to completions on both sides.

use crate::{
    hal::Platform,
    node::Node,
    nodes::NodeTable,
    path::{
        budget::{Budget, Share},
        requester::Fetched,
    },
    state::{
        check::{Check, WcError},
        copy::{copy, scatter, CopyError, Side, Spans, Stores},
        qp::Wait,
        request::{Accepted, Outcome, Part, Request},
        slice::{Slice, SLICE},
        slots::Owner,
        wqe::Wqe,
    },
};
use nupa_pool::NodeSet;
use nupa_proto::{admin::QpStateCode, pool::Class, status::WcStatus, wqe::Opcode};

/// Scratch space of the data path, and which nodes of other hosts are up; one for each [`NodeTable`], for as long as that is used.
///
/// Each call works on a [`NodeTable`], runs to its end and never blocks. Calls may leave work behind that others must have
/// a turn before, or that waits for time to pass: [`Engine::run`] is to be called after each batch of other calls, and
/// when the time has come that it returned.
pub struct Engine {
    pub(crate) request: Request,
    pub(crate) accepted: Spans,
    pub(crate) wqe: Wqe,
    /// Bytes that were copied or written back for the current request since that was last asked.
    pub(crate) moved: u32,
    /// What is left of the turn, ...
    pub(crate) budget: Budget,
    /// ... and of what it has for entries of other hosts' in rings of short messages, and in all others.
    pub(crate) short_share: Share,
    pub(crate) long_share: Share,
    /// The queue pair being served was first of those that wait for this ring (node, class), and has been let in.
    pub(crate) admitted: Option<(u16, Class)>,
    /// What is left of the share that the queue pair being served has before others have theirs. Of one that was let in it is what it still
    /// had, and more.
    pub(crate) slice: Slice,
    /// Something was left for the next turn.
    pub(crate) more: bool,
    /// Nodes of other hosts that are up and have an open link, or are expected to do something.
    pub(crate) peers: NodeSet,
    /// Nodes of this host, and of others, that come first in the next turn: those behind the ones that used up the last one.
    pub(crate) first_node: u16,
    pub(crate) first_peer: u16,
    pub(crate) first_short_peer: u16,
    /// The peer that nothing is put anywhere for until the next turn, see [`Engine::is_held`].
    pub(crate) held: Option<u16>,
}

impl Default for Engine {
    fn default() -> Self {
        Self::new()
    }
}

impl Engine {
    /// One without work, for nodes of which no peer is up.
    pub const fn new() -> Self {
        Self {
            request: Request::new(),
            accepted: Spans::new(),
            wqe: Wqe::new(),
            moved: 0,
            budget: Budget::new(),
            short_share: Share::SHORT,
            long_share: Share::LONG,
            admitted: None,
            slice: Slice::WHOLE,
            more: false,
            peers: NodeSet::EMPTY,
            first_node: 0,
            first_peer: 0,
            first_short_peer: 0,
            held: None,
        }
    }

    /// A store to the trapped page of doorbell page pair `page`, at `slot`.
    pub fn kick<N: NodeTable>(&mut self, nodes: &mut N, node: u16, page: u32, slot: u16) {
        self.kicked(nodes, node, page, slot, None);
    }

    /// As [`Engine::kick`], with the descriptor before `index` in the push slot.
    pub fn push_kick<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        node: u16,
        page: u32,
        slot: u16,
        index: u32,
    ) {
        self.kicked(nodes, node, page, slot, Some(index));
    }

    fn kicked<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        page: u32,
        slot: u16,
        pushed: Option<u32>,
    ) {
        let Some((node, _)) = nodes.node_mut(id) else {
            return;
        };
        node.counters.kicks.add(1);
        if !node.enabled {
            return;
        }
        match node.slots.owner(page, slot) {
            Some(Owner::Send(qpn)) => {
                // If it waits for its turn, that comes; if for buffers, more requests behind change nothing.
                let wait = node.qps.get(qpn).map(|qp| qp.send.wait);
                if wait != Some(Wait::No) {
                    return;
                }
                // Queue pairs that are ready already go first.
                match node.ready.is_empty() && !self.budget.is_spent() {
                    true => self.serve(nodes, id, qpn, pushed),
                    false => node.schedule(qpn),
                }
            }
            Some(Owner::Recv(qpn)) => self.rq_posted(nodes, id, qpn),
            Some(Owner::Shared(srqn)) => self.srq_posted(nodes, id, srqn),
            Some(Owner::Consumer) | None => {}
        }
    }

    /// New receive entries were posted: those that wait for them go on.
    fn rq_posted<N: NodeTable>(&mut self, nodes: &mut N, id: u16, qpn: u32) {
        let Some((node, platform)) = nodes.node_mut(id) else {
            return;
        };
        let Some(qp) = node.qps.get_mut(qpn) else {
            return;
        };
        qp.recv.stall.end(platform);
        if qp.state == QpStateCode::Err {
            return node.schedule(qpn);
        }
        let queue = qp.recv.queue.as_mut();
        if queue.is_some_and(|queue| core::mem::take(&mut queue.wanted)) {
            self.wake(nodes, id, qpn);
        }
    }

    /// Serves a send queue until it is empty, has to wait, has had its share, or the turn is over.
    pub(crate) fn serve<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        qpn: u32,
        pushed: Option<u32>,
    ) {
        if self.admitted.is_none() {
            self.slice = Slice::WHOLE;
        }
        while !self.slice.is_spent() && !self.budget.is_spent() {
            let Some((node, platform)) = nodes.node_mut(id) else {
                return;
            };
            let Self { request, wqe, .. } = self;
            let outcome = match node.fetch(platform, qpn, pushed, wqe, request) {
                Fetched::Request => self.execute(nodes),
                Fetched::Failed(error) => Outcome::Failed(error),
                Fetched::Later => Outcome::Later,
                Fetched::Nothing if !node.publish(platform, qpn) => return,
                Fetched::Nothing => {
                    // An owner that keeps moving the index may cause this without any work, so it is charged.
                    self.budget.spend(platform, 0);
                    self.slice.spend(1, 0);
                    continue;
                }
                Fetched::Idle => return,
                Fetched::Doorbell => return node.fail_doorbell(platform, qpn),
                Fetched::Flush => return self.flush(nodes, id, qpn),
            };
            let goes_on = self.settle(nodes, outcome);
            let moved = self.charge(nodes, id);
            self.slice.spend(u32::from(goes_on), moved);
            if !goes_on {
                return;
            }
            if self.slice.is_spent() && self.is_alone(nodes, id) {
                self.slice = Slice::WHOLE;
            }
        }
        // What used its share up is often the only thing in the queue.
        if let Some((node, platform)) = nodes.node_mut(id) {
            if !node.is_drained(platform, qpn) || node.publish(platform, qpn) {
                node.schedule(qpn);
            }
        }
    }

    /// Takes the current request off the turn. Returns the bytes that were moved for it.
    #[inline(always)]
    pub(crate) fn charge<N: NodeTable>(&mut self, nodes: &N, id: u16) -> u32 {
        let moved = core::mem::take(&mut self.moved);
        if let Some((_, platform)) = nodes.node(id) {
            self.budget.spend(platform, moved);
        }
        moved
    }

    /// Whether no other queue pair of the node waits for its turn, or for the room that this one was let in for.
    pub(crate) fn is_alone<N: NodeTable>(&self, nodes: &N, id: u16) -> bool {
        let alone = |node: &Node<N::Storage>| node.ready.is_empty();
        self.admitted.is_none() && nodes.node(id).is_some_and(|(node, _)| alone(node))
    }

    /// Completes the current request, or lets it wait. Returns whether its send queue can be served further now.
    #[inline(always)]
    fn settle<N: NodeTable>(&mut self, nodes: &mut N, outcome: Outcome) -> bool {
        let result = match outcome {
            Outcome::Done => Ok(()),
            Outcome::Failed(error) => Err(error),
            Outcome::Rnr { node, qpn } => {
                if self.rnr_wait(nodes, node, qpn) {
                    return false;
                }
                Err(WcError::new(WcStatus::RnrRetryExceeded, Check::NoBuffer))
            }
            Outcome::NotReady { node, qpn } => {
                if self.peer_wait(nodes, node, qpn) {
                    return false;
                }
                Err(WcError::new(WcStatus::RetryExceeded, Check::PeerState))
            }
            Outcome::RingFull { node, class, need } => {
                if self.ring_wait(nodes, node, class, need) {
                    return false;
                }
                match self.request.datagram {
                    // It is lost on the way.
                    true => Ok(()),
                    false => Err(WcError::new(WcStatus::RnrRetryExceeded, Check::NoBuffer)),
                }
            }
            Outcome::Sent => return self.sent_off(nodes),
            Outcome::Later => {
                self.waits_for_responses(nodes);
                return false;
            }
            Outcome::Turn => {
                let source = self.request.source;
                if let Some((node, _)) = nodes.node_mut(source.node) {
                    node.schedule(source.qpn);
                }
                return false;
            }
        };
        let request = &self.request;
        let Some((node, platform)) = nodes.node_mut(request.source.node) else {
            return false;
        };
        node.finish_send(platform, request, result)
    }

    /// Carries the current request out.
    #[inline]
    fn execute<N: NodeTable>(&mut self, nodes: &mut N) -> Outcome {
        match self.request.opcode {
            Opcode::Write | Opcode::WriteImm | Opcode::Read => self.execute_message(nodes),
            Opcode::Nop => Outcome::Done,
            Opcode::Frame => self.execute_frame(nodes),
            Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite | Opcode::Flush => {
                self.execute_atomic(nodes)
            }
            Opcode::FastReg | Opcode::LocalInv | Opcode::BindMw => self.execute_local(nodes),
            _ if self.request.datagram => self.execute_datagram(nodes),
            _ => self.execute_message(nodes),
        }
    }

    #[inline(always)]
    fn execute_message<N: NodeTable>(&mut self, nodes: &mut N) -> Outcome {
        let destination = self.request.destination.node;
        let Some((node, platform)) = nodes.node_mut(destination) else {
            return self.send_request(nodes, destination);
        };
        if self.request.len > SLICE {
            return self.execute_slice(nodes, destination);
        }
        match node.accept(platform, &self.request, Part::WHOLE, &mut self.accepted) {
            Ok(accepted) => self.deliver(nodes, destination, &accepted),
            Err(nak) => nak.outcome(destination),
        }
    }

    /// Carries the next slice of the current request out, which is long. All checks are made again, since others had a turn meanwhile and
    /// may have changed what is checked.
    #[inline(never)]
    fn execute_slice<N: NodeTable>(&mut self, nodes: &mut N, destination: u16) -> Outcome {
        let source = self.request.source;
        let (total, done) = match nodes.node(source.node) {
            Some((node, _)) => {
                let done = node.qps.get(source.qpn).map_or(0, |qp| qp.send.done);
                (self.request.len, done.min(self.request.len))
            }
            None => return Outcome::Later,
        };
        let len = total.saturating_sub(done).min(SLICE);
        let last = done.saturating_add(len) == total;
        let part = Part { offset: done, last };
        let outcome = self.deliver_slice(nodes, destination, part, len);
        // A request that waits goes on where it was, but for one that waits for its peer to receive: that may be another connection then.
        let done = match outcome {
            Outcome::Turn => done.saturating_add(len),
            Outcome::Done | Outcome::Failed(_) | Outcome::NotReady { .. } => 0,
            _ => done,
        };
        self.set_done(nodes, done);
        outcome
    }

    /// Stores the progress of the current request, see [`SendSide::done`](crate::state::qp::SendSide).
    pub(crate) fn set_done<N: NodeTable>(&self, nodes: &mut N, done: u32) {
        let source = self.request.source;
        let there = nodes.node_mut(source.node);
        if let Some(qp) = there.and_then(|(node, _)| node.qps.get_mut(source.qpn)) {
            qp.send.done = done;
        }
    }

    fn deliver_slice<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        destination: u16,
        part: Part,
        len: u32,
    ) -> Outcome {
        let gone = Outcome::Failed(WcError::new(WcStatus::RetryExceeded, Check::Node));
        let Some((node, platform)) = nodes.node_mut(destination) else {
            return gone;
        };
        let accepted = match node.accept(platform, &self.request, part, &mut self.accepted) {
            Ok(accepted) => accepted,
            Err(nak) => return nak.outcome(destination),
        };
        self.request.local.skip(part.offset);
        self.accepted.skip(part.offset);
        let moved = self.move_data(nodes, destination, len);
        let Some((node, platform)) = nodes.node_mut(destination) else {
            return gone;
        };
        match moved {
            Err(fault) => {
                let error = node.transfer_failed(platform, &self.request, &accepted, fault);
                Outcome::Failed(error)
            }
            Ok(()) if part.last => {
                node.arrived(platform, &self.request, &accepted);
                Outcome::Done
            }
            Ok(()) => {
                if accepted.received.is_some() {
                    node.keep_entry(platform, accepted.qpn);
                }
                Outcome::Turn
            }
        }
    }

    /// The requester's side of the current request.
    #[inline(always)]
    pub(crate) fn sender<'a, N: NodeTable>(
        &'a self,
        nodes: &'a N,
    ) -> Option<Side<'a, N::Storage, <N::Platform as Platform>::Memory>> {
        let (node, platform) = nodes.node(self.request.home)?;
        let (mrs, spans) = (&node.mrs, &self.request.local);
        let memory = platform.memory();
        Some(Side { mrs, memory, spans })
    }

    /// Moves the data of an accepted request and reports it at the responder.
    #[inline(always)]
    pub(crate) fn deliver<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        destination: u16,
        accepted: &Accepted,
    ) -> Outcome {
        let moved = self.move_data(nodes, destination, self.request.len);
        let Some((node, platform)) = nodes.node_mut(destination) else {
            return Outcome::Failed(WcError::new(WcStatus::RetryExceeded, Check::Node));
        };
        match moved {
            Ok(()) => {
                node.arrived(platform, &self.request, accepted);
                Outcome::Done
            }
            Err(fault) => {
                let error = node.transfer_failed(platform, &self.request, accepted, fault);
                Outcome::Failed(error)
            }
        }
    }

    /// The responder's side of the current request.
    #[inline(always)]
    pub(crate) fn receiver<'a, N: NodeTable>(
        &'a self,
        nodes: &'a N,
        destination: u16,
    ) -> Option<Side<'a, N::Storage, <N::Platform as Platform>::Memory>> {
        let (node, platform) = nodes.node(destination)?;
        let (mrs, spans) = (&node.mrs, &self.accepted);
        let memory = platform.memory();
        Some(Side { mrs, memory, spans })
    }

    /// Inline data of the current request.
    #[inline]
    pub(crate) fn inline_data(&self) -> &[u8] {
        let Request {
            data_offset, len, ..
        } = self.request;
        self.wqe.inline(data_offset, len)
    }

    /// Copies the data: the only copy between source and destination.
    #[inline(always)]
    pub(crate) fn move_data<N: NodeTable>(
        &mut self,
        nodes: &N,
        destination: u16,
        len: u32,
    ) -> Result<(), CopyError> {
        self.moved = self.moved.saturating_add(len);
        let here = self.sender(nodes).ok_or(CopyError::Source)?;
        let there = self
            .receiver(nodes, destination)
            .ok_or(CopyError::Destination)?;
        match self.request.opcode {
            Opcode::Read => copy(&there, &here, len, Stores::Ordinary),
            _ if self.request.inline => scatter(self.inline_data(), &there),
            _ => copy(&here, &there, len, Stores::Ordinary),
        }
    }
}
