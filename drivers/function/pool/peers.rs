// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Nodes of other hosts: how they come and go, and what is wrong with them.

use super::{
    hal::{Fault, Notice, PoolHal},
    node::PoolNode,
};
use nupa_engine::NodeTable;
use nupa_pool::{Event, NodeCursor, Poisoned, Violation};
use nupa_proto::regs::FAULT_POOL;

impl<H: PoolHal> PoolNode<H> {
    pub(super) fn drop_links(&mut self) {
        let mut up = NodeCursor::new(0);
        while let Some(id) = up.next(&self.state.up) {
            self.down(id);
        }
    }

    /// Looks who is there, and tells the engine which nodes came and went. By itself: turns in which it is not due yet are many.
    #[inline(never)]
    pub(super) fn look_around(&mut self, now_us: u64) {
        let events = &mut self.state.events;
        if !self.membership.look_around(&self.window, now_us, events) {
            return;
        }
        let mut refused = false;
        while let Some(event) = self.state.events.take_next() {
            match event {
                Event::Down { node, silent } => {
                    match self.membership.poisoned(node) {
                        Some(poisoned) => self.lost(node, poisoned, false),
                        None => self.note_departure(node, silent),
                    }
                    self.down(node);
                }
                Event::Up(node) => self.up(node),
                Event::Evicted => self.evicted(),
                Event::RefusedBy(node) => {
                    self.refused_by(node);
                    refused = true;
                }
            }
        }
        if refused {
            self.refused();
        }
    }

    /// The slot belongs to another host, or the pool was formatted anew. Nothing in the pool is touched any more.
    #[cold]
    #[inline(never)]
    fn evicted(&mut self) {
        if self.model.functions.own.is_ready() {
            let id = self.id();
            match self.membership.poisoned(id) {
                None => self.hal.note(&Notice::Evicted { node: id }),
                Some(poisoned) => self.lost(id, poisoned, true),
            }
            self.drop_links();
            self.model.fail(id, FAULT_POOL);
        }
    }

    /// A peer has declared this node dead.
    #[cold]
    fn refused_by(&mut self, id: u16) {
        let peer = self.model.functions.peer_mut(id);
        if peer.is_some_and(|peer| peer.epoch().is_some()) {
            self.note_fault(id, Fault::Refuses);
            self.down(id);
        }
    }

    /// Peers have declared this node dead.
    #[cold]
    fn refused(&mut self) {
        let now = self.hal.now_us();
        if self.model.functions.own.is_ready() && self.state.resets.allow(now).is_some() {
            let id = self.id();
            self.model.fail(id, FAULT_POOL);
        }
    }

    /// Memory of the pool is poisoned: the node that wrote there is lost.
    #[cold]
    fn lost(&mut self, id: u16, Poisoned { offset }: Poisoned, own: bool) {
        let area = self.membership.pool().geometry().area(offset);
        self.note_fault(id, Fault::Lost { area, offset, own });
    }

    /// Notes a fault of a node, within its rate limit.
    #[cold]
    fn note_fault(&mut self, node: u16, fault: Fault) {
        let now = self.hal.now_us();
        let limit = self.state.faults.get_mut(usize::from(node));
        if let Some(suppressed) = limit.and_then(|limit| limit.allow(now)) {
            self.hal.note(&Notice::Fault {
                node,
                fault,
                suppressed,
            });
        }
    }

    /// Notes that a node went, within its rate limit.
    #[cold]
    fn note_departure(&mut self, node: u16, dead: bool) {
        let now = self.hal.now_us();
        let limit = self.state.departures.get_mut(usize::from(node));
        if let Some(suppressed) = limit.and_then(|limit| limit.allow(now)) {
            self.hal.note(&Notice::Departed {
                node,
                dead,
                suppressed,
            });
        }
    }

    fn up(&mut self, id: u16) {
        let on_demand = self.membership.pool().geometry().inboxes().is_some();
        let epoch = match on_demand {
            true => self
                .membership
                .peer(&self.window, id)
                .map(|peer| peer.epoch),
            false => self.open(id),
        };
        let Some(epoch) = epoch else {
            return;
        };
        self.state.up.insert(id);
        let functions = &mut self.model.functions;
        self.model.engine.peer_up(functions, id, epoch);
    }

    /// Opens the link to a node, if it is there; the node's epoch.
    pub(super) fn open(&mut self, id: u16) -> Option<u32> {
        let link = self.model.functions.peer_mut(id)?.link_mut();
        let epoch = link.open(|place| self.membership.open_in(&self.window, id, place))?;
        self.state.linked.insert(id);
        // That was another one.
        self.state.ending.remove(id);
        self.model.engine.link_opened(id);
        Some(epoch)
    }

    fn down(&mut self, id: u16) {
        self.state.up.remove(id);
        self.state.linked.remove(id);
        self.state.ending.remove(id);
        if let Some(peer) = self.model.functions.peer_mut(id) {
            peer.link_mut().close();
        }
        self.model.engine.peer_down(&mut self.model.functions, id);
    }

    /// Isolates peers that broke a rule.
    pub(super) fn isolate_refused(&mut self) {
        let mut linked = NodeCursor::new(0);
        while let Some(id) = linked.next(&self.state.linked) {
            let peer = self.model.functions.peer_mut(id);
            let Some((true, violation)) = peer.map(|peer| peer.link().is_refused()) else {
                continue;
            };
            match violation {
                Some(Violation::Poisoned { offset }) => {
                    self.lost(id, Poisoned { offset }, false);
                }
                Some(violation) => self.note_fault(id, Fault::BreaksRules(violation)),
                None => self.note_fault(id, Fault::Sends),
            }
            self.membership.isolate(&self.window, id);
            self.down(id);
        }
    }

    /// Publishes what peers are to see, and interrupts those that do not poll.
    pub(super) fn publish(&mut self) {
        let mut linked = NodeCursor::new(0);
        while let Some(id) = linked.next(&self.state.linked) {
            let peer = self.model.functions.peer_mut(id);
            if !peer.is_some_and(|peer| peer.link_mut().publish().wakes) {
                continue;
            }
            if self.hal.has_bell() && self.membership.must_wake(&self.window, id) {
                if let Some(info) = self.membership.peer(&self.window, id) {
                    self.hal.ring(info.bell);
                }
            }
        }
    }
}
