// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random choices, all of them from one seed.

use fastrand::Rng;

/// A source of choices.
#[derive(Debug)]
pub(crate) struct Draw(Rng);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// Another source, with a seed of its own.
    pub(crate) fn seed(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Any word.
    pub(crate) fn word(&mut self) -> u32 {
        self.0.u32(..)
    }

    /// Any two words.
    pub(crate) fn long(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Any byte.
    pub(crate) fn byte(&mut self) -> u8 {
        self.0.u8(..)
    }

    /// A number below another one; 0 if that is 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        if limit == 0 {
            return 0;
        }
        self.0.usize(..limit)
    }

    /// As [`below`](Self::below), of words.
    pub(crate) fn small(&mut self, limit: u32) -> u32 {
        if limit == 0 {
            return 0;
        }
        self.0.u32(..limit)
    }

    /// A byte below another one; 0 if that is 0.
    pub(crate) fn small_byte(&mut self, limit: u8) -> u8 {
        if limit == 0 {
            return 0;
        }
        self.0.u8(..limit)
    }

    /// As [`small_byte`](Self::small_byte), of two bytes.
    pub(crate) fn small_short(&mut self, limit: u16) -> u16 {
        if limit == 0 {
            return 0;
        }
        self.0.u16(..limit)
    }

    /// Once in so many times.
    pub(crate) fn once_in(&mut self, times: u32) -> bool {
        self.small(times) == 0
    }

    /// One of a list; none of an empty one.
    pub(crate) fn one<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below(from.len());
        from.get(at).copied()
    }

    /// One of a list, or else something.
    pub(crate) fn one_or<T: Copy>(&mut self, from: &[T], or: T) -> T {
        self.one(from).unwrap_or(or)
    }

    /// Any bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    /// Changes one or two bytes.
    pub(crate) fn spoil(&mut self, bytes: &mut [u8]) {
        for _ in 0..=self.small(2) {
            let at = self.below(bytes.len());
            let value = self.byte();
            let value = self.one_or(&[0, 1, 0x80, 0xff, value], 0);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
    }

    /// A word as a hostile program would have it: any, a small one, or one at an edge.
    pub(crate) fn lie(&mut self) -> u32 {
        let any = self.word();
        match self.small(4) {
            0 => any,
            1 => self.small(256),
            2 => 1u32.wrapping_shl(any).wrapping_sub(self.small(3)),
            _ => self.one_or(&[0, 1, u32::MAX, 1 << 31, 0x7fff_ffff, 0xffff], 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_it_all() {
        let words = |seed| {
            let mut draw = Draw::new(seed);
            let mut bytes = draw.bytes(64);
            draw.spoil(&mut bytes);
            (bytes, draw.lie(), draw.below(1000), draw.seed())
        };
        assert_eq!(words(7), words(7));
        assert_ne!(words(7), words(8));
    }

    #[test]
    fn nothing_to_choose_from_is_no_panic() {
        let mut draw = Draw::new(1);
        assert_eq!(draw.one::<u8>(&[]), None);
        assert_eq!((draw.below(0), draw.small(0)), (0, 0));
        draw.spoil(&mut []);
    }
}
