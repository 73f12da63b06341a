// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory of a ring.

use std::fmt::Debug;
use std::mem::offset_of;
use std::sync::Arc;

use nupa_proto::process_ring::{
    Totals, CONTROL_SIZE, LINES, LINE_SIZE, RING_SIZE, SECRET, STATE, STATE_MADE, STATE_OPEN,
    TAKER, TAKER_PROCESS,
};

use super::MappedRegion;
use crate::ffi::{fence_after_cas, ProcessBytes, RingPages};

/// Bytes of the lines.
const LINE_BYTES: usize = LINES as usize * LINE_SIZE;
const _: () = assert!(LINE_BYTES.is_power_of_two() && CONTROL_SIZE + LINE_BYTES == RING_SIZE);

/// How often the state may change while a bit of it is changed: another thread changes the other bit, and the kernel closes the ring.
const TRIES: u32 = 100;

/// The memory of a ring, mapped, and what keeps it.
#[derive(Debug)]
pub(crate) struct Ring {
    pages: RingPages,
    /// Dropped after the mapping.
    owner: Box<dyn Owner>,
}

/// What this process has moved through a ring: running totals, which its engine reads at this offset of the ring's control page. Nobody else writes there,
/// unless the peer does what it should not.
#[derive(Debug)]
pub(super) struct Moved<const AT: usize> {
    messages: u64,
    bytes: u64,
}

impl<const AT: usize> Moved<AT> {
    const MESSAGES: usize = AT + offset_of!(Totals, messages);
    const BYTES: usize = AT + offset_of!(Totals, bytes);

    /// Goes on where the totals of a ring are.
    pub(super) fn new(ring: &Ring) -> Self {
        Self {
            messages: ring.pages.load_wide(Self::MESSAGES),
            bytes: ring.pages.load_wide(Self::BYTES),
        }
    }

    /// Counts messages that were moved. Afterwards, because the process may end in between: it has counted too few then, and never one twice.
    #[inline(always)]
    pub(super) fn count(&mut self, ring: &Ring, messages: u32, bytes: u32) {
        self.messages = self.messages.wrapping_add(messages.into());
        self.bytes = self.bytes.wrapping_add(bytes.into());
        ring.pages.store_wide(Self::MESSAGES, self.messages);
        ring.pages.store_wide(Self::BYTES, self.bytes);
    }
}

/// What keeps a ring's memory.
pub(crate) trait Owner: Debug + Send + Sync {
    /// Lets the peer find the ring, if it was made here. False if that cannot be.
    fn publish(&self) -> bool;
}

/// Where the rings of a queue pair come from.
pub(crate) trait RingSource: Debug + Send + Sync {
    /// The ring that its peer receives with, if there is one.
    fn find(&self) -> Option<Ring>;

    /// Memory of zeroes for a ring that it receives with.
    fn make(&self) -> Option<Ring>;

    /// Lets this process map the memory of the peer's that a key names for requests of the queue pair, if the peer has granted it.
    fn map_region(&self, key: u32) -> Option<MappedRegion>;

    /// The peer has a message, and waits for an event.
    fn kick_peer(&self);

    /// Makes the event that its program waits for.
    fn make_event(&self);

    /// Has the queue pair go to the error state.
    fn fail(&self);
}

/// The source of all rings of a queue pair.
pub(crate) type SharedSource = Arc<dyn RingSource>;

impl Ring {
    /// Memory of [`RING_SIZE`] bytes, and what keeps it.
    pub(crate) fn new(pages: impl Into<RingPages>, owner: Box<dyn Owner>) -> Self {
        Self {
            pages: pages.into(),
            owner,
        }
    }

    /// Lets the peer find a ring that was made here. False if that cannot be.
    pub(super) fn publish(&self) -> bool {
        self.owner.publish()
    }

    /// Says what the stamps of a new ring are made with. It may be found then, and is not open.
    pub(super) fn prepare(&self, secret: u64) {
        self.pages.store_wide(SECRET, secret);
        self.pages.store(STATE, STATE_MADE);
    }

    /// Opens it. False if the kernel has closed it meanwhile.
    pub(super) fn open(&self) -> bool {
        self.pages.compare_exchange(STATE, STATE_MADE, STATE_OPEN)
    }

    pub(super) fn secret(&self) -> u64 {
        self.pages.load_wide(SECRET)
    }

    /// Loads a word of the control page with acquire order.
    #[inline(always)]
    pub(super) fn load(&self, offset: usize) -> u32 {
        self.pages.load(offset)
    }

