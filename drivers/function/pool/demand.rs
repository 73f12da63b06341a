// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Links on demand: in a pool with inboxes there is one to a node once something is to be sent to it, or it asks.

use super::{
    hal::{Notice, PoolHal},
    node::PoolNode,
};
use nupa_engine::NodeTable;
use nupa_pool::{LinkState, NodeCursor};

/// How long a link was not used that may be ended for another one, in microseconds.
const IDLE_US: u64 = 1_000_000;
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
        if self.membership.take_shortage() && self.state.ending.is_empty() {
            self.end_idlest(now_us);
        }
        let mut ending = NodeCursor::new(0);
        while let Some(id) = ending.next(&self.state.ending) {
            self.go_on_ending(id);
        }
    }

    /// An inbox was wanted and there was none: ends the link that was not used for longest, if that is long enough.
    #[cold]
    fn end_idlest(&mut self, now_us: u64) {
        let mut idlest: Option<(u64, u16)> = None;
        let mut linked = NodeCursor::new(0);
        while let Some(id) = linked.next(&self.state.linked) {
            let Some(peer) = self.model.functions.peer_mut(id) else {
                continue;
            };
            let since = peer.link_mut().idle_since_us(now_us);
            if now_us.saturating_sub(since) >= IDLE_US
                && idlest.is_none_or(|idlest| (since, id) < idlest)
            {
                idlest = Some((since, id));
            }
        }
        if let Some((_, id)) = idlest {
            self.end_link(id);
        }
    }

    /// Lets nothing begin on a link.
    fn end_link(&mut self, id: u16) {
        if let Some(peer) = self.model.functions.peer_mut(id) {
            peer.link_mut().end();
            self.state.ending.insert(id);
        }
    }

    /// Ends a link as far as that goes: this node says so once nothing is under way, and has done with it when both have said so, and nothing is left.
    fn go_on_ending(&mut self, id: u16) {
        let functions = &mut self.model.functions;
        if !self.model.engine.is_done_with(functions, id) {
            return;
        }
        match self.membership.link_state(id) {
            LinkState::Open | LinkState::Ending => {
                self.membership.withdraw(&self.window, id);
            }
            LinkState::Draining => {
                let Some(peer) = functions.peer_mut(id) else {
                    return;
                };
                let link = peer.link_mut();
                if link.finish(|link| self.membership.finish(&self.window, id, link)) {
                    self.model.engine.link_ended(functions, id);
                    self.state.linked.remove(id);
                    self.state.ending.remove(id);
                }
            }
            _ => {}
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
        if !self.state.up.contains(id) {
            return;
        }
        if self.state.linked.contains(id) {
            return self.follow_open(id);
        }
        if self.membership.link_state(id) == LinkState::NoRoom && now_us >= self.state.retry_at_us {
            self.state.retry_at_us = now_us.saturating_add(RETRY_US);
            self.note_no_inbox(id, now_us);
        }
        if self.open(id).is_some() {
            self.follow_open(id);
        }
    }

    /// Ends a link that the other node ends.
    fn follow_open(&mut self, id: u16) {
        use LinkState::{Draining, Ending, Withdrawn};
        if matches!(
            self.membership.link_state(id),
            Ending | Withdrawn | Draining
        ) {
            self.end_link(id);
        }
    }

    /// Notes that there is no inbox for a link, within the rate limit of the node's faults.
    #[cold]
    fn note_no_inbox(&mut self, node: u16, now_us: u64) {
        let limit = self.state.faults.get_mut(usize::from(node));
        if let Some(suppressed) = limit.and_then(|limit| limit.allow(now_us)) {
            self.hal.note(&Notice::NoInbox { node, suppressed });
        }
    }
}
