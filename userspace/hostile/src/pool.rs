// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a member of a pool can write there, and others must bear.

mod entry;
mod link;
mod memory;
mod wild;

use std::thread;
use std::time::Duration;

use nupa_pool::Place;
use nupa_proto::pool::{epoch_tag, Claim, ClaimState, Class, LinkWord};

use crate::draw::Draw;
use crate::tally::Tally;

pub(crate) use self::memory::Memory;

/// Operations of a batch that goes anywhere, and the rest behind it. Others' words have to stand for long enough to be believed.
const BATCH: u32 = 64;
const REST: Duration = Duration::from_millis(20);

/// What became of what it wrote.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Links that a victim made to it, those that it refused later on, and those that it did not make in time.
    pub(crate) made: u64,
    pub(crate) refused: u64,
    pub(crate) unanswered: u64,
    /// Entries that victims were shown, and that they have taken.
    pub(crate) shown: u64,
    pub(crate) taken: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.made, other.made),
            (&mut self.refused, other.refused),
            (&mut self.unanswered, other.unanswered),
            (&mut self.shown, other.shown),
            (&mut self.taken, other.taken),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// A thread of the hostile member. It writes in the place of any other node, too, but for the victims.
pub(crate) struct HostileMember<'a> {
    memory: &'a Memory,
    own: u16,
    victims: &'a [u16],
    /// In whose place it writes.
    masks: Vec<u16>,
    draw: Draw,
    pub(crate) tally: Tally,
    pub(crate) seen: Seen,
}

impl<'a> HostileMember<'a> {
    pub(crate) fn new(memory: &'a Memory, own: u16, victims: &'a [u16], draw: Draw) -> Self {
        let masks = (0..memory.nodes()).filter(|node| !memory.spares(*node));
        Self {
            memory,
            own,
            victims,
            masks: masks.collect(),
            draw,
            tally: Tally::default(),
            seen: Seen::default(),
        }
    }

    /// Does something for less than a second: writes anywhere, or makes links to the victims and lies to them.
    pub(crate) fn act(&mut self) {
        if self.draw.once_in(3) {
            self.wild();
            thread::sleep(REST);
            return;
        }
        let mask = self.mask();
        self.lie_as(mask);
    }

    /// Leaves all slots that it has written in, as if their nodes had left: what is held there counts no more.
    pub(crate) fn leave(&mut self) {
        for mask in self.masks.clone() {
            let free = Claim {
                state: ClaimState::Free,
                token: 0,
                epoch: self.epoch(mask),
            };
            let slot = self.memory.geometry().slot(mask);
            self.store("left", slot, free.to_wire());
        }
    }

    /// In whose place it writes now: more often than not in its own.
    fn mask(&mut self) -> u16 {
        match self.draw.once_in(2) {
            true => self.own,
            false => self.draw.one_or(&self.masks, self.own),
        }
    }

    fn victim(&mut self) -> u16 {
        self.draw.one_or(self.victims, self.own)
    }

    fn class(&mut self) -> Class {
        self.draw.one_or(Class::ALL, Class::Frame)
    }

    fn ring(&self, source: u16, target: u16, class: Class) -> Place {
        self.memory.geometry().ring(source, target, class)
    }

    fn word(&self, at: u64) -> LinkWord {
        LinkWord::from_wire(self.memory.load(at))
    }

    /// Epoch in a slot's claim.
    fn epoch(&self, node: u16) -> u32 {
        let claim = self.memory.load(self.memory.geometry().slot(node));
        Claim::from_wire(claim).map_or(0, |claim| claim.epoch)
    }

    fn tag(&self, node: u16) -> u16 {
        epoch_tag(self.epoch(node))
    }

    /// Stores a word, and counts that.
    fn store(&mut self, class: &str, at: u64, value: u64) {
        let end = self.memory.store(at, value);
        self.tally.count(class, end);
    }

    /// Writes bytes, and counts that.
    fn write(&mut self, class: &str, at: u64, bytes: &[u8]) {
        let end = self.memory.write(at, bytes);
        self.tally.count(class, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nupa_pool::Area;

    /// What differs from an empty pool, as people are told of it.
    fn changed(memory: &Memory) -> Vec<String> {
        let offsets = (0..memory.geometry().size()).step_by(8);
        let written = offsets.filter(|at| memory.load(*at) != 0);
        let mut areas: Vec<_> = written.map(|at| memory.geometry().area(at)).collect();
        areas.dedup();
        areas.retain(|area| *area != Area::Superblock);
        areas.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_the_victims_is_spared() {
        let memory = Memory::formatted(&[0, 1], false);
        let block: Vec<u64> = (0..512).map(|word| memory.load(word * 8)).collect();
        let mut member = HostileMember::new(&memory, 2, &[0, 1], Draw::new(1));
        (0..400).for_each(|_| member.wild());
        member.lie_as(2);
        let changed = changed(&memory);
        for mine in [
            "slot of node 2",
            "slot of node 3",
            "directory of node 2",
            "device memory of node 3",
            "indices of the rings from node 0 to node 2",
            "ring of requests from node 2 to node 1",
        ] {
            assert!(
                changed.iter().any(|area| area == mine),
                "{mine}: {changed:?}"
            );
        }
        for spared in [
            "slot of node 0",
            "directory of node 1",
            "device memory of node 0",
            "from node 0 to node 1",
            "from node 1 to node 0",
        ] {
            assert!(
                !changed.iter().any(|area| area.contains(spared)),
                "{spared}"
            );
        }
        let after: Vec<u64> = (0..512).map(|word| memory.load(word * 8)).collect();
        assert_eq!(block, after);
        let tally = member.tally.to_json();
        assert!(tally["random bytes"]["EPERM"].as_u64() > Some(0), "{tally}");
        // Nobody looks there.
        assert_eq!((member.seen.made, member.seen.unanswered), (0, 2));
    }

    #[test]
    fn nobody_is_told_that_it_is_dead() {
        for everything in [false, true] {
            let memory = Memory::formatted(&[0, 1], everything);
            let at = memory.geometry().ring(0, 2, Class::Request).consumer();
            let word = LinkWord {
                source: 5,
                target: 0,
                index: 0,
            };
            assert_eq!(memory.store(at, word.to_wire()).is_ok(), everything);
            let other = LinkWord { index: 1, ..word };
            assert!(memory.store(at, other.to_wire()).is_ok());
        }
    }

    #[test]
    fn links_are_made_as_victims_expect_it() {
        let memory = Memory::formatted(&[0], false);
        let mut member = HostileMember::new(&memory, 2, &[0], Draw::new(1));
        // A victim that makes its side at once.
        let epoch = member.epoch(2) + 1;
        let word = LinkWord {
            source: member.tag(0),
            target: epoch_tag(epoch),
            index: 0,
        };
        let theirs = memory.geometry().ring(0, 2, Class::Request);
        assert!(memory.store(theirs.producer(), word.to_wire()).is_ok());
        member.lie_as(2);
        assert_eq!((member.seen.made, member.epoch(2)), (1, epoch));
        assert!(member.seen.shown > 0);
    }
}
