// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scheduling: turns of send queues, their end, and who gets one when what it waited for has come.

use crate::{
    hal::{Clock, Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::{
        budget::{Budget, Share},
        engine::Engine,
    },
    state::{grant::Writers, peer::InTransit, qp::Wait},
};
use core::ops::Range;
use nupa_pool::NodeCursor;
use nupa_proto::{admin::QpType, pool::Class, regs::FAULT_NONE};

/// Timers of a kind that expire in one turn; others do in the next one.
const EXPIRIES: u32 = 256;

impl Engine {
    /// Does the work that is due: turns of send queues, waits and moderated events whose time is over.
    ///
    /// Returns when to call it again at the latest, in the clock's microseconds; a time that is over means at once,
    /// but after other calls that are pending.
    pub fn run<N: NodeTable>(&mut self, nodes: &mut N) -> Option<u64> {
        self.run_at(nodes, None)
    }

    /// As [`Engine::run`], for who has looked at the clock in this turn, `now_us`.
    pub fn run_at<N: NodeTable>(&mut self, nodes: &mut N, now_us: Option<u64>) -> Option<u64> {
        if let Some(until) = self.quiet_until(nodes, now_us) {
            return self.end_turn().or(until);
        }
        for id in nodes.homes() {
            let there = nodes.node(id);
            if there.is_some_and(|(node, _)| node.sweep_left != 0) {
                self.sweep(nodes, id);
            }
            let there = nodes.node(id);
            if there.is_some_and(|(node, _)| !node.srq_timers.is_empty()) {
                self.wake_due_srqs(nodes, id);
            }
            let there = nodes.node(id);
            if there.is_some_and(|(node, _)| node.grants_stale) {
                self.revoke_grants(nodes, id, Writers::Ignore);
            }
            let there = nodes.node(id);
            if there.is_some_and(|(node, _)| node.rings.due().is_some()) {
                self.poll_process_rings(nodes, id);
            }
            let there = nodes.node(id);
            if there.is_some_and(|(node, _)| node.rings.held_at().is_some()) {
                self.wake_held_rings(nodes, id);
            }
        }
        self.take_turns(nodes);
        let mut next = self.end_turn();
        for id in nodes.homes() {
            let Some((node, platform)) = nodes.node_mut(id) else {
                continue;
            };
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
            next = earlier(next, node.deadline());
        }
        let mut peers = NodeCursor::new(0);
        while let Some(id) = peers.next(&self.peers) {
            let frame = nodes
                .peer_mut(id)
                .and_then(|peer| peer.transit.frame_deadline);
            let silent = self.check_timeout(nodes, id);
            next = earlier(next, earlier(frame, silent));
            if !self.has_to_do_with(nodes, id) {
                self.peers.remove(id);
            }
        }
        next
    }

    /// If nodes and peers have no work now: when they will have some. Most turns end with the call that began them.
    #[inline(always)]
    fn quiet_until<N: NodeTable>(&self, nodes: &mut N, now_us: Option<u64>) -> Option<Option<u64>> {
        let (mut until, mut look, mut home) = (None, None, None);
        for id in nodes.homes() {
            if let Some((node, _)) = nodes.node(id) {
                home = Some(id);
                until = earlier(until, node.quiet_until()?);
                look = earlier(look, node.rings.due());
            }
        }
        for id in self.peers.iter() {
            if let Some(peer) = nodes.peer_mut(id) {
                until = earlier(until, peer.transit.quiet_until()?);
            }
        }
        let Some(due) = earlier(until, look) else {
            return Some(None);
        };
        // Looking costs more than all else here, and one look does for all.
        let clock = home.and_then(|id| nodes.node(id));
        let now = now_us.or_else(|| clock.map(|(_, platform)| platform.now_us()));
        now.is_none_or(|now| due > now).then_some(until)
    }

    /// Refills the budget for the next turn. Returns `Some(0)` if this one left work behind.
    #[inline(always)]
    fn end_turn(&mut self) -> Option<u64> {
        self.begin_turn();
        core::mem::take(&mut self.more).then_some(0)
    }

    /// Refills the budget.
    #[inline(always)]
    pub(crate) fn begin_turn(&mut self) {
        self.budget = Budget::new();
        (self.short_share, self.long_share) = (Share::SHORT, Share::LONG);
    }

    /// Serves send queues that are ready or whose wait is over, one slice each and again, until none is ready or the turn is over.
    fn take_turns<N: NodeTable>(&mut self, nodes: &mut N) {
        // Whatever has come from other hosts.
        self.budget.allow_one();
        while self.take_round(nodes) && !self.budget.is_spent() {}
    }

    /// One slice for each. Returns whether any was ready.
    fn take_round<N: NodeTable>(&mut self, nodes: &mut N) -> bool {
        let mut found = false;
        for id in around(self.first_node, nodes.homes()) {
            let Some((node, platform)) = nodes.node_mut(id) else {
                continue;
            };
            node.end_waits(platform);
            // What is served may be ready again, behind these.
            for _ in 0..node.ready.len() {
                if self.budget.is_spent() {
                    return true;
                }
                // If this one uses the turn up, the next one begins behind it.
                self.first_node = id.wrapping_add(1);
                let Some((node, _)) = nodes.node_mut(id) else {
                    break;
                };
                let Some(qpn) = node.ready.pop(&mut node.qps) else {
                    break;
                };
                node.unpark(qpn);
                self.serve(nodes, id, qpn, None);
                found = true;
            }
        }
        found
    }

    /// Gives a turn to the queue pair that waits for receive buffers or the state of this queue pair.
    pub(crate) fn wake<N: NodeTable>(&mut self, nodes: &mut N, id: u16, qpn: u32) {
        let Some((node, _)) = nodes.node_mut(id) else {
            return;
        };
        let Some(qp) = node.qps.get_mut(qpn) else {
            return;
        };
        if qp.kind == QpType::Raw {
            // One that waits in a peer's ring goes on when the host takes what peers sent.
            self.more |= self.holds_frames(nodes);
            return self.wake_frames(nodes, id, Some(qpn));
        }
        let waiter = qp.recv.waiter;
        node.forget_waiter(qpn);
        let Some(waiter) = waiter else {
            return;
        };
        self.wake_waiter(nodes, id, qpn, waiter);
    }

    /// Gives a turn to a queue pair that waits for queue pair `qpn` of node `id`, or has its host do so.
    pub(crate) fn wake_waiter<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        qpn: u32,
        (there, waiter): (u16, u32),
    ) {
        match nodes.node_mut(there) {
            Some((node, _)) => node.notified(waiter, id, qpn),
            None => self.send_notify(nodes, there, qpn, waiter),
        }
    }

    /// Whether a frame waits for receive buffers at the head of a peer's ring.
    fn holds_frames<N: NodeTable>(&self, nodes: &mut N) -> bool {
        self.peers.iter().any(|id| {
            let peer = nodes.peer_mut(id);
            peer.is_some_and(|peer| peer.transit.frame_deadline.is_some())
        })
    }

    /// Gives a turn to raw queue pairs that wait for one of this node's, or for any.
    pub(crate) fn wake_frames<N: NodeTable>(&self, nodes: &mut N, id: u16, qpn: Option<u32>) {
        for other in nodes.homes() {
            let Some((node, _)) = nodes.node_mut(other) else {
                continue;
            };
            for _ in 0..node.frame_waiters.len() {
                let Some(waiter) = node.frame_waiters.pop(&mut node.qps) else {
                    break;
                };
                let wait = node.qps.get(waiter).map_or(Wait::No, |qp| qp.send.wait);
                match wait {
                    Wait::Rnr { node: to, qpn: q }
                        if to == id && qpn.is_none_or(|qpn| qpn == q) =>
                    {
                        node.schedule(waiter);
                    }
                    _ => node.frame_waiters.push(&mut node.qps, waiter),
                }
            }
        }
    }

    /// Gives a turn to everyone who waits for something at this node of another host.
    pub(crate) fn wake_node<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        self.wake_refused(nodes, id);
        for home in nodes.homes() {
            let Some((node, _)) = nodes.node_mut(home) else {
                continue;
            };
            for class in Class::ALL {
                while let Some(qpn) = node.first_ring_waiter(id, *class) {
                    node.schedule(qpn);
                }
            }
        }
        self.wake_frames(nodes, id, None);
    }

    /// Gives a turn to everyone who was refused by this node of another host for want of receive buffers or of a connection.
    fn wake_refused<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        for home in nodes.homes() {
            if let Some((node, _)) = nodes.node_mut(home) {
                while let Some(qpn) = node.first_refused(id) {
                    node.schedule(qpn);
                }
            }
        }
    }

    /// The same for those who were refused until now, some in each turn.
    pub(crate) fn begin_waking_refused<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let home = nodes.peer_mut(id).map_or(0, |peer| peer.home());
        let refused = nodes.node(home).map_or(0, |(node, _)| node.refused(id));
        if let Some(peer) = nodes.peer_mut(id) {
            peer.transit.refused_left = refused;
        }
        self.wake_more_refused(nodes, id);
    }

    /// Goes on with that.
    pub(crate) fn wake_more_refused<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let Some(peer) = nodes.peer_mut(id) else {
            return;
        };
        let left = peer.transit.refused_left;
        if left == 0 {
            return;
        }
        peer.transit.refused_left = left.saturating_sub(EXPIRIES);
        self.more |= left > EXPIRIES;
        let home = peer.home();
        let Some((node, _)) = nodes.node_mut(home) else {
            return;
        };
        for _ in 0..left.min(EXPIRIES) {
            let Some(qpn) = node.first_refused(id) else {
                return;
            };
            node.schedule(qpn);
        }
    }
}

