// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How much the engine does before its caller gets the processor back.
//!
//! The engine runs in somebody's time: in softirq context, in a program's system call, between two requests of an emulator. Whatever
//! processes and peers post, and keep posting meanwhile, a turn (all calls from one [`Engine::run`](crate::Engine::run) to the end of
//! the next) does no more than a [`Budget`] allows, but for one request or slice that had begun, and the one of each kind that is served in
//! any case ([`Budget::allow_one`]). What is left is scheduled.

use crate::{hal::Clock, state::slice::SLICE};

/// Bytes of a turn.
const TURN_BYTES: u32 = 4 * SLICE;
/// Requests, ring entries and completions of a turn: at 90 ns each far from [`TURN_US`], which is for those that cost more.
const TURN_REQUESTS: u32 = 256;
/// Microseconds of a turn.
const TURN_US: u64 = 50;
/// Requests between two readings of the clock, and bytes: looking costs about a third of a small request.
const CLOCK_REQUESTS: u32 = 32;
const CLOCK_BYTES: u32 = 32 << 10;

/// What is left of a turn.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: u32,
    requests: u32,
    /// When the turn is over: so long after the first reading of the clock, before which there were few requests.
    until_us: Option<u64>,
    /// Requests and bytes left until the next reading.
    until_check: (u32, u32),
}

impl Budget {
    /// A whole turn.
    pub(crate) const fn new() -> Self {
        Self {
            bytes: TURN_BYTES,
            requests: TURN_REQUESTS,
            until_us: None,
            until_check: (CLOCK_REQUESTS, CLOCK_BYTES),
        }
    }

    /// Whether the turn is over.
    #[inline(always)]
    pub(crate) fn is_spent(&self) -> bool {
        self.bytes == 0 || self.requests == 0
    }

    /// Requests and bytes that are left.
    pub(crate) fn left(&self) -> (u32, u32) {
        (self.requests, self.bytes)
    }

    /// Requests and bytes that were spent since so many were left.
    pub(crate) fn spent_since(&self, (requests, bytes): (u32, u32)) -> (u32, u32) {
        (
            requests.saturating_sub(self.requests),
            bytes.saturating_sub(self.bytes),
        )
    }

    /// Lets one request be served, however little is left.
    pub(crate) fn allow_one(&mut self) {
        (self.bytes, self.requests) = (self.bytes.max(1), self.requests.max(1));
    }

    /// Takes a request with so many bytes off.
    #[inline(always)]
    pub(crate) fn spend(&mut self, clock: &impl Clock, bytes: u32) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.requests = self.requests.saturating_sub(1);
        let (requests, left) = self.until_check;
        self.until_check = (requests.saturating_sub(1), left.saturating_sub(bytes));
        if self.until_check.0 == 0 || self.until_check.1 == 0 {
            self.check_clock(clock);
        }
    }

    #[cold]
    fn check_clock(&mut self, clock: &impl Clock) {
        self.until_check = (CLOCK_REQUESTS, CLOCK_BYTES);
        let now = clock.now_us();
        let until = *self.until_us.get_or_insert(now.saturating_add(TURN_US));
        if now >= until {
            self.requests = 0;
        }
    }
}

/// A part of a turn, for some of those who would have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    entries: u32,
    bytes: u32,
}

impl Share {
    /// What entries in rings of short messages may take of a turn.
    pub(crate) const SHORT: Self = Self::new(TURN_REQUESTS / 4, TURN_BYTES / 4);
    /// What other entries may, and send queues that wait for room.
    pub(crate) const LONG: Self = Self::new(TURN_REQUESTS / 4, TURN_BYTES / 2);
    /// What one ring, or the waiters for one, may take before the next has its share.
    pub(crate) const RING: Self = Self::new(TURN_REQUESTS / 16, SLICE);

    const fn new(entries: u32, bytes: u32) -> Self {
        Self { entries, bytes }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.entries == 0 || self.bytes == 0
    }

    /// Takes an entry with so many bytes off.
    pub(crate) fn spend(&mut self, bytes: u32) {
        self.spend_all((1, bytes));
    }

    /// Takes so many entries and bytes off.
    pub(crate) fn spend_all(&mut self, (entries, bytes): (u32, u32)) {
        self.entries = self.entries.saturating_sub(entries);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
