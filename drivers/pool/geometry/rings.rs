// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How large the rings from one node to another are, and how they lie behind one another.

use crate::place::Place;
use nupa_proto::pool::{message::ENTRY_SIZE, Class, LINK_RINGS, PAGE};

/// Sizes of the rings from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rings {
    /// log2 of the entries of each.
    pub(super) log_entries: u8,
    /// log2 of the bytes of the payload area of that of frames, ...
    pub(super) log_frames: u8,
    /// ... of long messages, ...
    pub(super) log_long: u8,
    /// ... and of short ones.
    pub(super) log_short: u8,
    /// Bytes that a frame may reach over the end of its payload area.
    pub(super) tail: u16,
}

impl Rings {
    /// log2 of the bytes of the payload area of a ring.
    #[inline]
    const fn log_bulk(&self, class: Class) -> u8 {
        match class {
            Class::Frame => self.log_frames,
            Class::Request | Class::Response => self.log_long,
            Class::ShortRequest | Class::ShortResponse => self.log_short,
        }
    }

    /// Bytes of a ring: entries and payload area, whole pages.
    fn len(&self, class: Class) -> u64 {
        let entries = ENTRY_SIZE << self.log_entries;
        let bulk = 1u64.wrapping_shl(u32::from(self.log_bulk(class)));
        let len = entries
            .wrapping_add(bulk)
            .wrapping_add(self.tail_of(class).into());
        len.next_multiple_of(PAGE)
    }

    const fn tail_of(&self, class: Class) -> u16 {
        match class {
            Class::Frame => self.tail,
            _ => 0,
        }
    }

    /// Bytes of the longest frame.
    pub(super) fn max_frame(&self) -> u32 {
        self.place(Class::Frame, [0; 2]).max_payload()
    }

    /// Bytes of all of them with the words before.
    pub(super) fn stride(&self) -> u64 {
        let rings = Class::ALL.iter().map(|class| self.len(*class));
        rings.fold(LINK_RINGS, u64::saturating_add)
    }

    /// The ring of a class where all of them, behind the producer's words, begin at the first of `links`; the consumer's words are counted from
    /// the second.
    pub(crate) fn place(&self, class: Class, links: [u64; 2]) -> Place {
        let before = Class::ALL.iter().take_while(|other| **other != class);
        let before = before.map(|other| self.len(*other));
        let [link, _] = links;
        let entries = before.fold(link.wrapping_add(LINK_RINGS), u64::wrapping_add);
        let logs = (self.log_entries, self.log_bulk(class));
        Place::new(class, links, entries, logs).with_tail(self.tail_of(class))
    }

    /// The ring that is so far behind where they begin; none if it is the words.
    pub(super) fn class_at(&self, distance: u64) -> Option<Class> {
        if distance < LINK_RINGS {
            return None;
        }
        let mut end = LINK_RINGS;
        let holds = |class: &&Class| {
            end = end.saturating_add(self.len(**class));
            distance < end
        };
        Class::ALL.iter().find(holds).copied()
    }
}
