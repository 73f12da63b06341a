// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events that find no room in their event queue.
//!
//! None is lost, and none needs memory of its own: a completion queue stays armed, another object keeps a bit per kind of
//! event, and events about the function itself become one [`EventType::EventsLost`]. All are tried again after a while,
//! since consumers of event queues kick nobody.

use crate::{
    hal::{Clock, Platform, Storage, Table},
    node::{Node, ASYNC_EQN},
    state::{
        cq::Notice,
        deferred::{Deferred, HasEvents},
        eq::NotWritten,
        list::List,
        table::Objects,
    },
};
use nupa_proto::{
    cqe::Cqe,
    eqe::{Eqe, EventType},
    regs::FAULT_EVENT_QUEUE,
};
use zerocopy::little_endian::{U16, U32};

/// How long it takes until a full event queue is looked at again: its driver is behind by all of its entries.
pub(crate) const RETRY_US: u64 = 1000;
/// Objects of a kind whose events are tried again in one turn.
const RETRIES: u32 = 64;

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
            // A driver would wait indefinitely for an event that is lost.
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
            Err(_) => self.overflow(platform, cqn, entry.qpn.get()),
        }
    }

    /// Holds the event of a completion queue back for so many microseconds.
    fn fire_later(&mut self, clock: &impl Clock, cqn: u32, wait: u64) {
        let at_us = clock.now_us().saturating_add(wait);
        self.moderated.set(&mut self.cqs, cqn, at_us);
    }

    /// Raises the event of a completion queue if it is armed and not empty; while its event queue has no room, the queue
    /// stays armed.
    pub(crate) fn fire(&mut self, platform: &impl Platform, cqn: u32) {
        self.moderated.stop(&mut self.cqs, cqn);
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

    /// A completion queue dies. The queue pair whose completion did not fit goes to the error state at once, others soon.
    #[cold]
    fn overflow(&mut self, platform: &impl Platform, cqn: u32, qpn: u32) {
        let eqn = match self.cqs.get_mut(cqn) {
            Some(queue) if !queue.dead => {
                queue.dead = true;
                queue.eqn
            }
            _ => return,
        };
        self.counters.cq_overflows.add(1);
        self.raise(platform, eqn, EventType::CqError, 0, cqn);
        self.fail(platform, qpn);
        self.start_sweep();
    }

    /// Defers an event: with its object or, if it has none, as part of one `EventsLost`.
    #[cold]
    pub(crate) fn defer_event(&mut self, platform: &impl Platform, event: EventType, object: u32) {
        match event {
            EventType::Completion | EventType::CqError => {
                defer(&mut self.deferred_cqs, &mut self.cqs, object, event);
            }
            EventType::QpFatal
            | EventType::QpAccess
            | EventType::LastWqe
            | EventType::SqDrained
            | EventType::CommEstablished => {
                defer(&mut self.deferred_qps, &mut self.qps, object, event);
            }
            EventType::SrqLimit | EventType::SrqFatal => {
                defer(&mut self.deferred_srqs, &mut self.srqs, object, event);
            }
            EventType::Admin
            | EventType::LinkUp
            | EventType::LinkDown
            | EventType::NodeUp
            | EventType::NodeDown
            | EventType::Fatal
            | EventType::EventsLost => self.events_lost = true,
        }
        let retry = platform.now_us().saturating_add(RETRY_US);
        self.retry_at.get_or_insert(retry);
    }

    /// Raises deferred events again if it is time. Those that still find no room stay deferred.
    pub(crate) fn raise_deferred_events(&mut self, platform: &impl Platform) {
        if self.retry_at.is_none() {
            return;
        }
        let now = platform.now_us();
        if self.retry_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        if core::mem::take(&mut self.events_lost) {
            self.report(platform, EventType::EventsLost, 0, 0);
        }
        // Those of completion queues are for other event queues, which may have room when number 0 has none.
        for _ in 0..self.deferred_cqs.len().min(RETRIES) {
            let Some(cqn) = self.deferred_cqs.pop(&mut self.cqs) else {
                break;
            };
            let queue = self.cqs.get_mut(cqn);
            let Some((eqn, events)) = queue.map(|queue| (queue.eqn, queue.deferred.take())) else {
                continue;
            };
            events.for_each(|event| self.raise(platform, eqn, event, 0, cqn));
        }
        for _ in 0..RETRIES {
            // No room for one: those behind would find none either.
            if self.retry_at.is_some() {
                break;
            }
            let Some((number, events)) = self.next_deferred() else {
                break;
            };
            events.for_each(|event| self.report(platform, event, 0, number));
        }
        let lists = [&self.deferred_cqs, &self.deferred_qps, &self.deferred_srqs];
        if lists.iter().any(|list| !list.is_empty()) {
            self.retry_at.get_or_insert(now);
        }
    }

    /// The next object, other than a completion queue, with events that found no room, and these.
    fn next_deferred(&mut self) -> Option<(u32, impl Iterator<Item = EventType>)> {
        if let Some(qpn) = self.deferred_qps.pop(&mut self.qps) {
            return Some((qpn, self.qps.get_mut(qpn)?.deferred.take()));
        }
        let srqn = self.deferred_srqs.pop(&mut self.srqs)?;
        Some((srqn, self.srqs.get_mut(srqn)?.deferred.take()))
    }
}

/// Keeps an event with its object.
fn defer<T: HasEvents, L: Table<T>, M: Table<u64>>(
    list: &mut List<Deferred>,
    objects: &mut Objects<T, L, M>,
    number: u32,
    event: EventType,
) {
    if let Some(object) = objects.get_mut(number) {
        object.deferred().add(event);
        list.push(objects, number);
    }
}
