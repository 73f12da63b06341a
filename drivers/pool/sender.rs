// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The producer's end of a ring.

mod acks;

use self::acks::Acks;
use crate::{
    line::{before_inline, first_line, inline_len, second_line, stamp, takes_two, Part},
    message::{Outgoing, Violation},
    place::Place,
    window::zero,
    Window,
};
use core::ops::Range;
use nupa_proto::pool::{
    line::{LINE_STAMP, MAX_LINES},
    message::{Header, ENTRY_PAYLOAD},
    LinkWord, LINE, LINK_BULK, LINK_CONSUMER,
};
use zerocopy::{
    little_endian::{U16, U32},
    IntoBytes,
};

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The ring is full; the peer frees some of it.
    Full,
    /// The peer has not made its side of the link yet, or no longer has it. [`crate::Membership::look_around`] tells if it is gone.
    Down,
    /// Longer than [`max_payload`](nupa_proto::pool::message::max_payload).
    TooLong,
    /// The peer broke the rules.
    Violation(Violation),
}

impl From<Violation> for Blocked {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// A place for an entry and its payload. It is given up by being dropped.
#[derive(Debug)]
#[must_use]
pub struct Reservation {
    /// Where the payload goes.
    pub payload: Range<u64>,
    index: u32,
    bulk_end: u32,
    /// The payload is where the peer finds it.
    is_published: bool,
}

impl Reservation {
    /// Says that the payload, all of which lies in its place, need not be published any more.
    pub fn set_published(&mut self) {
        self.is_published = true;
    }
}

/// A reservation that another entry took the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

/// The producer's end of a ring.
#[derive(Debug)]
pub struct Sender {
    place: Place,
    /// Link word with the index that others see.
    published: LinkWord,
    /// Index behind what is written.
    written: u32,
    /// Position behind it in the payload area.
    bulk_written: u32,
    /// Index before which the peer is done, as last seen.
    consumed: u32,
    /// Position before which it is done.
    bulk_consumed: u32,
    /// Longest payload of an entry.
    max_payload: u32,
    /// The peer has made its side of the link.
    ready: bool,
    /// Index of the peer's that it was told to leave too little room.
    wanted: Option<u32>,
    /// Lines from the first one on that nothing of an earlier link is in, and that can be read; once that is all of them, it stays so.
    cleared: u32,
    /// Requests in lines that the peer has taken out.
    acks: Acks,
}

impl Sender {
    /// Of a ring that nothing is known of.
    pub(crate) const NONE: Self = Self {
        place: Place::NONE,
        published: LinkWord {
            source: 0,
            target: 0,
            index: 0,
        },
        written: 0,
        bulk_written: 0,
        consumed: 0,
        bulk_consumed: 0,
        max_payload: 0,
        ready: false,
        wanted: None,
        cleared: 0,
        acks: Acks::NONE,
    };

    pub(crate) fn new(place: Place, word: LinkWord) -> Self {
        Self {
            max_payload: place.max_payload(),
            place,
            published: word,
            ..Self::NONE
        }
    }

    /// Has the ring be as if so much had gone through it that its indices and positions are at `index`.
    #[cfg(not(MODULE))]
    pub(crate) fn begin_at(&mut self, window: &impl Window, index: u32) {
        self.published.index = index;
        (self.written, self.consumed) = (index, index);
        (self.bulk_written, self.bulk_consumed) = (index, index);
        (self.acks.looked_at, self.acks.done) = (index, index);
        self.cleared = self.place.entries();
        if !self.place.is_in_lines() {
            window.store(self.place.producer(), self.published.to_wire());
        }
    }

    /// Finds a place for an entry with `len` bytes of payload. Until it is committed it is nobody's: the next call gives
    /// the same place.
    #[inline]
    pub fn reserve(&mut self, window: &impl Window, len: u32) -> Result<Reservation, Blocked> {
        if len > self.max_payload {
            return Err(Blocked::TooLong);
        }
        let (payload, bulk_end) = self.place.payload(self.written, self.bulk_written, len);
        if !(self.ready && self.has_room(bulk_end)) {
            self.look(window)?;
            if !self.has_room(bulk_end) && !self.waits(window, bulk_end)? {
                return Err(Blocked::Full);
            }
        }
        Ok(Reservation {
            payload: payload..payload.wrapping_add(u64::from(len)),
            index: self.written,
            bulk_end,
            is_published: false,
        })
    }

