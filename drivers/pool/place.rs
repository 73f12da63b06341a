// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where a ring lies, and what lies where in it.

use core::ops::Range;
use nupa_proto::{
    frame::MAX_SUPER_FRAME,
    pool::{
        line::{line_inline, LINES_PER_ENTRY},
        message::{bulk_size, bulk_start, max_payload, ENTRY_PAYLOAD, ENTRY_SIZE, MAX_INLINE},
        Class, LINE, LINK_BULK, LINK_CONSUMER, LINK_PRODUCER, LINK_WANT,
    },
};

/// Where a ring lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset of the producer's words for all rings between the two nodes.
    link: u64,
    /// Offset that the consumer's words are counted from: the same, or where what the consumer writes lies by itself.
    back: u64,
    entries: u64,
    log_entries: u8,
    log_bulk: u8,
    /// Bytes that a payload may reach over the end of the payload area.
    tail: u16,
    class: Class,
    /// Its entries are of [lines](nupa_proto::pool::line).
    in_lines: bool,
}

impl Place {
    /// Of a ring that nothing is known of.
    pub(crate) const NONE: Self = Self {
        link: 0,
        back: 0,
        entries: 0,
        log_entries: 0,
        log_bulk: 0,
        tail: 0,
        class: Class::Request,
        in_lines: false,
    };

    /// A ring of a class: the producer's words lie at the first of `links`, and the consumer's at the second, with those of the others; its entries at
    /// `entries`. `logs`: log2 of its entries of 256 bytes, and of the bytes of its payload area.
    pub(crate) fn new(class: Class, links: [u64; 2], entries: u64, logs: (u8, u8)) -> Self {
        let (log_entries, log_bulk) = logs;
        let [link, back] = links;
        Self {
            link,
            back,
            entries,
            log_entries,
            log_bulk,
            class,
            ..Self::NONE
        }
    }

    /// The same ring, whose payload area has so many bytes more behind its end, which a payload that begins before may reach over.
    #[must_use]
    pub(crate) fn with_tail(self, tail: u16) -> Self {
        Self { tail, ..self }
    }

    /// The same ring with entries of lines, in place of those of 256 bytes.
    #[must_use]
    pub fn in_lines(self) -> Self {
        Self {
            in_lines: true,
            ..self
        }
    }

    /// Whether its entries are of lines.
    #[inline]
    pub fn is_in_lines(&self) -> bool {
        self.in_lines
    }

    /// The kind of messages in it.
    #[inline]
    pub fn class(&self) -> Class {
        self.class
    }

    /// How much the ring holds of what its indices count: entries of 256 bytes, or lines.
    #[inline]
    pub fn entries(&self) -> u32 {
        match self.in_lines {
            true => LINES_PER_ENTRY << self.log_entries,
            false => 1 << self.log_entries,
        }
    }

    /// Longest payload that lies in its entry.
    #[inline]
    fn most_inline(&self) -> u32 {
        match self.in_lines {
            true => line_inline(self.class),
            false => MAX_INLINE,
        }
    }

    /// Where the payload of the entry at `index` begins, and position behind it, if those before it end at `position`.
    #[inline]
    pub(crate) fn payload(&self, index: u32, position: u32, len: u32) -> (u64, u32) {
        let size = bulk_size(len, self.most_inline());
        let start = bulk_start(
            position,
            size.saturating_sub(self.tail.into()),
            self.log_bulk,
        );
        let at = match (len <= self.most_inline(), self.in_lines) {
            (false, _) => self.bulk(start),
            (true, false) => self.entry(index).wrapping_add(ENTRY_PAYLOAD),
            // It ends with its line.
            (true, true) => {
                let end = self.entry(index).wrapping_add(LINE);
                end.wrapping_sub(u64::from(len))
            }
        };
        (at, start.wrapping_add(size))
    }

    /// log2 of the bytes of its payload area.
    #[inline]
    pub fn log_bulk(&self) -> u8 {
        self.log_bulk
    }

    /// Bytes of its payload area.
    #[inline]
    pub fn bulk_len(&self) -> u32 {
        1 << self.log_bulk
    }

    /// Longest payload of an entry.
    #[inline]
    pub fn max_payload(&self) -> u32 {
        // One fits wherever the one before ends, if no more than half of what there is.
        let more = match self.class {
            Class::Frame => u32::from(self.tail) / 2,
            _ => 0,
        };
        let most = max_payload(self.class, self.log_bulk).saturating_add(more);
        most.min(MAX_SUPER_FRAME)
    }

    /// Offset of the producer's link word.
    #[inline]
    pub fn producer(&self) -> u64 {
        self.word(self.link, LINK_PRODUCER)
    }

    /// Offset of the producer's want word.
    #[inline]
    pub fn producer_want(&self) -> u64 {
        self.word(self.link, LINK_WANT)
    }

    /// Offset of the consumer's link word.
    #[inline]
    pub fn consumer(&self) -> u64 {
        self.word(self.back, LINK_CONSUMER)
    }

    /// Offset of the consumer's bulk word.
    #[inline]
    pub fn consumer_bulk(&self) -> u64 {
        self.word(self.back, LINK_BULK)
    }

    #[inline]
    fn word(&self, link: u64, line: u64) -> u64 {
        // Those of all classes are in one line, in their order.
        let before = u64::from(self.class.to_wire()).wrapping_mul(size_of::<u64>() as u64);
        link.wrapping_add(line).wrapping_add(before)
    }

    /// Offset of the entry, or line, of a free-running index.
    #[inline]
    pub fn entry(&self, index: u32) -> u64 {
        if self.in_lines {
            return self.line(index);
        }
        let number = u64::from(index & self.entries().wrapping_sub(1));
        self.entries.wrapping_add(number.wrapping_mul(ENTRY_SIZE))
    }

    /// As [`Place::entry`], of a ring that is known to have lines.
    #[inline]
    pub(crate) fn line(&self, index: u32) -> u64 {
        let lines = LINES_PER_ENTRY << self.log_entries;
        let number = u64::from(index & lines.wrapping_sub(1));
        self.entries.wrapping_add(number.wrapping_mul(LINE))
    }

    /// Where its entries and its payload area lie.
    pub(crate) fn room(&self) -> Range<u64> {
        let bulk = u64::from(self.bulk_len()).saturating_add(u64::from(self.tail));
        self.entries..self.area().saturating_add(bulk)
    }

    /// Offset of its payload area.
    #[inline]
    fn area(&self) -> u64 {
        self.entries.wrapping_add(ENTRY_SIZE << self.log_entries)
    }

    /// Offset of a free-running position in the payload area.
    #[inline]
    pub fn bulk(&self, position: u32) -> u64 {
        self.area()
            .wrapping_add(u64::from(position & self.bulk_len().wrapping_sub(1)))
    }
}
