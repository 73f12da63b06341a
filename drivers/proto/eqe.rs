// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Event queue entries.
//!
//! An event queue is a ring of 16-byte entries that raises one MSI-X vector. Entries are handed over by a phase bit in
//! the last word, as in completion queues ([`crate::cqe::phase`]). The vector is raised when an entry is written while
//! the queue is armed ([`crate::doorbell`]); the consumer reads everything, stores the consumer index, arms, looks again.

use zerocopy::little_endian::{U16, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an entry.
pub const EQE_SIZE: usize = 16;
/// Offset of the word that hands an entry over.
pub const EQE_VALID_OFFSET: usize = 12;

wire_enum! {
    /// Kind of an event.
    EventType: u8 {
        /// An armed completion queue (`object`) has a new entry.
        Completion = 1,
        /// A completion queue (`object`) overflowed; it takes no more entries.
        CqError = 2,
        /// A queue pair (`object`) went to the error state on its own.
        QpFatal = 3,
        /// An access to a queue pair (`object`) was refused at the target.
        QpAccess = 4,
        /// Admin completions are there.
        Admin = 5,
        /// The link of this node came up.
        LinkUp = 6,
        /// The link of this node went down.
        LinkDown = 7,
        /// `node` joined; `object` is its epoch.
        NodeUp = 8,
        /// `node` left; `object` is the epoch that it had.
        NodeDown = 9,
        /// The function stopped, see `REG_FAULT`.
        Fatal = 10,
        /// A shared receive queue (`object`) fell to its limit.
        SrqLimit = 11,
        /// A queue pair (`object`) on a shared receive queue is in the error state and takes no more entries from it; one that it had
        /// taken is complete.
        LastWqe = 12,
        /// A queue pair (`object`) in the SQD state has drained its send queue.
        SqDrained = 13,
        /// A queue pair (`object`) in the RTR state got its first message.
        CommEstablished = 14,
        /// A shared receive queue (`object`) could not be read; it hands out no more entries.
        SrqFatal = 15,
        /// Events about the function itself (admin completions, link, nodes) found no room: look at all of that anew.
        EventsLost = 16,
    }
}

/// One event.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Eqe {
    /// An [`EventType`].
    pub event_type: u8,
    /// Zero.
    pub reserved0: u8,
    /// Node that the event is about.
    pub node: U16,
    /// Number of the object that the event is about.
    pub object: U32,
    /// Zero.
    pub reserved1: U32,
    /// Phase bit; the rest is zero.
    pub valid: U32,
}
assert_size!(Eqe, EQE_SIZE);
const _: () = assert!(core::mem::offset_of!(Eqe, valid) == EQE_VALID_OFFSET);
