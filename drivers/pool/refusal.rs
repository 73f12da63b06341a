// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Why a pool cannot be used.

use core::fmt;
use nupa_proto::pool::{inbox::VERSION_INBOXES, VERSION};

/// Why a pool cannot be used, or not joined. Nothing was changed in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The memory holds no pool.
    Unformatted,
    /// A pool of another version.
    Version {
        /// Version that it has.
        found: u32,
    },
    /// The superblock does not agree with itself.
    Corrupt,
    /// The pool was formatted for another size than the memory has.
    Size {
        /// Bytes that it was formatted for.
        formatted: u64,
        /// Bytes that are there.
        mapped: u64,
    },
    /// One side takes the pool for coherent, the other does not.
    Coherence {
        /// The pool was formatted as coherent.
        formatted: bool,
    },
    /// Too small, or a number of nodes that no pool can have.
    TooSmall {
        /// Bytes that are there.
        mapped: u64,
        /// Nodes asked for.
        nodes: u16,
    },
    /// Its superblock or state word cannot be read.
    Poisoned {
        /// Where.
        offset: u64,
    },
    /// Others kept changing it for too long.
    Busy,
    /// Every node slot belongs to a node that lives.
    Full {
        /// Node slots.
        nodes: u16,
    },
}

impl Refusal {
    /// Whether formatting helps, and destroys no pool that somebody may use.
    #[cfg(not(MODULE))]
    pub(crate) fn can_format(self) -> bool {
        matches!(self, Self::Unformatted | Self::Corrupt)
    }
}

/// Major and minor part of a version.
fn version(version: u32) -> (u32, u32) {
    (version >> 16, version & 0xffff)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unformatted => f.write_str("the memory holds no pool"),
            Self::Version { found } => {
                let (major, minor) = version(found);
                let ((first, _), (last, _)) = (version(VERSION), version(VERSION_INBOXES));
                write!(
                    f,
                    "the pool has version {major}.{minor}, this driver knows {first}.0 and {last}.0 only; \
                     to give it up: nupactl pool discard"
                )
            }
            Self::Corrupt => f.write_str("the pool's superblock is corrupt"),
            Self::Size { formatted, mapped } => write!(
                f,
                "the pool was formatted for {formatted} bytes, but the memory has {mapped}"
            ),
            Self::Coherence { formatted: true } => f.write_str(
                "the pool was formatted as coherent, this node takes it for non-coherent",
            ),
            Self::Coherence { formatted: false } => f.write_str(
                "the pool was formatted as non-coherent, this node takes it for coherent",
            ),
            Self::TooSmall { mapped, nodes } => {
                write!(f, "{mapped} bytes cannot be a pool for {nodes} nodes")
            }
            Self::Poisoned { offset } => write!(
                f,
                "memory error in the pool's superblock, offset {offset:#x}; it cannot be used until the memory is repaired"
            ),
            Self::Busy => f.write_str("other nodes keep changing the pool"),
            Self::Full { nodes } => write!(f, "all {nodes} node slots of the pool are taken"),
        }
    }
}
