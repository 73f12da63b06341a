// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that a device and other nodes read and write at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;

/// Bytes of a word.
const WORD: usize = size_of::<AtomicU64>();

/// So many bytes of zeros at first. Offsets are multiples of 8; a length may be any, and the rest of its last word is written as zeros.
///
/// Copies are of words, each of them as a whole. There is no order between them: a completion that was polled orders them.
pub struct Memory(Box<[AtomicU64]>);

impl Memory {
    /// At least so many bytes.
    pub fn new(bytes: usize) -> Self {
        let words = 0..bytes.div_ceil(WORD);
        Self(words.map(|_| AtomicU64::new(0)).collect())
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> *const AtomicU64 {
        self.0.as_ptr()
    }

    /// The words of a range.
    fn words(&self, offset: usize, bytes: usize) -> Result<&[AtomicU64], Error> {
        let first = offset.checked_div(WORD).filter(|_| offset % WORD == 0);
        let range = first.and_then(|first| {
            let end = first.checked_add(bytes.div_ceil(WORD))?;
            self.0.get(first..end)
        });
        range.ok_or(Error::Range)
    }

    /// Copies in.
    ///
    /// # Errors
    ///
    /// If the range is not inside, or does not begin with a word.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let words = self.words(offset, bytes.len())?;
        for (word, piece) in words.iter().zip(bytes.chunks(WORD)) {
            let mut whole = [0; WORD];
            whole
                .iter_mut()
                .zip(piece)
                .for_each(|(to, from)| *to = *from);
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies out.
    ///
    /// # Errors
    ///
    /// As of [`write`](Self::write).
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let words = self.words(offset, into.len())?;
        for (word, piece) in words.iter().zip(into.chunks_mut(WORD)) {
            let whole = word.load(Ordering::Relaxed).to_ne_bytes();
            piece
                .iter_mut()
                .zip(whole)
                .for_each(|(to, from)| *to = from);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_outside() {
        let memory = Memory::new(29);
        assert_eq!(memory.bytes(), 32);
        let bytes: Vec<u8> = (1..=13).collect();
        memory.write(8, &bytes).unwrap();
        let mut all = [9; 32];
        memory.read(0, &mut all).unwrap();
        assert_eq!(all[..8], [0; 8]);
        assert_eq!(all[8..21], bytes[..]);
        assert_eq!(all[21..], [0; 11]);
        for (offset, len) in [
            (1, 1),
            (32, 1),
            (24, 9),
            (usize::MAX - 7, 8),
            (8, usize::MAX),
        ] {
            assert_eq!(
                memory.words(offset, len).err(),
                Some(Error::Range),
                "{offset} {len}"
            );
        }
        assert!(memory.write(32, &[]).is_ok());
    }
}
