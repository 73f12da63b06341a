// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Bytes and sizes that both sides compute from a seed.
//!
//! SplitMix64 (Steele, Lea, Flood 2014) as a counter mode generator: word `i` depends on seed and `i` alone, so a stream
//! can be checked from any offset, and each seed gives a stream of its own.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes of a word.
const WORD: usize = 8;
/// Bytes that are compared at a time.
const PIECE: usize = 1024;

/// Word `index` of the stream of `seed`.
fn word(seed: u64, index: u64) -> u64 {
    let z = seed
        .wrapping_mul(0xd134_2543_de82_ef95)
        .wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The endless byte stream of a seed, read from the front.
pub struct Pattern {
    seed: u64,
    /// Index of the word that follows those in `current`.
    next: u64,
    /// Word that the next byte lies in.
    current: [u8; WORD],
    /// Bytes of `current` that are gone.
    used: usize,
    offset: u64,
}

impl Pattern {
    /// A stream at its first byte.
    pub fn new(seed: u64) -> Self {
        Pattern {
            seed,
            next: 0,
            current: [0; WORD],
            used: WORD,
            offset: 0,
        }
    }

    /// Stream `number` of a family, at its first byte.
    pub fn numbered(seed: u64, number: u64) -> Self {
        Pattern::new(word(seed, number))
    }

    /// Bytes taken so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Fills `out` with the next bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        self.offset = self.offset.wrapping_add(out.len() as u64);
        let rest = self.take_current(out);
        let mut words = rest.chunks_exact_mut(WORD);
        for chunk in &mut words {
            chunk.copy_from_slice(&self.next_word());
        }
        let rest = words.into_remainder();
        if !rest.is_empty() {
            self.current = self.next_word();
            self.used = 0;
            self.take_current(rest);
        }
    }

    /// Compares `data` with the next bytes and steps over them; tells where in the stream they first differ.
    pub fn check(&mut self, data: &[u8]) -> Result<(), u64> {
        let mut expected = [0; PIECE];
        for piece in data.chunks(PIECE) {
            let at = self.offset;
            let want = expected.get_mut(..piece.len()).unwrap_or_default();
            self.fill(want);
            if piece != want {
                let wrong = piece
                    .iter()
                    .zip(want)
                    .position(|(got, want)| got != want)
                    .unwrap_or(0);
                return Err(at.wrapping_add(wrong as u64));
            }
        }
        Ok(())
    }

    /// Takes what is left of the current word, as far as it fits; returns the part of `out` behind it.
    fn take_current<'a>(&mut self, out: &'a mut [u8]) -> &'a mut [u8] {
        let left = self.current.get(self.used..).unwrap_or_default();
        let take = left.len().min(out.len());
        let (head, rest) = out.split_at_mut(take);
        head.copy_from_slice(left.get(..take).unwrap_or_default());
        self.used = self.used.saturating_add(take);
        rest
    }

    fn next_word(&mut self) -> [u8; WORD] {
        let bytes = word(self.seed, self.next).to_le_bytes();
        self.next = self.next.wrapping_add(1);
        bytes
    }
}

/// Sizes drawn from `1..=max`, half of them small, so that the odd short ones turn up often.
pub struct Sizes {
    seed: u64,
    drawn: u64,
    max: u64,
}

impl Sizes {
    /// Sizes up to `max`; the first two are 1 and `max`.
    pub fn new(seed: u64, max: usize) -> Self {
        Sizes {
            seed: !seed,
            drawn: 0,
            max: max as u64,
        }
    }
}

impl Iterator for Sizes {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let random = word(self.seed, self.drawn);
        let limit = if random >> 63 == 0 {
            self.max
        } else {
            self.max.min(2048)
        };
        let size = match self.drawn {
            0 => 1,
            1 => self.max,
            _ => random.checked_rem(limit).unwrap_or(0).saturating_add(1),
        };
        self.drawn = self.drawn.wrapping_add(1);
        usize::try_from(size).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_split_gives_the_same_stream() {
        let mut whole = [0; 1000];
        Pattern::new(7).fill(&mut whole);
        for step in 1..40 {
            let mut pattern = Pattern::new(7);
            for chunk in whole.chunks(step) {
                assert_eq!(pattern.check(chunk), Ok(()));
            }
            assert_eq!(pattern.offset(), 1000);
        }
    }

    #[test]
    fn one_wrong_bit_is_found_where_it_is() {
        let mut data = [0; 100];
        Pattern::new(1).fill(&mut data);
        data[77] ^= 0x10;
        let mut pattern = Pattern::new(1);
        assert_eq!(pattern.check(&data[..50]), Ok(()));
        assert_eq!(pattern.check(&data[50..]), Err(77));
    }

    #[test]
    fn seeds_and_numbers_differ() {
        let first = |mut pattern: Pattern| {
            let mut bytes = [0; 8];
            pattern.fill(&mut bytes);
            bytes
        };
        assert_ne!(first(Pattern::new(1)), first(Pattern::new(2)));
        assert_ne!(
            first(Pattern::numbered(1, 0)),
            first(Pattern::numbered(1, 1))
        );
    }

    #[test]
    fn sizes_stay_in_range_and_hit_the_ends() {
        let sizes: Vec<usize> = Sizes::new(3, 65_507).take(1000).collect();
        assert_eq!(&sizes[..2], &[1, 65_507]);
        assert!(sizes.iter().all(|size| (1..=65_507).contains(size)));
        assert!(Sizes::new(3, 1).take(10).all(|size| size == 1));
    }
}
