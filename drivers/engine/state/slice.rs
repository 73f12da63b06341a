// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a send queue may do before others have their turn.

/// Bytes that are copied or written back for a queue before others have their turn: long enough that what a slice costs besides the copy
/// is a few percent of it, short enough for a lock that others wait for (6 us at 10 GB/s).
pub(crate) const SLICE: u32 = 64 << 10;
/// Requests that are taken from a queue before others have their turn.
pub(crate) const REQUESTS: u32 = 64;

/// What a send queue may do before others have their turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    requests: u32,
    /// Below zero: so much more was done, since a request that has begun is not cut short.
    bytes: i32,
}

impl Slice {
    pub(crate) const WHOLE: Self = Self {
        requests: REQUESTS,
        bytes: SLICE as i32,
    };
    pub(crate) const NONE: Self = Self {
        requests: 0,
        bytes: 0,
    };

    #[inline(always)]
    pub(crate) fn is_spent(&self) -> bool {
        self.requests == 0 || self.bytes <= 0
    }

    /// Takes so many requests and bytes off.
    #[inline(always)]
    pub(crate) fn spend(&mut self, requests: u32, bytes: u32) {
        self.requests = self.requests.saturating_sub(requests);
        self.bytes = self.bytes.saturating_sub_unsigned(bytes);
    }

    /// What the next one is to be longer by, or shorter, since this one ended here: for want of room, or not.
    pub(crate) fn rest(self, for_room: bool) -> Self {
        match for_room {
            true => self,
            false => Self {
                requests: 0,
                bytes: self.bytes.min(0),
            },
        }
    }

    /// A whole one with what is left of the one before. It is never empty, so of one request that was longer than two slices, what is beyond those is not
    /// taken off; nor is it longer than two.
    pub(crate) fn after(rest: Self) -> Self {
        let Self { requests, bytes } = Self::WHOLE;
        Self {
            requests: requests.saturating_add(rest.requests.min(requests)),
            bytes: bytes.saturating_add(rest.bytes.min(bytes)).max(1),
        }
    }
}
