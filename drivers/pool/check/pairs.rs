// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What nodes say about each other, and the inboxes that they lend.

use super::{Checker, Must, Problem, WORD};
use crate::{geometry::Inbox, link::Ends, node_set::NodeSet, Window};
use core::mem::offset_of;
use nupa_proto::pool::{
    inbox::{Answer, AnswerState, Offer, OfferState, Pair},
    TAG_NONE,
};

impl<W: Window, R: FnMut(Problem)> Checker<'_, W, R> {
    /// Checks what all nodes say about each other, and the rings of those that are linked.
    pub(super) fn pairs(&mut self) {
        if let Some(rows) = self.geometry.rows() {
            self.window
                .refresh(rows.start, rows.end.saturating_sub(rows.start));
        }
        for node in 0..self.geometry.max_nodes() {
            let mut lent = NodeSet::EMPTY;
            for other in 0..self.geometry.max_nodes() {
                self.pair(node, other, &mut lent);
            }
        }
        for node in 0..self.geometry.max_nodes() {
            for other in 0..node {
                if let Some(ends) = self.linked(node, other) {
                    self.rings(node, other, |class| ends.to(class));
                    self.rings(other, node, |class| ends.from(class));
                }
            }
        }
    }

    /// Checks what a node says about another. `lent`: inboxes that it has lent to those before.
    fn pair(&mut self, node: u16, other: u16, lent: &mut NodeSet) {
        let Some(at) = self.geometry.pair(node, other) else {
            return;
        };
        let (offer_at, answer_at) = (at, at.wrapping_add(offset_of!(Pair, answer) as u64));
        let (offer, answer) = (self.load(offer_at), self.load(answer_at));
        if node == other {
            return self.zeroes(at..at.wrapping_add(WORD.wrapping_mul(2)));
        }
        let inboxes = self.geometry.inboxes().unwrap_or(0);
        if let Some(word) = offer {
            if let Some(must) = wrong_offer(word, inboxes, lent) {
                self.field(offer_at, "offer", word, Must::Read(must));
            }
        }
        if let Some(word) = answer {
            if let Some(must) = wrong_answer(word, inboxes) {
                self.field(answer_at, "answer", word, Must::Read(must));
            }
        }
    }

    /// The rings of two nodes of which each uses what the other offers, as the first one sees them.
    fn linked(&self, node: u16, other: u16) -> Option<Ends> {
        let inbox = |owner: u16, writer: u16| {
            let offer = self.window.load(self.geometry.pair(owner, writer)?).ok()?;
            let offer = Offer::from_wire(offer).ok()?;
            let at = self.geometry.pair(writer, owner)?;
            let answer = self
                .window
                .load(at.wrapping_add(offset_of!(Pair, answer) as u64));
            let answer = Answer::from_wire(answer.ok()?).ok()?;
            let used = answer.is_to(offer) && answer.state == AnswerState::Uses;
            used.then_some(Inbox {
                node: owner,
                number: offer.inbox,
            })
        };
        self.geometry
            .inbox_ends(inbox(node, other)?, inbox(other, node)?)
    }
}

/// What an offer must be, if it is not. `lent`: inboxes that its node has lent to others.
fn wrong_offer(word: u64, inboxes: u16, lent: &mut NodeSet) -> Option<&'static str> {
    let Ok(offer) = Offer::from_wire(word) else {
        return Some("0 (nothing), 1 (open) or 2 (withdrawn) in its lowest 8 bits");
    };
    if offer.state == OfferState::None {
        return (word != 0).then_some("0, as nothing is offered");
    }
    if offer.inbox >= inboxes {
        return Some("of an inbox that the node has, in bits 31-16");
    }
    if offer.owner == TAG_NONE || offer.writer == TAG_NONE {
        return Some("of two epochs, in its highest 32 bits");
    }
    if offer.state == OfferState::Open {
        if lent.contains(offer.inbox) {
            return Some("of an inbox that the node has not lent to another");
        }
        lent.insert(offer.inbox);
    }
    None
}

/// What an answer must be, if it is not.
fn wrong_answer(word: u64, inboxes: u16) -> Option<&'static str> {
    let Ok(answer) = Answer::from_wire(word) else {
        return Some("0 to 4 in its lowest 8 bits");
    };
    match answer.state {
        AnswerState::None if word != 0 => Some("0, as nothing is answered"),
        AnswerState::None => None,
        _ if answer.inbox >= inboxes => Some("about an inbox that a node has, in bits 31-16"),
        _ => None,
    }
}
