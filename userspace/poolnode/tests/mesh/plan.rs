// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is sent in one direction of a connection. Sender and receiver draw the same requests, so the receiver knows what has to come without
//! being told by what is tested.

use std::ops::Range;

use crate::board::{mix, Way};

/// Bytes of the longest message: more than a ring's payload area in a pool of so many nodes (256 KiB), and than any frame.
pub(crate) const LONGEST: u32 = 264 << 10;
/// Bytes of memory that others read. A READ begins anywhere in it.
pub(crate) const SOURCE: u32 = LONGEST + 4096;
/// A WRITE begins up to so many bytes behind the place for it.
pub(crate) const SHIFT: u32 = 64;
/// Bytes that are drawn at once.
const BLOCK: usize = 1024;

/// Which memory of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Private,
    Pool,
}

impl Place {
    pub(crate) const ALL: [Self; 2] = [Self::Private, Self::Pool];
}

/// Which number a FETCH_ADD is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// The sender's own.
    Own(Place),
    /// One that all nodes add to.
    Shared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send {
        imm: Option<u32>,
    },
    Write {
        place: Place,
        shift: u32,
        imm: Option<u32>,
    },
    Read {
        place: Place,
        from: u32,
    },
    FetchAdd {
        counter: Counter,
        add: u64,
    },
}

/// A request, the `number`th of its direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) len: u32,
    /// Its bytes are in the descriptor, if they fit.
    pub(crate) inline: bool,
    /// Pieces that its memory is described by.
    pub(crate) pieces: u32,
    /// Its completion is asked for.
    pub(crate) signaled: bool,
    /// It waits for READs and atomics before it.
    pub(crate) fence: bool,
    /// It is posted once all before it are done: only then a WRITE may go past the rings.
    pub(crate) alone: bool,
}

impl Request {
    /// Whether it takes a receive buffer.
    pub(crate) fn is_message(&self) -> bool {
        matches!(
            self.kind,
            Kind::Send { .. } | Kind::Write { imm: Some(_), .. }
        )
    }
}

/// The requests of a direction, one after the other.
#[derive(Clone)]
pub(crate) struct Plan {
    random: fastrand::Rng,
    key: u64,
    number: u64,
    /// A WRITE that the receiver was told nothing of.
    untold: bool,
}

impl Plan {
    pub(crate) fn new(seed: u64, way: Way) -> Self {
        let key = mix(seed ^ way.number());
        Self {
            random: fastrand::Rng::with_seed(key),
            key,
            number: 0,
            untold: false,
        }
    }

    /// Requests so far.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn next(&mut self) -> Request {
        let number = self.number;
        self.number += 1;
        let kind = self.kind();
        let len = match kind {
            Kind::FetchAdd { .. } => 8,
            Kind::Send { .. } | Kind::Write { .. } | Kind::Read { .. } => self.len(),
        };
        let kind = match kind {
            Kind::Read { place, .. } => Kind::Read {
                place,
                from: self.random.u32(..=SOURCE - len),
            },
            other => other,
        };
        Request {
            number,
            kind,
            len,
            inline: self.random.bool(),
            pieces: self.random.u32(1..=3),
            signaled: self.random.u32(..4) != 0,
            fence: self.random.u32(..8) == 0,
            alone: self.random.u32(..8) == 0,
        }
    }

    fn kind(&mut self) -> Kind {
        let place = Place::ALL[self.random.usize(..2)];
        let imm = (self.random.u32(..4) == 0).then(|| self.random.u32(..));
        let kind = match self.random.u32(..16) {
            // The receiver compares a WRITE when the next message comes, so another one could be in its way.
            5..=9 if !self.untold => Kind::Write {
                place,
                shift: self.random.u32(..SHIFT),
                imm,
            },
            10..=12 => Kind::Read { place, from: 0 },
            13..=15 => {
                let counter = match self.random.u32(..3) {
                    0 => Counter::Shared,
                    _ => Counter::Own(place),
                };
                let add = self.random.u32(1..).into();
                Kind::FetchAdd { counter, add }
            }
            _ => Kind::Send { imm },
        };
        match kind {
            Kind::Write { imm: None, .. } => self.untold = true,
            Kind::Send { .. } | Kind::Write { .. } => self.untold = false,
            Kind::Read { .. } | Kind::FetchAdd { .. } => {}
        }
        kind
    }

    /// A length: many short ones, of all kinds of entries, and some that take several parts or do not fit a ring.
    fn len(&mut self) -> u32 {
        let random = &mut self.random;
        match random.u32(..20) {
            0..=1 => 0,
            2..=5 => 8,
            6..=9 => random.u32(1..=128),
            10..=12 => random.u32(129..=256),
            13..=15 => random.u32(257..=4096),
            16..=17 => random.u32(4097..=65_600),
            18 => random.u32(65_601..=131_200),
            _ => random.u32(131_201..=LONGEST),
        }
    }

    /// The bytes of a request.
    pub(crate) fn bytes(&self, request: &Request) -> Vec<u8> {
        let mut bytes = vec![0; request.len as usize];
        fastrand::Rng::with_seed(mix(self.key ^ mix(request.number))).fill(&mut bytes);
        bytes
    }
}

/// A part of what a node lets others read.
pub(crate) fn source(seed: u64, node: u16, epoch: u32, range: Range<usize>) -> Vec<u8> {
    let key = mix(seed ^ (u64::from(epoch) << 16) ^ u64::from(node));
    let first = range.start / BLOCK;
    let mut bytes = vec![0; range.end.next_multiple_of(BLOCK) - first * BLOCK];
    for (number, block) in (first..).zip(bytes.chunks_mut(BLOCK)) {
        fastrand::Rng::with_seed(mix(key ^ mix(number as u64))).fill(block);
    }
    bytes.drain(..range.start - first * BLOCK);
    bytes.truncate(range.len());
    bytes
}
