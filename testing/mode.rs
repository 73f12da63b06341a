// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What lies between nodes.

/// Where nodes are, and how they reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All are on one host.
    Local,
    /// Each is on a host of its own, with rings of few entries between them.
    Linked,
    /// The same, with the rings and the membership of a pool.
    Pooled,
    /// The same, and hosts' caches are not coherent.
    Stale,
    /// As `Pooled`, with [entries of lines](nupa_proto::pool::line).
    Lines,
    /// As `Stale`, with those.
    StaleLines,
}

impl Mode {
    /// Whether each node is on a host of its own.
    pub fn is_linked(self) -> bool {
        self != Self::Local
    }

    /// Whether hosts share a pool.
    pub fn is_pooled(self) -> bool {
        !matches!(self, Self::Local | Self::Linked)
    }

    /// Whether hosts' caches are kept coherent.
    pub fn is_coherent(self) -> bool {
        !matches!(self, Self::Stale | Self::StaleLines)
    }

    /// Whether rings have entries of lines.
    pub fn is_in_lines(self) -> bool {
        matches!(self, Self::Lines | Self::StaleLines)
    }

    /// Whether nodes can write to each other's device memory directly.
    pub fn is_direct(self) -> bool {
        self.is_pooled() && self.is_coherent()
    }
}
