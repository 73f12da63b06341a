// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Links on demand: how a node of a pool with inboxes lends them, and has them back.
//!
//! Two decide by the same pattern whether an inbox is in use, with a full fence on both sides: who may write to it says so, then looks whether the offer
//! still stands; who takes an offer back clears it, then looks whether the other says so. One of the two sees the other.

use crate::{
    geometry::Inbox,
    grants,
    link::{Ends, Link},
    membership::Membership,
    node_set::NodeSet,
    pair::{in_use, is_refusal, Due, LinkState, Pair},
    peer::{Peer, Standing},
    window::zero,
    Poisoned, Window,
};
use core::{borrow::BorrowMut, mem::offset_of};
use nupa_proto::pool::{
    epoch_tag,
    inbox::{
        Answer, AnswerState, Offer, OfferState, Pair as Words, INBOX_BUSY, INBOX_WORDS, PAIR_SIZE,
    },
    Slot, LINE,
};

/// Of [`Membership::next_changed`]: behind all nodes.
pub(crate) const NONE_CHANGED: u16 = u16::MAX;
/// Offset of an answer from the offer.
const ANSWER: u64 = offset_of!(Words, answer) as u64;

impl<P: BorrowMut<[Peer]>> Membership<P> {
    /// How far the link to a node is, where links are made on demand.
    pub fn link_state(&self, node: u16) -> LinkState {
        let peer = self
            .known(node)
            .filter(|peer| peer.standing == Standing::Up);
        peer.map_or(LinkState::Closed, |peer| peer.pair.state())
    }

    /// A node of which [`Membership::link_state`] may be another one than when this returned the node before.
    pub fn next_changed(&mut self) -> Option<u16> {
        let changed = |node: &u16| self.known(*node).is_some_and(|peer| peer.pair.changed);
        let found = self.others_from(self.first_changed).find(changed);
        self.first_changed = found.map_or(NONE_CHANGED, |node| node.saturating_add(1));
        if let Some(node) = found {
            self.with_pair(node, |pair| pair.changed = false);
        }
        found
    }

    /// Whether an inbox was wanted since this was asked before, here or by another node, and there was none.
    pub fn take_shortage(&mut self) -> bool {
        core::mem::take(&mut self.short)
    }

    /// Takes note that something has become of the link to a node.
    fn note_change(&mut self, node: u16) {
        self.with_pair(node, |pair| pair.changed = true);
        self.first_changed = self.first_changed.min(node);
    }

    /// The lowest of this node's inboxes that no other node may write to. By itself because of the space that it takes on the stack.
    #[inline(never)]
    fn free_inbox(&mut self) -> Option<u16> {
        if self.all_lent {
            self.short = true;
            return None;
        }
        let mut taken = NodeSet::EMPTY;
        for node in self.others() {
            // Of a node without a place, nobody knows.
            for inbox in self.known(node)?.pair.taken() {
                taken.insert(inbox);
            }
        }
        let free = taken.first_absent(self.pool().geometry().inboxes()?);
        self.all_lent = free.is_none();
        self.short |= self.all_lent;
        free
    }

    /// Asks for the link to a node that is up, if there is none. Then [`Membership::open_in`] makes it, once it is there.
    pub fn ask(&mut self, window: &impl Window, node: u16) -> LinkState {
        let state = self.link_state(node);
        let closed = matches!(state, LinkState::Closed | LinkState::NoRoom);
        let is_up = self
            .known(node)
            .is_some_and(|peer| peer.standing == Standing::Up);
        if closed && is_up && self.is_valid(window) && !self.lend(window, node) {
            self.with_pair(node, |pair| pair.no_room = true);
        }
        self.link_state(node)
    }

    /// Looks at once what a node says about the link to it, where this node waits for that.
    pub fn look_at(&mut self, window: &impl Window, node: u16) -> LinkState {
        let is_up = self
            .known(node)
            .is_some_and(|peer| peer.standing == Standing::Up);
        if is_up && self.is_valid(window) && self.hear(window, node).is_err() {
            // The next tick finds that.
            self.with_pair(node, |pair| pair.changes = pair.changes.wrapping_sub(1));
        }
        self.link_state(node)
    }

    /// Ends the link to a node. From now on this node puts no more requests and frames into its rings, but responses as ever, until it can
    /// [finish](Membership::finish). False if there is none, or it ended it before.
    pub fn withdraw(&mut self, window: &impl Window, node: u16) -> bool {
        let open = matches!(self.link_state(node), LinkState::Open | LinkState::Ending);
        if !open || !self.is_valid(window) {
            return false;
        }
        if let Some(offer) = self.known(node).map(|peer| peer.pair.offer) {
            let state = OfferState::Withdrawn;
            self.say_offer(window, node, Offer { state, ..offer });
            self.tell(window);
        }
        true
    }

