// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Layout of a shared memory pool, through which hosts without a controller make up a fabric.
//!
//! A pool is a [`Superblock`], node [slots](Slot), rings between every two nodes, and device memory. `Documentation/pool.md`
//! is the prose of the same contract. Every cache line has one writer once the pool is formatted, but for the words that
//! are claimed ([`STATE_OFFSET`], [`Slot::claim`]). Words of 64 bits are stored and loaded as a whole.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub mod inbox;
pub mod line;
pub mod message;
pub mod sharing;

/// Value of [`Superblock::magic`].
pub const MAGIC: u64 = u64::from_le_bytes(*b"NUPAPOOL");
/// Value of [`Superblock::version`]: major in the upper half, minor in the lower. Another one has another layout, see
/// [`inbox::VERSION_INBOXES`], or is refused.
pub const VERSION: u32 = 0x0002_0000;
/// Bytes of a cache line: the unit that nodes with caches of their own write back and invalidate.
pub const LINE: u64 = 64;
/// Alignment of all parts of a pool.
pub const PAGE: u64 = 4096;

/// The pool is not kept coherent between hosts: they write back what they wrote and invalidate before they read.
pub const POOL_NON_COHERENT: u32 = 1 << 0;

/// Most nodes that a pool of any version can have.
pub const MAX_NODES: u16 = 1024;
/// Most nodes of a pool that has an area of rings for every two of them ([`VERSION`]).
pub const AREA_NODES: u16 = 64;
/// Nodes that a pool is formatted for if nothing else is said.
pub const DEFAULT_NODES: u16 = 8;

/// Start of a pool: what it is and how it is divided. Written by whoever formats it, then never again.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: U64,
    /// [`VERSION`].
    pub version: U32,
    /// CRC-32 ([`crc32`]) of the superblock with zero here.
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
    /// log2 of the bytes of the payload area of a ring of frames. One of long messages has half as much, but at least
    /// `1 << MIN_LOG_BULK`.
    pub log_bulk: u8,
    /// Offset of the node slots.
    pub slots: U64,
    /// Offset of the rings.
    pub rings: U64,
    /// Bytes from the rings of one node to another to those of the next two.
    pub ring_stride: U64,
    /// Offset of device memory.
    pub device_memory: U64,
    /// Bytes of device memory of each node.
    pub device_memory_stride: U64,
    /// Zero.
    pub reserved: [u8; 48],
}
assert_size!(Superblock, 128);

/// Offset of the state word: {generation:56, [`PoolState`]:8}. The generation is random, drawn by who formats the pool; nodes of
/// an earlier one know by it that theirs is gone.
pub const STATE_OFFSET: u64 = 0x80;
/// Bit of the state word where the generation begins.
pub const STATE_GENERATION_SHIFT: u32 = 8;

wire_enum! {
    /// State of a pool.
    PoolState: u8 {
        /// Never formatted.
        Blank = 0,
        /// Being formatted by the one whose generation stands beside.
        Formatting = 1,
        /// Formatted.
        Valid = 2,
    }
}

/// Composes a state word.
#[inline]
pub const fn state_word(generation: u64, state: PoolState) -> u64 {
    (generation << STATE_GENERATION_SHIFT) | state as u64
}

/// CRC-32 of IEEE 802.3 (reflected, polynomial 0xedb88320).
pub fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ if crc & 1 == 0 { 0 } else { 0xedb8_8320 };
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), step)
    })
}

/// Bytes of a node slot.
pub const SLOT_SIZE: usize = 256;

/// A node's slot: its place in the fabric. The slot's number is the node's id.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Slot {
    /// Claim word, see [`Claim`]; written by whoever takes the slot.
    pub claim: U64,
    /// Zero.
    pub reserved0: [u8; 56],
    /// Drawn at random when the slot was taken.
    pub token: U64,
    /// Goes up every [`HEARTBEAT_US`] while the node lives.
    pub heartbeat: U64,
    /// Presence word, see [`Presence`].
    pub presence: U64,
    /// Says which host it is, the same after a restart, so that it gets its slot again; 0 if it has nothing to say.
    pub identity: U64,
    /// `CAP_*` of [`crate::regs`] that its engine serves, and [`CAP_POOL_LINES`].
    pub capabilities: U64,
    /// Says how to wake it when it sleeps, see [`BELL_IVSHMEM`]; 0 if it cannot be woken.
    pub bell: U64,
    /// In a pool with [inboxes](mod@inbox): goes up when the node has changed what it says of others there, and never starts anew. In others zero.
    pub changes: U64,
    /// Zero.
    pub reserved1: [u8; 136],
}
assert_size!(Slot, SLOT_SIZE);
const _: () = assert!(core::mem::offset_of!(Slot, token) as u64 == LINE);

