// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A ring that a queue pair sends to.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use nupa_proto::process_ring::{
    lines_for, stamp, Entry, WriteTarget, ENTRY_IMM, ENTRY_SOLICITED, ENTRY_WRITE, FIRST_PAYLOAD,
    LINES, LINE_SIZE, MAX_PAYLOAD, POSTED, ROOM, STATE, STATE_ARMED, STATE_EMPTY, STATE_OPEN,
    STATE_WRITES, TAKEN, TARGET_SIZE, TOTALS_PUT,
};
use nupa_proto::wqe::WQE_SOLICITED;
use zerocopy::{FromZeros, IntoBytes};

use super::{Body, Message, Moved, Ring, Sent};
use crate::ffi::{fence, yield_now, ProcessBytes};
use crate::queue::done::is_ahead;

/// Bytes of an entry before its payload.
const HEAD: usize = LINE_SIZE - FIRST_PAYLOAD;
/// Bytes of an entry's stamp, which is written last.
const STAMP: usize = size_of::<u64>();
/// Bytes of an entry of a WRITE before its data.
pub(super) const TARGET: usize = size_of::<WriteTarget>();

/// No line's stamp, because secrets begin with a bit that is set.
const NO_STAMP: u64 = 0;
/// How often to try to take WRITEs back, while somebody takes entries: far longer than that takes, unless a process stands still.
const TAKE_BACK: u32 = 10_000;
/// Lines between two looks at what is long passed.
const MARKS: u32 = 1 << 20;

/// A ring that was found.
#[derive(Debug)]
pub(super) struct Outgoing {
    ring: Arc<Ring>,
    secret: u64,
    /// Line of the next entry.
    pub(super) line: u32,
    /// Line behind the last SEND.
    pub(super) sent: u32,
    /// Line behind the last WRITE, if any is known to have been there.
    pub(super) written: Option<u32>,
    /// As last seen.
    posted: u32,
    room: u32,
    taken: u32,
    /// What was put there.
    moved: Moved<TOTALS_PUT>,
}

impl Outgoing {
    /// A ring that is empty.
    pub(super) fn new(ring: Arc<Ring>) -> Self {
        Self {
            secret: ring.secret(),
            line: 0,
            sent: 0,
            written: None,
            posted: 0,
            room: 0,
            taken: 0,
            moved: Moved::new(&ring),
            ring,
        }
    }

    /// Loads a word of the control page with acquire order.
    pub(super) fn load(&self, offset: usize) -> u32 {
        self.ring.load(offset)
    }

    /// Whether the receiver takes a message. `mixed`: also if its program waits for an event.
    #[inline(always)]
    fn takes(&self, message: &Message, mixed: bool) -> bool {
        let state = self.ring.load(STATE);
        if message.is_write() {
            return state & !STATE_EMPTY == STATE_OPEN | STATE_WRITES;
        }
        // That it may go to the engine in any case is for tests: as if the receiver's program had waited since just now.
        let may_be = STATE_OPEN | STATE_WRITES | if mixed { STATE_ARMED } else { 0 };
        state & STATE_OPEN != 0 && state & !may_be == 0
    }

    /// Whether a message may be put there, behind what was `sent`.
    #[inline(always)]
    pub(super) fn admits(
        &mut self,
        sent: &Sent,
        number: u32,
        message: &Message,
        len: u32,
        mixed: bool,
    ) -> bool {
        self.takes(message, mixed)
            && self.has_room(number, message, len)
            && !(self.is_marked() && sent.is_stale(self.line))
    }

    /// Whether there is a receive entry for a message, if it takes one, and room for `len` bytes of payload.
    #[inline(always)]
    fn has_room(&mut self, number: u32, message: &Message, len: u32) -> bool {
        let (lines, is_write) = (lines_for(len), message.is_write());
        let fits = |out: &Self| {
            let used = out.line.wrapping_sub(out.taken);
            // Whatever a receiver says that means no good.
            let free = used.saturating_add(lines) <= LINES;
            let entry = match is_write {
                // The engine takes nothing that lies behind a SEND.
                true => !is_ahead(out.sent, out.taken),
                false => is_ahead(out.posted, number) && len <= out.room,
            };
            free && entry
        };
        if fits(self) {
            return true;
        }
        self.posted = self.ring.load(POSTED);
        self.room = self.ring.load(ROOM);
        self.taken = self.ring.load(TAKEN);
        // Lines that were passed are not compared with those that come when indices have wrapped around.
        if !is_ahead(self.sent, self.taken) {
            self.sent = self.taken;
        }
        fits(self)
    }

    /// Whether all is taken that was put there.
    #[inline]
    pub(super) fn is_empty(&mut self) -> bool {
        if self.line != self.taken {
            self.taken = self.ring.load(TAKEN);
        }
        self.line == self.taken
    }

    /// Forgets the line behind the last WRITE, once all is taken that lies before it.
    #[inline(always)]
    pub(super) fn settle(&mut self, written: &mut Option<u32>) {
        let taken = self.taken;
        for line in [written, &mut self.written] {
            line.take_if(|line| !is_ahead(*line, taken));
        }
    }

