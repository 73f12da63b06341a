// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How large rings have to be for what a program asks for.

use nupa_proto::wqe::{
    blocks_for, ud_blocks_for, RecvHeader, Sge, MAX_INLINE, MAX_RECV_SGE, MIN_RECV_STRIDE,
};

/// Most scatter/gather entries of a request: those of a receive entry, which both sides can have.
pub(crate) const MAX_SGE: usize = MAX_RECV_SGE;
/// log2 of the blocks or entries of the smallest ring: a page of blocks.
const MIN_LOG_ENTRIES: u8 = 6;

/// Size of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendSize {
    /// log2 of the blocks.
    pub(crate) log_blocks: u8,
    /// Scatter/gather entries of a request.
    pub(crate) max_sge: usize,
    /// Inline bytes of a request.
    pub(crate) max_inline: usize,
    /// Requests that fit at least.
    pub(crate) requests: u32,
}

impl SendSize {
    /// What `requests` of the given size need, and `more` blocks if there can be so many; none if the former is more than there can be.
    pub(crate) fn new(
        requests: u32,
        (sge, inline): (u32, u32),
        datagrams: bool,
        more: u32,
        max_log: u8,
    ) -> Option<Self> {
        let max_sge = usize::try_from(sge).ok().filter(|&sge| sge <= MAX_SGE)?;
        let max_inline = usize::try_from(inline)
            .ok()
            .filter(|&len| len <= MAX_INLINE)?;
        let data = max_sge.checked_mul(size_of::<Sge>())?.max(max_inline);
        let blocks = if datagrams {
            ud_blocks_for(data)
        } else {
            blocks_for(data)
        };
        let blocks = u32::try_from(blocks).ok()?;
        let needed = requests.checked_mul(blocks)?;
        let with_more = needed.checked_add(more);
        let (log_blocks, more) = match with_more.and_then(|all| log_of(all, max_log)) {
            Some(log_blocks) => (log_blocks, more),
            None => (log_of(needed, max_log)?, 0),
        };
        let rest = (1u32 << log_blocks).checked_sub(more)?;
        Some(Self {
            log_blocks,
            max_sge,
            max_inline,
            requests: rest.checked_div(blocks)?,
        })
    }
}

/// Size of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecvSize {
    /// log2 of the entries.
    pub(crate) log_entries: u8,
    /// log2 of the bytes of an entry.
    pub(crate) log_stride: u8,
    /// Scatter/gather entries of a request.
    pub(crate) max_sge: usize,
}

impl RecvSize {
    /// What `requests` of the given size need; none if that is more than there can be.
    pub(crate) fn new(requests: u32, sge: u32, max_log: u8) -> Option<Self> {
        let max_sge = usize::try_from(sge).ok().filter(|&sge| sge <= MAX_SGE)?;
        let entries = max_sge.checked_mul(size_of::<Sge>())?;
        let stride = size_of::<RecvHeader>().checked_add(entries)?;
        let stride = stride.max(MIN_RECV_STRIDE).checked_next_power_of_two()?;
        Some(Self {
            log_entries: log_of(requests, max_log)?,
            log_stride: u8::try_from(stride.ilog2()).ok()?,
            max_sge,
        })
    }

    /// Bytes of the ring.
    pub(crate) const fn bytes(self) -> usize {
        1 << (self.log_entries.wrapping_add(self.log_stride))
    }
}

/// log2 of a ring of at least `entries`; none if it would be larger than `max_log` says.
pub(crate) fn log_of(entries: u32, max_log: u8) -> Option<u8> {
    let log = entries.checked_next_power_of_two()?.ilog2();
    let log = u8::try_from(log).ok()?;
    (log <= max_log).then_some(log.max(MIN_LOG_ENTRIES.min(max_log)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_rings_hold_what_is_asked_for() {
        let size = SendSize::new(128, (1, 0), false, 0, 16).unwrap();
        assert_eq!((size.log_blocks, size.requests), (7, 128));
        let size = SendSize::new(100, (16, 224), false, 0, 16).unwrap();
        assert_eq!((size.log_blocks, size.requests), (9, 102));
        let size = SendSize::new(100, (1, 0), true, 0, 16).unwrap();
        assert_eq!((size.log_blocks, size.requests), (8, 128));
        // Blocks that the program is not told of, if there can be so many.
        for (requests, log_blocks, told) in [(64, 7, 126), (62, 6, 62), (65536, 16, 65536)] {
            let size = SendSize::new(requests, (1, 0), false, 2, 16).unwrap();
            assert_eq!((size.log_blocks, size.requests), (log_blocks, told));
        }
        assert_eq!(SendSize::new(1, (17, 0), false, 0, 16), None);
        assert_eq!(SendSize::new(1, (1, 225), false, 0, 16), None);
        assert_eq!(SendSize::new(65537, (1, 0), false, 0, 16), None);
        assert_eq!(SendSize::new(u32::MAX, (16, 0), false, 1, 16), None);
    }

    #[test]
    fn recv_strides_are_powers_of_two_that_hold_header_and_entries() {
        for (sge, stride) in [(0, 32), (1, 32), (2, 64), (3, 64), (4, 128), (16, 512)] {
            let size = RecvSize::new(64, sge, 16).unwrap();
            assert_eq!(1 << size.log_stride, stride);
        }
        assert_eq!(RecvSize::new(0, 1, 16).unwrap().log_entries, 6);
        assert_eq!(RecvSize::new(1, 17, 16), None);
    }
}
