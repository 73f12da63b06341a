// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The consumer's end of a ring.

use crate::{
    geometry::Place,
    message::{check, Message, Violation},
    sender::CONSUMER_LINES,
    Window,
};
use nupa_proto::pool::{
    message::{bulk_size, bulk_start, Entry, Header, ENTRY_PAYLOAD, ENTRY_SIZE, MAX_INLINE},
    Class, LinkWord,
};
use zerocopy::{FromZeros, IntoBytes};

/// The consumer's end of a ring.
#[derive(Debug)]
pub struct Receiver {
    place: Place,
    class: Class,
    /// Link word with the index that the peer sees.
    published: LinkWord,
    /// Index of the current entry.
    index: u32,
    /// Index behind the entries that are known to be there.
    end: u32,
    /// Position behind the payloads that were released.
    bulk: u32,
    /// Position in the payload area as the peer sees it.
    bulk_published: u32,
    /// Position behind the current entry, once it was looked at.
    bulk_end: Option<u32>,
    /// The peer waits for what was freed.
    wanted: bool,
}

impl Receiver {
    pub(crate) fn new(place: Place, class: Class, word: LinkWord) -> Self {
        Self {
            place,
            class,
            published: word,
            index: 0,
            end: 0,
            bulk: 0,
            bulk_published: 0,
            bulk_end: None,
            wanted: false,
        }
    }

    /// One that looks at what another left in the ring: behind the index in `word`, and the position `bulk` of the payload area. It is
    /// for [`Receiver::next`] and [`Receiver::skip`], which write nothing.
    #[cfg(not(MODULE))]
    pub(crate) fn resume(place: Place, class: Class, word: LinkWord, bulk: u32) -> Self {
        Self {
            index: word.index,
            end: word.index,
            bulk,
            bulk_published: bulk,
            ..Self::new(place, class, word)
        }
    }

    /// Position behind the payloads that were released or skipped.
    #[cfg(not(MODULE))]
    pub(crate) fn position(&self) -> u32 {
        self.bulk
    }

    /// Whether [`Receiver::next`] finds an entry, or a violation.
    #[inline]
    pub fn has_next(&mut self, window: &impl Window) -> bool {
        self.index != self.end || self.look(window).unwrap_or(true)
    }

    /// The oldest entry that was not released; the same one until it is. After a violation the peer is to be isolated.
    #[inline]
    pub fn next(&mut self, window: &impl Window) -> Result<Option<Message>, Violation> {
        if self.index == self.end && !self.look(window)? {
            return Ok(None);
        }
        let entry = self.place.entry(self.index);
        window.refresh(entry, ENTRY_SIZE);
        let mut copy = Entry::new_zeroed();
        window.read(entry, copy.as_mut_bytes())?;
        let header = &copy.header;
        self.check_entry(header)?;
        let most = self.place.max_payload(self.class);
        let body = check(self.class, header, &copy.body, most)?;
        let len = header.payload_len.get();
        let start = bulk_start(self.bulk, len, self.place.log_bulk());
        self.bulk_end = Some(start.wrapping_add(bulk_size(len)));
        let payload = match len <= MAX_INLINE {
            true => entry.wrapping_add(ENTRY_PAYLOAD),
            false => {
                let payload = self.place.bulk(start);
                window.refresh(payload, u64::from(len));
                payload
            }
        };
        Ok(Some(Message {
            body,
            payload: payload..payload.wrapping_add(u64::from(len)),
            offset: header.offset.get(),
            behind: header.behind.get(),
        }))
    }

    /// Frees the entry that [`Receiver::next`] gave last, with its payload. The peer is told when a quarter of the ring is
    /// free, or by [`Receiver::publish`].
    #[inline]
    pub fn release(&mut self, window: &impl Window) {
        if !self.skip() {
            return;
        }
        let entries = self.index.wrapping_sub(self.published.index);
        let bulk = self.bulk.wrapping_sub(self.bulk_published);
        if entries >= self.place.entries() >> 2 || bulk >= self.place.bulk_len() >> 2 {
            self.publish(window);
        }
    }

    /// Goes on behind the entry that [`Receiver::next`] gave last, and tells nobody. False if it gave none.
    #[inline]
    pub(crate) fn skip(&mut self) -> bool {
        let Some(bulk_end) = self.bulk_end.take() else {
            return false;
        };
        self.index = self.index.wrapping_add(1);
        self.bulk = bulk_end;
        true
    }

    /// Tells the peer what is free; to be called before whoever consumes turns to something else. False if it knows.
    #[inline]
    pub fn publish(&mut self, window: &impl Window) -> bool {
        if self.published.index == self.index {
            return false;
        }
        let before = self.published;
        (self.published.index, self.bulk_published) = (self.index, self.bulk);
        let bulk = LinkWord {
            index: self.bulk,
            ..self.published
        };
        window.store(self.place.consumer_bulk(), bulk.to_wire());
        window.store(self.place.consumer(), self.published.to_wire());
        window.publish(self.place.consumer(), CONSUMER_LINES);
        // Either this host sees what the peer wants, or the peer what was freed.
        window.fence();
        let at = self.place.producer_want();
        window.refresh(at, size_of::<u64>() as u64);
        // A peer whose want line cannot be read is woken each time.
        let want = window.load(at).map(LinkWord::from_wire);
        self.wanted |= want.is_err() || want == Ok(before);
        true
    }

    /// Whether an entry before this index is still to be released.
    #[inline]
    pub(crate) fn comes_before(&self, index: u32) -> bool {
        let left = index.wrapping_sub(self.index);
        left != 0 && left <= self.place.entries()
    }

    /// Whether the peer waits for what it was told to be free since the last time this was asked: it is to be woken.
    #[inline]
    pub fn take_wanted(&mut self) -> bool {
        core::mem::take(&mut self.wanted)
    }

    /// Looks for new entries; false if there are none.
    #[inline]
    fn look(&mut self, window: &impl Window) -> Result<bool, Violation> {
        let at = self.place.producer();
        window.refresh(at, size_of::<u64>() as u64);
        let word = LinkWord::from_wire(window.load(at)?);
        if !word.same_epochs(self.published) {
            return Ok(false);
        }
        let (found, expected) = (word.index, self.index);
        // What was released and not yet told is not free for the peer.
        let held = found.wrapping_sub(self.published.index);
        if held > self.place.entries() || found.wrapping_sub(expected) > held {
            return Err(Violation::Index { found, expected });
        }
        self.end = found;
        Ok(found != expected)
    }

    /// Whether the entry is the one that it should be.
    #[inline]
    fn check_entry(&self, header: &Header) -> Result<(), Violation> {
        let (found, expected) = (header.index.get(), self.index);
        let word = LinkWord {
            source: header.source.get(),
            target: header.target.get(),
            index: found,
        };
        if found == expected && word.same_epochs(self.published) {
            Ok(())
        } else {
            Err(Violation::Entry { found, expected })
        }
    }
}