    /// Stores a word of the control page with release order.
    #[inline(always)]
    pub(in crate::queue) fn store(&self, offset: usize, value: u32) {
        self.pages.store(offset, value);
    }

    /// Sets or clears a bit of the state. False if the ring is closed: the kernel may have done that, or a sender that writes where it should not.
    pub(in crate::queue) fn set_state_bit(&self, bit: u32, set: bool) -> bool {
        for _ in 0..TRIES {
            let state = self.load(STATE);
            if state & STATE_OPEN == 0 {
                return false;
            }
            let wanted = if set { state | bit } else { state & !bit };
            if state == wanted || self.pages.compare_exchange(STATE, state, wanted) {
                return true;
            }
        }
        false
    }

    /// Takes the right to take entries, unless the engine has it just now.
    #[inline(always)]
    pub(super) fn hold(&self) -> bool {
        let held = self.pages.compare_exchange_wide(TAKER, 0, TAKER_PROCESS);
        // A sender that takes an entry back looks at the word behind that. So the entry is looked at behind the word.
        fence_after_cas();
        held
    }

    /// Whether somebody takes entries.
    pub(super) fn is_held(&self) -> bool {
        self.pages.load_wide(TAKER) != 0
    }

    /// Gives it back.
    #[inline(always)]
    pub(super) fn release(&self) {
        self.pages.store_wide(TAKER, 0);
    }

    /// Where a byte of the entry at line `index` is.
    #[inline(always)]
    fn offset(index: u32, within: usize) -> usize {
        const {
            assert!(LINES.is_power_of_two());
        }
        let line = (index & (LINES - 1)) as usize;
        let at = line.wrapping_mul(LINE_SIZE).wrapping_add(within);
        CONTROL_SIZE.wrapping_add(at & (LINE_BYTES - 1))
    }

    /// Loads the stamp of a line with acquire order.
    #[inline(always)]
    pub(super) fn stamp(&self, index: u32) -> u64 {
        self.pages.load_wide(Self::offset(index, 0))
    }

    /// Stores the stamp of a line with release order.
    #[inline(always)]
    pub(super) fn set_stamp(&self, index: u32, stamp: u64) {
        self.pages.store_wide(Self::offset(index, 0), stamp);
    }

    /// Reads bytes of a line.
    #[inline(always)]
    pub(super) fn read(&self, index: u32, within: usize, bytes: &mut [u8]) {
        use nupa_engine::rings::QueueMemory;
        self.pages.read(Self::offset(index, within), bytes);
    }

    /// Writes bytes of an entry, `within` bytes behind the start of the line `index`.
    #[inline(always)]
    pub(super) fn write(&self, index: u32, within: usize, bytes: &[u8]) {
        use nupa_engine::rings::QueueMemory;
        let (at, room) = Self::place(index, within);
        let (head, rest) = bytes.split_at(bytes.len().min(room));
        self.pages.write(at, head);
        if !rest.is_empty() {
            self.pages.write(CONTROL_SIZE, rest);
        }
    }

    /// As [`Ring::write`], from memory of the program.
    #[inline(always)]
    pub(super) fn write_from(&self, index: u32, within: usize, from: ProcessBytes) {
        let (at, room) = Self::place(index, within);
        let head = from.len().min(room);
        self.pages.write_from(at, from.part(0, head));
        let left = from.len().wrapping_sub(head);
        if left != 0 {
            self.pages.write_from(CONTROL_SIZE, from.part(head, left));
        }
    }

    /// The other way round.
    #[inline(always)]
    pub(super) fn read_to(&self, index: u32, within: usize, to: ProcessBytes) {
        let (at, room) = Self::place(index, within);
        let head = to.len().min(room);
        self.pages.read_to(at, to.part(0, head));
        let left = to.len().wrapping_sub(head);
        if left != 0 {
            self.pages.read_to(CONTROL_SIZE, to.part(head, left));
        }
    }

    /// Where bytes of an entry are, and how many there are up to the end of the ring.
    #[inline(always)]
    fn place(index: u32, within: usize) -> (usize, usize) {
        let at = Self::offset(index, within);
        (at, RING_SIZE.wrapping_sub(at))
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::Owner;

    /// Keeps nothing.
    #[derive(Debug)]
    pub(in super::super) struct Kept;

    impl Owner for Kept {
        fn publish(&self) -> bool {
            true
        }
    }
}
