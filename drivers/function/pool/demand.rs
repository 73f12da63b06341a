// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Links on demand: in a pool with inboxes there is one to a node once something is to be sent to it, or it asks.

use super::{
    hal::{Notice, PoolHal},
    node::PoolNode,
};
use nupa_engine::NodeTable;
use nupa_pool::{LinkState, NodeCursor};

/// How long a link was not used that is ended where another one is wanted and there is no inbox for it, in microseconds.
const IDLE_US: u64 = 100_000;
/// How long nobody is asked again who had no inbox left, in microseconds.
const RETRY_US: u64 = 100_000;
/// How often links that are to end are looked at, in microseconds: that is a look at all queue pairs.
const ENDING_US: u64 = 4_000;

impl<H: PoolHal> PoolNode<H> {
    /// Asks for the links that are wanted, and opens those that are there.
    pub(super) fn serve_links(&mut self, now_us: u64) {
        if self.membership.pool().geometry().inboxes().is_none() {
            return;
        }
        while let Some(id) = self.membership.next_changed() {
            self.follow(id, now_us);
        }
        // Where there are not enough for all, each comes first some time.
        let mut up = NodeCursor::new(self.state.first_asked);
        while let Some(id) = up.next(&self.state.up) {
            if !self.state.linked.contains(id) {
                self.serve_link(id, now_us);
            }
        }
        let idlest = self.idlest(now_us);
        if self.membership.take_shortage() && self.state.ending.is_empty() {
            if let Some(id) = idlest {
                self.end_link(id);
            }
        }
        if now_us >= self.state.ending_due_us {
            self.state.ending_due_us = now_us.saturating_add(ENDING_US);
            self.go_on_ending();
        }
    }

    /// The link that was not used for longest, if that is long enough to end it for another one.
    fn idlest(&mut self, now_us: u64) -> Option<u16> {
        let mut idlest: Option<(u64, u16)> = None;
        let mut linked = NodeCursor::new(0);
        while let Some(id) = linked.next(&self.state.linked) {
            let Some(peer) = self.model.functions.peer_mut(id) else {
                continue;
            };
            let link = peer.link_mut();
            link.note_use(now_us);
            let idle = link.idle_us(now_us);
            if idle >= IDLE_US && idlest.is_none_or(|(longest, _)| idle > longest) {
                idlest = Some((idle, id));
            }
        }
        idlest.map(|(_, id)| id)
    }

    /// Lets nothing begin on a link.
    fn end_link(&mut self, id: u16) {
        if let Some(peer) = self.model.functions.peer_mut(id) {
            peer.link_mut().end();
            self.state.ending.insert(id);
        }
    }

    /// Ends the links that are to end, as far as that goes.
    fn go_on_ending(&mut self) {
        let mut ending = NodeCursor::new(0);
        while let Some(id) = ending.next(&self.state.ending) {
            self.go_on_ending_link(id);
        }
    }

    /// This node says that a link ends once nothing is under way, and has done with it when both have said so, and nothing is left.
    fn go_on_ending_link(&mut self, id: u16) {
        // Else it hears of what the other node says with its next look around.
        let state = self.membership.look_at(&self.window, id);
        let functions = &mut self.model.functions;
        match state {
            LinkState::Open | LinkState::Ending => {
                if self.model.engine.is_done_with(functions, id) {
                    self.membership.withdraw(&self.window, id);
                }
            }
            LinkState::Draining => {
                if !self.model.engine.is_done_with(functions, id) {
                    return;
                }
                let Some(peer) = functions.peer_mut(id) else {
                    return;
                };
                let link = peer.link_mut();
                if link.finish(|link| self.membership.finish(&self.window, id, link)) {
                    self.model.engine.link_ended(functions, id);
                    self.state.linked.remove(id);
                }
            }
            LinkState::Withdrawn | LinkState::Finished => {}
            LinkState::Closed | LinkState::NoRoom | LinkState::Opening => {
                self.state.ending.remove(id);
                // There is an inbox.
                self.state.retry_at_us = 0;
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
                if !peer.is_some_and(|peer| peer.link_mut().is_wanted(now_us)) {
                    return;
                }
                self.state.first_asked = id.wrapping_add(1);
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

    /// Notes that there is no inbox for a link. They have a rate limit of their own, so that they take none from faults.
    #[cold]
    fn note_no_inbox(&mut self, node: u16, now_us: u64) {
        if self.state.shortages.allow(now_us).is_some() {
            self.hal.note(&Notice::NoInbox { node });
        }
    }
}
