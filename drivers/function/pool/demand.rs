// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Links on demand: in a pool with inboxes there is one to a node once something is to be sent to it, or it asks.

use super::{
    hal::{Notice, PoolHal},
    node::PoolNode,
};
use nupa_engine::NodeTable;
use nupa_pool::{LinkState, NodeCursor};

/// How long nobody is asked again who had no inbox left, in microseconds.
const RETRY_US: u64 = 1_000_000;

impl<H: PoolHal> PoolNode<H> {
    /// Asks for the links that are wanted, and opens those that are there.
    pub(super) fn serve_links(&mut self, now_us: u64) {
        if self.membership.pool().geometry().inboxes().is_none() {
            return;
        }
        while let Some(id) = self.membership.next_changed() {
            self.follow(id, now_us);
        }
        let mut up = NodeCursor::new(0);
        while let Some(id) = up.next(&self.state.up) {
            if !self.state.linked.contains(id) {
                self.serve_link(id, now_us);
            }
        }
    }

    /// Does what is due about the link to a node that has none.
    fn serve_link(&mut self, id: u16, now_us: u64) {
        match self.membership.link_state(id) {
            LinkState::Opening => {
                // The node hears of it with its next tick, and this one of the answer at once.
                self.membership.look_at(&self.window, id);
            }
            LinkState::NoRoom if now_us < self.state.retry_at_us => return,
            LinkState::Closed | LinkState::NoRoom => {
                let peer = self.model.functions.peer_mut(id);
                if !peer.is_some_and(|peer| peer.link_mut().take_wanted()) {
                    return;
                }
                self.membership.ask(&self.window, id);
            }
            _ => {}
        }
        self.follow(id, now_us);
    }

    /// Opens a link that is there, and says that one is not to be had.
    fn follow(&mut self, id: u16, now_us: u64) {
        if !self.state.up.contains(id) || self.state.linked.contains(id) {
            return;
        }
        if self.membership.link_state(id) == LinkState::NoRoom && now_us >= self.state.retry_at_us {
            self.state.retry_at_us = now_us.saturating_add(RETRY_US);
            self.note_no_inbox(id, now_us);
        }
        self.open(id);
    }

    /// Notes that there is no inbox for a link. They have a rate limit of their own, so that they take none from faults.
    #[cold]
    fn note_no_inbox(&mut self, node: u16, now_us: u64) {
        if self.state.shortages.allow(now_us).is_some() {
            self.hal.note(&Notice::NoInbox { node });
        }
    }
}
