// SPDX-License-Identifier: GPL-2.0
//! Which nodes are up.

use kernel::sync::atomic::{Atomic, Relaxed};
use nupa_proto::ident::MAX_NODES;

/// Words of the set.
const WORDS: usize = MAX_NODES as usize / 32;

/// Set of the nodes that are up. Any context.
pub(crate) struct Peers {
    up: [Atomic<u32>; WORDS],
}

impl Peers {
    /// Nobody is up.
    pub(crate) fn new() -> Self {
        Self {
            up: [const { Atomic::new(0) }; WORDS],
        }
    }

    fn word(&self, node: u16) -> Option<(&Atomic<u32>, u32)> {
        let word = self.up.get(usize::from(node >> 5))?;
        Some((word, 1 << (node & 31)))
    }

    /// Whether a node is up.
    pub(crate) fn is_up(&self, node: u16) -> bool {
        self.word(node)
            .is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
    }

    /// Notes that a node came or went; returns whether that is new. Callers take turns.
    pub(crate) fn set(&self, node: u16, up: bool) -> bool {
        let Some((word, bit)) = self.word(node) else {
            return false;
        };
        let old = word.load(Relaxed);
        word.store(if up { old | bit } else { old & !bit }, Relaxed);
        (old & bit != 0) != up
    }

    /// The nodes that are up, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..MAX_NODES).filter(|&node| self.is_up(node))
    }
}
