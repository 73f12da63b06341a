// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a node knows of the offers and answers between it and another one, in a pool with inboxes.

use nupa_proto::pool::{
    epoch_tag,
    inbox::{Answer, AnswerState, Offer, OfferState},
};

/// How far a node is with the link to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// There is none.
    #[default]
    Closed,
    /// This node or the other has no inbox left, so there is none; it can be asked for anew.
    NoRoom,
    /// This node has asked for it.
    Opening,
    /// It is there.
    Open,
    /// This node ends it, and waits for the other to do so too. It puts no more requests and frames in.
    Withdrawn,
    /// The other node ends it, and this one is to do so too.
    Ending,
    /// Both end it: as soon as nothing is left to be done, this node is to say so.
    Draining,
    /// This node has no more to do with it, and waits for the other to say the same.
    Finished,
}

/// What both say about each other, as this node knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    /// What the other node had said of changes when this one looked last.
    pub(crate) changes: u64,
    /// This node's offer, and its answer to the other's, as they are in the pool.
    pub(crate) offer: Offer,
    pub(crate) answer: Answer,
    /// The other's, with the tags of both epochs; else none.
    their_offer: Offer,
    their_answer: Answer,
    /// The inbox of this node's offer is the other's, or may be.
    pub(crate) lent: bool,
    /// Inboxes that the other may still write to since one of the two had another epoch. They are two where what the other says could not be read: the one
    /// that it had, and the one that was offered to it.
    held: [Option<u16>; 2],
    /// One of the two had no inbox for a link.
    pub(crate) no_room: bool,
    /// The other one has said that it refuses this node's epoch.
    pub(crate) refuses: bool,
    /// Something has become of the link, and nobody was told yet.
    pub(crate) changed: bool,
}

/// What is to be done about what the other says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing.
    Nothing,
    /// This node has its inbox back.
    Release,
    /// The other node offers an inbox.
    Accept,
}

impl Pair {
    /// Of a node that was not looked at yet.
    pub(crate) const UNKNOWN: Self = Self {
        changes: 0,
        offer: Offer::NONE,
        answer: Answer::NONE,
        their_offer: Offer::NONE,
        their_answer: Answer::NONE,
        lent: false,
        held: [None; 2],
        no_room: false,
        refuses: false,
        changed: false,
    };

    /// Under another epoch of one of the two: nothing was said, but what the other may write to stays so, and nobody forgets what is new.
    pub(crate) fn begin_anew(&mut self) {
        *self = Self {
            changes: self.changes,
            held: self.held,
            changed: self.changed,
            ..Self::UNKNOWN
        };
    }

    /// Takes note that the other may write to an inbox, whatever becomes of the epochs.
    pub(crate) fn hold(&mut self, inbox: u16) {
        let [first, second] = &mut self.held;
        // A third one is not lent before what the other says was read, and that leaves one at most.
        match first.is_none_or(|held| held == inbox) {
            true => *first = Some(inbox),
            false => *second = Some(inbox),
        }
    }

    /// Takes note that the other writes to no inbox that is held but, perhaps, to this one. Whether that frees any.
    pub(crate) fn give_back(&mut self, used: Option<u16>) -> bool {
        let before = self.held;
        for held in &mut self.held {
            *held = held.filter(|held| used == Some(*held));
        }
        self.held != before
    }

    /// Inboxes of this node that the other may write to.
    pub(crate) fn taken(&self) -> impl Iterator<Item = u16> {
        let lent = self.lent.then_some(self.offer.inbox);
        self.held().chain(lent)
    }

    /// Those that it may write to since before.
    pub(crate) fn held(&self) -> impl Iterator<Item = u16> {
        self.held.into_iter().flatten()
    }

    /// Takes note of what the other says in its two words. `tags`: of this node's epoch, and of the other's.
    pub(crate) fn take_note(&mut self, [offer, answer]: [u64; 2], tags: [u16; 2]) {
        let [own, other] = tags;
        let offer = Offer::from_wire(offer).ok();
        let offer = offer.filter(|offer| offer.owner == other && offer.writer == own);
        let answer = Answer::from_wire(answer).ok();
        let answer = answer.filter(|answer| answer.writer == other && answer.owner == own);
        self.their_offer = offer.unwrap_or(Offer::NONE);
        self.their_answer = answer.unwrap_or(Answer::NONE);
    }

