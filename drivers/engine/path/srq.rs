// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Entries of shared receive queues: who takes them, and who waits for them.

use crate::{
    hal::{Clock, Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{kept::Held, srq::Srq},
};
use nupa_proto::eqe::EventType;

/// Times that a shared receive queue is checked for entries posted meanwhile. Bounded, because a process that keeps moving its index
/// would otherwise never let the engine go.
const SRQ_RECHECKS: u32 = 4;
/// How long one who was given a turn has to take an entry before others are given one: far longer than a request takes to another host and
/// back, and shorter than most RNR timers.
pub(super) const TAKE_US: u64 = 500;
/// Shared receive queues whose waiters are looked after in one turn.
const EXPIRIES: u32 = 16;
/// Waiters of a shared receive queue that are given a turn by one call, ...
const WAKES: u32 = 256;
/// ... and how many of them count as one request: each is only moved from one list to another.
const WAKES_CHARGED: u32 = 16;

impl Engine {
    /// New entries were posted to a shared receive queue: those that wait for them go on.
    pub(crate) fn srq_posted<N: NodeTable>(&mut self, nodes: &mut N, id: u16, srqn: u32) {
        let Some((node, platform)) = nodes.node_mut(id) else {
            return;
        };
        // An owner that takes entries itself kicks when few are left, too.
        node.check_limit(platform, srqn);
        let Some(srq) = node.srqs.get_mut(srqn) else {
            return;
        };
        if core::mem::take(&mut srq.queue.wanted) {
            self.wake_srq(nodes, id, srqn);
        }
    }

    /// Gives a turn to those who still wait for entries of a node's shared receive queues, some time after others were given one: these may
    /// not have taken the entries, because their hosts have stopped or their queue pairs do not send any more.
    pub(crate) fn wake_due_srqs<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        for _ in 0..EXPIRIES {
            let Some((node, platform)) = nodes.node_mut(id) else {
                return;
            };
            let now = platform.now_us();
            if node.srq_timers.next_us().is_none_or(|next| next > now) {
                return;
            }
            if let Some(srqn) = node.srq_timers.expire(&mut node.srqs, now) {
                self.wake_srq(nodes, id, srqn);
            }
            // One is seen to in any case, so that kicks that spend all turns do not hold them up.
            if self.budget.is_spent() {
                return;
            }
        }
    }

    /// Gives a turn to those who wait for entries of this shared receive queue, as many as there are entries; for the others, the
    /// owner is to kick again, and a timer is set for entries that are not taken. If the owner goes on to move its index, or that is out of
    /// bounds, all of them are scheduled, and check for themselves. What is more than one call does is left to the next turn.
    fn wake_srq<N: NodeTable>(&mut self, nodes: &mut N, id: u16, srqn: u32) {
        let mut wakes = WAKES;
        for _ in 0..SRQ_RECHECKS {
            let Some(entries) = srq_entries(nodes, id, srqn) else {
                break;
            };
            for _ in 0..entries {
                if !self.wake_next_of_srq(nodes, id, srqn, &mut wakes) {
                    return;
                }
            }
            let Some((node, platform)) = nodes.node_mut(id) else {
                return;
            };
            let Some(srq) = node.srqs.get_mut(srqn) else {
                return;
            };
            if srq.waiters.is_empty() {
                return;
            }
            if !srq.queue.want_entries(platform) {
                if entries != 0 {
                    node.look_after_waiters(platform, srqn, TAKE_US);
                }
                return;
            }
        }
        while self.wake_next_of_srq(nodes, id, srqn, &mut wakes) {}
    }

    /// Gives a turn to the first who waits for entries of a shared receive queue. False if nobody does, or if that was done as often as it
    /// may be: then the others are seen to in the next turn.
    fn wake_next_of_srq<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        srqn: u32,
        wakes: &mut u32,
    ) -> bool {
        let Some((node, platform)) = nodes.node_mut(id) else {
            return false;
        };
        let Some(srq) = node.srqs.get_mut(srqn) else {
            return false;
        };
        if *wakes == 0 && !srq.waiters.is_empty() {
            node.look_after_waiters(platform, srqn, 0);
            self.more = true;
            return false;
        }
        let Some(qpn) = srq.waiters.pop(&mut node.qps) else {
            return false;
        };
        *wakes = wakes.saturating_sub(1);
        if *wakes % WAKES_CHARGED == 0 {
            self.budget.spend(platform, 0);
        }
        self.wake(nodes, id, qpn);
        true
    }
}

impl<S: Storage> Node<S> {
    /// Raises the limit event of a shared receive queue if it is due.
    pub(crate) fn check_limit(&mut self, platform: &impl Platform, srqn: u32) {
        let Some(srq) = self.srqs.get_mut(srqn).filter(|srq| srq.limit != 0) else {
            return;
        };
        let (limit, queue) = (srq.limit, &mut srq.queue);
        let left = match queue.is_shared_with_owner() {
            true => queue.left_at_most(platform),
            false => queue.left(platform).unwrap_or(u32::MAX),
        };
        if left < limit {
            srq.limit = 0;
            self.report(platform, EventType::SrqLimit, 0, srqn);
        }
    }