    /// Has no more to do with a link that both nodes end. Nothing is asked of either any more, and all that the other has sent was taken out: else, and if the
    /// link is not to be ended by both, this does nothing and is false.
    pub fn finish(&mut self, window: &impl Window, node: u16, link: &mut Link) -> bool {
        let draining = self.link_state(node) == LinkState::Draining;
        // What came before the other's offer was withdrawn is there to be seen since.
        if !draining || !self.is_valid(window) || link.has_any(window) {
            return false;
        }
        // The other one learns from that what is done.
        link.publish(window);
        self.stop(window, node);
        if let Some(answer) = self.known(node).map(|peer| peer.pair.answer) {
            let state = AnswerState::Done;
            self.say_answer(window, node, Answer { state, ..answer });
            self.tell(window);
        }
        self.settle(window, node);
        true
    }

    /// Where the rings between this node and another lie.
    pub(crate) fn lent_ends(&self, node: u16) -> Option<Ends> {
        let (own, peer) = self.inboxes(node)?;
        self.pool().geometry().inbox_ends(own, peer)
    }

    /// The inboxes that a link takes: this node's, and the other's.
    pub(crate) fn inboxes(&self, node: u16) -> Option<(Inbox, Inbox)> {
        let (own, peer) = self.known(node)?.pair.inboxes()?;
        let inbox = |node, number| Inbox { node, number };
        Some((inbox(self.node(), own), inbox(node, peer)))
    }

    /// Begins with nothing said about anybody, and finds out which of this node's inboxes others may still write to.
    pub(crate) fn begin_pairs(&mut self, window: &impl Window) {
        let geometry = *self.pool().geometry();
        let Some(row) = geometry.row(self.node()) else {
            return;
        };
        let inboxes = geometry.inboxes().unwrap_or(0);
        self.all_lent = false;
        window.refresh(row.start, row.end.saturating_sub(row.start));
        for node in self.others() {
            // If the other's answer cannot be read, this is what it may be about.
            let at = geometry.pair(self.node(), node);
            let offer = at.and_then(|at| window.load(at).ok());
            let offer = offer.and_then(|word| Offer::from_wire(word).ok());
            let offer = offer.filter(|offer| offer.state != OfferState::None);
            let offered = offer.map(|offer| offer.inbox);
            self.with_pair(node, |pair| {
                pair.begin_anew();
                if let Some(inbox) = offered.filter(|inbox| *inbox < inboxes) {
                    pair.hold(inbox);
                }
            });
            // What the slot's former owner has granted lies where it wrote, and that is this node's until its row says something else.
            let answer = at.map(|at| at.wrapping_add(ANSWER));
            let answer = answer.and_then(|at| window.load(at).ok());
            let used = answer.and_then(|answer| in_use(answer, inboxes));
            if let Some(number) = used {
                self.clear_grants_in(window, Inbox { node, number });
            }
        }
        window.fence();
        zero(window, row);
        window.fence();
        for node in self.others() {
            if let Ok([_, answer]) = self.words_of(window, node) {
                let used = in_use(answer, inboxes);
                self.with_pair(node, |pair| {
                    pair.give_back(used);
                    // Whoever had the slot before may have said nothing any more about what it had lent.
                    used.into_iter().for_each(|inbox| pair.hold(inbox));
                });
            }
        }
        self.tell(window);
    }

    /// Whether another node that has a slot may write with a grant to this one's inboxes that are still in use.
    pub(crate) fn has_lent_writers(&self, window: &impl Window) -> bool {
        let is_busy = |number: u16| {
            let inbox = Inbox {
                node: self.node(),
                number,
            };
            let at = self.pool().geometry().inbox(inbox);
            at.is_some_and(|at| grants::is_busy(window, at.wrapping_add(INBOX_BUSY)))
        };
        let is_there = |node: u16| self.has_slot(window, node);
        let mut writers = self.others().filter(|node| {
            let peer = self.known(*node);
            peer.is_some_and(|peer| peer.pair.held().any(is_busy))
        });
        window.is_coherent() && writers.any(is_there)
    }

    /// Writes nothing more to the inboxes of others, and says so by saying nothing about them: this node leaves. What it stored there was written back.
    pub(crate) fn end_pairs(&mut self, window: &impl Window) {
        let Some(row) = self.pool().geometry().row(self.node()) else {
            return;
        };
        self.stop_all(window);
        zero(window, row);
        self.tell(window);
    }

