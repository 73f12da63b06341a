// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events that find no room in their event queue.
//!
//! None is lost, and none needs memory of its own: a completion queue stays armed, another object keeps a bit per kind of
//! event, and events about the function itself become one [`EventType::EventsLost`]. All are tried again after a while,
//! since consumers of event queues kick nobody.

use crate::{
    hal::{Clock, Platform, Storage},
    node::{Node, ASYNC_EQN},
    state::{cq::Notice, deferred::DeferredEvents, eq::NotWritten, qp::QueuePair},
};
use nupa_proto::{
    cqe::Cqe,
    eqe::{Eqe, EventType},
    regs::FAULT_EVENT_QUEUE,
};
use zerocopy::little_endian::{U16, U32};

/// How long it takes until a full event queue is looked at again: its driver is behind by all of its entries.
pub(crate) const RETRY_US: u64 = 1000;

impl<S: Storage> Node<S> {
    /// Tells the driver that admin completions were written.
    pub fn admin_event(&mut self, platform: &impl Platform) {
        self.report(platform, EventType::Admin, 0, 0);
    }

    /// Writes an event to event queue 0, if there is one.
    pub(crate) fn report(
        &mut self,
        platform: &impl Platform,
        event: EventType,
        node: u16,
        object: u32,
    ) {
        self.raise(platform, ASYNC_EQN, event, node, object);
    }

    /// Writes an event to an event queue, later if there is no room.
    pub(crate) fn raise(
        &mut self,
        platform: &impl Platform,
        eqn: u32,
        event: EventType,
        node: u16,
        object: u32,
    ) {
        let Some(queue) = self.eqs.get_mut(eqn) else {
            return;
        };
        let entry = Eqe {
            event_type: event.to_wire(),
            node: U16::new(node),
            object: U32::new(object),
            ..Eqe::default()
        };
        match queue.post(platform, &entry) {
            Ok(raised) => self.counters.interrupts.add(u32::from(raised)),
            Err(NotWritten::Full) => self.defer_event(platform, event, object),
            // An event that is lost would leave the driver waiting for ever.
            Err(NotWritten::Unreachable) => self.fault = FAULT_EVENT_QUEUE,
        }
    }

    /// Writes a completion. `urgent`: it counts for a queue armed for solicited completions only. A queue that cannot
    /// take it dies, and the queue pairs on it go to the error state.
    #[inline(always)]
    pub(crate) fn complete(
        &mut self,
        platform: &impl Platform,
        cqn: u32,
        entry: &Cqe,
        urgent: bool,
    ) {
        let Some(queue) = self.cqs.get_mut(cqn) else {
            return;
        };
        match queue.post(platform, entry, urgent) {
            Ok(Notice::None) => {}
            Ok(Notice::Fire) => self.fire(platform, cqn),
            Ok(Notice::Wait) => {
                let wait = u64::from(queue.moderation.usecs);
                self.fire_later(platform, cqn, wait);
            }
            Err(_) => self.overflow(platform, cqn),
        }
    }

    /// Holds the event of a completion queue back for so many microseconds.
    fn fire_later(&mut self, clock: &impl Clock, cqn: u32, wait: u64) {
        if let Some(queue) = self.cqs.get_mut(cqn) {
            queue.moderation.deadline = Some(clock.now_us().saturating_add(wait));
            self.moderated.push(&mut self.cqs, cqn);
        }
    }

    /// Raises the event of a completion queue if it is armed and not empty; while its event queue has no room, the queue
    /// stays armed.
    pub(crate) fn fire(&mut self, platform: &impl Platform, cqn: u32) {
        self.moderated.remove(&mut self.cqs, cqn);
        let Some(queue) = self.cqs.get_mut(cqn) else {
            return;
        };
        let eqn = queue.eqn;
        let events = self.eqs.get_mut(eqn);
        if events.is_some_and(|events| !events.has_room(platform)) {
            self.fire_later(platform, cqn, RETRY_US);
        } else if queue.take_event(platform) {
            self.raise(platform, eqn, EventType::Completion, 0, cqn);
        }
    }

    #[cold]
    fn overflow(&mut self, platform: &impl Platform, cqn: u32) {
        let eqn = match self.cqs.get_mut(cqn) {
            Some(queue) if !queue.dead => {
                queue.dead = true;
                queue.eqn
            }
            _ => return,
        };
        self.counters.cq_overflows.add(1);
        self.raise(platform, eqn, EventType::CqError, 0, cqn);
        for qpn in 0..self.qps.end() {
            let uses = |qp: &QueuePair<_>| qp.send.cqn == cqn || qp.recv.cqn == cqn;
            if self.qps.get(qpn).is_some_and(uses) {
                self.fail(platform, qpn);
            }
        }
    }

    /// Keeps an event for later: with its object, or if it has none, as news that were lost.
    #[cold]
    pub(crate) fn defer_event(&mut self, platform: &impl Platform, event: EventType, object: u32) {
        let deferred = match event {
            EventType::Completion | EventType::CqError => {
                self.cqs.get_mut(object).map(|queue| &mut queue.deferred)
            }
            EventType::QpFatal
            | EventType::QpAccess
            | EventType::LastWqe
            | EventType::SqDrained
            | EventType::CommEstablished => self.qps.get_mut(object).map(|qp| &mut qp.deferred),
            EventType::SrqLimit | EventType::SrqFatal => {
                self.srqs.get_mut(object).map(|queue| &mut queue.deferred)
            }
            EventType::Admin
            | EventType::LinkUp
            | EventType::LinkDown
            | EventType::NodeUp
            | EventType::NodeDown
            | EventType::Fatal
            | EventType::EventsLost => {
                self.events_lost = true;
                None
            }
        };
        if let Some(deferred) = deferred {
            deferred.add(event);
        }
        let retry = platform.now_us().saturating_add(RETRY_US);
        self.retry_at.get_or_insert(retry);
    }

    /// Tries again to tell what was kept, if the time has come. What still finds no room is kept on.
    pub(crate) fn raise_deferred_events(&mut self, platform: &impl Platform) {
        let now = platform.now_us();
        if self.retry_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        if core::mem::take(&mut self.events_lost) {
            self.report(platform, EventType::EventsLost, 0, 0);
        }
        // These are for other event queues, which may have room when number 0 has none.
        for cqn in 0..self.cqs.end() {
            let queue = self.cqs.get_mut(cqn);
            let deferred = queue.map(|queue| (queue.eqn, queue.deferred.take()));
            if let Some((eqn, events)) = deferred {
                for event in events {
                    self.raise(platform, eqn, event, 0, cqn);
                }
            }
        }
        self.raise_deferred_of(platform, self.qps.end(), |node, qpn| {
            Some(&mut node.qps.get_mut(qpn)?.deferred)
        });
        self.raise_deferred_of(platform, self.srqs.end(), |node, srqn| {
            Some(&mut node.srqs.get_mut(srqn)?.deferred)
        });
    }

    /// As [`Node::raise_deferred_events`], for objects below `end` of one kind, as far as there is room.
    fn raise_deferred_of(
        &mut self,
        platform: &impl Platform,
        end: u32,
        deferred: impl Fn(&mut Self, u32) -> Option<&mut DeferredEvents>,
    ) {
        for number in 0..end {
            let Some(deferred) = deferred(self, number).filter(|deferred| !deferred.is_empty())
            else {
                continue;
            };
            for event in deferred.take() {
                self.report(platform, event, 0, number);
            }
            if self.retry_at.is_some() {
                // No room: the objects behind would find none either.
                return;
            }
        }
    }
}