    /// Puts a WRITE of no bytes before one whose entry would end at index 0, which means no line to the engine. False if there is no place for it.
    #[inline(always)]
    pub(super) fn pad(&mut self, len: u32) -> bool {
        self.line.wrapping_add(lines_for(len)) != 0 || self.put_padding()
    }

    #[cold]
    fn put_padding(&mut self) -> bool {
        let nothing = Message {
            wr_id: 0,
            flags: 0,
            body: Body::Write { addr: 0, rkey: 0 },
        };
        let may = self.takes(&nothing, false) && self.has_room(0, &nothing, TARGET_SIZE);
        if may {
            self.write(0, &nothing, TARGET_SIZE, &[], &[]);
            self.count_write(TARGET_SIZE);
            self.written = Some(self.line);
        }
        may
    }

    /// Counts messages that were put there, with so many bytes of payload.
    #[inline(always)]
    pub(super) fn count(&mut self, messages: u32, len: u32) {
        self.moved.count(&self.ring, messages, len);
    }

    /// The same of a WRITE.
    #[inline(always)]
    pub(super) fn count_write(&mut self, len: u32) {
        self.count(1, len.wrapping_sub(TARGET_SIZE));
    }

    /// Whether it is at one of the few lines where is looked whether there is something that was passed long ago. No entry is longer than what it
    /// may be behind a mark.
    #[inline(always)]
    fn is_marked(&self) -> bool {
        self.line % MARKS < lines_for(MAX_PAYLOAD)
    }

    /// Takes back the WRITEs that nobody has taken: their queue pair has ended, and those that come behind them. What the receiver is just taking it
    /// takes all the same.
    fn take_back(&self) {
        for _ in 0..TAKE_BACK {
            let taken = self.ring.load(TAKEN);
            // What lies before the last WRITE is a WRITE.
            if !self.written.is_some_and(|written| is_ahead(written, taken)) {
                return;
            }
            self.ring.set_stamp(taken, NO_STAMP);
            fence(Ordering::SeqCst);
            // Who takes entries now may have seen the stamp, and goes on behind it. Who begins to sees none.
            if !self.ring.is_held() && self.ring.load(TAKEN) == taken {
                return;
            }
            yield_now();
        }
    }

    /// The receiver's state, read behind the entries that were written. A receiver that closes the ring, or is about to wait for an event, finds those entries, or
    /// its state is seen here.
    #[inline(always)]
    pub(super) fn state_behind_entries(&self) -> u32 {
        fence(Ordering::SeqCst);
        self.ring.load(STATE)
    }

    /// Writes an entry.
    #[inline(always)]
    pub(super) fn write(
        &mut self,
        number: u32,
        message: &Message,
        len: u32,
        inline: &[u8],
        parts: &[ProcessBytes],
    ) {
        let (ring, line) = (&self.ring, self.line);
        let mut entry = Entry::new_zeroed();
        entry.len.set(len);
        let mut target = None;
        match message.body {
            Body::Send { imm } => {
                entry.message.set(number);
                if let Some(imm) = imm {
                    entry.imm.set(imm);
                    entry.flags |= ENTRY_IMM;
                }
                if message.flags & WQE_SOLICITED != 0 {
                    entry.flags |= ENTRY_SOLICITED;
                }
            }
            // There is no entry for it.
            Body::Read { .. } => return,
            Body::Write { addr, rkey } => {
                entry.flags = ENTRY_WRITE;
                target = Some(WriteTarget {
                    addr: addr.into(),
                    rkey: rkey.into(),
                    reserved: 0.into(),
                });
            }
        }
        let target = target.as_ref().map_or(&[][..], WriteTarget::as_bytes);
        let at = HEAD.wrapping_add(target.len());
        // The receiver polls the first line, and each poll takes it away from this processor. So all of that line is written last, and at once: nothing is
        // waited for in between.
        self.write_data(Lines::Rest, at, inline, parts);
        self.write_data(Lines::First, at, inline, parts);
        ring.write(line, HEAD, target);
        if let Some(head) = entry.as_bytes().get(STAMP..HEAD) {
            ring.write(line, STAMP, head);
        }
        ring.set_stamp(line, stamp(self.secret, line));
        self.line = line.wrapping_add(lines_for(len));
    }

    /// Writes the data of an entry, which begins `at` bytes behind the entry's start, as far as it lies in these lines.
    #[inline(always)]
    fn write_data(&self, lines: Lines, at: usize, inline: &[u8], parts: &[ProcessBytes]) {
        let (ring, line) = (&self.ring, self.line);
        let in_first = |at: usize, len: usize| LINE_SIZE.saturating_sub(at).min(len);
        let (head, rest) = inline.split_at(in_first(at, inline.len()));
        match lines {
            Lines::First => ring.write(line, at, head),
            Lines::Rest => ring.write(line, at.wrapping_add(head.len()), rest),
        }
        let mut at = at.wrapping_add(inline.len());
        for part in parts {
            let head = in_first(at, part.len());
            let (from, len) = match lines {
                Lines::First => (0, head),
                Lines::Rest => (head, part.len().wrapping_sub(head)),
            };
            if let Some(part) = part.part(from, len).filter(|_| len != 0) {
                ring.write_from(line, at.wrapping_add(from), part);
            }
            at = at.wrapping_add(part.len());
        }
    }
}

