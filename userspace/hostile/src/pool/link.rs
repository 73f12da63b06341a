// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Links to victims: made as they should be, and used as they should not.

use std::mem::offset_of;
use std::thread;
use std::time::Duration;

use nupa_pool::{behind_lines, Place};
use nupa_proto::pool::{
    epoch_tag, Claim, ClaimState, Class, LinkWord, Presence, Slot, CAP_POOL_LINES, CLASSES,
    PRESENCE_POLLING, PRESENCE_UP, TAG_NONE,
};

use super::HostileMember;

/// How often a victim is given another look at the heartbeat, and when. It looks every 100 ms.
const LOOKS: u32 = 20;
const LOOK: Duration = Duration::from_millis(20);
/// Most times that something is done on a link, and what is done each time.
const TURNS: u32 = 60;
const TURN: u32 = 8;
const PAUSE: Duration = Duration::from_millis(2);

/// The member's side of a link to a victim.
pub(super) struct Link {
    pub(super) mask: u16,
    pub(super) victim: u16,
    pub(super) tags: (u16, u16),
    /// Entries are of lines.
    pub(super) in_lines: bool,
    /// Index behind the last entry of each ring, and position behind its payload.
    pub(super) next: [u32; CLASSES],
    pub(super) bulk: [u32; CLASSES],
    /// Entries of each that the victim was seen to have taken.
    taken: [u32; CLASSES],
}

