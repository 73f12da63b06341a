// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a node learns of the others when it looks around.

use crate::node_set::NodeSet;

/// What a look around shows.
///
/// It is large: where stacks are small, it has a place of its own, and [`Events::take_next`] tells one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Nodes that came. [`Membership::peer`](crate::Membership::peer) tells their epoch.
    pub up: NodeSet,
    /// Nodes that went, with the epoch that [`Membership::peer`](crate::Membership::peer) told: their links are dead. None of them is in `up`.
    pub down: NodeSet,
    /// Of those, the ones that died: they did not leave by themselves.
    pub silent: NodeSet,
    /// Nodes that refuse this one's epoch: they took it for dead. Only another epoch helps ([`Membership::renew`](crate::Membership::renew)).
    pub refused_by: NodeSet,
    /// The slot is somebody else's, or the pool was formatted anew: this membership is void for good.
    pub evicted: bool,
}

/// One of what a look around shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// See [`Events::down`]; `silent`: it died.
    Down {
        /// The node that went.
        node: u16,
        /// It did not leave by itself.
        silent: bool,
    },
    /// See [`Events::up`].
    Up(u16),
    /// See [`Events::evicted`].
    Evicted,
    /// See [`Events::refused_by`].
    RefusedBy(u16),
}

impl Events {
    /// Takes out the next one, in the order in which they are to be dealt with.
    pub fn take_next(&mut self) -> Option<Event> {
        if let Some(node) = self.down.take_first() {
            let silent = self.silent.contains(node);
            self.silent.remove(node);
            return Some(Event::Down { node, silent });
        }
        if let Some(node) = self.up.take_first() {
            return Some(Event::Up(node));
        }
        if core::mem::take(&mut self.evicted) {
            return Some(Event::Evicted);
        }
        self.refused_by.take_first().map(Event::RefusedBy)
    }
}
