// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The data path: from a doorbell to completions on both sides.

use crate::{
    hal::Platform,
    nodes::Fabric,
    path::requester::Fetched,
    state::{
        check::{Check, Refusal},
        copy::{peek, scatter, transfer, Fault, Side, Spans},
        qp::Wait,
        request::{Landing, Outcome, Patience, Request},
        slots::Owner,
        wqe::Descriptor,
    },
};
use nupa_proto::{admin::QpStateCode, ident::NODE_FLOOD, status::WcStatus, wqe::Opcode};

/// What is done at one go for a send queue, or of what is in a peer's ring: one per request or entry, and one per 4 KiB moved or
/// written back. Then others have their turn.
pub(crate) const BUDGET: u32 = 1024;

/// What is left of a budget after a request or an entry with so many bytes.
pub(crate) const fn spend(budget: u32, len: u32) -> u32 {
    budget.saturating_sub((len >> 12).saturating_add(1))
}

/// Scratch space of the data path; one per thread that runs it.
///
/// Each call works on a [`Fabric`], runs to its end and never blocks. Calls may leave work behind that others must have
/// a turn before, or that waits for time to pass: [`Engine::run`] is to be called after each batch of other calls, and
/// when the time has come that it returned.
pub struct Engine {
    pub(crate) request: Request,
    pub(crate) landing: Spans,
    pub(crate) descriptor: Descriptor,
}

impl Default for Engine {
    fn default() -> Self {
        Self::new()
    }
}

impl Engine {
    /// Scratch space without work.
    pub const fn new() -> Self {
        Self {
            request: Request::new(),
            landing: Spans::new(),
            descriptor: Descriptor::new(),
        }
    }

    /// A store to the trapped page of doorbell page pair `page`, at `slot`.
    pub fn kick<F: Fabric>(&mut self, fabric: &mut F, node: u16, page: u32, slot: u16) {
        self.kicked(fabric, node, page, slot, None);
    }

    /// As [`Engine::kick`], with the descriptor before `index` in the push slot.
    pub fn push_kick<F: Fabric>(
        &mut self,
        fabric: &mut F,
        node: u16,
        page: u32,
        slot: u16,
        index: u32,
    ) {
        self.kicked(fabric, node, page, slot, Some(index));
    }