/// In [`Slot::capabilities`]: the node knows [entries of lines](mod@line). It stands there from before [`PRESENCE_UP`] on, for as long as the node has the
/// slot. Rings between two nodes have such entries if both know them, else those of 256 bytes.
pub const CAP_POOL_LINES: u64 = 1 << 63;

/// In the highest 16 bits of [`Slot::bell`]: the lowest 16 bits are its number among the devices of an ivshmem server, whose vector
/// 0 wakes it.
pub const BELL_IVSHMEM: u64 = 1;
/// Where those bits begin.
pub const BELL_KIND_SHIFT: u32 = 48;

/// Microseconds from one heartbeat to the next.
pub const HEARTBEAT_US: u64 = 100_000;
/// Microseconds without a heartbeat, by the observer's clock, after which a node counts as dead if nothing else is said.
pub const DEAD_AFTER_US: u64 = 2_000_000;

wire_enum! {
    /// State of a node slot.
    ClaimState: u8 {
        /// Nobody's.
        Free = 0,
        /// Somebody waits to see that it is theirs.
        Claiming = 1,
        /// A node's.
        Taken = 2,
    }
}

/// A claim word: {[`ClaimState`]:8, part of the claimer's token:24, epoch:32}. The epoch goes up each time the slot is taken and
/// each time its node is reset; it is never 0 while the slot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The slot's state.
    pub state: ClaimState,
    /// Low 24 bits of the claimer's token.
    pub token: u32,
    /// The node's epoch.
    pub epoch: u32,
}

impl Claim {
    /// The word.
    #[inline]
    pub const fn to_wire(self) -> u64 {
        ((self.state as u64) << 56) | ((self.token as u64 & 0xff_ffff) << 32) | self.epoch as u64
    }

    /// Reads a word.
    #[inline]
    pub fn from_wire(word: u64) -> Result<Self, crate::ident::UnknownValue> {
        let [state, token @ ..] = ((word >> 32) as u32).to_be_bytes();
        let [t2, t1, t0] = token;
        Ok(Self {
            state: ClaimState::try_from(state)?,
            token: u32::from_be_bytes([0, t2, t1, t0]),
            epoch: word as u32,
        })
    }
}

/// The node takes part in the fabric.
pub const PRESENCE_UP: u32 = 1 << 0;
/// The node's engine looks at its rings by itself; without this flag a sender rings the doorbell, if there is one.
pub const PRESENCE_POLLING: u32 = 1 << 1;

/// A presence word: {`PRESENCE_*`:32, epoch:32}. It counts for that epoch only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// `PRESENCE_*`.
    pub flags: u32,
    /// Epoch that it is about.
    pub epoch: u32,
}

impl Presence {
    /// The word.
    #[inline]
    pub const fn to_wire(self) -> u64 {
        ((self.flags as u64) << 32) | self.epoch as u64
    }

    /// Reads a word.
    #[inline]
    pub const fn from_wire(word: u64) -> Self {
        Self {
            flags: (word >> 32) as u32,
            epoch: word as u32,
        }
    }
}

wire_enum! {
    /// The rings from one node to another, in the order in which they lie.
    Class: u8 {
        /// Long requests to the target.
        Request = 0,
        /// What became of them, with what was read. It never waits for a request, so the two cannot block each other.
        Response = 1,
        /// Ethernet frames.
        Frame = 2,
        /// Datagrams, and [short](message::is_short) requests of queue pairs that have sent no long one since nothing was under way.
        ShortRequest = 3,
        /// What became of those.
        ShortResponse = 4,
    }
}

impl Class {
    /// Of a ring of long messages: the ring whose entries, if they were put in before, are taken out before.
    #[inline]
    pub const fn short(self) -> Option<Self> {
        match self {
            Self::Request => Some(Self::ShortRequest),
            Self::Response => Some(Self::ShortResponse),
            Self::Frame | Self::ShortRequest | Self::ShortResponse => None,
        }
    }
}

impl Class {
    /// Of a ring of responses: the ring of what they answer.
    #[inline]
    pub const fn requests(self) -> Option<Self> {
        match self {
            Self::Response => Some(Self::Request),
            Self::ShortResponse => Some(Self::ShortRequest),
            Self::Request | Self::ShortRequest | Self::Frame => None,
        }
    }
}

