// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Places for messages in memory that is registered.

use verbs::{Error, Memory};

use super::super::fault::Fault;
use super::super::lack::Lack;
use super::super::messages::Messages;

/// Bytes of all places together, if two of them are not more.
const BYTES: u32 = 1 << 20;
/// Most places, and so the most messages in flight.
const MOST: u32 = 16;

/// A row of places of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Bytes of a message.
    pub(super) size: u32,
    /// Places.
    pub(super) places: u16,
}

impl Window {
    /// One for messages that are on their way together.
    pub(super) fn new(size: u32) -> Self {
        let places = BYTES.checked_div(size).unwrap_or(MOST).clamp(2, MOST);
        Self {
            size,
            places: places.try_into().unwrap_or(2),
        }
    }

    /// One for a message that is sent and one that comes.
    pub(super) fn for_two(size: u32) -> Self {
        Self { size, places: 2 }
    }

    /// From one place to the next: each begins with a word.
    fn stride(&self) -> u64 {
        u64::from(self.size).next_multiple_of(8)
    }

    /// Bytes of all.
    pub(super) fn bytes(&self) -> u64 {
        self.stride().saturating_mul(self.places.into())
    }

    /// Memory of this size.
    pub(super) fn memory(&self) -> Memory {
        Memory::new(self.bytes().try_into().unwrap_or_default())
    }

    /// Where the place of a message begins.
    pub(super) fn offset(&self, number: u64) -> u64 {
        let place = number.checked_rem(self.places.into()).unwrap_or(0);
        place.saturating_mul(self.stride())
    }

    /// Writes bytes to the beginning of a message's place.
    pub(super) fn put(&self, memory: &Memory, number: u64, bytes: &[u8]) -> Result<(), Fault> {
        memory.write(self.place(number), bytes).map_err(lost)
    }

    /// Copies a message out of its place.
    pub(super) fn get(&self, memory: &Memory, number: u64, room: &mut [u8]) -> Result<(), Fault> {
        memory.read(self.place(number), room).map_err(lost)
    }

    /// Where a message's place begins in memory of this host.
    pub(super) fn place(&self, number: u64) -> usize {
        self.offset(number).try_into().unwrap_or(usize::MAX)
    }

    /// Compares what is there after so many messages: the last ones are.
    pub(super) fn check(
        &self,
        memory: &Memory,
        messages: &mut Messages,
        count: u64,
    ) -> Result<(), Fault> {
        let mut room = messages.room();
        for number in count.saturating_sub(self.places.into())..count {
            self.get(memory, number, &mut room)?;
            if room != messages.numbered(number) {
                return Err(Fault::Wrong);
            }
        }
        Ok(())
    }
}

/// What no range of a window gives.
fn lost(error: Error) -> Fault {
    Fault::Here(Lack::of(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_a_few_places_and_little_memory() {
        for (size, places, bytes) in [
            (8, 16, 128),
            (13, 16, 256),
            (65536, 16, 1 << 20),
            (300_000, 3, 900_000),
            (1 << 20, 2, 2 << 20),
        ] {
            let window = Window::new(size);
            assert_eq!((window.places, window.bytes()), (places, bytes), "{size}");
            assert_eq!(window.memory().bytes() as u64, bytes);
            assert_eq!(window.offset(u64::from(places)), 0);
            let last = window.offset(u64::from(places) - 1);
            assert!(last % 8 == 0 && last + u64::from(size) <= bytes);
        }
        assert_eq!(Window::for_two(1).bytes(), 16);
    }

    #[test]
    fn the_last_messages_are_compared() {
        let window = Window {
            size: 20,
            places: 3,
        };
        let mut messages = Messages::new(20, 5);
        let memory = window.memory();
        for number in 0..4 {
            window
                .put(&memory, number, messages.numbered(number))
                .unwrap();
        }
        assert_eq!(window.check(&memory, &mut messages, 4), Ok(()));
        // One came less, or one more; a byte is wrong.
        assert_eq!(window.check(&memory, &mut messages, 3), Err(Fault::Wrong));
        assert_eq!(window.check(&memory, &mut messages, 5), Err(Fault::Wrong));
        let mut wrong = messages.numbered(2).to_vec();
        wrong[19] ^= 1;
        window.put(&memory, 2, &wrong).unwrap();
        assert_eq!(window.check(&memory, &mut messages, 4), Err(Fault::Wrong));
        assert_eq!(window.check(&memory, &mut messages, 0), Ok(()));
    }
}