    /// Writes an entry, whose payload lies in its place already. `offset`: bytes of the message before it. `behind`: index in the ring
    /// of short messages behind what is to be taken before it. An entry of lines is there for the peer at once, another one when it is
    /// published.
    #[inline]
    pub fn commit(
        &mut self,
        window: &impl Window,
        reservation: Reservation,
        message: &Outgoing<'_>,
        offset: u32,
        behind: u32,
    ) -> Result<(), Stale> {
        if reservation.index != self.written {
            return Err(Stale);
        }
        let payload = reservation.payload;
        let len = payload.end.wrapping_sub(payload.start);
        let published = reservation.is_published;
        let part = Part {
            payload_len: len as u32,
            offset,
            behind,
        };
        let entry = self.place.entry(self.written);
        let in_lines = self.place.is_in_lines();
        let inline = if in_lines {
            inline_len(entry, &payload)
        } else {
            0
        };
        if len != 0 && inline == 0 && !published {
            window.publish(payload.start, len);
        }
        let taken = match in_lines {
            true => self.write_lines(window, inline, message, part),
            false => self.write_entry(window, entry, message, part),
        };
        self.written = self.written.wrapping_add(taken);
        self.bulk_written = reservation.bulk_end;
        Ok(())
    }

    /// Writes an entry of 256 bytes but for its payload. Returns by how much the index goes on.
    fn write_entry(
        &self,
        window: &impl Window,
        entry: u64,
        message: &Outgoing<'_>,
        part: Part,
    ) -> u32 {
        let header = Header {
            kind: message.kind().to_wire(),
            payload_len: U32::new(part.payload_len),
            offset: U32::new(part.offset),
            index: U32::new(self.written),
            source: U16::new(self.published.source),
            target: U16::new(self.published.target),
            behind: U32::new(part.behind),
            ..Header::default()
        };
        window.write(entry, header.as_bytes());
        let body = entry.wrapping_add(size_of::<Header>() as u64);
        window.write(body, message.bytes());
        window.publish(entry, ENTRY_PAYLOAD);
        1
    }

    /// Writes an entry of lines, the first one's stamp last. `inline`: bytes of payload that it has already. Returns by how much the index goes on.
    #[inline]
    fn write_lines(
        &mut self,
        window: &impl Window,
        inline: usize,
        message: &Outgoing<'_>,
        part: Part,
    ) -> u32 {
        let two = takes_two(message);
        let taken = if two { MAX_LINES } else { 1 };
        self.clear_up_to(window, self.written.wrapping_add(taken));
        if two {
            self.write_line(window, self.written.wrapping_add(1), second_line(message));
        }
        let first = first_line(self.place.class(), message, part);
        match inline {
            0 => self.write_line(window, self.written, first),
            _ => self.write_line(window, self.written, before_inline(first)),
        }
        taken
    }

    /// Writes a line behind its stamp, then that.
    #[inline]
    fn write_line<const WORDS: usize>(&self, window: &impl Window, index: u32, body: [u64; WORDS]) {
        let line = self.place.entry(index);
        window.write_words(line.wrapping_add(LINE_STAMP), body);
        window.store(line, stamp(self.published, index));
        window.publish(line, LINE);
    }

    /// Index behind all entries that were committed.
    #[inline]
    pub fn written(&self) -> u32 {
        self.written
    }

    /// Index before which the peer has freed all entries, as it says now.
    pub fn freed(&mut self, window: &impl Window) -> Result<u32, Blocked> {
        self.look(window)?;
        Ok(self.consumed)
    }

    /// Shows the peer all entries that were committed; false if it has seen them before. Whether it looks is for
    /// [`crate::Membership::must_wake`] to say.
    #[inline]
    pub fn publish(&mut self, window: &impl Window) -> bool {
        if self.published.index == self.written {
            return false;
        }
        self.published.index = self.written;
        // Lines say by themselves that they are there.
        if !self.place.is_in_lines() {
            let at = self.place.producer();
            window.store(at, self.published.to_wire());
            window.publish(at, size_of::<u64>() as u64);
        }
        true
    }

