// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pools of [version 3](VERSION_INBOXES): each node has inboxes, which it lends to those that it talks with.
//!
//! A link of two nodes is two inboxes: one of each, which the other writes to. Who writes to which is settled by two words of each node about each
//! other one, a [`Pair`]: its [`Offer`] of an inbox, and its [`Answer`] to the other's offer.

use super::{message::max_frame, LINE, LINK_WORDS, PAGE};
use crate::{frame::MAX_FRAME, wqe::MAX_DATAGRAM};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Value of [`Superblock::version`](super::Superblock::version) of such a pool.
pub const VERSION_INBOXES: u32 = 0x0003_0000;

/// Start of such a pool. What it has in common with a [`Superblock`](super::Superblock) of version 2 lies in the same places.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct InboxSuperblock {
    /// [`MAGIC`](super::MAGIC).
    pub magic: U64,
    /// [`VERSION_INBOXES`].
    pub version: U32,
    /// CRC-32 ([`crc32`](super::crc32)) of the superblock with zero here.
    pub check: U32,
    /// Bytes of the pool.
    pub size: U64,
    /// Random identity of the fabric.
    pub fabric_id: U64,
    /// `POOL_*`.
    pub flags: U32,
    /// Node slots.
    pub max_nodes: U16,
    /// log2 of the entries of a ring.
    pub log_entries: u8,
    /// log2 of the bytes of the payload area of a ring of frames. One of long messages has a quarter of that ([`inbox_log_long`]), one of short messages a
    /// sixteenth ([`inbox_log_short`]).
    pub log_bulk: u8,
    /// Offset of the node slots.
    pub slots: U64,
    /// Offset of the rows of [`Pair`]s.
    pub pairs: U64,
    /// Bytes of a row: the pairs of one node about all.
    pub pair_stride: U64,
    /// Offset of the nodes' regions.
    pub regions: U64,
    /// Bytes of a region.
    pub region_stride: U64,
    /// Inboxes of each node.
    pub inboxes: U16,
    /// Zero.
    pub reserved: [u8; 46],
}
assert_size!(InboxSuperblock, 128);
assert_size!(InboxSuperblock, size_of::<super::Superblock>());

/// Smallest log2 of the payload area of a ring of frames.
pub const INBOX_MIN_LOG_BULK: u8 = 17;
/// Bytes that a frame may reach over the end of its ring's payload area: there is so much more behind it.
pub const INBOX_TAIL: u16 = PAGE as u16;
/// log2 of the bytes of the payload area of a ring of long messages, by that of one of frames.
#[inline]
pub const fn inbox_log_long(log_bulk: u8) -> u8 {
    log_bulk.saturating_sub(2)
}

/// The same of a ring of short messages.
#[inline]
pub const fn inbox_log_short(log_bulk: u8) -> u8 {
    let log = log_bulk.saturating_sub(4);
    if log < super::SHORT_LOG_BULK {
        log
    } else {
        super::SHORT_LOG_BULK
    }
}
// The longest frame of ordinary size, and the longest datagram, find room wherever the one before ends.
const _: () = assert!(MAX_FRAME <= max_frame(INBOX_MIN_LOG_BULK) + INBOX_TAIL as u32 / 2);
const _: () = assert!(2 * MAX_DATAGRAM <= 1 << inbox_log_short(INBOX_MIN_LOG_BULK));

/// Offset in an inbox of the line with the word [`GRANT_BUSY`](super::GRANT_BUSY) of who writes to it, for the node that has it.
pub const INBOX_BUSY: u64 = 0x100;
/// Offset in an inbox of the words of the grants that who writes to it gives to the node that has it.
pub const INBOX_GRANTS: u64 = 0x140;
/// Bytes of the lines of words that an inbox begins with.
pub const INBOX_WORDS: u64 = INBOX_GRANTS + 8 * super::GRANT_SLOTS as u64;
const _: () = assert!(LINK_WORDS <= INBOX_BUSY && INBOX_BUSY + LINE <= INBOX_GRANTS);
const _: () = assert!(INBOX_WORDS <= PAGE && INBOX_WORDS % LINE == 0);

/// What a node says about another, in its row at the other's number.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Pair {
    /// An [`Offer`].
    pub offer: U64,
    /// An [`Answer`] to the other's.
    pub answer: U64,
}
assert_size!(Pair, PAIR_SIZE as usize);
/// Bytes of a pair.
pub const PAIR_SIZE: u64 = 16;

wire_enum! {
    /// What becomes of an inbox that a node lends.
    OfferState: u8 {
        /// Nothing was offered.
        None = 0,
        /// The other node may write to it.
        Open = 1,
        /// The link is to end, and the other node to stop.
        Withdrawn = 2,
    }
}

