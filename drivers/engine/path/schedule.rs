// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Waiting work: send queues whose turn comes later, receive buffers and time that are waited for, polled doorbells.

use crate::{
    hal::{Clock, Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{grant::Writers, list::List, qp::Wait},
};
use nupa_proto::{admin::QpStateCode, regs::FAULT_NONE};

impl Engine {
    /// Does the work that is due: turns of send queues, waits and moderated events whose time is over.
    ///
    /// Returns when to call it again at the latest, in the clock's microseconds; a time that is over means at once,
    /// but after other calls that are pending.
    pub fn run<N: NodeTable>(&mut self, nodes: &mut N) -> Option<u64> {
        for id in 0..nodes.max_nodes() {
            let there = nodes.node(id);
            if there.is_some_and(|(node, _)| node.grants_stale) {
                self.revoke_grants(nodes, id, Writers::Ignore);
            }
        }
        self.take_turns(nodes);
        let mut next = None;
        for id in 0..nodes.max_nodes() {
            if let Some((node, platform)) = nodes.node_mut(id) {
                if node.fault != FAULT_NONE && node.enabled {
                    let fault = node.fault;
                    self.fail(nodes, id, fault);
                    // Queue pairs of others are to be flushed.
                    next = Some(0);
                    continue;
                }
                if node.is_idle() {
                    continue;
                }
                node.raise_due_events(platform);
                node.raise_deferred_events(platform);
                next = [next, node.deadline()].into_iter().flatten().min();
            } else if let Some(peer) = nodes.peer_mut(id) {
                let frame = peer.transit.frame_deadline;
                let silent = self.check_timeout(nodes, id);
                next = [next, frame, silent].into_iter().flatten().min();
            }
        }
        next
    }

    /// Serves, once each, all send queues whose turn it is or whose wait is over.
    pub(crate) fn take_turns<N: NodeTable>(&mut self, nodes: &mut N) {
        for id in 0..nodes.max_nodes() {
            let Some((node, platform)) = nodes.node_mut(id) else {
                continue;
            };
            let Some(mut qpn) = node.waiting.first() else {
                continue;
            };
            let (last, now) = (node.waiting.last(), platform.now_us());
            while let Some((node, _)) = nodes.node_mut(id) {
                let next = List::next(&node.qps, qpn);
                if node.qps.get(qpn).is_some_and(|qp| qp.is_due(now)) {
                    node.unpark(qpn);
                    self.serve(nodes, id, qpn, None);
                }
                // What is served may line up again, behind the one that was last.
                match next {
                    Some(next) if Some(qpn) != last => qpn = next,
                    _ => break,
                }
            }
        }
    }

    /// Gives a turn to everyone who waits for receive buffers or the state of this queue pair.
    pub(crate) fn wake<N: NodeTable>(&mut self, nodes: &mut N, id: u16, number: u32) {
        wake_if(nodes, |wait| match wait {
            Wait::Rnr { node, qpn, .. } | Wait::Peer { node, qpn, .. } => {
                (node, qpn) == (id, number)
            }
            Wait::No | Wait::Turn | Wait::RingSpace { .. } | Wait::Responses => false,
        });
        self.notify(nodes, id, number);
    }

    /// Gives a turn to everyone who waits for entries of this shared receive queue.
    pub(crate) fn wake_srq<N: NodeTable>(&mut self, nodes: &mut N, id: u16, number: u32) {
        wake_if(
            nodes,
            |wait| matches!(wait, Wait::Rnr { node, srqn, .. } if (node, srqn) == (id, Some(number))),
        );
        self.notify_srq(nodes, id, number);
    }

    /// Gives a turn to everyone who waits for something at this node.
    pub(crate) fn wake_node<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        wake_if(nodes, |wait| match wait {
            Wait::Rnr { node, .. } | Wait::Peer { node, .. } | Wait::RingSpace { node, .. } => {
                node == id
            }
            Wait::No | Wait::Turn | Wait::Responses => false,
        });
    }

    /// Gives a turn to everyone who waits for room in a ring to this node of another host.
    pub(crate) fn wake_ring<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        wake_if(
            nodes,
            |wait| matches!(wait, Wait::RingSpace { node, .. } if node == id),
        );
    }

    /// Looks at the doorbells of all send queues of a node and serves those that were rung. True if a queue moved on: one
    /// whose doorbell makes no sense is no reason to stay awake.
    ///
    /// For a host with a processor to spare: between [`Engine::set_polled`] on and off it calls this all the time.
    pub fn poll<N: NodeTable>(&mut self, nodes: &mut N, id: u16) -> bool {
        let Some((node, _)) = nodes.node_mut(id) else {
            return false;
        };
        let end = node.qps.end();
        let mut found = false;
        for qpn in 0..end {
            let Some((node, platform)) = nodes.node_mut(id) else {
                break;
            };
            let Some(qp) = node.qps.get_mut(qpn) else {
                continue;
            };
            let active = matches!(
                qp.state,
                QpStateCode::Rts | QpStateCode::Err | QpStateCode::Sqe
            );
            if active && qp.send.wait == Wait::No && qp.has_work(platform) != Some(false) {
                let before = qp.send.index;
                self.serve(nodes, id, qpn, None);
                let qp = nodes.node_mut(id).and_then(|(node, _)| node.qps.get(qpn));
                found |= qp.is_some_and(|qp| qp.send.index != before || qp.send.wait != Wait::No);
            }
        }
        found
    }

    /// Says whether the host polls a node's doorbells. Turned off, kicks are wanted again; true if a doorbell was rung
    /// just before, so that polling must go on for another round.
    pub fn set_polled<N: NodeTable>(&mut self, nodes: &mut N, id: u16, polled: bool) -> bool {
        let Some((node, platform)) = nodes.node_mut(id) else {
            return false;
        };
        node.polled = polled;
        let mut rung = false;
        for qpn in 0..node.qps.end() {
            if let Some(qp) = node.qps.get(qpn).filter(|qp| qp.send.ring.is_some()) {
                rung |= qp.publish(platform, polled);
            }
        }
        rung
    }
}

