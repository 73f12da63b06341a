// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events that find no room in their event queue.
//!
//! None is lost, and none needs memory of its own: a completion queue stays armed, another object keeps a bit per kind of
//! event, and events about the function itself become one [`EventType::EventsLost`]. All are tried again after a while,
//! since consumers of event queues kick nobody.

use crate::{hal::Platform, node::Node, storage::Storage};
use nupa_proto::eqe::EventType;

/// How long it takes until a full event queue is looked at again: its driver is behind by all of its entries.
pub(crate) const RETRY_US: u64 = 1000;

/// Kinds of events that an object has yet to tell of, a bit each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held(u32);

impl Held {
    fn add(&mut self, event: EventType) {
        self.0 |= 1 << event.to_wire();
    }

    /// All of them, of which there are none any more.
    fn take(&mut self) -> impl Iterator<Item = EventType> {
        let held = core::mem::take(&mut self.0);
        let all = EventType::ALL.iter().copied();
        all.filter(move |event| held & (1 << event.to_wire()) != 0)
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl<S: Storage> Node<S> {
    /// Keeps an event for later: with its object, or if it has none, as news that were lost.
    #[cold]
    pub(crate) fn hold(&mut self, platform: &impl Platform, event: EventType, object: u32) {
        let held = match event {
            EventType::Completion | EventType::CqError => self
                .completions
                .get_mut(object)
                .map(|queue| &mut queue.held),
            EventType::QpFatal
            | EventType::QpAccess
            | EventType::LastWqe
            | EventType::SqDrained
            | EventType::CommEstablished => self.pairs.get_mut(object).map(|pair| &mut pair.held),
            EventType::SrqLimit | EventType::SrqFatal => {
                self.shared.get_mut(object).map(|queue| &mut queue.held)
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
        if let Some(held) = held {
            held.add(event);
        }
        let retry = platform.now_us().saturating_add(RETRY_US);
        self.retry_at.get_or_insert(retry);
    }

    /// Tries again to tell what was kept, if the time has come. What still finds no room is kept on.
    pub(crate) fn raise_held_events(&mut self, platform: &impl Platform) {
        let now = platform.now_us();
        if self.retry_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        if core::mem::take(&mut self.events_lost) {
            self.report(platform, EventType::EventsLost, 0, 0);
        }
        // These are for other event queues, which may have room when number 0 has none.
        for cqn in 0..self.completions.end() {
            let queue = self.completions.get_mut(cqn);
            let held = queue.map(|queue| (queue.eqn, queue.held.take()));
            if let Some((eqn, events)) = held {
                for event in events {
                    self.raise(platform, eqn, event, 0, cqn);
                }
            }
        }
        self.raise_held_by(platform, self.pairs.end(), |node, qpn| {
            Some(&mut node.pairs.get_mut(qpn)?.held)
        });
        self.raise_held_by(platform, self.shared.end(), |node, srqn| {
            Some(&mut node.shared.get_mut(srqn)?.held)
        });
    }

    /// As [`Node::raise_held_events`], for objects below `end` of one kind, as far as there is room.
    fn raise_held_by(
        &mut self,
        platform: &impl Platform,
        end: u32,
        held: impl Fn(&mut Self, u32) -> Option<&mut Held>,
    ) {
        for number in 0..end {
            let Some(held) = held(self, number).filter(|held| !held.is_empty()) else {
                continue;
            };
            for event in held.take() {
                self.report(platform, event, 0, number);
            }
            if self.retry_at.is_some() {
                // No room: the objects behind would find none either.
                return;
            }
        }
    }
}