wire_enum! {
    /// What a node does with an inbox that it was offered.
    AnswerState: u8 {
        /// It does not know of it.
        None = 0,
        /// It writes to it, or may.
        Uses = 1,
        /// It does not write to it any more.
        Done = 2,
        /// It has no inbox to offer itself, so there is no link. It does not write.
        NoRoom = 3,
        /// It refuses the epoch of who offered it, and does not write to it any more.
        Refused = 4,
    }
}

/// An offer: {tag of the epoch of who has the inbox:16, tag of that of who may write to it:16, number of the inbox:16, serial:8, [`OfferState`]:8}.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Tag of the epoch of the node that has the inbox.
    pub owner: u16,
    /// Tag of the epoch of the node that may write to it.
    pub writer: u16,
    /// The inbox.
    pub inbox: u16,
    /// One more with each offer of one to the other.
    pub serial: u8,
    /// What becomes of it.
    pub state: OfferState,
}

/// An answer: {tag of the epoch of who was offered an inbox:16, tag of that of who has it:16, number of the inbox:16, serial:8, [`AnswerState`]:8}.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Tag of the epoch of the node that answers.
    pub writer: u16,
    /// Tag of the epoch of the node that has the inbox.
    pub owner: u16,
    /// The inbox.
    pub inbox: u16,
    /// That of the offer.
    pub serial: u8,
    /// What the node does with it.
    pub state: AnswerState,
}

const fn compose(tags: [u16; 2], inbox: u16, serial: u8, state: u8) -> u64 {
    let [own, other] = tags;
    ((own as u64) << 48)
        | ((other as u64) << 32)
        | ((inbox as u64) << 16)
        | ((serial as u64) << 8)
        | state as u64
}

/// Tags, number of the inbox, serial and state.
const fn split(word: u64) -> ([u16; 2], u16, u8, u8) {
    let tags = [(word >> 48) as u16, (word >> 32) as u16];
    (tags, (word >> 16) as u16, (word >> 8) as u8, word as u8)
}

impl Offer {
    /// Of nothing.
    pub const NONE: Self = Self {
        owner: 0,
        writer: 0,
        inbox: 0,
        serial: 0,
        state: OfferState::None,
    };

    /// The word.
    #[inline]
    pub const fn to_wire(self) -> u64 {
        let tags = [self.owner, self.writer];
        compose(tags, self.inbox, self.serial, self.state as u8)
    }

    /// Reads a word.
    #[inline]
    pub fn from_wire(word: u64) -> Result<Self, crate::ident::UnknownValue> {
        let ([owner, writer], inbox, serial, state) = split(word);
        Ok(Self {
            owner,
            writer,
            inbox,
            serial,
            state: OfferState::try_from(state)?,
        })
    }
}

impl Answer {
    /// To nothing.
    pub const NONE: Self = Self {
        writer: 0,
        owner: 0,
        inbox: 0,
        serial: 0,
        state: AnswerState::None,
    };

    /// The word.
    #[inline]
    pub const fn to_wire(self) -> u64 {
        let tags = [self.writer, self.owner];
        compose(tags, self.inbox, self.serial, self.state as u8)
    }

    /// Reads a word.
    #[inline]
    pub fn from_wire(word: u64) -> Result<Self, crate::ident::UnknownValue> {
        let ([writer, owner], inbox, serial, state) = split(word);
        Ok(Self {
            writer,
            owner,
            inbox,
            serial,
            state: AnswerState::try_from(state)?,
        })
    }

    /// Whether it is about that offer.
    #[inline]
    pub const fn is_to(self, offer: Offer) -> bool {
        self.writer == offer.writer
            && self.owner == offer.owner
            && self.inbox == offer.inbox
            && self.serial == offer.serial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        let offer = Offer {
            owner: 0x1234,
            writer: 0x5678,
            inbox: 0x9abc,
            serial: 0xde,
            state: OfferState::Withdrawn,
        };
        assert_eq!(offer.to_wire(), 0x1234_5678_9abc_de02);
        assert_eq!(Offer::from_wire(offer.to_wire()), Ok(offer));
        assert!(Offer::from_wire(3).is_err());
        assert_eq!(Offer::from_wire(0), Ok(Offer::NONE));
        let answer = Answer {
            writer: 0x5678,
            owner: 0x1234,
            inbox: 0x9abc,
            serial: 0xde,
            state: AnswerState::Done,
        };
        assert_eq!(answer.to_wire(), 0x5678_1234_9abc_de02);
        assert_eq!(Answer::from_wire(answer.to_wire()), Ok(answer));
        assert!(Answer::from_wire(5).is_err());
        assert!(answer.is_to(offer));
        let later = Offer { serial: 0, ..offer };
        assert!(!answer.is_to(later));
    }
}
