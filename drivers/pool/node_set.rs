// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sets of small numbers: of node ids, and of a node's inboxes.

use nupa_proto::pool::MAX_NODES;

/// Bits of a word.
const BITS: u16 = u64::BITS as u16;
/// Words of a set.
const WORDS: u16 = MAX_NODES / BITS;
const _: () = assert!(WORDS.is_power_of_two() && MAX_NODES % BITS == 0);

/// A set of node ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSet {
    words: [u64; WORDS as usize],
    /// Number of the word behind the last one that is not zero: sets are gone through several times in each turn, and most fabrics are small.
    end: u16,
}

impl NodeSet {
    /// No node.
    pub const EMPTY: Self = Self {
        words: [0; WORDS as usize],
        end: 0,
    };

    /// Adds a node; ids that no node can have are none.
    #[inline]
    pub fn insert(&mut self, node: u16) {
        if let Some(word) = self.word_mut(node) {
            *word |= bit(node);
            self.end = self.end.max((node / BITS).wrapping_add(1));
        }
    }

    /// Takes a node out.
    #[inline]
    pub fn remove(&mut self, node: u16) {
        if let Some(word) = self.word_mut(node) {
            *word &= !bit(node);
        }
        while self.end != 0 && self.word(self.end.wrapping_sub(1)) == 0 {
            self.end = self.end.wrapping_sub(1);
        }
    }

    /// Takes the lowest node out.
    pub(crate) fn take_first(&mut self) -> Option<u16> {
        let node = self.next_from(0)?;
        self.remove(node);
        Some(node)
    }

    /// Whether a node is in it.
    #[inline]
    pub fn contains(&self, node: u16) -> bool {
        self.word(node / BITS) & bit(node) != 0
    }

    /// Whether no node is in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// The lowest number below `end` that is not in it.
    pub(crate) fn first_absent(&self, end: u16) -> Option<u16> {
        let full = self.words.iter();
        let full = full.take_while(|word| **word == u64::MAX).count();
        let word = self.words.get(full)?;
        let before = (full as u16).wrapping_mul(BITS);
        let number = before.wrapping_add(word.trailing_ones() as u16);
        (number < end).then_some(number)
    }

    /// Its nodes, in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        let mut cursor = NodeCursor::new(0);
        core::iter::from_fn(move || cursor.next(self))
    }

    /// The lowest of its nodes from `first` on.
    #[inline]
    fn next_from(&self, first: u16) -> Option<u16> {
        let mut number = first / BITS;
        let mut word = self.word(number) & u64::MAX.wrapping_shl(u32::from(first));
        while word == 0 {
            number = number.wrapping_add(1);
            if number >= self.end {
                return None;
            }
            word = self.word(number);
        }
        let before = number.wrapping_mul(BITS);
        Some(before.wrapping_add(word.trailing_zeros() as u16))
    }

    #[inline]
    fn word(&self, number: u16) -> u64 {
        self.words.get(usize::from(number)).copied().unwrap_or(0)
    }

    #[inline]
    fn word_mut(&mut self, node: u16) -> Option<&mut u64> {
        self.words.get_mut(usize::from(node / BITS))
    }
}

/// Goes through a set which may change meanwhile: that takes no copy of it.
#[derive(Clone, Copy, Debug)]
pub struct NodeCursor {
    first: u16,
    /// All before it were returned, ...
    next: u16,
    /// ... and all from `first` on.
    wrapped: bool,
}

impl NodeCursor {
    /// Before the nodes from `first` on; those before it come after them.
    #[inline]
    pub fn new(first: u16) -> Self {
        Self {
            first,
            next: first,
            wrapped: false,
        }
    }

    /// The next node.
    #[inline]
    pub fn next(&mut self, set: &NodeSet) -> Option<u16> {
        let mut found = set.next_from(self.next);
        if found.is_none() && !self.wrapped {
            self.wrapped = true;
            found = set.next_from(0);
        }
        let found = found.filter(|node| !self.wrapped || *node < self.first)?;
        self.next = found.wrapping_add(1);
        Some(found)
    }
}

#[inline]
const fn bit(node: u16) -> u64 {
    1u64.wrapping_shl(node as u32)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    fn set(nodes: &[u16]) -> NodeSet {
        let mut set = NodeSet::EMPTY;
        nodes.iter().for_each(|node| set.insert(*node));
        set
    }

    #[test]
    fn nodes_are_found_in_order_from_any() {
        let nodes = [0, 5, 63, 64, 700, MAX_NODES - 1];
        let set = set(&nodes);
        assert_eq!(set.iter().collect::<Vec<_>>(), nodes);
        for first in [0, 1, 5, 6, 63, 64, 65, 699, 700, 701, MAX_NODES - 1] {
            let (before, behind): (Vec<u16>, _) = nodes.iter().partition(|node| **node < first);
            let expected = [behind, before].concat();
            let mut cursor = NodeCursor::new(first);
            let found: Vec<u16> = core::iter::from_fn(|| cursor.next(&set)).collect();
            assert_eq!((found, cursor.next(&set)), (expected, None));
        }
        for first in [MAX_NODES, MAX_NODES + 64, u16::MAX] {
            assert_eq!(NodeCursor::new(first).next(&set), Some(0));
        }
    }

    #[test]
    fn a_set_may_change_while_it_is_gone_through() {
        let mut set = set(&[3, 70, 71, 900]);
        let mut cursor = NodeCursor::new(70);
        let mut found = Vec::new();
        while let Some(node) = cursor.next(&set) {
            found.push(node);
            set.remove(node);
            if node == 70 {
                set.remove(71);
                set.insert(1);
                set.insert(72);
            }
        }
        assert_eq!(
            (found, set.is_empty()),
            (std::vec![70, 72, 900, 1, 3], true)
        );
    }

    #[test]
    fn ids_that_no_node_can_have_are_none() {
        let mut set = set(&[MAX_NODES, u16::MAX]);
        assert!(set.is_empty() && !set.contains(MAX_NODES) && !set.contains(u16::MAX));
        set.remove(MAX_NODES);
        set.insert(65);
        assert!(set.contains(65) && !set.contains(1) && !set.is_empty());
        set.remove(65);
        assert_eq!(set, NodeSet::EMPTY);
    }

    #[test]
    fn the_lowest_absent_number_is_found() {
        assert_eq!(NodeSet::EMPTY.first_absent(1), Some(0));
        assert_eq!(NodeSet::EMPTY.first_absent(0), None);
        let mut full = NodeSet::EMPTY;
        (0..70).for_each(|number| full.insert(number));
        assert_eq!(full.first_absent(71), Some(70));
        assert_eq!(full.first_absent(70), None);
        (0..MAX_NODES).for_each(|number| full.insert(number));
        assert_eq!(full.first_absent(MAX_NODES), None);
    }
}
