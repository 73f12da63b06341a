// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The receive WQE that a queue pair has fetched from a shared receive queue for a message that arrives in parts, or that its owner might take
//! as well.
//!
//! It is a copy, so that its owner can use its place in the ring for another one however long the rest of the message takes, and so that
//! all parts go where the first one said, whatever is in the ring by then. There is room for one in each queue pair with a
//! shared receive queue: that is allocated with the queue pair, because messages arrive where nothing can be. It is a stride, 512 bytes at
//! most, so it is not worth the trouble of allocating it before the node is had.

use crate::hal::{NoMemory, Storage};
use nupa_proto::wqe::RecvHeader;
use zerocopy::{little_endian::U64, FromBytes, IntoBytes};

/// A receive WQE of a shared receive queue, or room for one.
#[derive(Debug)]
pub(crate) struct KeptWqe<P> {
    words: P,
    /// It has left the shared receive queue. Part of a message may have been placed where it says.
    held: Option<Held>,
}

/// The entries of a shared receive queue that a queue pair has taken: the last one is kept, those before it are for messages that went past the
/// engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Index behind the last one.
    pub(crate) behind: u32,
    pub(crate) count: u16,
}

impl<P> KeptWqe<P> {
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// The WQE that was fetched last has left the queue, as the last of these.
    pub(crate) fn hold(&mut self, entries: Held) {
        self.held = Some(entries);
    }

    /// It is done with. `None` if there was none.
    pub(crate) fn release(&mut self) -> Option<Held> {
        self.held.take()
    }
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> KeptWqe<P> {
    /// Room for one of `size` bytes, the stride of its queue. May allocate, may sleep.
    pub(crate) fn new<S: Storage<Pages = P>>(size: usize) -> Result<Self, NoMemory> {
        Ok(Self {
            words: S::pages(size.div_ceil(size_of::<u64>()))?,
            held: None,
        })
    }

    /// What is to become a copy of an entry, unless one is held.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.words.as_mut().as_mut_bytes()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.words.as_ref().as_bytes()
    }

    /// Its `wr_id`.
    pub(crate) fn wr_id(&self) -> U64 {
        let header = RecvHeader::ref_from_prefix(self.bytes());
        header.map_or(U64::new(0), |(header, _)| header.wr_id)
    }
}
