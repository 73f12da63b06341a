// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The way to a node of another host: rings in memory that both hosts share.
//!
//! Each host has its own engine. The one where a request is posted fetches it and puts it with its payload into a ring;
//! the engine of the responder's host carries it out with all its checks, and answers in another ring.

use nupa_pool::{Body, Grant, InUse, Outgoing};
use nupa_proto::pool::{message::READ_PIECE, Class};

/// An entry that a peer has put into a ring. What it says was checked as far as that can be done without knowing the node: lengths
/// are in bounds, and it is in the kind of ring that it may be in.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// What it says.
    pub body: Body,
    /// Where its payload lies in the DMA address space of this host's node. The peer may change it at any time.
    pub payload: u64,
    /// Bytes of its payload.
    pub len: u32,
    /// Bytes of the message that come before those that this entry brings or asks for.
    pub offset: u32,
    /// Of a READ, the bytes that each entry but the last asks for.
    pub piece: u32,
    /// No more of the request follows. Of a response only who asked knows.
    pub last: bool,
}

/// Rings to and from one node of another host, for as long as both are there in their present epochs.
///
/// Nothing here sleeps or allocates.
pub trait Link {
    /// Reserves an entry, and room for `len` bytes of payload, at most
    /// [`max_payload`](nupa_proto::pool::message::max_payload). Returns where in the DMA address space of this host's node the
    /// payload is to be written; `None` if the ring is full. Nothing happens until [`Link::commit`]; a further reservation replaces
    /// this one.
    fn reserve(&mut self, class: Class, len: u32) -> Option<u64>;

    /// Whether anything can be put in or come in at all.
    #[inline]
    fn is_open(&mut self) -> bool {
        true
    }

    /// Whether requests, datagrams and frames of which nothing was put in yet may be: not while the link is to end, after which there may be another one.
    #[inline]
    fn may_begin(&mut self) -> bool {
        true
    }

    /// Whether payload of `len` bytes is to be put into an entry with [non-temporal stores](crate::hal::Memory::copy_nontemporal).
    #[inline]
    fn prefers_nontemporal(&mut self, _len: u32) -> bool {
        false
    }

    /// Takes note that the payload of the entry that was reserved was put there with those, all of it.
    fn note_nontemporal(&mut self, _class: Class) {}

    /// Hands the entry that was reserved over, with its payload. `offset`: bytes of the message that come before. When the peer
    /// sees it is for the link's host to say, before it turns to something else.
    fn commit(&mut self, class: Class, message: &Outgoing<'_>, offset: u32);

    /// Whether [`Link::next`] may find something; cheaper than that.
    fn has_next(&mut self, class: Class) -> bool;

    /// Whether [`Link::next`] may find something in any ring. Polls that find nothing end with this, so a link does it at less cost than to ask for each, or
    /// says that there may be something where that is none.
    #[inline]
    fn has_any(&mut self) -> bool {
        Class::ALL.iter().any(|class| self.has_next(*class))
    }

    /// The oldest entry that is not released. One in a ring of long messages is not returned before those in the ring of short ones
    /// that were put in before it were released. An entry that breaks the rings' rules is never returned: the link is refused then.
    fn next(&mut self, class: Class) -> Option<Arrival>;

    /// Longest part of a message that is sent in several, and of what a READ asks for at a time.
    #[inline]
    fn piece(&self) -> u32 {
        READ_PIECE
    }

    /// Whether a SEND or WRITE that its responder takes out and does not answer is done: [`Link::next`] finds [`Body::Done`] then.
    fn is_acknowledged(&mut self) -> bool {
        false
    }

    /// Entries that the peer has taken out of its rings, wrapping around.
    fn taken(&mut self) -> u32;

    /// Gives the entry that [`Link::next`] returned back, with its payload.
    fn release(&mut self, class: Class);

    /// Payload of an entry could not be read: if that is for what the peer has put there, it is refused.
    fn unreadable(&mut self, payload: u64, len: u32);

    /// Refuses everything from and to this peer until it has another epoch: it did what no honest one does.
    fn refuse(&mut self);

    /// Memory that either end may let the other write to directly. `None` where there is no such.
    fn direct(&mut self) -> Option<&mut dyn DirectLink> {
        None
    }
}

/// Leave to write directly, see `Documentation/pool.md`.
pub trait DirectLink {
    /// Offset in the pool of `len` bytes at a DMA address, if this host's node offers all of them to the peer.
    fn offset_of(&self, addr: u64, len: u64) -> Option<u64>;

    /// Says which grant of this host's node the peer's word stands for; 0: none any more.
    fn give(&mut self, slot: u16, serial: u64);

    /// Full fence, then: what the peer does just now with grants of this host's node.
    fn in_use(&mut self) -> InUse;

    /// DMA address of what the peer grants. If that is not the peer's to give the link is refused.
    fn take(&mut self, grant: &Grant) -> Option<u64>;

    /// Says that this host writes with a grant that was taken; false if that does not hold any more.
    fn begin(&mut self, grant: &Grant) -> bool;

    /// All that was to be written with a grant is written, from then on for the peer too.
    fn end(&mut self);

    /// Says that a process of this host maps what a grant that was taken is about; false if that does not hold any more.
    fn map(&mut self, grant: &Grant) -> bool;

    /// Whether a grant that was taken still holds.
    fn holds(&mut self, grant: &Grant) -> bool;

    /// No process of this host has the memory of the grant in a slot mapped any more.
    fn unmap(&mut self, slot: u16);
}

/// No way to anywhere: for hosts that have all nodes in one place.
#[derive(Clone, Copy, Debug)]
pub enum NoLink {}

impl Link for NoLink {
    fn reserve(&mut self, _: Class, _: u32) -> Option<u64> {
        match *self {}
    }

    fn commit(&mut self, _: Class, _: &Outgoing<'_>, _: u32) {
        match *self {}
    }

    fn has_next(&mut self, _: Class) -> bool {
        match *self {}
    }

    fn next(&mut self, _: Class) -> Option<Arrival> {
        match *self {}
    }

    fn release(&mut self, _: Class) {
        match *self {}
    }

    fn taken(&mut self) -> u32 {
        match *self {}
    }

    fn unreadable(&mut self, _: u64, _: u32) {
        match *self {}
    }

    fn refuse(&mut self) {
        match *self {}
    }
}
