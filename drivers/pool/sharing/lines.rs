// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which lines of a node's tables are in use, and which of those are for process rings.

use nupa_proto::pool::sharing::{EXPORTS, HOLDS, MAX_RINGS};

/// A bit for each line of a table.
#[derive(Debug, Default)]
struct Bits([u64; 4]);

const _: () = assert!(EXPORTS as u32 == 4 * u64::BITS && HOLDS == EXPORTS);

impl Bits {
    /// The first line whose bit is not set.
    fn first_clear(&self) -> Option<u16> {
        let mut start = 0u16;
        for word in &self.0 {
            let free = word.trailing_ones();
            if free < u64::BITS {
                return Some(start.wrapping_add(free as u16));
            }
            start = start.wrapping_add(u64::BITS as u16);
        }
        None
    }

    fn count(&self) -> u32 {
        let bits = self.0.iter().map(|word| word.count_ones());
        bits.fold(0, u32::saturating_add)
    }

    /// Sets the bit of a line or clears it; whether it was set.
    fn set(&mut self, line: u16, on: bool) -> bool {
        let Some(word) = self
            .0
            .get_mut(usize::from(line >> u64::BITS.trailing_zeros()))
        else {
            return false;
        };
        let bit = 1u64.wrapping_shl(u32::from(line));
        let was = *word & bit != 0;
        *word = if on { *word | bit } else { *word & !bit };
        was
    }
}

/// Lines of a table that are in use.
#[derive(Debug, Default)]
pub(super) struct Lines {
    taken: Bits,
    rings: Bits,
}

/// A line that was in use.
pub(super) struct Taken {
    /// It was for a process ring.
    pub(super) is_ring: bool,
}

impl Lines {
    /// Takes a line that is free. Rings have a part of the table only: there is room for what programs share themselves, however many
    /// connections there are.
    pub(super) fn take(&mut self, is_ring: bool) -> Option<u16> {
        if is_ring && self.rings.count() >= u32::from(MAX_RINGS) {
            return None;
        }
        let line = self.taken.first_clear()?;
        self.taken.set(line, true);
        self.rings.set(line, is_ring);
        Some(line)
    }

    /// Gives a line back; none if it was free.
    pub(super) fn give(&mut self, line: u16) -> Option<Taken> {
        let was_taken = self.taken.set(line, false);
        let is_ring = self.rings.set(line, false);
        was_taken.then_some(Taken { is_ring })
    }
}
