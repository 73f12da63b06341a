// SPDX-License-Identifier: GPL-2.0 OR MIT

//! WRITEs that a receiver takes out of its ring, and when they may be put there.

use nupa_proto::process_ring::{
    self, lines_for, WriteTarget, ENTRY_WRITE, MAX_PAYLOAD, STATE, STATE_OPEN, STATE_WRITES, TAKEN,
    TARGET_SIZE,
};
use zerocopy::{FromZeros, IntoBytes};

use std::sync::atomic::Ordering;

use super::super::Ring;
use super::{Receiver, HEAD};
use crate::ffi::{fence, ProcessBytes};

/// Bytes of an entry's payload before the data of a WRITE.
const TARGET: usize = size_of::<WriteTarget>();
/// Bytes of an entry before that data.
const DATA: usize = HEAD + TARGET;

/// Bytes of a message that are stored behind all others.
const LAST: usize = size_of::<u64>();

/// WRITEs that the process has taken after which it is said as often as at first: one that takes most of them loses some to the engine now and then.
const ENOUGH_TAKEN: u32 = 64;
/// Most times, one for every 64 empty polls, that [`Offer::is_due`] says no after it has said yes for nothing.
const MOST_PAUSES: u32 = 1 << 14;

/// When to say that WRITEs may be put into the ring: the engine takes that back if the process does not take them.
#[derive(Debug)]
pub(super) struct Offer {
    /// It was said.
    said: bool,
    /// How often not to say it, and how often the next time.
    pauses: u32,
    next_pauses: u32,
    /// WRITEs that the process has taken, of the next [`ENOUGH_TAKEN`].
    taken: u32,
}

impl Default for Offer {
    fn default() -> Self {
        Self {
            said: false,
            pauses: 0,
            next_pauses: 1,
            taken: 0,
        }
    }
}

impl Offer {
    /// Whether to say it now. `state`: that of the ring.
    fn is_due(&mut self, state: u32) -> bool {
        if state & STATE_WRITES != 0 {
            return false;
        }
        if self.said {
            // The engine has taken it back.
            self.said = false;
            self.pauses = self.next_pauses;
            self.next_pauses = self.next_pauses.saturating_mul(2).min(MOST_PAUSES);
        }
        if let Some(left) = self.pauses.checked_sub(1) {
            self.pauses = left;
            return false;
        }
        self.said = true;
        true
    }

    /// A WRITE was taken.
    #[inline]
    fn note_taken(&mut self) {
        self.taken = self.taken.wrapping_add(1) % ENOUGH_TAKEN;
        if self.taken == 0 {
            self.next_pauses = 1;
        }
    }

    /// The process has taken back what it said.
    pub(super) fn take_back(&mut self) {
        self.said = false;
    }
}

impl Receiver {
    /// Carries out a WRITE, which lies next in the ring, and takes it. False if that is left to the engine, which knows what is wrong with it.
    #[inline]
    pub(super) fn write(&mut self, entry: &process_ring::Entry) -> bool {
        let len = entry.len.get();
        let bytes = (len as usize).checked_sub(TARGET);
        let valid = entry.flags == ENTRY_WRITE && len <= MAX_PAYLOAD;
        let Some(bytes) = bytes.filter(|_| valid) else {
            return false;
        };
        let mut target = WriteTarget::new_zeroed();
        self.ring.read(self.line, HEAD, target.as_mut_bytes());
        let (ring, line) = (&self.ring, self.line);
        let (key, addr) = (target.rkey.get(), target.addr.get());
        let may = || self.allows_writes() && ring.load(STATE) & STATE_OPEN != 0;
        let written = self
            .targets
            .write(key, addr, bytes, may, |to| copy(ring, line, to));
        if written {
            self.line = self.line.wrapping_add(lines_for(len));
            self.ring.store(TAKEN, self.line);
            self.moved
                .count(&self.ring, 1, len.wrapping_sub(TARGET_SIZE));
            self.offer.note_taken();
        }
        written
    }

    /// The program has polled for a while: says that WRITEs may be put into the ring, if it is time for that.
    pub(in crate::queue::bypass) fn offer_writes(&mut self) {
        let may = self.takes_writes && !self.armed && self.allows_writes();
        if may && self.offer.is_due(self.ring.load(STATE)) {
            self.ring.set_state_bit(STATE_WRITES, true);
        }
    }

    #[inline]
    fn allows_writes(&self) -> bool {
        self.open && self.bypass_state.allows_writes() && !self.bypass_state.is_stopped()
    }
}

/// Copies the data of a WRITE, its last 8 bytes behind all others: programs may look at those to learn that it is there.
#[inline]
fn copy(ring: &Ring, line: u32, to: ProcessBytes) {
    let most = to.len().saturating_sub(LAST);
    if let (Some(before), Some(last)) =
        (to.part(0, most), to.part(most, to.len().wrapping_sub(most)))
    {
        ring.read_to(line, DATA, before);
        fence(Ordering::Release);
        ring.read_to(line, DATA.wrapping_add(most), last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For how many polls it is not said, when it was said for nothing so often.
    #[test]
    fn what_was_said_for_nothing_is_said_less_often() {
        let mut offer = Offer::default();
        let mut pause = |state| (0..).take_while(|_| !offer.is_due(state)).count();
        let pauses: Vec<usize> = (0..5).map(|_| pause(STATE_OPEN)).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8]);
        for _ in 0..20 {
            pause(STATE_OPEN);
        }
        assert_eq!(pause(STATE_OPEN), MOST_PAUSES as usize);
    }

    #[test]
    fn it_is_said_once_and_often_to_those_who_take_writes() {
        let mut offer = Offer::default();
        assert!(offer.is_due(STATE_OPEN));
        assert!(!offer.is_due(STATE_OPEN | STATE_WRITES));
        for _ in 0..10 {
            offer.is_due(STATE_OPEN);
        }
        (0..ENOUGH_TAKEN).for_each(|_| offer.note_taken());
        assert!((0..1 << 16).any(|_| offer.is_due(STATE_OPEN)));
        (0..ENOUGH_TAKEN).for_each(|_| offer.note_taken());
        assert!(!offer.is_due(STATE_OPEN) && offer.is_due(STATE_OPEN));
        offer.take_back();
        assert!(offer.is_due(STATE_OPEN), "it was no fault of the process's");
    }

    /// The engine takes the offer back time and again, but the process takes most WRITEs.
    #[test]
    fn who_takes_most_writes_loses_little_by_those_that_the_engine_takes() {
        let mut offer = Offer::default();
        assert!(offer.is_due(STATE_OPEN));
        let mut polls = 0;
        for _ in 0..1000 {
            (0..8).for_each(|_| offer.note_taken());
            polls += (1..).take_while(|_| !offer.is_due(STATE_OPEN)).count();
        }
        assert!(polls < 1000 * 64, "{polls}");
    }
}
