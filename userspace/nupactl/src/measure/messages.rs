// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Messages whose bytes both sides know: each has its number at its beginning, and the bytes of a seed behind it.

use netcheck::pattern::Pattern;

/// The number of the last message.
pub(super) const LAST: u64 = u64::MAX;

/// The messages of a measurement.
pub(super) struct Messages(Vec<u8>);

impl Messages {
    /// Those of a seed, of so many bytes each.
    pub(super) fn new(size: u32, seed: u64) -> Self {
        let mut block = vec![0; size.try_into().unwrap_or_default()];
        Pattern::new(seed).fill(&mut block);
        Self(block)
    }

    /// The message of a number.
    pub(super) fn numbered(&mut self, number: u64) -> &[u8] {
        for (byte, of_number) in self.0.iter_mut().zip(number.to_le_bytes()) {
            *byte = of_number;
        }
        &self.0
    }

    /// A place for one that comes.
    pub(super) fn room(&self) -> Vec<u8> {
        vec![0; self.0.len()]
    }
}

/// The number at the beginning of a message of at least 8 bytes.
pub(super) fn number(message: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*message.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_number_and_the_bytes_of_its_seed() {
        let mut messages = Messages::new(100, 7);
        let first = messages.numbered(0).to_vec();
        assert_eq!(number(&first), Some(0));
        assert_eq!(number(messages.numbered(1 << 50)), Some(1 << 50));
        assert_eq!(messages.numbered(0), first);
        assert_ne!(Messages::new(100, 8).numbered(0), first);
        assert_eq!(Messages::new(1, 7).numbered(0x0102), [2]);
        assert_eq!(number(&[0; 7]), None);
    }
}
