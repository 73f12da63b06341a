// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is told of something that is wrong in a pool.

use crate::{area::Area, message::Violation};
use core::fmt;

/// Something in a pool that its specification does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Offset in the pool.
    pub offset: u64,
    /// What lies there, if it is not the superblock.
    pub(super) area: Option<Area>,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A field with a value that it must not have.
    Field {
        /// Its name in the specification.
        name: &'static str,
        /// The value.
        found: u64,
        /// What it must be.
        must: Must,
    },
    /// An entry that waits in a ring, and that no node would believe.
    Entry {
        /// Its index.
        index: u32,
        /// Why.
        violation: Violation,
    },
    /// It cannot be read: what was stored there is lost.
    Poisoned,
}

/// What the value of a field must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Must {
    /// This number.
    Be(u64),
    /// A number of these, or between them.
    Lie(u64, u64),
    /// What is said in words.
    Read(&'static str),
}

impl Problem {
    pub(super) fn of_superblock(offset: u64, fault: Fault) -> Self {
        Self {
            offset,
            area: None,
            fault,
        }
    }

    /// What lies there.
    pub fn area(&self) -> Area {
        self.area.unwrap_or(Area::Superblock)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "offset {:#x}, {}: {}",
            self.offset,
            self.area(),
            self.fault
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field { name, found, must } => {
                write!(f, "{name} is {found:#x}, and has to be {must}")
            }
            Self::Entry { index, violation } => {
                write!(f, "entry {index} has {}", Words(*violation))
            }
            Self::Poisoned => f.write_str("it cannot be read, what was stored there is lost"),
        }
    }
}

impl fmt::Display for Must {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Be(value) => write!(f, "{value:#x}"),
            Self::Lie(first, last) => write!(f, "{first:#x} to {last:#x}"),
            Self::Read(words) => f.write_str(words),
        }
    }
}

/// What an entry has that it must not have.
struct Words(Violation);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Violation::Index { found, expected } | Violation::Credit { found, expected } => {
                write!(f, "index {found}, which does not go with {expected}")
            }
            Violation::Entry { found, expected } => {
                write!(f, "index {found} or tags of another entry than {expected}")
            }
            Violation::Kind(kind) => write!(f, "kind {kind}, which no entry of this ring has"),
            Violation::Length { payload, offset } => {
                write!(
                    f,
                    "{payload} bytes of payload behind {offset}, which does not go with its body"
                )
            }
            Violation::Value(value) => {
                write!(f, "{value:#x} in a field that has no such value")
            }
            Violation::Grant { offset, len } => {
                write!(
                    f,
                    "a grant of {len:#x} bytes at {offset:#x}, which are not its source's"
                )
            }
            Violation::Poisoned { offset } => {
                write!(f, "a line that cannot be read, at {offset:#x}")
            }
        }
    }
}
