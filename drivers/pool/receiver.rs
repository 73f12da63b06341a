// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The consumer's end of a ring.

use crate::{
    line::{stamp, LineBody, Lines, Part},
    message::{check, Body, Message, Violation},
    place::Place,
    sender::CONSUMER_LINES,
    Window,
};
use nupa_proto::pool::{
    line::{LINE_BODY, LINE_STAMP},
    message::{read_piece, Entry, Header, ENTRY_SIZE},
    LinkWord, LINE,
};
use zerocopy::{FromZeros, IntoBytes};

/// What comes of taking the current entry out.
#[derive(Clone, Copy, Debug)]
struct Current {
    /// Index behind it.
    index: u32,
    /// Position behind its payload.
    bulk: u32,
    /// The peer learns by it that a request is done.
    acknowledges: bool,
}

/// The consumer's end of a ring.
#[derive(Debug)]
pub struct Receiver {
    place: Place,
    /// Epoch of this end's node.
    own_epoch: u32,
    /// Link word with the index that the peer sees.
    published: LinkWord,
    /// Index of the current entry.
    index: u32,
    /// Index behind the entries that are known to be there. Of lines nothing is known but that each is there.
    end: u32,
    /// Of a ring with lines: the peer has made its side of the link.
    ready: bool,
    /// The line at the index was seen to be there; with the stamp, all of it was fetched.
    seen: bool,
    /// Position behind the payloads that were released.
    bulk: u32,
    /// Position in the payload area as the peer sees it.
    bulk_published: u32,
    /// The current entry, once it was looked at.
    current: Option<Current>,
    /// By what was released and not told, the peer learns that a request is done.
    acknowledges: bool,
    /// The peer waits for what was freed.
    wanted: bool,
}

impl Receiver {
    /// Of a ring that nothing is known of.
    pub(crate) const NONE: Self = Self {
        place: Place::NONE,
        own_epoch: 0,
        published: LinkWord {
            source: 0,
            target: 0,
            index: 0,
        },
        index: 0,
        end: 0,
        ready: false,
        seen: false,
        bulk: 0,
        bulk_published: 0,
        current: None,
        acknowledges: false,
        wanted: false,
    };

    pub(crate) fn new(place: Place, own_epoch: u32, word: LinkWord) -> Self {
        Self {
            place,
            own_epoch,
            published: word,
            ..Self::NONE
        }
    }

    /// One that looks at what another left in the ring: behind the index in `word`, and the position `bulk` of the payload area. It is
    /// for [`Receiver::next`] and [`Receiver::skip`], which write nothing.
    #[cfg(not(MODULE))]
    pub(crate) fn resume(place: Place, word: LinkWord, bulk: u32) -> Self {
        Self {
            index: word.index,
            end: word.index,
            bulk,
            bulk_published: bulk,
            // Nobody asks what epoch the requests are for.
            ..Self::new(place, 0, word)
        }
    }

    /// As `Sender::begin_at`.
    #[cfg(not(MODULE))]
    pub(crate) fn begin_at(&mut self, window: &impl Window, index: u32) {
        self.published.index = index;
        self.seen = false;
        (self.index, self.end) = (index, index);
        (self.bulk, self.bulk_published) = (index, index);
        for at in [self.place.consumer(), self.place.consumer_bulk()] {
            window.store(at, self.published.to_wire());
        }
    }

    /// Index of the current entry.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Position behind the payloads that were released or skipped.
    #[cfg(not(MODULE))]
    pub(crate) fn position(&self) -> u32 {
        self.bulk
    }

    /// Whether [`Receiver::next`] finds an entry, or a violation.
    #[inline]
    pub fn has_next(&mut self, window: &impl Window) -> bool {
        match self.place.is_in_lines() {
            true => self.has_line(window).unwrap_or(true),
            false => self.index != self.end || self.look(window).unwrap_or(true),
        }
    }

    /// The oldest entry that was not released; the same one until it is. After a violation the peer is to be isolated.
    #[inline]
    pub fn next(&mut self, window: &impl Window) -> Result<Option<Message>, Violation> {
        let read = match self.place.is_in_lines() {
            true => self.read_lines(window)?,
            false => self.read_entry(window)?,
        };
        let Some((body, part, taken)) = read else {
            return Ok(None);
        };
        let len = part.payload_len;
        let (payload, bulk_end) = self.place.payload(self.index, self.bulk, len);
        let payload = payload..payload.wrapping_add(u64::from(len));
        if bulk_end != self.bulk {
            window.refresh(payload.start, u64::from(len));
        }
        let message = Message {
            body,
            payload,
            offset: part.offset,
            piece: read_piece(self.place.max_payload()),
            behind: part.behind,
        };
        self.current = Some(Current {
            index: self.index.wrapping_add(taken),
            bulk: bulk_end,
            acknowledges: self.place.is_in_lines() && message.acknowledges(),
        });
        Ok(Some(message))
    }