    /// The same, but that it says so is still to come.
    pub(crate) fn stop_all(&self, window: &impl Window) {
        for node in self.others() {
            self.clear_lent_grants(window, node);
        }
        window.fence();
    }

    /// What another node says is new: looks at it, and does what is due. Whether it refuses this node's epoch.
    pub(crate) fn hear(&mut self, window: &impl Window, node: u16) -> Result<bool, Poisoned> {
        let words = self.words_of(window, node)?;
        let [_, answer] = words;
        self.give_back(node, answer);
        let tags = self.tags(node);
        let before = self.link_state(node);
        self.with_pair(node, |pair| pair.take_note(words, tags));
        self.settle(window, node);
        if self.link_state(node) != before {
            self.note_change(node);
        }
        let refuses = is_refusal(answer, self.epoch());
        self.with_pair(node, |pair| pair.refuses = refuses);
        Ok(refuses)
    }

    /// Has back what another node held, if it does not say so any more.
    fn give_back(&mut self, node: u16, answer: u64) {
        let inboxes = self.pool().geometry().inboxes().unwrap_or(0);
        let mut freed = false;
        self.with_pair(node, |pair| freed = pair.give_back(in_use(answer, inboxes)));
        self.all_lent &= !freed;
    }

    /// Looks at what a node that is gone holds.
    pub(crate) fn hear_held(&mut self, window: &impl Window, node: u16) {
        if let Ok([_, answer]) = self.words_of(window, node) {
            self.give_back(node, answer);
        }
    }

    /// Does what is due about a link.
    fn settle(&mut self, window: &impl Window, node: u16) {
        // Each is due once.
        for _ in 0..3 {
            let mut due = Due::Nothing;
            self.with_pair(node, |pair| due = pair.due());
            match due {
                Due::Nothing => return,
                Due::Release => self.has_back(window, node),
                Due::Accept => self.accept(window, node),
            }
        }
    }

    fn has_back(&mut self, window: &impl Window, node: u16) {
        self.all_lent = false;
        if let Some(peer) = self.known_mut(node) {
            peer.opened = false;
            let (offer, state) = (peer.pair.offer, OfferState::Withdrawn);
            if offer.state != state {
                self.say_offer(window, node, Offer { state, ..offer });
                self.tell(window);
            }
        }
    }

    /// Takes the offer of a node that calls, and makes it one, if it has none.
    fn accept(&mut self, window: &impl Window, node: u16) {
        let pair = self.known(node).map(|peer| peer.pair);
        let Some(pair) = pair.filter(|_| self.is_valid(window)) else {
            return;
        };
        let inboxes = self.pool().geometry().inboxes().unwrap_or(0);
        let sound = pair.their_offer().inbox < inboxes;
        let linked = sound && (pair.lent || self.lend(window, node));
        if !linked {
            self.say_answer(window, node, pair.reply(AnswerState::NoRoom));
            return self.tell(window);
        }
        self.with_pair(node, |pair| pair.no_room = false);
        self.say_answer(window, node, pair.reply(AnswerState::Uses));
        window.fence();
        let offer = pair.their_offer().to_wire();
        let stands = self.words_of(window, node).map(|[now, _]| now == offer);
        if stands != Ok(true) {
            self.say_answer(window, node, pair.reply(AnswerState::Done));
        }
        self.tell(window);
    }

    /// Lends an inbox to a node. False if there is none left.
    fn lend(&mut self, window: &impl Window, node: u16) -> bool {
        let Some(number) = self.free_inbox() else {
            return false;
        };
        let own = Inbox {
            node: self.node(),
            number,
        };
        let (tags, before) = (self.tags(node), self.link_state(node));
        let offer = self
            .known(node)
            .map(|peer| peer.pair.next_offer(number, tags));
        let Some((offer, at)) = offer.zip(self.pool().geometry().inbox(own)) else {
            return false;
        };
        // Nobody writes there. Whole lines, which can be read again then if they could not.
        zero(window, at..at.wrapping_add(INBOX_WORDS));
        self.with_pair(node, |pair| (pair.lent, pair.no_room) = (true, false));
        self.say_offer(window, node, offer);
        self.tell(window);
        if self.link_state(node) != before {
            self.note_change(node);
        }
        true
    }

