// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Links on demand: in a pool with inboxes there is one to a node once something is to be sent to it, or it asks.

use super::{
    hal::{Notice, PoolHal},
    node::PoolNode,
};
use nupa_engine::{NodeTable, Peer};
use nupa_pool::{Link, LinkState, NodeCursor, NodeSet};

/// How long a link was not used that is ended where another one is wanted and there is no inbox for it, in microseconds.
const IDLE_US: u64 = 100_000;
/// The same where nothing waits for the other one: it is wanted for a frame or datagram for many nodes.
const IDLE_FOR_MANY_US: u64 = 1_000_000;
/// How long nobody is asked again who had no inbox left, and no other link is ended, in microseconds.
const RETRY_US: u64 = 100_000;
/// How often links that are to end are looked at, in microseconds: that is a look at all queue pairs.
const ENDING_US: u64 = 4_000;
/// Links that are tried where one is to end, those that were not used for longest first: something may be under way on them.
const TRIES: usize = 4;

impl<H: PoolHal> PoolNode<H> {
    /// Asks for the links that are wanted, opens those that are there, and ends some where there are not enough inboxes.
    pub(super) fn serve_links(&mut self, now_us: u64) {
        if self.membership.pool().geometry().inboxes().is_none() {
            return;
        }
        while let Some(id) = self.membership.next_changed() {
            self.follow(id, now_us);
        }
        self.note_use(now_us);
        // What waits comes first.
        for (waits, idle_us) in [(true, IDLE_US), (false, IDLE_FOR_MANY_US)] {
            self.ask_for_links(waits, now_us);
            if self.membership.take_shortage() {
                self.end_idlest(idle_us, now_us);
            }
        }
        if now_us >= self.state.ending_due_us {
            self.state.ending_due_us = now_us.saturating_add(ENDING_US);
            self.go_on_ending(now_us);
        }
    }

    /// Does what is due about links to nodes that have none: to those that something waits for, or to the others. Where there are not enough inboxes
    /// for all, each comes first some time.
    fn ask_for_links(&mut self, waits: bool, now_us: u64) {
        let mut up = NodeCursor::new(self.state.first_asked);
        while let Some(id) = up.next(&self.state.up) {
            if self.state.linked.contains(id) {
                continue;
            }
            let functions = &mut self.model.functions;
            let wanted = functions
                .peer_mut(id)
                .is_some_and(|peer| peer.link_mut().is_wanted(now_us));
            if self.model.engine.has_waiters(functions, id) == waits {
                self.serve_link(id, wanted || waits, now_us);
            }
        }
    }

    fn note_use(&mut self, now_us: u64) {
        let mut linked = NodeCursor::new(0);
        while let Some(id) = linked.next(&self.state.linked) {
            if let Some(peer) = self.model.functions.peer_mut(id) {
                peer.link_mut().note_use(now_us);
            }
        }
    }

    /// Ends the link that was not used for longest, if that is long enough, and nothing is under way there.
    #[cold]
    fn end_idlest(&mut self, idle_us: u64, now_us: u64) {
        if now_us < self.state.end_again_us {
            return;
        }
        let mut tried = NodeSet::default();
        for _ in 0..TRIES {
            let Some(id) = self.idlest(&tried, false, idle_us, now_us) else {
                break;
            };
            let functions = &mut self.model.functions;
            if self.model.engine.is_done_with(functions, id)
                && self.membership.withdraw(&self.window, id)
            {
                self.state.end_again_us = now_us.saturating_add(RETRY_US);
                return self.end_link(id);
            }
            tried.insert(id);
        }
        // Then one that processes have mapped something of, as soon as they have not.
        let mapped = self.idlest(&tried, true, idle_us, now_us);
        if let Some(peer) = mapped.and_then(|id| self.model.functions.peer_mut(id)) {
            peer.recall();
        }
    }

    /// The link that was not used for longest, but for some, if that is long enough: of those to nodes that processes have mapped something of, or of the others.
    fn idlest(&mut self, tried: &NodeSet, mapped: bool, idle_us: u64, now_us: u64) -> Option<u16> {
        let mut idlest: Option<(u64, u16)> = None;
        let mut linked = NodeCursor::new(0);
        while let Some(id) = linked.next(&self.state.linked) {
            let peer = self.model.functions.peer_mut(id);
            let fits = |peer: &&mut Peer<_>| {
                let may_end = !tried.contains(id) && !self.state.ending.contains(id);
                may_end && peer.is_mapped() == mapped
            };
            let Some(peer) = peer.filter(fits) else {
                continue;
            };
            let idle = peer.link().idle_us(now_us);
            if idle >= idle_us && idlest.is_none_or(|(longest, _)| idle > longest) {
                idlest = Some((idle, id));
            }
        }
        idlest.map(|(_, id)| id)
    }

    /// Lets nothing begin on a link that one of the two has withdrawn its offer for.
    fn end_link(&mut self, id: u16) {
        if let Some(peer) = self.model.functions.peer_mut(id) {
            peer.link_mut().end();
            self.state.ending.insert(id);
        }
    }

    /// Ends the links that are to end, as far as that goes.
    fn go_on_ending(&mut self, now_us: u64) {
        let mut ending = NodeCursor::new(0);
        while let Some(id) = ending.next(&self.state.ending) {
            self.go_on_ending_link(id, now_us);
        }
    }

    /// This node says that a link ends once all that has begun was sent, and has done with it when both have said so, and nothing is left.
    fn go_on_ending_link(&mut self, id: u16, now_us: u64) {
        // Else it hears of what the other node says with its next look around.
        let state = self.membership.look_at(&self.window, id);
        let functions = &mut self.model.functions;
        match state {
            LinkState::Ending if self.state.linked.contains(id) => {
                if self.model.engine.has_sent_whole(functions, id) {
                    self.membership.withdraw(&self.window, id);
                }
            }
            LinkState::Draining if self.state.linked.contains(id) => {
                if !self.model.engine.is_done_with(functions, id) {
                    return;
                }
                let Some(peer) = functions.peer_mut(id) else {
                    return;
                };
                let link = peer.link_mut();
                let window = &self.window;
                let finish = |link: &mut Link| {
                    link.is_drained(window) && self.membership.finish(window, id, link)
                };
                if link.finish(finish) {
                    self.model.engine.link_ended(functions, id);
                    self.state.linked.remove(id);
                }
            }
            LinkState::Withdrawn | LinkState::Finished => {}
            // It has ended, and there may be the next one.
            _ => {
                self.state.ending.remove(id);
                self.state.retry_at_us = 0;
                self.follow(id, now_us);
            }
        }
    }

    /// Does what is due about the link to a node that has none.
    fn serve_link(&mut self, id: u16, wanted: bool, now_us: u64) {
        match self.membership.link_state(id) {
            LinkState::Opening => {
                // The node hears of it with its next tick, and this one of the answer at once.
                self.membership.look_at(&self.window, id);
            }
            LinkState::NoRoom if now_us < self.state.retry_at_us => return,
            LinkState::Closed | LinkState::NoRoom => {
                if !wanted {
                    return;
                }
                // If there was no inbox for it, it comes first the next time.
                let asked = self.membership.ask(&self.window, id) == LinkState::Opening;
                self.state.first_asked = id.wrapping_add(u16::from(asked));
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

    /// Ends a link that the other node ends, or that was to end before it was opened.
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
