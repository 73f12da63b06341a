// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Process rings: memory of a pool in which one program leaves SENDs and WRITEs for another one, past the engines. See
//! `Documentation/process-rings.md`.
//!
//! A ring is a control page, which only the receiver writes, its engine included, and only the sender reads, and lines, with which it is the
//! other way round. The sender writes its [`Totals`] to the control page, too.

use crate::doorbell::PAGE_SIZE;
use zerocopy::little_endian::{U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the control page.
pub const CONTROL_SIZE: usize = PAGE_SIZE;
/// Bytes of a line.
pub const LINE_SIZE: usize = 64;
/// Lines of a ring.
pub const LINES: u32 = 256;
/// Bytes of a ring.
pub const RING_SIZE: usize = CONTROL_SIZE + LINES as usize * LINE_SIZE;

/// Offset in the control page of the state: 32 bits, 0 or `STATE_*`.
pub const STATE: usize = 0;
/// Offset in the control page of the secret: 64 bits.
pub const SECRET: usize = 8;
/// Offset in the control page of the index up to which receive entries may be taken: 32 bits, free-running.
pub const POSTED: usize = 64;
/// Offset in the control page of the index of the line up to which lines are free again: 32 bits, free-running.
pub const TAKEN: usize = 68;
/// Offset in the control page of the number of the message that is received next: 32 bits, free-running.
pub const RECEIVED: usize = 72;
/// Offset in the control page of the bytes that each of the receive entries before [`POSTED`] has room for at least: 32 bits.
pub const ROOM: usize = 76;

/// Offset in the control page of the word that the process or the engine holds while it takes entries: 64 bits, 0 or `TAKER_*`. Taken with a compare and
/// swap of 0.
pub const TAKER: usize = 128;

/// Offset in the control page of the [`Totals`] of what the receiver's process has taken out of the ring. Nobody else writes to their line.
pub const TOTALS_TAKEN: usize = 192;
/// Offset in the control page of the [`Totals`] of what the sender's process has put into the ring. Nobody else writes to their line.
pub const TOTALS_PUT: usize = 256;

/// [`TAKER`]: the receiver's process takes entries.
pub const TAKER_PROCESS: u64 = 1;
/// [`TAKER`]: its engine does.
pub const TAKER_ENGINE: u64 = 2;

/// The ring is being made; not together with others.
pub const STATE_MADE: u32 = STATE_ARMED;
/// The receiver takes entries.
pub const STATE_OPEN: u32 = 1 << 0;
/// Its program waits for an event.
pub const STATE_ARMED: u32 = 1 << 1;
/// The shared receive queue that its messages take entries of has none.
pub const STATE_EMPTY: u32 = 1 << 2;
/// The receiver's program polls, so WRITEs may be put into the ring.
pub const STATE_WRITES: u32 = 1 << 3;

/// Bytes of payload in the first line of an entry.
pub const FIRST_PAYLOAD: usize = 40;
/// Longest message of a ring.
pub const MAX_PAYLOAD: u32 = (FIRST_PAYLOAD + 31 * LINE_SIZE) as u32;
const _: () = assert!(8 * lines_for(MAX_PAYLOAD) == LINES);

/// There is immediate data.
pub const ENTRY_IMM: u8 = 1 << 0;
/// The message is solicited.
pub const ENTRY_SOLICITED: u8 = 1 << 1;
/// It is a WRITE: a [`WriteTarget`] comes before its data. It has no other flags, and neither [`Entry::message`] nor [`Entry::imm`].
pub const ENTRY_WRITE: u8 = 1 << 2;

/// First line of an entry.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Entry {
    /// [`stamp`] of the line's index.
    pub stamp: U64,
    /// Bytes of the payload.
    pub len: U32,
    /// Number of the message, and index of the receive entry that it takes.
    pub message: U32,
    /// Immediate data in network order as given, with [`ENTRY_IMM`]; else 0.
    pub imm: U32,
    /// `ENTRY_*`.
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// First bytes of the payload.
    pub payload: [u8; FIRST_PAYLOAD],
}
assert_size!(Entry, LINE_SIZE);

/// Where a WRITE goes: the first bytes of its entry's payload.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct WriteTarget {
    /// Address within the region (its I/O virtual address).
    pub addr: U64,
    /// Key of the region.
    pub rkey: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(WriteTarget, 16);

/// Bytes of a [`WriteTarget`].
pub const TARGET_SIZE: u32 = size_of::<WriteTarget>() as u32;

/// SENDs and WRITEs that a process has moved through a ring since that was made: running totals, for counters. Engines read them now and then.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Totals {
    /// How many.
    pub messages: U64,
    /// Bytes of their data.
    pub bytes: U64,
}
assert_size!(Totals, 16);
const _: () = assert!(TAKER + LINE_SIZE <= TOTALS_TAKEN && TOTALS_TAKEN + LINE_SIZE <= TOTALS_PUT);
const _: () = assert!(TOTALS_PUT + LINE_SIZE <= CONTROL_SIZE);

/// Messages that an engine counts in each microsecond since it knows a ring, at most, and with them no more than [`MAX_PAYLOAD`] bytes each: more than
/// any process moves.
pub const MOST_PER_US: u64 = 64;

/// Stamp of the first line of an entry, whose free-running index is this.
#[inline]
pub const fn stamp(secret: u64, index: u32) -> u64 {
    secret ^ index as u64
}

/// Lines of an entry with so many bytes of payload.
#[inline]
pub const fn lines_for(len: u32) -> u32 {
    1 + len
        .saturating_sub(FIRST_PAYLOAD as u32)
        .div_ceil(LINE_SIZE as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_lines_that_their_payload_needs() {
        let lines = [0, 40, 41, 104, 105].map(lines_for);
        assert_eq!(lines, [1, 1, 2, 2, 3]);
        assert_eq!(lines_for(MAX_PAYLOAD), 32);
    }
}