impl HostileMember<'_> {
    /// Has a node come up with another epoch, makes links to the victims, and lies to them until they have enough of it.
    pub(super) fn lie_as(&mut self, mask: u16) {
        let mut links = self.come_up(mask);
        for _ in 0..self.draw.small(TURNS) {
            self.beat(mask);
            for link in &mut links {
                for _ in 0..self.draw.small(TURN) {
                    self.lie_on(link);
                }
            }
            thread::sleep(PAUSE);
            links.retain_mut(|link| self.goes_on(link));
            if links.is_empty() {
                return;
            }
        }
        links.iter().for_each(|link| self.count(link));
    }

    /// Whether the victim has not refused a link yet.
    fn goes_on(&mut self, link: &mut Link) -> bool {
        let refused = self.is_refused(link);
        if refused {
            self.count(link);
            self.seen.refused = self.seen.refused.saturating_add(1);
        } else {
            self.look(link);
        }
        !refused
    }

    fn count(&mut self, link: &Link) {
        let taken = link.taken.iter().map(|count| u64::from(*count));
        self.seen.taken = taken.fold(self.seen.taken, u64::saturating_add);
    }

    fn lie_on(&mut self, link: &mut Link) {
        match self.draw.small(100) {
            0 => self.word_of(link.mask, link.victim),
            1 => self.word_of(link.victim, link.mask),
            2..=20 => self.free_all(link),
            _ => self.entry_on(link),
        }
    }

    /// A slot of another epoch, and links to the victims that see it.
    fn come_up(&mut self, mask: u16) -> Vec<Link> {
        let slot = self.memory.geometry().slot(mask);
        let at = |field: usize| slot.saturating_add(field as u64);
        let epoch = self.epoch(mask).wrapping_add(1).max(1);
        let claim = Claim {
            state: ClaimState::Taken,
            token: self.draw.word(),
            epoch,
        };
        let presence = Presence {
            flags: PRESENCE_UP | PRESENCE_POLLING,
            epoch,
        };
        let (capabilities, bell) = (self.draw.long(), self.bell());
        for (field, value) in [
            (offset_of!(Slot, claim), claim.to_wire()),
            (offset_of!(Slot, capabilities), capabilities),
            (offset_of!(Slot, bell), bell),
            (offset_of!(Slot, presence), presence.to_wire()),
        ] {
            self.store("epochs", at(field), value);
        }
        let mut waiting: Vec<u16> = self.victims.to_vec();
        waiting.retain(|victim| *victim != mask);
        let mut links = Vec::new();
        for _ in 0..LOOKS {
            if waiting.is_empty() {
                break;
            }
            self.beat(mask);
            thread::sleep(LOOK);
            waiting.retain(|victim| match self.open(mask, *victim, epoch_tag(epoch)) {
                Some(link) => {
                    links.push(link);
                    false
                }
                None => true,
            });
        }
        self.seen.made = self.seen.made.saturating_add(links.len() as u64);
        self.seen.unanswered = self.seen.unanswered.saturating_add(waiting.len() as u64);
        links
    }

    fn beat(&mut self, mask: u16) {
        let slot = self.memory.geometry().slot(mask);
        let at = slot.saturating_add(offset_of!(Slot, heartbeat) as u64);
        let next = self.memory.load(at).wrapping_add(1);
        self.store("heartbeats", at, next);
    }

    /// This side of a link, once the victim has made its own.
    fn open(&mut self, mask: u16, victim: u16, own: u16) -> Option<Link> {
        let peer = self.tag(victim);
        let theirs = self.word(self.ring(victim, mask, Class::Request).producer());
        if (theirs.source, theirs.target) != (peer, own) {
            return None;
        }
        let start = |source, target| LinkWord {
            source,
            target,
            index: 0,
        };
        for class in Class::ALL {
            let (out, back) = (
                self.ring(mask, victim, *class),
                self.ring(victim, mask, *class),
            );
            for (at, word) in [
                (out.producer_want(), LinkWord::default()),
                (out.producer(), start(own, peer)),
                (back.consumer_bulk(), start(peer, own)),
                (back.consumer(), start(peer, own)),
            ] {
                self.store("links", at, word.to_wire());
            }
        }
        Some(Link {
            mask,
            victim,
            tags: (own, peer),
            in_lines: self.knows_lines(mask) && self.knows_lines(victim),
            next: [0; CLASSES],
            bulk: [0; CLASSES],
            taken: [0; CLASSES],
        })
    }

    /// Whether a node's slot says that it knows entries of lines.
    fn knows_lines(&self, node: u16) -> bool {
        let slot = self.memory.geometry().slot(node);
        let at = slot.saturating_add(offset_of!(Slot, capabilities) as u64);
        self.memory.load(at) & CAP_POOL_LINES != 0
    }

    /// Frees what the victim has sent, as it should: so it has room for more.
    fn free_all(&mut self, link: &Link) {
        let class = self.class();
        let place = self.ring(link.victim, link.mask, class);
        let sent = match link.in_lines {
            false => self.memory.load(place.producer()),
            true => {
                let consumer = self.word(place.consumer());
                let index = behind_lines(&place.in_lines(), consumer, |at| self.memory.load(at));
                LinkWord { index, ..consumer }.to_wire()
            }
        };
        self.store("freed", place.consumer(), sent);
    }

    /// Looks how many entries the victim has taken.
    fn look(&self, link: &mut Link) {
        for (class, (taken, next)) in Class::ALL.iter().zip(link.taken.iter_mut().zip(link.next)) {
            let word = self.word(self.ring(link.mask, link.victim, *class).consumer());
            // A lie of another thread may stand there instead.
            if (word.source, word.target) == link.tags && word.index <= next {
                *taken = word.index.max(*taken);
            }
        }
    }

    fn is_refused(&self, link: &Link) -> bool {
        let place = self.ring(link.mask, link.victim, Class::Request);
        let word = self.word(place.consumer());
        (word.source, word.target) == (link.tags.0, TAG_NONE)
    }

    /// Two nodes of which one is no victim, mostly with a victim.
    pub(super) fn way(&mut self) -> (u16, u16) {
        let (mask, victim) = (self.mask(), self.victim());
        let other = self.draw.one_or(&self.masks, self.own);
        let other = match self.draw.once_in(8) {
            true if other != mask => other,
            _ => victim,
        };
        match self.draw.once_in(2) {
            true => (mask, other),
            false => (other, mask),
        }
    }

    /// A word of any ring.
    pub(super) fn link_word(&mut self) {
        let (source, target) = self.way();
        self.word_of(source, target);
    }

    /// A word of a ring from one node to another: the producer's or the consumer's.
    fn word_of(&mut self, source: u16, target: u16) {
        let class = self.class();
        let place = self.ring(source, target, class);
        let words = [
            place.producer(),
            place.producer_want(),
            place.consumer(),
            place.consumer_bulk(),
        ];
        let at = self.draw.one_or(&words, place.producer());
        let word = self.lying_word(&place, at, (source, target));
        self.store("link words", at, word.to_wire());
    }

    fn lying_word(&mut self, place: &Place, at: u64, (source, target): (u16, u16)) -> LinkWord {
        let found = self.word(at);
        let index = match self.draw.small(8) {
            0..=3 => found.index.wrapping_add(self.draw.small(7)).wrapping_sub(3),
            4 => found
                .index
                .wrapping_add(self.draw.small(600))
                .wrapping_sub(300),
            5 => self.word(place.producer()).index,
            6 => self.word(place.consumer()).index,
            _ => self.draw.lie(),
        };
        let (source, target) = match self.draw.small(8) {
            0 => (self.draw.small_short(u16::MAX), self.draw.small_short(8)),
            1 => (TAG_NONE, found.target),
            2 => (found.source, TAG_NONE),
            3..=5 => (self.tag(source), self.tag(target)),
            _ => (found.source, found.target),
        };
        LinkWord {
            source,
            target,
            index,
        }
    }
}