    fn kicked<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        page: u32,
        slot: u16,
        pushed: Option<u32>,
    ) {
        let Some((node, _)) = fabric.node_mut(id) else {
            return;
        };
        node.counters.kicks.add(1);
        if !node.enabled {
            return;
        }
        match node.slots.owner(page, slot) {
            Some(Owner::Send(qpn)) => {
                // If it waits for its turn, that comes; if for buffers, more requests behind change nothing.
                let wait = node.pairs.get(qpn).map(|pair| pair.send.wait);
                if wait == Some(Wait::No) {
                    self.serve(fabric, id, qpn, pushed);
                }
            }
            Some(Owner::Recv(qpn)) => self.replenished(fabric, id, qpn),
            Some(Owner::Shared(srqn)) => self.replenished_shared(fabric, id, srqn),
            Some(Owner::Consumer) | None => {}
        }
    }

    /// New receive entries were posted: whoever waits for them goes on.
    fn replenished<F: Fabric>(&mut self, fabric: &mut F, id: u16, qpn: u32) {
        let Some((node, platform)) = fabric.node_mut(id) else {
            return;
        };
        let Some(pair) = node.pairs.get_mut(qpn) else {
            return;
        };
        pair.recv.stalled = false;
        if pair.state == QpStateCode::Err {
            node.flush(platform, qpn, &mut self.descriptor);
            return;
        }
        let queue = pair.recv.queue.as_mut();
        if queue.is_some_and(|queue| core::mem::take(&mut queue.wanted)) {
            self.wake(fabric, id, qpn);
            self.take_turns(fabric);
        }
    }

    /// Serves a send queue until it is empty, has to wait, or has used up its budget.
    pub(crate) fn serve<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        qpn: u32,
        pushed: Option<u32>,
    ) {
        let mut budget = BUDGET;
        while budget > 0 {
            let Some((node, platform)) = fabric.node_mut(id) else {
                return;
            };
            let Self {
                request,
                descriptor,
                ..
            } = self;
            let fetched = node.fetch(platform, qpn, pushed, descriptor, request);
            let outcome = match fetched {
                Fetched::Request => self.execute(fabric),
                Fetched::Refused(refusal) => Outcome::Refused(refusal),
                Fetched::Idle => return,
                Fetched::Later => Outcome::Later,
                Fetched::Flush => {
                    node.flush(platform, qpn, &mut self.descriptor);
                    return self.wake(fabric, id, qpn);
                }
                Fetched::Doorbell => {
                    node.counters.bad_descriptors.add(1);
                    return node.fail(platform, qpn);
                }
                Fetched::Nothing => {
                    let polled = node.polled;
                    let pair = node.pairs.get(qpn);
                    if pair.is_some_and(|pair| pair.publish(platform, polled)) {
                        budget = budget.saturating_sub(1);
                        continue;
                    }
                    return;
                }
            };
            let written_back = core::mem::take(&mut self.request.written_back);
            if !self.settle(fabric, outcome) {
                return;
            }
            budget = spend(budget, self.request.len.saturating_add(written_back));
        }
        if let Some((node, _)) = fabric.node_mut(id) {
            node.schedule(qpn);
        }
    }

    /// Completes the request at hand, or lets it wait. Returns whether its send queue can be served further now.
    #[inline(always)]
    fn settle<F: Fabric>(&mut self, fabric: &mut F, outcome: Outcome) -> bool {
        let result = match outcome {
            Outcome::Done => Ok(()),
            Outcome::Refused(refusal) => Err(refusal),
            Outcome::NoBuffer { node, qpn } => {
                if self.waits_for_buffers(fabric, node, qpn) {
                    return false;
                }
                Err(Refusal::new(WcStatus::RnrRetryExceeded, Check::NoBuffer))
            }
            Outcome::NotReady { node, qpn } => {
                let again = u64::MAX;
                if self.waits_for_peer(fabric, Wait::Peer { node, qpn, again }) {
                    return false;
                }
                Err(Refusal::new(WcStatus::RetryExceeded, Check::PeerState))
            }
            Outcome::Full { node } => {
                if self.waits_for_room(fabric, node) {
                    return false;
                }
                match self.request.datagram {
                    // It is lost on the way.
                    true => Ok(()),
                    false => Err(Refusal::new(WcStatus::RnrRetryExceeded, Check::NoBuffer)),
                }
            }
            Outcome::Sent => return self.sent_off(fabric),
            Outcome::Later => {
                self.comes_later(fabric);
                return false;
            }
            Outcome::Turn => {
                let source = self.request.source;
                if let Some((node, _)) = fabric.node_mut(source.node) {
                    node.schedule(source.qpn);
                }
                return false;
            }
        };
        let request = &self.request;
        let Some((node, platform)) = fabric.node_mut(request.source.node) else {
            return false;
        };
        node.finish_send(platform, request, result)
    }

    /// Carries the request at hand out.
    #[inline]
    fn execute<F: Fabric>(&mut self, fabric: &mut F) -> Outcome {
        match self.request.opcode {
            Opcode::Write | Opcode::WriteImm | Opcode::Read => self.execute_message(fabric),
            Opcode::Nop => Outcome::Done,
            Opcode::Frame => self.execute_frame(fabric),
            Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite | Opcode::Flush => {
                self.execute_atomic(fabric)
            }
            Opcode::FastReg | Opcode::LocalInv | Opcode::BindMw => self.execute_local(fabric),
            _ if self.request.datagram => self.execute_datagram(fabric),
            _ => self.execute_message(fabric),
        }
    }

    #[inline(always)]
    fn execute_message<F: Fabric>(&mut self, fabric: &mut F) -> Outcome {
        let target = self.request.target.node;
        let Some((node, platform)) = fabric.node_mut(target) else {
            return self.send_request(fabric, target);
        };
        match node.accept(platform, &self.request, &mut self.landing) {
            Ok(landing) => self.land(fabric, target, &landing),
            Err(declined) => declined.outcome(target),
        }
    }

    #[inline]
    fn execute_frame<F: Fabric>(&mut self, fabric: &mut F) -> Outcome {
        let address = match self.frame_address(fabric) {
            Ok(address) => address,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        match self.request.target.node {
            NODE_FLOOD => self.flood(fabric, &address),
            node => self.deliver(fabric, node, &address, Patience::Wait),
        }
    }

    /// Destination address of the frame at hand.
    #[inline]
    fn frame_address<F: Fabric>(&self, fabric: &F) -> Result<[u8; 6], Refusal> {
        let down = Refusal::new(WcStatus::RetryExceeded, Check::Node);
        let side = self.sender(fabric).ok_or(down)?;
        let mut address = [0; 6];
        if self.request.inline {
            let inline = self.inline_data();
            address = inline.first_chunk().copied().unwrap_or_default();
        } else {
            let fault = Refusal::new(WcStatus::LocalProtection, Check::LocalMemory);
            peek(&side, &mut address).map_err(|_| fault)?;
        }
        Ok(address)
    }

    /// Offers a frame to every node but the sender. A node that cannot take it now misses it.
    fn flood<F: Fabric>(&mut self, fabric: &mut F, address: &[u8; 6]) -> Outcome {
        for node in 0..fabric.max_nodes() {
            if node == self.request.source.node {
                continue;
            }
            let outcome = self.deliver(fabric, node, address, Patience::None);
            match outcome {
                Outcome::NoBuffer { .. } => {
                    if let Some((node, _)) = fabric.node_mut(node) {
                        node.counters.rx_no_buffer.add(1);
                    }
                }
                Outcome::Refused(refusal) if refusal.status == WcStatus::LocalProtection => {
                    return outcome;
                }
                _ => {}
            }
        }
        Outcome::Done
    }

    /// Delivers a frame to one node.
    #[inline]
    fn deliver<F: Fabric>(
        &mut self,
        fabric: &mut F,
        target: u16,
        address: &[u8; 6],
        patience: Patience,
    ) -> Outcome {
        let Some((node, platform)) = fabric.node_mut(target) else {
            return self.send_frame(fabric, target, patience);
        };
        let Self {
            request, landing, ..
        } = self;
        match node.accept_frame(platform, request, address, patience, landing) {
            Ok(landing) => self.land(fabric, target, &landing),
            Err(declined) => declined.outcome(target),
        }
    }

    /// The initiator's side of the request at hand.
    #[inline(always)]
    pub(crate) fn sender<'a, F: Fabric>(
        &'a self,
        fabric: &'a F,
    ) -> Option<Side<'a, F::Storage, <F::Platform as Platform>::Memory>> {
        let (node, platform) = fabric.node(self.request.home)?;
        let (regions, spans) = (&node.regions, &self.request.local);
        let memory = platform.memory();
        Some(Side {
            regions,
            memory,
            spans,
        })
    }

    /// Moves the data of an accepted request and reports it at the target.
    #[inline(always)]
    pub(crate) fn land<F: Fabric>(
        &mut self,
        fabric: &mut F,
        target: u16,
        landing: &Landing,
    ) -> Outcome {
        let moved = self.move_data(fabric, target, self.request.len);
        let Some((node, platform)) = fabric.node_mut(target) else {
            return Outcome::Refused(Refusal::new(WcStatus::RetryExceeded, Check::Node));
        };
        match moved {
            Ok(()) => {
                node.arrived(platform, &self.request, landing);
                Outcome::Done
            }
            Err(fault) => {
                let refusal = node.transfer_failed(platform, &self.request, landing, fault);
                Outcome::Refused(refusal)
            }
        }
    }

    /// The target's side of the request at hand.
    #[inline(always)]
    pub(crate) fn receiver<'a, F: Fabric>(
        &'a self,
        fabric: &'a F,
        target: u16,
    ) -> Option<Side<'a, F::Storage, <F::Platform as Platform>::Memory>> {
        let (node, platform) = fabric.node(target)?;
        let (regions, spans) = (&node.regions, &self.landing);
        let memory = platform.memory();
        Some(Side {
            regions,
            memory,
            spans,
        })
    }

    /// Inline data of the request at hand.
    #[inline]
    pub(crate) fn inline_data(&self) -> &[u8] {
        let Request {
            data_offset, len, ..
        } = self.request;
        self.descriptor.inline(data_offset, len)
    }

    /// The one copy.
    #[inline(always)]
    pub(crate) fn move_data<F: Fabric>(
        &self,
        fabric: &F,
        target: u16,
        len: u32,
    ) -> Result<(), Fault> {
        let here = self.sender(fabric).ok_or(Fault::Source)?;
        let there = self.receiver(fabric, target).ok_or(Fault::Target)?;
        match self.request.opcode {
            Opcode::Read => transfer(&there, &here, len),
            _ if self.request.inline => scatter(self.inline_data(), &there),
            _ => transfer(&here, &there, len),
        }
    }
}