    /// Has those who wait for entries of a shared receive queue given a turn if there are entries after so long.
    pub(super) fn look_after_waiters(&mut self, clock: &impl Clock, srqn: u32, after_us: u64) {
        let at_us = clock.now_us().saturating_add(after_us);
        let is_set = |srq: &Srq<_>| srq.timer.at_us().is_some_and(|set| set <= at_us);
        if !self.srqs.get(srqn).is_none_or(is_set) {
            self.srq_timers.set(&mut self.srqs, srqn, at_us);
        }
    }

    /// Takes the entry that part of a message was put into out of a shared receive queue: its queue pair has a copy, which is
    /// completed with the rest of the message. The copy is that of the last receive with [`Fill::Part`](crate::state::rq::Fill).
    pub(crate) fn keep_entry(&mut self, platform: &impl Platform, qpn: u32) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        let Some(kept) = &mut qp.recv.kept else {
            return;
        };
        let Some(srqn) = qp.recv.srqn.filter(|_| !kept.is_held()) else {
            return;
        };
        if let Some(srq) = self.srqs.get_mut(srqn) {
            let behind = srq.queue.index.wrapping_add(1);
            srq.queue.index = behind;
            kept.hold(Held { behind, count: 1 });
        }
        self.entry_left(platform, qpn, srqn);
    }

    /// A queue pair has taken the entry that it keeps out of its shared receive queue.
    pub(super) fn entry_left(&mut self, platform: &impl Platform, qpn: u32, srqn: u32) {
        if let Some(srq) = self.srqs.get_mut(srqn) {
            srq.kept = srq.kept.saturating_add(1);
        }
        self.forget_waiter(qpn);
        self.check_limit(platform, srqn);
    }

    /// Notes who was refused for want of entries of a queue pair, or because that is not ready. One who waited there before is
    /// forgotten: no more than one queue pair is connected to it.
    pub(crate) fn note_waiter(&mut self, qpn: u32, waiter: (u16, u32)) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        qp.recv.waiter = Some(waiter);
        // One that keeps an entry needs no other, and one that does not receive yet is told when it does.
        let needs = qp.receives() && !qp.recv.keeps_entry();
        let srq = qp.recv.srqn.filter(|_| needs);
        if let Some(srq) = srq.and_then(|srqn| self.srqs.get_mut(srqn)) {
            srq.waiters.push(&mut self.qps, qpn);
        }
    }

    /// Forgets who waits for a queue pair.
    pub(crate) fn forget_waiter(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        qp.recv.waiter = None;
        if let Some(srq) = qp.recv.srqn.and_then(|srqn| self.srqs.get_mut(srqn)) {
            srq.waiters.remove(&mut self.qps, qpn);
        }
    }

    /// Gives up the entry that a queue pair keeps. `None` if it keeps none.
    pub(super) fn release_entry(&mut self, qpn: u32) -> Option<Held> {
        let recv = &mut self.qps.get_mut(qpn)?.recv;
        let held = recv.kept.as_mut()?.release()?;
        if let Some(srq) = recv.srqn.and_then(|srqn| self.srqs.get_mut(srqn)) {
            srq.kept = srq.kept.saturating_sub(1);
        }
        Some(held)
    }

    /// Takes the entries that a queue pair has filled out of its shared receive queue. Returns what their completion says of them.
    ///
    /// If the owner takes entries as well, the queue pair keeps them, and that is the index behind them, and their number. Else it is the index before
    /// which its owner may use every entry again: those behind it are as many as are posted or have a message that is not whole, which all have
    /// room in a completion queue that has room for as many as the queue has.
    pub(crate) fn take_srq_entries(&mut self, qpn: u32, entries: u16) -> Held {
        let held = self.release_entry(qpn);
        let srqn = self.qps.get(qpn).and_then(|qp| qp.recv.srqn);
        let none = Held {
            behind: 0,
            count: 0,
        };
        let Some(srq) = srqn.and_then(|srqn| self.srqs.get_mut(srqn)) else {
            return none;
        };
        let queue = &mut srq.queue;
        if queue.is_shared_with_owner() {
            return held.unwrap_or(none);
        }
        // One that was kept left the queue when it was fetched.
        if held.is_none() {
            queue.index = queue.index.wrapping_add(u32::from(entries));
        }
        Held {
            behind: queue.index.wrapping_sub(srq.kept),
            count: entries,
        }
    }

    /// Gives a shared receive queue up.
    #[cold]
    pub(crate) fn fail_srq(&mut self, platform: &impl Platform, srqn: u32) {
        let Some(srq) = self.srqs.get_mut(srqn) else {
            return;
        };
        if !core::mem::replace(&mut srq.dead, true) {
            self.report(platform, EventType::SrqFatal, 0, srqn);
        }
    }
}

/// Entries of a shared receive queue that are posted and not filled; `None` if the index is out of bounds.
fn srq_entries<N: NodeTable>(nodes: &mut N, id: u16, srqn: u32) -> Option<u32> {
    let (node, platform) = nodes.node_mut(id)?;
    node.srqs.get_mut(srqn)?.queue.left(platform).ok()
}