    /// Has the first line not be taken for one that this end has written. Of the others each is seen to before the one ahead of it is written.
    pub(crate) fn clear(&mut self, window: &impl Window) {
        if self.place.is_in_lines() {
            self.clear_up_to(window, 0);
        }
    }

    /// The same of all lines up to the one that the peer looks at next, but those that something of this link was written to.
    #[inline]
    fn clear_up_to(&mut self, window: &impl Window, index: u32) {
        if self.cleared < self.place.entries() {
            self.clear_on_first_lap(window, index);
        }
    }

    /// Whole lines, which can be read again then if they could not: also the second one of an entry, which is written in parts.
    #[cold]
    fn clear_on_first_lap(&mut self, window: &impl Window, index: u32) {
        let end = index.wrapping_add(1);
        for index in self.cleared..end.min(self.place.entries()) {
            let line = self.place.entry(index);
            zero(window, line..line.wrapping_add(LINE));
        }
        self.cleared = end;
    }

    /// Index behind everything that the peer may have taken.
    #[inline]
    fn shown(&self) -> u32 {
        match self.place.is_in_lines() {
            true => self.written,
            false => self.published.index,
        }
    }

    /// Whether the peer has freed everything that was published.
    #[inline]
    pub fn is_drained(&mut self, window: &impl Window) -> Result<bool, Blocked> {
        self.look(window)?;
        Ok(self.consumed == self.published.index)
    }

    /// Asks the peer to wake this host when it frees something, and looks whether it just did. Returns whether there is room.
    #[cold]
    fn waits(&mut self, window: &impl Window, bulk_end: u32) -> Result<bool, Blocked> {
        if self.wanted == Some(self.consumed) {
            return Ok(false);
        }
        self.wanted = Some(self.consumed);
        let want = LinkWord {
            index: self.consumed,
            ..self.published
        };
        let at = self.place.producer_want();
        window.store(at, want.to_wire());
        window.publish(at, size_of::<u64>() as u64);
        window.fence();
        self.look(window)?;
        Ok(self.has_room(bulk_end))
    }

    /// Index before which the ring may be written over, as last seen.
    #[inline]
    fn freed_to(&self) -> u32 {
        match self.is_acknowledged() {
            true => self.acks.looked_at,
            false => self.consumed,
        }
    }

    /// Whether a link word is about the epochs of this link.
    #[inline]
    fn is_ours(&self, word: LinkWord) -> bool {
        word.same_epochs(self.published)
    }

    /// Whether there is room for an entry, as last seen: of lines, for any.
    #[inline]
    fn has_room(&self, bulk_end: u32) -> bool {
        let most = match self.place.is_in_lines() {
            true => MAX_LINES,
            false => 1,
        };
        let used = self.written.wrapping_sub(self.freed_to());
        used.saturating_add(most) <= self.place.entries()
            && bulk_end.wrapping_sub(self.bulk_consumed) <= self.place.bulk_len()
    }

    /// Looks at what the peer has freed.
    fn look(&mut self, window: &impl Window) -> Result<(), Blocked> {
        let at = self.place.consumer();
        window.refresh(at, CONSUMER_LINES);
        let word = |at| window.load(at).map(LinkWord::from_wire);
        let entries = word(at).map_err(Violation::from)?;
        let bulk = word(self.place.consumer_bulk()).map_err(Violation::from)?;
        self.ready = self.is_ours(entries) && self.is_ours(bulk);
        if !self.ready {
            return Err(Blocked::Down);
        }
        self.consumed = credit(entries.index, self.consumed, self.shown())?;
        self.bulk_consumed = credit(bulk.index, self.bulk_consumed, self.bulk_written)?;
        if self.is_acknowledged() && !self.has_acks() {
            self.skip_silent(window)?;
        }
        Ok(())
    }
}

/// Bytes from a ring's word in the consumer's line to the same in its bulk line, and a word.
pub(crate) const CONSUMER_LINES: u64 = LINK_BULK - LINK_CONSUMER + size_of::<u64>() as u64;
const _: () = assert!(LINK_BULK == LINK_CONSUMER + LINE);

/// Checks an index that the consumer gives: from what it gave last to what there is.
fn credit(found: u32, last: u32, end: u32) -> Result<u32, Blocked> {
    if found.wrapping_sub(last) > end.wrapping_sub(last) {
        let expected = last;
        return Err(Violation::Credit { found, expected }.into());
    }
    Ok(found)
}