    /// The entry of 256 bytes at the index, and by how much the index goes on behind it.
    #[inline]
    fn read_entry(&mut self, window: &impl Window) -> Result<Option<(Body, Part, u32)>, Violation> {
        if self.index == self.end && !self.look(window)? {
            return Ok(None);
        }
        let entry = self.place.entry(self.index);
        window.refresh(entry, ENTRY_SIZE);
        let mut copy = Entry::new_zeroed();
        window.read(entry, copy.as_mut_bytes())?;
        let header = &copy.header;
        self.check_entry(header)?;
        let most = self.place.max_payload();
        let body = check(self.place.class(), header, &copy.body, most)?;
        let part = Part {
            payload_len: header.payload_len.get(),
            offset: header.offset.get(),
            behind: header.behind.get(),
        };
        Ok(Some((body, part, 1)))
    }

    /// The entry of lines at the index, and by how much the index goes on behind it.
    #[inline]
    fn read_lines(&mut self, window: &impl Window) -> Result<Option<(Body, Part, u32)>, Violation> {
        if !self.has_line(window)? {
            return Ok(None);
        }
        let first = self.read_line(window, self.index)?;
        let taken = Lines::count(&first)?;
        let second = match taken {
            1 => None,
            _ => Some(self.read_second(window)?),
        };
        let lines = Lines { first, second };
        let (class, most) = (self.place.class(), self.place.max_payload());
        let (body, part) = lines.read(class, self.own_epoch, most)?;
        Ok(Some((body, part, taken)))
    }

    /// The line behind that at the index: it was there before.
    fn read_second(&self, window: &impl Window) -> Result<LineBody, Violation> {
        let index = self.index.wrapping_add(1);
        let at = self.place.entry(index);
        window.refresh(at, LINE);
        let found = window.load(at)?;
        if found != stamp(self.published, index) {
            let (found, expected) = (found as u32, index);
            return Err(Violation::Entry { found, expected });
        }
        self.read_line(window, index)
    }

    /// What a line says whose stamp was seen.
    #[inline]
    fn read_line(&self, window: &impl Window, index: u32) -> Result<LineBody, Violation> {
        let mut body = [0; LINE_BODY];
        let at = self.place.entry(index).wrapping_add(LINE_STAMP);
        window.read(at, &mut body)?;
        Ok(body)
    }

    /// Whether the line at the index is there.
    #[inline]
    fn has_line(&mut self, window: &impl Window) -> Result<bool, Violation> {
        if self.seen {
            return Ok(true);
        }
        if !self.ready && !self.begins(window)? {
            return Ok(false);
        }
        let at = self.place.line(self.index);
        window.refresh(at, LINE);
        self.seen = window.load(at)? == stamp(self.published, self.index);
        Ok(self.seen)
    }

    /// Whether the peer has made its side of the link. Lines count only since then: of one that was there before, the stamps may be
    /// like those of this one.
    #[cold]
    fn begins(&mut self, window: &impl Window) -> Result<bool, Violation> {
        let at = self.place.producer();
        window.refresh(at, size_of::<u64>() as u64);
        self.ready = LinkWord::from_wire(window.load(at)?).same_epochs(self.published);
        Ok(self.ready)
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
        let Some(current) = self.current.take() else {
            return false;
        };
        (self.index, self.bulk) = (current.index, current.bulk);
        self.seen = false;
        self.acknowledges |= current.acknowledges;
        true
    }

    /// Tells the peer what is free; to be called before whoever consumes turns to something else. False if it knows.
    #[inline]
    pub fn publish(&mut self, window: &impl Window) -> bool {
        if self.published.index == self.index {
            return false;
        }
        let before = self.published;
        self.published.index = self.index;
        // It is in a line of its own, which need not move for entries that have nothing there.
        if self.bulk_published != self.bulk {
            self.bulk_published = self.bulk;
            let bulk = LinkWord {
                index: self.bulk,
                ..self.published
            };
            window.store(self.place.consumer_bulk(), bulk.to_wire());
        }
        window.store(self.place.consumer(), self.published.to_wire());
        window.publish(self.place.consumer(), CONSUMER_LINES);
        // Either this host sees what the peer wants, or the peer what was freed.
        window.fence();
        let at = self.place.producer_want();
        window.refresh(at, size_of::<u64>() as u64);
        // A peer whose want line cannot be read is woken each time.
        let want = window.load(at).map(LinkWord::from_wire);
        self.wanted |= want.is_err() || want == Ok(before);
        // Who waits for a response, waits for this.
        self.wanted |= core::mem::take(&mut self.acknowledges);
        true
    }

    /// How much of the ring there is.
    #[inline]
    pub(crate) fn entries(&self) -> u32 {
        self.place.entries()
    }

    /// Whether an entry before this index is still to be released.
    #[inline]
    pub(crate) fn comes_before(&self, index: u32) -> bool {
        let left = index.wrapping_sub(self.index);
        left != 0 && left <= self.place.entries()
    }

    /// Whether the peer waits for what it was told to be free, or done, since the last time this was asked: it is to be woken.
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