/// Lines of an entry.
#[derive(Clone, Copy, Debug)]
enum Lines {
    First,
    Rest,
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.take_back();
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a test may fail loudly")]
mod tests {
    use super::*;
    use crate::ffi::testing::process_bytes;
    use crate::ffi::Pages;
    use crate::queue::bypass::ring::testing::Kept;
    use nupa_engine::rings::QueueMemory;
    use nupa_proto::doorbell::PAGE_SIZE;
    use nupa_proto::process_ring::RING_SIZE;
    use zerocopy::FromBytes;

    #[test]
    fn no_write_ends_where_the_engine_sees_no_line() {
        for (lines, len) in [(1, 16), (3, 150)] {
            let ring = Ring::new(Pages::anonymous(RING_SIZE).unwrap(), Box::new(Kept));
            let start = 0u32.wrapping_sub(lines);
            ring.store(STATE, STATE_OPEN | STATE_WRITES);
            ring.store(TAKEN, start);
            let mut out = Outgoing::new(Arc::new(ring));
            (out.line, out.sent, out.taken) = (start, start, start);
            let write = Message {
                wr_id: 1,
                flags: 0,
                body: Body::Write { addr: 0, rkey: 0 },
            };
            assert_eq!(lines_for(len), lines);
            assert!(out.pad(len) && out.has_room(0, &write, len));
            out.write(0, &write, len, &[], &[]);
            assert_eq!(out.line, 1, "a line of padding comes before it");
            for line in [start, start.wrapping_add(1)] {
                assert_eq!(out.ring.stamp(line), stamp(out.secret, line));
            }
            assert!(out.pad(len), "there is nothing to be done");
            assert_eq!(out.line, 1);
        }
    }

    /// Writes an entry with data in pieces of these lengths, or inline, at a line of a new ring. Whether that is in one piece behind the head.
    fn is_in_one_piece(body: Body, start: u32, pieces: &[usize], is_inline: bool) -> bool {
        let bytes: Vec<u8> = (0..=255).collect();
        let pages = Pages::anonymous(PAGE_SIZE).unwrap();
        pages.write(0, &bytes);
        let all = process_bytes(&pages, bytes.len());
        let data: usize = pieces.iter().sum();
        let mut at = 0;
        let parts: Vec<_> = pieces
            .iter()
            .map(|len| {
                at += len;
                all.part(at - len, *len).unwrap()
            })
            .collect();
        let (inline, parts) = match is_inline {
            true => (&bytes[..data], &[][..]),
            false => (&[][..], &parts[..]),
        };
        let message = Message {
            wr_id: 1,
            flags: 0,
            body,
        };
        let head = if message.is_write() {
            HEAD + TARGET
        } else {
            HEAD
        };
        let len = u32::try_from(head - HEAD + data).unwrap();

        let ring = Ring::new(Pages::anonymous(RING_SIZE).unwrap(), Box::new(Kept));
        let mut out = Outgoing::new(Arc::new(ring));
        out.line = start;
        out.write(7, &message, len, inline, parts);
        let mut found = vec![0; lines_for(len) as usize * LINE_SIZE];
        for (line, chunk) in (start..).zip(found.chunks_mut(LINE_SIZE)) {
            out.ring.read(line, 0, chunk);
        }
        let entry = Entry::read_from_prefix(&found).unwrap().0;
        assert_eq!(entry.len.get(), len);
        assert_eq!(out.ring.stamp(start), stamp(out.secret, start));
        if message.is_write() {
            let target = WriteTarget::read_from_prefix(&found[HEAD..]).unwrap().0;
            assert_eq!((target.addr.get(), target.rkey.get()), (5, 6));
        }
        found[head..head + data] == bytes[..data]
    }

    #[test]
    fn data_of_any_pieces_is_in_one_piece_behind_the_head() {
        let bodies = [Body::Send { imm: None }, Body::Write { addr: 5, rkey: 6 }];
        for pieces in [
            &[24][..],
            &[40],
            &[41],
            &[64],
            &[10, 50, 100],
            &[0, 39, 2, 0, 1],
            &[168, 1],
        ] {
            // Long ones wrap around at the last two.
            for start in [0, LINES - 2, LINES - 1] {
                for body in bodies {
                    for is_inline in [true, false] {
                        let found = is_in_one_piece(body, start, pieces, is_inline);
                        assert!(found, "{body:?} at {start}: {pieces:?}, {is_inline}");
                    }
                }
            }
        }
    }
}