/// Gives a turn to everyone whose wait is of this kind.
fn wake_if<N: NodeTable>(nodes: &mut N, matches: impl Fn(Wait) -> bool) {
    for id in 0..nodes.max_nodes() {
        let Some((node, _)) = nodes.node_mut(id) else {
            continue;
        };
        let mut next = node.waiting.first();
        while let Some(qpn) = next {
            next = List::next(&node.qps, qpn);
            if let Some(qp) = node.qps.get_mut(qpn).filter(|qp| matches(qp.send.wait)) {
                qp.send.wait = Wait::Turn;
            }
        }
    }
}

impl<S: Storage> Node<S> {
    /// Gives a queue pair's send queue a turn soon.
    pub(crate) fn schedule(&mut self, qpn: u32) {
        self.park(qpn, Wait::Turn);
    }

    /// Makes a queue pair's send queue wait.
    pub(crate) fn park(&mut self, qpn: u32, wait: Wait) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.send.wait = wait;
            self.waiting.push(&mut self.qps, qpn);
        }
    }

    /// Ends a queue pair's wait.
    #[inline(always)]
    pub(crate) fn unpark(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            if qp.send.wait != Wait::No {
                qp.send.wait = Wait::No;
                self.waiting.remove(&mut self.qps, qpn);
            }
        }
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.waiting.first().is_none()
            && self.moderated.first().is_none()
            && self.retry_at.is_none()
    }

    /// Raises the events of completion queues that were held back for long enough.
    fn raise_due_events(&mut self, platform: &impl Platform) {
        let Some(mut cqn) = self.moderated.first() else {
            return;
        };
        let now = platform.now_us();
        loop {
            let next = List::next(&self.cqs, cqn);
            let deadline = self
                .cqs
                .get(cqn)
                .and_then(|queue| queue.moderation.deadline);
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.fire(platform, cqn);
            }
            match next {
                Some(next) => cqn = next,
                None => break,
            }
        }
    }

    /// When the next wait of this node is over.
    fn deadline(&self) -> Option<u64> {
        let mut earliest = self.retry_at;
        let mut note = |at: u64| earliest = Some(earliest.map_or(at, |earliest| earliest.min(at)));
        let mut next = self.waiting.first();
        while let Some(qpn) = next {
            next = List::next(&self.qps, qpn);
            if let Some(qp) = self.qps.get(qpn) {
                note(qp.send.deadline());
            }
        }
        let mut next = self.moderated.first();
        while let Some(cqn) = next {
            next = List::next(&self.cqs, cqn);
            if let Some(at) = self.cqs.get(cqn).and_then(|cq| cq.moderation.deadline) {
                note(at);
            }
        }
        earliest.filter(|at| *at != u64::MAX)
    }
}
