// SPDX-License-Identifier: GPL-2.0
//! Which nodes are up.

use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};
use nupa_proto::ident::MAX_NODES;

/// Words of the set.
const WORDS: usize = MAX_NODES as usize / 32;

/// Set of the nodes that are up, with their epochs as far as they are known. Any context.
pub(crate) struct Peers {
    up: [Atomic<u32>; WORDS],
    /// By node; 0 is none. Rebuilt from commands and events.
    epochs: KVec<Atomic<u32>>,
}

impl Peers {
    /// Nobody is up. May sleep.
    pub(crate) fn new() -> Result<Self> {
        let mut epochs = KVec::with_capacity(usize::from(MAX_NODES), GFP_KERNEL)?;
        for _ in 0..MAX_NODES {
            epochs.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self {
            up: [const { Atomic::new(0) }; WORDS],
            epochs,
        })
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

    /// Epoch of a node that is up, if it is known.
    pub(crate) fn epoch(&self, node: u16) -> Option<u32> {
        let epoch = self.epochs.get(usize::from(node))?.load(Relaxed);
        (epoch != 0 && self.is_up(node)).then_some(epoch)
    }

    /// Notes the epoch of a node.
    pub(crate) fn set_epoch(&self, node: u16, epoch: u32) {
        if let Some(entry) = self.epochs.get(usize::from(node)) {
            entry.store(epoch, Relaxed);
        }
    }

    /// Notes the epoch that a node was asked for, unless an event told of one meanwhile, which is no older.
    pub(crate) fn add_epoch(&self, node: u16, epoch: u32) {
        if let Some(entry) = self.epochs.get(usize::from(node)) {
            let _ = entry.cmpxchg(0, epoch, Relaxed);
        }
    }

    /// Forgets all epochs, because events may have been lost.
    pub(crate) fn forget_epochs(&self) {
        for entry in self.epochs.iter() {
            entry.store(0, Relaxed);
        }
    }

    /// The nodes that are up, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..MAX_NODES).filter(|&node| self.is_up(node))
    }
}
