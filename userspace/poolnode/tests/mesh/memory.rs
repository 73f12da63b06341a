// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory of a node that its requests and those of others are about.

use std::rc::Rc;

use guestmem::MmapRegion;
use nupa_proto::wqe::Sge;
use nupa_testguest::queues::sge;

use crate::plan::{Place, LONGEST, SHIFT, SOURCE};

/// Bytes beside what is written, which must stay as they are.
pub(crate) const GUARD: usize = 64;
/// Receive buffers of a connection.
pub(crate) const RECEIVES: u64 = 3;
/// Bytes of a connection that requests take one after the other.
pub(crate) const BUFFER: usize = 640 << 10;
/// What memory holds where nothing was written.
const BACKGROUND: u8 = 0xdb;

const PAGE: usize = 4096;
const MESSAGE: usize = LONGEST as usize;
/// A place for a WRITE: what is written begins up to [`SHIFT`] bytes behind the guard.
const TARGET: usize = GUARD + SHIFT as usize + MESSAGE + GUARD;
/// What is exposed to one peer: the number that it adds to, and the place that it writes to.
const SHARE: usize = PAGE + TARGET.next_multiple_of(PAGE);
const RECEIVE: usize = (MESSAGE + GUARD).next_multiple_of(PAGE);
/// Buffers of one connection.
const BUFFERS: usize = BUFFER + RECEIVES as usize * RECEIVE;

/// Bytes that a node exposes, both of its private and of its device memory.
pub(crate) const fn exposed(nodes: u16) -> usize {
    counter_of_all() + PAGE + nodes as usize * SHARE
}

/// Bytes of buffers of a node.
pub(crate) const fn buffers(nodes: u16) -> usize {
    nodes as usize * BUFFERS
}

/// Where the number is that all nodes add to. Before it is what others read.
pub(crate) const fn counter_of_all() -> usize {
    (SOURCE as usize).next_multiple_of(PAGE)
}

/// Where the number is that one peer adds to.
pub(crate) const fn counter_of(peer: u16) -> usize {
    counter_of_all() + PAGE + peer as usize * SHARE
}

/// Where a peer writes to.
pub(crate) const fn target_of(peer: u16) -> usize {
    counter_of(peer) + PAGE + GUARD
}

/// The buffers of the requests to a peer.
pub(crate) const fn buffer_of(peer: u16) -> usize {
    peer as usize * BUFFERS
}

/// A receive buffer of the connection to a peer.
pub(crate) const fn receive_of(peer: u16, number: u64) -> usize {
    buffer_of(peer) + BUFFER + (number % RECEIVES) as usize * RECEIVE
}

/// A piece of memory with a key.
pub(crate) struct Piece {
    pub(crate) region: Rc<MmapRegion>,
    /// Where it begins in the region, and for the function.
    pub(crate) base: usize,
    pub(crate) address: u64,
    pub(crate) key: u32,
}

impl Piece {
    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read(self.base + offset, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.region.write(self.base + offset, bytes).unwrap();
    }

    pub(crate) fn load(&self, offset: usize) -> u64 {
        self.region.load_u64(self.base + offset).unwrap()
    }

    pub(crate) fn store(&self, offset: usize, value: u64) {
        self.region.store_u64(self.base + offset, value).unwrap();
    }

    /// Makes a range hold nothing of a message.
    pub(crate) fn clear(&self, offset: usize, len: usize) {
        self.write(offset, &vec![BACKGROUND; len]);
    }

    /// Clears what a peer has, between two connections.
    pub(crate) fn clear_share(&self, peer: u16) {
        self.store(counter_of(peer), 0);
        self.clear(target_of(peer) - GUARD, TARGET);
    }

    /// Whether nothing has written to the place that a peer writes to since it was cleared.
    pub(crate) fn is_clear(&self, peer: u16) -> Result<(), String> {
        let end = target_of(peer) - GUARD + TARGET;
        self.compare(end, &[], [TARGET, 0])
    }

    /// Compares what lies at an offset, and that nothing lies beside it: as many bytes before and behind it as are said.
    pub(crate) fn compare(
        &self,
        offset: usize,
        expected: &[u8],
        guards: [usize; 2],
    ) -> Result<(), String> {
        let [before, behind] = guards;
        let mut whole = vec![BACKGROUND; before];
        whole.extend(expected);
        whole.resize(whole.len() + behind, BACKGROUND);
        let found = self.read(offset - before, whole.len());
        if found == whole {
            return Ok(());
        }
        let wrong = |(found, expected): (&u8, &u8)| found != expected;
        let at = found.iter().zip(&whole).position(wrong).unwrap_or(0);
        let count = found
            .iter()
            .zip(&whole)
            .filter(|pair| pair.0 != pair.1)
            .count();
        Err(format!(
            "{count} wrong bytes of {}, the first at {}: {:#04x} in place of {:#04x}",
            expected.len(),
            at as i64 - before as i64,
            found[at],
            whole[at]
        ))
    }

    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        sge(
            self.address + offset as u64,
            u32::try_from(len).unwrap(),
            self.key,
        )
    }

    /// The same in pieces.
    pub(crate) fn sges(&self, offset: usize, len: usize, pieces: u32) -> Vec<Sge> {
        let piece = len.div_ceil(pieces as usize).max(1);
        let starts = (0..len).step_by(piece);
        starts
            .map(|start| self.sge(offset + start, piece.min(len - start)))
            .collect()
    }
}

/// What a node exposes.
pub(crate) struct Exposed {
    pub(crate) private: Piece,
    pub(crate) pool: Piece,
}

impl Exposed {
    pub(crate) fn at(&self, place: Place) -> &Piece {
        match place {
            Place::Private => &self.private,
            Place::Pool => &self.pool,
        }
    }
}
