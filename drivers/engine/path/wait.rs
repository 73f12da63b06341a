// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Send queues that stand still: what each waits for, and the lists that they are in meanwhile.

use crate::{
    hal::{Storage, Table},
    node::{Node, QueuePairs},
    state::{
        list::List,
        qp::{Wait, Waiting},
        round_robin::RoundRobin,
    },
};
use nupa_proto::{admin::QpType, pool::Class};

impl<S: Storage> Node<S> {
    /// Gives a queue pair's send queue a turn soon.
    pub(crate) fn schedule(&mut self, qpn: u32) {
        self.park(qpn, Wait::Turn, u64::MAX);
    }

    /// Makes a queue pair's send queue wait, until this time at the latest (`u64::MAX`: no timeout). It joins the ready list, the waiters for
    /// a ring to another host, those refused by a node of another host, or the raw ones that wait for a node of this host; or no list,
    /// if what it waits for refers to it.
    pub(crate) fn park(&mut self, qpn: u32, wait: Wait, until_us: u64) {
        self.unpark(qpn);
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        qp.send.wait = wait;
        let raw = qp.kind == QpType::Raw;
        self.timers.set(&mut self.qps, qpn, until_us);
        if let Some((waiters, qps)) = self.round_robin_of(wait) {
            return waiters.push(qps, qpn);
        }
        if let Some((list, qps)) = self.waiters(wait, raw) {
            list.push(qps, qpn);
        }
    }

    /// Ends a queue pair's wait.
    #[inline(always)]
    pub(crate) fn unpark(&mut self, qpn: u32) {
        if self.qps.get(qpn).is_some_and(|qp| qp.send.wait != Wait::No) {
            self.leave_list(qpn);
        }
    }

    fn leave_list(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        let wait = core::mem::replace(&mut qp.send.wait, Wait::No);
        let raw = qp.kind == QpType::Raw;
        self.timers.stop(&mut self.qps, qpn);
        if let Some((waiters, qps)) = self.round_robin_of(wait) {
            return waiters.remove(qps, qpn);
        }
        if let Some((list, qps)) = self.waiters(wait, raw) {
            list.remove(qps, qpn);
        }
    }

    /// The queue that a queue pair is in while it waits for this, if it is in one, and the queue pairs.
    #[inline]
    fn round_robin_of(&mut self, wait: Wait) -> Option<(&mut RoundRobin<S>, &mut QueuePairs<S>)> {
        match wait {
            Wait::Turn => Some((&mut self.ready, &mut self.qps)),
            Wait::RingSpace { node, class } => {
                let waiters = self.remote_waiters.slots_mut().get_mut(usize::from(node))?;
                Some((waiters.as_mut()?.ring_waiters(class), &mut self.qps))
            }
            _ => None,
        }
    }

    /// Whether queue pairs wait for room in a ring to a node of another host.
    #[inline]
    pub(crate) fn has_ring_waiters(&mut self, id: u16, class: Class) -> bool {
        let waiters = self.round_robin_of(Wait::RingSpace { node: id, class });
        waiters.is_some_and(|(waiters, _)| !waiters.is_empty())
    }

    /// Whether queue pairs wait for room in any ring to a node of another host.
    #[inline]
    pub(crate) fn awaits_room(&self, id: u16) -> bool {
        let waiters = self.remote_waiters.slots().get(usize::from(id));
        let waiters = waiters.and_then(Option::as_ref);
        waiters.is_some_and(|waiters| waiters.await_room())
    }

    /// How many queue pairs do.
    pub(crate) fn ring_waiters(&mut self, id: u16, class: Class) -> u32 {
        let waiters = self.round_robin_of(Wait::RingSpace { node: id, class });
        waiters.map_or(0, |(waiters, _)| waiters.len())
    }

    /// The first queue pair that waits for room in a ring to a node of another host.
    pub(crate) fn first_ring_waiter(&mut self, id: u16, class: Class) -> Option<u32> {
        self.round_robin_of(Wait::RingSpace { node: id, class })?
            .0
            .first()
    }

    /// Takes that one out, to be served now.
    pub(crate) fn pop_ring_waiter(&mut self, id: u16, class: Class) -> Option<u32> {
        let (waiters, qps) = self.round_robin_of(Wait::RingSpace { node: id, class })?;
        let qpn = waiters.pop(qps)?;
        if let Some(qp) = qps.get_mut(qpn) {
            qp.send.wait = Wait::No;
        }
        self.timers.stop(&mut self.qps, qpn);
        Some(qpn)
    }

    /// The list that a queue pair is in while it waits for this, if it is in none of those, and the queue pairs.
    fn waiters(
        &mut self,
        wait: Wait,
        raw: bool,
    ) -> Option<(&mut List<Waiting>, &mut QueuePairs<S>)> {
        let node = match wait {
            Wait::No | Wait::Turn | Wait::Responses | Wait::RingSpace { .. } => return None,
            Wait::Rnr { node, .. } | Wait::Peer { node, .. } => node,
        };
        let waiters = self.remote_waiters.slots_mut().get_mut(usize::from(node));
        let list = match waiters.and_then(Option::as_mut) {
            Some(waiters) => &mut waiters.refused,
            None if raw => &mut self.frame_waiters,
            None => return None,
        };
        Some((list, &mut self.qps))
    }

    /// Gives a turn to a queue pair if it waits for queue pair `qpn` of node `id`.
    pub(crate) fn notified(&mut self, waiter: u32, id: u16, qpn: u32) {
        let wait = self.qps.get(waiter).map_or(Wait::No, |qp| qp.send.wait);
        if wait == (Wait::Rnr { node: id, qpn }) || wait == (Wait::Peer { node: id, qpn }) {
            self.schedule(waiter);
        }
    }

    /// The first queue pair that was refused by this node of another host.
    pub(crate) fn first_refused(&self, id: u16) -> Option<u32> {
        let waiters = self.remote_waiters.slots().get(usize::from(id))?;
        waiters.as_ref()?.refused.first()
    }

    /// Queue pairs that were refused by this node of another host.
    pub(crate) fn refused(&self, id: u16) -> u32 {
        let waiters = self.remote_waiters.slots().get(usize::from(id));
        let waiters = waiters.and_then(Option::as_ref);
        waiters.map_or(0, |waiters| waiters.refused.len())
    }
}