/// Rings from one node to another.
pub const CLASSES: usize = 5;
/// Offset of the producer's line: the link word of each ring, in the order of [`Class`].
pub const LINK_PRODUCER: u64 = 0;
/// Offset of the want line: of each ring a [`LinkWord`] whose index is the consumer's that left too little room. The producer writes it.
pub const LINK_WANT: u64 = 0x40;
/// Offset of the consumer's line: the link word of each ring.
pub const LINK_CONSUMER: u64 = 0x80;
/// Offset of the consumer's bulk line: of each ring a [`LinkWord`] whose index counts bytes of the payload area.
pub const LINK_BULK: u64 = 0xc0;
/// Bytes of these lines.
pub const LINK_WORDS: u64 = LINK_BULK + LINE;
/// Offset of the first ring: its entries, then its payload area.
pub const LINK_RINGS: u64 = PAGE;
/// log2 of the bytes of the payload area of a ring of short messages: as many datagrams as fill it take about as long to deal with as
/// one longer fragment.
pub const SHORT_LOG_BULK: u8 = 17;
/// Smallest log2 of a payload area: two of the longest fragments.
pub const MIN_LOG_BULK: u8 = 18;
/// Largest log2 of a payload area.
pub const MAX_LOG_BULK: u8 = 30;
/// Smallest log2 of a ring's entries.
pub const MIN_LOG_ENTRIES: u8 = 2;
/// Largest log2 of a ring's entries.
pub const MAX_LOG_ENTRIES: u8 = 16;

/// Bytes of the directory that each node's share of device memory begins with; programs get what is behind it. Only its owner
/// writes it. A share of less than twice as much is of no use: it has no directory, and programs get nothing.
pub const DIRECTORY_SIZE: u64 = 0x10000;
/// Offset in a directory of its owner's busy words: one for each other node, a line each. It is the serial of the grant of that node
/// that the owner writes with just now, or 0.
pub const GRANT_BUSY: u64 = 0;
/// Offset behind a busy word of the word that says which of those grants processes of the owner have mapped: bit *n* is about the one in slot *n*.
pub const GRANT_MAPPED: u64 = 8;
/// Offset in a directory of its owner's grants: [`GRANT_SLOTS`] words for each other node. Each is the serial of a grant that holds,
/// or 0.
pub const GRANT_TABLE: u64 = 0x1000;
/// Grants that a node may have of another at a time.
pub const GRANT_SLOTS: u16 = 16;
const _: () = assert!(GRANT_SLOTS as u32 <= u64::BITS && GRANT_MAPPED + 8 <= LINE);
/// Flag of a grant: READs of the memory are allowed as well.
pub const GRANT_READS: u8 = 1 << 0;
/// Most bytes that are written while a busy word stands.
pub const GRANT_STEP: u32 = 0x10000;
/// Microseconds for which a busy word of a grant that was taken back may stand before its writer is isolated.
pub const GRANT_TIMEOUT_US: u64 = 1_000_000;

/// Tag of an epoch in link words; never [`TAG_NONE`].
#[inline]
pub const fn epoch_tag(epoch: u32) -> u16 {
    (epoch % 0xffff) as u16 + 1
}

/// No tag. In the place of a link word's own writer it says that the other's epoch is refused.
pub const TAG_NONE: u16 = 0;

/// A link word: {tag of the source's epoch:16, tag of the target's epoch:16, index:32}. Index and epochs are one word, so that
/// nobody takes an index of one epoch for that of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkWord {
    /// Tag of the epoch of the node that produces.
    pub source: u16,
    /// Tag of the epoch of the node that consumes.
    pub target: u16,
    /// Free-running; 0 when the link is made.
    pub index: u32,
}

impl LinkWord {
    /// The word.
    #[inline]
    pub const fn to_wire(self) -> u64 {
        ((self.source as u64) << 48) | ((self.target as u64) << 32) | self.index as u64
    }

    /// Reads a word.
    #[inline]
    pub const fn from_wire(word: u64) -> Self {
        Self {
            source: (word >> 48) as u16,
            target: (word >> 32) as u16,
            index: word as u32,
        }
    }

    /// Whether both words are about the same two epochs.
    #[inline]
    pub const fn same_epochs(self, other: Self) -> bool {
        self.source == other.source && self.target == other.target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        let claim = Claim {
            state: ClaimState::Taken,
            token: 0xab_cdef,
            epoch: 0x1234_5678,
        };
        assert_eq!(claim.to_wire(), 0x02ab_cdef_1234_5678);
        assert_eq!(Claim::from_wire(claim.to_wire()), Ok(claim));
        assert!(Claim::from_wire(u64::MAX).is_err());
        let link = LinkWord {
            source: 1,
            target: 2,
            index: 3,
        };
        assert_eq!(link.to_wire(), 0x0001_0002_0000_0003);
        assert_eq!(LinkWord::from_wire(link.to_wire()), link);
        let presence = Presence { flags: 3, epoch: 9 };
        assert_eq!(Presence::from_wire(presence.to_wire()), presence);
    }

    #[test]
    fn no_epoch_has_the_empty_tag_and_neighbours_differ() {
        for epoch in [0, 1, 0xfffe, 0xffff, 0x10000, u32::MAX - 1] {
            assert_ne!(epoch_tag(epoch), TAG_NONE);
            assert_ne!(epoch_tag(epoch), epoch_tag(epoch + 1));
        }
    }

    #[test]
    fn crc_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