    /// What is due then. To be asked until it is nothing.
    pub(crate) fn due(&mut self) -> Due {
        let reply = self.their_answer;
        let replied = self.lent && reply.is_to(self.offer);
        match reply.state {
            // What it had to say lies in the inbox until this node has taken it out.
            AnswerState::Done if replied && !self.uses() => self.release(),
            // Whoever has a link has room for it.
            AnswerState::NoRoom
                if replied && !self.uses() && self.offer.state == OfferState::Open =>
            {
                self.no_room = true;
                self.release()
            }
            // Of one that was asked for when the link before was not over for this node, later.
            _ if self.is_offered() && !(self.lent && self.offer.state != OfferState::Open) => {
                Due::Accept
            }
            _ => Due::Nothing,
        }
    }

    fn release(&mut self) -> Due {
        self.lent = false;
        Due::Release
    }

    /// Whether the other node offers an inbox that this one has not answered. It may have made the link that this one has asked for, and have withdrawn its offer
    /// before this one found it: then there is something to be ended.
    fn is_offered(&self) -> bool {
        let stands = match self.their_offer.state {
            OfferState::Open => true,
            OfferState::Withdrawn => self.lent && self.is_used(),
            OfferState::None => false,
        };
        stands && !self.answer.is_to(self.their_offer)
    }

    /// Whether the other node says that it writes to the inbox that this one offers.
    fn is_used(&self) -> bool {
        let reply = self.their_answer;
        reply.state == AnswerState::Uses && reply.is_to(self.offer)
    }

    /// Whether this node writes to an inbox of the other's.
    pub(crate) fn uses(&self) -> bool {
        self.answer.state == AnswerState::Uses
    }

    /// Numbers of the inboxes of this node and of the other that a link takes, if there is one.
    pub(crate) fn inboxes(&self) -> Option<(u16, u16)> {
        let linked = self.uses() && self.offer.state != OfferState::None;
        linked.then_some((self.offer.inbox, self.answer.inbox))
    }

    /// The offer of an inbox, which comes after the one that there is.
    pub(crate) fn next_offer(&self, inbox: u16, [own, other]: [u16; 2]) -> Offer {
        Offer {
            owner: own,
            writer: other,
            inbox,
            serial: self.offer.serial.wrapping_add(1),
            state: OfferState::Open,
        }
    }

    /// An answer to the other's offer.
    pub(crate) fn reply(&self, state: AnswerState) -> Answer {
        Answer {
            writer: self.their_offer.writer,
            owner: self.their_offer.owner,
            inbox: self.their_offer.inbox,
            serial: self.their_offer.serial,
            state,
        }
    }

    /// The other's offer, as it was read.
    pub(crate) fn their_offer(&self) -> Offer {
        self.their_offer
    }

    /// How far the link is.
    pub(crate) fn state(&self) -> LinkState {
        let (own, other) = (self.offer.state, self.their_offer.state);
        match (self.lent, self.uses()) {
            (false, false) if self.no_room => LinkState::NoRoom,
            (false, false) => LinkState::Closed,
            (true, false) if own == OfferState::Open => LinkState::Opening,
            (true, false) => LinkState::Finished,
            (_, true) => match (own, other) {
                (OfferState::Open, OfferState::Open) => LinkState::Open,
                (OfferState::Open, _) => LinkState::Ending,
                (_, OfferState::Open) => LinkState::Withdrawn,
                _ => LinkState::Draining,
            },
        }
    }
}

/// Whether a node's answer says that it refuses the epoch of another.
pub(crate) fn is_refusal(answer: u64, own_epoch: u32) -> bool {
    let answer = Answer::from_wire(answer);
    answer.is_ok_and(|answer| {
        answer.state == AnswerState::Refused && answer.owner == epoch_tag(own_epoch)
    })
}

/// The inbox that a node may write to, as its answer says, under whatever epochs. `inboxes`: how many the other has; of others there are none.
pub(crate) fn in_use(answer: u64, inboxes: u16) -> Option<u16> {
    let answer = Answer::from_wire(answer).ok()?;
    (answer.state == AnswerState::Uses && answer.inbox < inboxes).then_some(answer.inbox)
}