impl<S: Storage> Node<S> {
    /// Gives a turn to queue pairs whose wait is over.
    fn end_waits(&mut self, clock: &impl Clock) {
        if self.timers.is_empty() {
            return;
        }
        let now = clock.now_us();
        for _ in 0..EXPIRIES {
            if self.timers.next_us().is_none_or(|next| next > now) {
                break;
            }
            if let Some(qpn) = self.timers.expire(&mut self.qps, now) {
                self.schedule(qpn);
            }
        }
    }

    /// If the node has no work but what a time is set for: when that is.
    #[inline]
    fn quiet_until(&self) -> Option<Option<u64>> {
        let works = self.grants_stale || self.fault != FAULT_NONE;
        (!works && self.ready.is_empty() && self.sweep_left == 0).then(|| self.deadline())
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.ready.is_empty()
            && self.sweep_left == 0
            && self.timers.is_empty()
            && self.moderated.is_empty()
            && self.srq_timers.is_empty()
            && self.rings.held.is_empty()
            && self.retry_at.is_none()
    }

    /// Raises the events of completion queues that were held back for long enough.
    fn raise_due_events(&mut self, platform: &impl Platform) {
        if self.moderated.is_empty() {
            return;
        }
        let now = platform.now_us();
        for _ in 0..EXPIRIES {
            if self.moderated.next_us().is_none_or(|next| next > now) {
                break;
            }
            if let Some(cqn) = self.moderated.expire(&mut self.cqs, now) {
                self.fire(platform, cqn);
            }
        }
    }

    /// When there is something to do for this node; a time that is over: now.
    fn deadline(&self) -> Option<u64> {
        if !self.ready.is_empty() || self.sweep_left != 0 {
            return Some(0);
        }
        let moderated = earlier(self.moderated.next_us(), self.srq_timers.next_us());
        let retried = earlier(self.retry_at, self.rings.held_at());
        earlier(self.timers.next_us(), earlier(retried, moderated))
    }
}

impl InTransit {
    /// If nothing is to be done about the peer but what a time is set for: when that is.
    #[inline]
    fn quiet_until(&self) -> Option<Option<u64>> {
        let next = earlier(self.frame_deadline, self.times_out_at);
        self.checked.is_none().then_some(next)
    }
}

/// The earlier of two times, where there is one. Not a chain of iterators, which goes over memory, on each turn.
#[inline(always)]
fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, None) => one,
        (None, other) => other,
    }
}

/// The numbers of a range, from `first` on if that is one.
fn around(first: u16, all: Range<u16>) -> impl Iterator<Item = u16> {
    let first = if all.contains(&first) {
        first
    } else {
        all.start
    };
    (first..all.end).chain(all.start..first)
}
