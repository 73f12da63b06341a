// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Values by queue pair number.

/// Numbers of a leaf.
const LEAF: usize = 256;
const _: () = assert!(LEAF == 1 << LEAF_BITS);
const LEAF_BITS: u32 = 8;

/// A table of two levels: numbers are small and close together, and each completion looks one up.
#[derive(Debug)]
pub(super) struct Members<T> {
    leaves: Vec<Option<Box<[Option<T>; LEAF]>>>,
}

impl<T> Default for Members<T> {
    fn default() -> Self {
        Self { leaves: Vec::new() }
    }
}

/// Index of the leaf, and within it.
#[inline(always)]
fn place(number: u32) -> (usize, usize) {
    let number = number as usize;
    (number >> LEAF_BITS, number % LEAF)
}

impl<T> Members<T> {
    /// The value of a number.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let (leaf, within) = place(number);
        self.leaves.get(leaf)?.as_ref()?.get(within)?.as_ref()
    }

    /// The same, to be changed.
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let (leaf, within) = place(number);
        self.leaves
            .get_mut(leaf)?
            .as_mut()?
            .get_mut(within)?
            .as_mut()
    }

    /// All values, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let leaves = (0u32..).step_by(LEAF).zip(&self.leaves);
        leaves.flat_map(|(first, leaf)| {
            let values = (first..).zip(leaf.iter().flat_map(|leaf| leaf.iter()));
            values.filter_map(|(number, value)| Some((number, value.as_ref()?)))
        })
    }

    /// Sets the value of a number.
    pub(super) fn insert(&mut self, number: u32, value: T) {
        let (leaf, within) = place(number);
        if leaf >= self.leaves.len() {
            self.leaves.resize_with(leaf.saturating_add(1), || None);
        }
        let Some(leaf) = self.leaves.get_mut(leaf) else {
            return;
        };
        let leaf = leaf.get_or_insert_with(|| Box::new([const { None }; LEAF]));
        if let Some(slot) = leaf.get_mut(within) {
            *slot = Some(value);
        }
    }

    /// Removes the value of a number.
    pub(super) fn remove(&mut self, number: u32) {
        let (leaf, within) = place(number);
        let leaf = self.leaves.get_mut(leaf).and_then(Option::as_mut);
        if let Some(slot) = leaf.and_then(|leaf| leaf.get_mut(within)) {
            *slot = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_by_number() {
        let mut members = Members::default();
        for number in [0, 255, 256, 70_000] {
            assert!(members.get(number).is_none());
            members.insert(number, number);
        }
        let all = members.iter().map(|(number, value)| (number, *value));
        assert!(all.eq([0, 255, 256, 70_000].map(|number| (number, number))));
        for number in [0, 255, 256, 70_000] {
            assert_eq!(members.get(number), Some(&number));
            members.remove(number);
            assert!(members.get(number).is_none());
        }
        members.remove(u32::MAX);
        assert!(members.get(u32::MAX).is_none());
    }
}