    /// Refuses a node's epoch, and has back what was lent to it as far as it does not use it.
    pub(crate) fn refuse_pair(&mut self, window: &impl Window, node: u16) {
        if !self.is_valid(window) {
            return;
        }
        self.stop(window, node);
        let [own, other] = self.tags(node);
        let Some(pair) = self.known(node).map(|peer| peer.pair) else {
            return;
        };
        let answer = Answer {
            writer: own,
            owner: other,
            state: AnswerState::Refused,
            ..pair.answer
        };
        self.say_answer(window, node, answer);
        self.say_offer(window, node, Offer::NONE);
        window.fence();
        let answer = self.words_of(window, node).map(|[_, answer]| answer);
        if let Ok(answer) = answer {
            // It may still be about an epoch before.
            self.give_back(node, answer);
        }
        if pair.lent {
            let inbox = pair.offer.inbox;
            let inboxes = self.pool().geometry().inboxes().unwrap_or(0);
            let used = answer.map_or(true, |answer| in_use(answer, inboxes) == Some(inbox));
            if used {
                self.with_pair(node, |pair| pair.hold(inbox));
            }
        }
        self.all_lent = false;
        self.with_pair(node, |pair| {
            let answer = pair.answer;
            pair.begin_anew();
            pair.answer = answer;
        });
        self.tell(window);
    }

    /// Nothing that this node has stored in another's inbox reaches it later, and no grant counts there. The fence comes before what says so.
    fn stop(&self, window: &impl Window, node: u16) {
        if let Some(ends) = self.lent_ends(node).filter(|_| !window.is_coherent()) {
            ends.write_back(window);
        }
        self.clear_lent_grants(window, node);
        window.fence();
    }

    fn clear_lent_grants(&self, window: &impl Window, node: u16) {
        if let Some((_, theirs)) = self.inboxes(node) {
            self.clear_grants_in(window, theirs);
        }
    }

    /// Zeroes busy word and grants in an inbox that this node writes to.
    fn clear_grants_in(&self, window: &impl Window, inbox: Inbox) {
        if let Some(at) = self.pool().geometry().inbox(inbox) {
            let words = at.wrapping_add(INBOX_BUSY)..at.wrapping_add(INBOX_WORDS);
            zero(window, words);
        }
    }

    /// Says anew whose epochs this node refuses, under its next epoch.
    pub(crate) fn refuse_anew(&mut self, window: &impl Window) {
        if self.pool().geometry().inboxes().is_none() {
            return;
        }
        for node in self.others() {
            let standing = self.known(node).map(|peer| peer.standing);
            if standing == Some(Standing::Refused) {
                let [writer, owner] = self.tags(node);
                let state = AnswerState::Refused;
                let answer = Answer {
                    writer,
                    owner,
                    state,
                    ..Answer::NONE
                };
                self.say_answer(window, node, answer);
            }
        }
        self.tell(window);
    }

    /// Tags of this node's epoch, and of the one of another that counts.
    fn tags(&self, node: u16) -> [u16; 2] {
        let other = self.known(node).map_or(0, |peer| peer.epoch);
        [epoch_tag(self.epoch()), epoch_tag(other)]
    }

    /// What another node says about this one: its offer, and its answer.
    fn words_of(&self, window: &impl Window, node: u16) -> Result<[u64; 2], Poisoned> {
        let Some(at) = self.pool().geometry().pair(node, self.node()) else {
            return Ok([0; 2]);
        };
        window.refresh(at, PAIR_SIZE);
        Ok([window.load(at)?, window.load(at.wrapping_add(ANSWER))?])
    }

    fn say_offer(&mut self, window: &impl Window, node: u16, offer: Offer) {
        self.with_pair(node, |pair| pair.offer = offer);
        self.say(window, node, offset_of!(Words, offer), offer.to_wire());
    }

    fn say_answer(&mut self, window: &impl Window, node: u16, answer: Answer) {
        self.with_pair(node, |pair| pair.answer = answer);
        self.say(window, node, offset_of!(Words, answer), answer.to_wire());
    }

    fn say(&self, window: &impl Window, node: u16, offset: usize, word: u64) {
        if let Some(at) = self.pool().geometry().pair(self.node(), node) {
            let at = at.wrapping_add(offset as u64);
            window.store(at, word);
            window.publish(at, size_of::<u64>() as u64);
        }
    }

    /// Tells the others that there is something new in this node's row.
    fn tell(&mut self, window: &impl Window) {
        self.changes = self.changes.wrapping_add(1);
        window.store(self.field(offset_of!(Slot, changes)), self.changes);
        window.publish(self.owner(), LINE);
    }

    fn with_pair(&mut self, node: u16, change: impl FnOnce(&mut Pair)) {
        if let Some(peer) = self.known_mut(node) {
            change(&mut peer.pair);
        }
    }
}
