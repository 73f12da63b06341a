// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The producer's end of a ring.

use crate::{
    geometry::Place,
    message::{Outgoing, Violation},
    Window,
};
use core::ops::Range;
use nupa_proto::pool::{
    message::{bulk_size, bulk_start, Header, ENTRY_PAYLOAD, MAX_INLINE},
    Class, LinkWord, LINE, LINK_BULK, LINK_CONSUMER,
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
    /// The peer has not made its side of the link yet, or no longer has it. [`crate::Membership::tick`] tells if it is gone.
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
}

impl Sender {
    pub(crate) fn new(place: Place, class: Class, word: LinkWord) -> Self {
        Self {
            max_payload: place.max_payload(class),
            place,
            published: word,
            written: 0,
            bulk_written: 0,
            consumed: 0,
            bulk_consumed: 0,
            ready: false,
            wanted: None,
        }
    }

    /// Finds a place for an entry with `len` bytes of payload. Until it is committed it is nobody's: the next call gives
    /// the same place.
    #[inline]
    pub fn reserve(&mut self, window: &impl Window, len: u32) -> Result<Reservation, Blocked> {
        if len > self.max_payload {
            return Err(Blocked::TooLong);
        }
        let start = bulk_start(self.bulk_written, len, self.place.log_bulk());
        let bulk_end = start.wrapping_add(bulk_size(len));
        if !(self.ready && self.has_room(bulk_end)) {
            self.look(window)?;
            if !self.has_room(bulk_end) && !self.waits(window, bulk_end)? {
                return Err(Blocked::Full);
            }
        }
        let payload = match len <= MAX_INLINE {
            true => self.place.entry(self.written).wrapping_add(ENTRY_PAYLOAD),
            false => self.place.bulk(start),
        };
        Ok(Reservation {
            payload: payload..payload.wrapping_add(u64::from(len)),
            index: self.written,
            bulk_end,
        })
    }

    /// Writes an entry, whose payload lies in its place already. `offset`: bytes of the message before it. `behind`: index in the ring
    /// of short messages behind what is to be taken before it. The peer sees it when it is published.
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
        let header = Header {
            kind: message.kind().to_wire(),
            payload_len: U32::new(len as u32),
            offset: U32::new(offset),
            index: U32::new(self.written),
            source: U16::new(self.published.source),
            target: U16::new(self.published.target),
            behind: U32::new(behind),
            ..Header::default()
        };
        let (entry, body) = (self.place.entry(self.written), message.bytes());
        window.write(entry, header.as_bytes());
        window.write(entry.wrapping_add(size_of::<Header>() as u64), body);
        if len != 0 {
            window.publish(payload.start, len);
        }
        window.publish(entry, ENTRY_PAYLOAD);
        self.written = self.written.wrapping_add(1);
        self.bulk_written = reservation.bulk_end;
        Ok(())
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
        let at = self.place.producer();
        window.store(at, self.published.to_wire());
        window.publish(at, size_of::<u64>() as u64);
        true
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

    /// Free entries, as last seen.
    fn has_room(&self, bulk_end: u32) -> bool {
        self.written.wrapping_sub(self.consumed) < self.place.entries()
            && bulk_end.wrapping_sub(self.bulk_consumed) <= self.place.bulk_len()
    }

    /// Looks at what the peer has freed.
    fn look(&mut self, window: &impl Window) -> Result<(), Blocked> {
        let at = self.place.consumer();
        window.refresh(at, CONSUMER_LINES);
        let word = |at| window.load(at).map(LinkWord::from_wire);
        let entries = word(at).map_err(Violation::from)?;
        let bulk = word(self.place.consumer_bulk()).map_err(Violation::from)?;
        let ours = |word: LinkWord| word.same_epochs(self.published);
        self.ready = ours(entries) && ours(bulk);
        if !self.ready {
            return Err(Blocked::Down);
        }
        self.consumed = credit(entries.index, self.consumed, self.published.index)?;
        self.bulk_consumed = credit(bulk.index, self.bulk_consumed, self.bulk_written)?;
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
