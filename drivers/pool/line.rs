// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Entries of lines: how messages are written there, and what is believed of them.

use crate::message::{
    check_lengths, frame, kind_of, notify, request, response, Acknowledged, Body, Outgoing,
    Violation,
};
use nupa_proto::{
    pool::{
        line::{
            FrameLine, GrantLine, LineHead, LongPart, NotifyLine, OperandLine, RequestLine,
            ResponseLine, LINE_BODY, LINE_INLINE, MAX_LINES,
        },
        message::{
            has_operand, has_payload, FrameBody, Kind, NotifyBody, RequestBody, ResponseBody,
            OPERAND_SIZE, REQUEST_BYPASSED, REQUEST_DATAGRAM,
        },
        Class, LinkWord, LINE,
    },
    wqe::Opcode,
};
use zerocopy::{transmute, FromZeros};

/// What stands in a line behind its stamp.
pub(crate) type LineBody = [u8; LINE_BODY];

/// Lines of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    /// The first.
    pub(crate) first: LineBody,
    /// The second, if there is one.
    pub(crate) second: Option<LineBody>,
}

/// Words of a line behind its stamp.
const LINE_WORDS: usize = LINE_BODY / size_of::<u64>();
/// Those of them that no payload can be in.
const SAID_WORDS: usize = (LINE_BODY - LINE_INLINE as usize) / size_of::<u64>();

/// What stands in a line behind its stamp, as it lies in memory.
pub(crate) type LineWords = [u64; LINE_WORDS];

/// What stands in a line before any payload that it has.
#[inline]
pub(crate) fn before_inline(words: LineWords) -> [u64; SAID_WORDS] {
    let [said @ .., _, _] = words;
    said
}

/// Where in its message an entry is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    /// Bytes of payload of the entry.
    pub(crate) payload_len: u32,
    /// Bytes of the message that come before those that this entry brings or asks for.
    pub(crate) offset: u32,
    /// Index in the ring of short messages behind the entries that are to be taken before this one.
    pub(crate) behind: u32,
}

/// The stamp of the line at `index` of a ring, if `word` is a link word of its epochs.
#[inline]
pub(crate) fn stamp(word: LinkWord, index: u32) -> u64 {
    LinkWord { index, ..word }.to_wire()
}

/// Bytes of payload that a line of the ring has, if it is in the line.
#[inline]
pub(crate) fn inline_len(line: u64, payload: &core::ops::Range<u64>) -> usize {
    let end = line.wrapping_add(LINE);
    match payload.end == end && payload.start > line {
        true => end.wrapping_sub(payload.start) as usize,
        false => 0,
    }
}

/// Head of an entry that has a second line, or none.
const fn head(kind: Kind, has_second: bool) -> LineHead {
    LineHead {
        kind: kind as u8,
        lines: if has_second { 2 } else { 1 },
    }
}

/// Whether a request has a second line.
#[inline]
fn has_second(opcode: Opcode, flags: u8) -> bool {
    has_operand(opcode) || flags & (REQUEST_DATAGRAM | REQUEST_BYPASSED) != 0
}

/// Whether a request that is taken out is done if nothing is said against it. Others are answered, and a datagram is done when it is put in.
#[inline]
pub(crate) fn is_acknowledged(opcode: Opcode, flags: u8) -> bool {
    has_payload(opcode) && flags & REQUEST_DATAGRAM == 0
}

/// What the first line of an entry in a ring of requests says that this end has written: the request that is done when that is taken out, if
/// there is one.
#[inline]
pub(crate) fn acknowledged(class: Class, line: &LineBody) -> Option<Acknowledged> {
    let line: RequestLine = transmute!(*line);
    let opcode = Opcode::try_from(line.opcode).ok()?;
    let last = match class {
        Class::Request => {
            let part: LongPart = transmute!(line.room);
            part.offset.get().saturating_add(part.payload_len.get()) >= line.len.get()
        }
        _ => true,
    };
    (last && is_acknowledged(opcode, line.flags)).then_some(Acknowledged {
        sequence: line.sequence.get(),
        source_qpn: line.source_qpn.get(),
        target_qpn: line.target_qpn.get(),
    })
}

/// Whether the entry of a message has a second line.
#[inline]
pub(crate) fn takes_two(message: &Outgoing<'_>) -> bool {
    match message {
        Outgoing::Request(body) => {
            let opcode = Opcode::try_from(body.opcode).unwrap_or(Opcode::Nop);
            has_second(opcode, body.flags)
        }
        Outgoing::Response(body) => body.grant_serial.get() != 0,
        Outgoing::Frame(_) | Outgoing::Notify(_) => false,
    }
}

/// What the first line of a message says. Requests and responses are put together in registers: a word that is loaded from where parts of it were just stored
/// waits until all stores before have reached the cache, also those to lines of the pool that another processor has.
#[inline]
pub(crate) fn first_line(class: Class, message: &Outgoing<'_>, part: Part) -> LineWords {
    let two = takes_two(message);
    match message {
        Outgoing::Request(body) => request_words(class, body, part, two),
        Outgoing::Response(body) => response_words(body, part, two),
        Outgoing::Frame(body) => transmute!(FrameLine {
            head: head(Kind::Frame, two),
            flags: body.flags,
            payload_len: part.payload_len.into(),
            source_qpn: body.source_qpn,
            meta: body.meta,
            ..FrameLine::default()
        }),
        Outgoing::Notify(body) => transmute!(NotifyLine {
            head: head(Kind::Notify, two),
            source_qpn: body.source_qpn,
            qpn: body.qpn,
            behind: part.behind.into(),
            flags: body.flags,
            ..NotifyLine::new_zeroed()
        }),
    }
}

/// What the second line of a message says that [takes two](takes_two). Not inlined, so that it costs nothing where there is none.
#[inline(never)]
pub(crate) fn second_line(message: &Outgoing<'_>) -> LineWords {
    match message {
        Outgoing::Request(body) => transmute!(OperandLine {
            operand: body.operand,
            vlan_id: body.vlan_id,
            reserved: [0; 6],
        }),
        Outgoing::Response(body) => transmute!(GrantLine {
            serial: body.grant_serial,
            offset: body.grant_offset,
            addr: body.grant_addr,
            len: body.grant_len,
            key: body.grant_key,
            slot: body.grant_slot,
            flags: body.grant_flags,
            reserved: [0; 17],
        }),
        Outgoing::Frame(_) | Outgoing::Notify(_) => [0; LINE_WORDS],
    }
}

/// Two fields that follow one another.
#[inline]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | (u64::from(high) << 32)
}

/// The head of a line and the two bytes behind it.
#[inline]
fn head_and(kind: Kind, two: bool, bytes: [u8; 2]) -> u32 {
    let LineHead { kind, lines } = head(kind, two);
    let [first, second] = bytes;
    u32::from_le_bytes([kind, lines, first, second])
}

/// A [`RequestLine`](nupa_proto::pool::line::RequestLine).
#[inline]
fn request_words(class: Class, body: &RequestBody, part: Part, two: bool) -> LineWords {
    let head = head_and(Kind::Request, two, [body.opcode, body.flags]);
    let [part, behind] = match class {
        // A `LongPart`.
        Class::Request => [pair(part.offset, part.payload_len), pair(part.behind, 0)],
        // Here is the payload, or nothing.
        _ => [0; 2],
    };
    let words = [
        pair(head, body.sequence.get()),
        pair(body.source_qpn.get(), body.target_qpn.get()),
        pair(body.psn.get(), body.len.get()),
        body.remote_addr.get(),
        pair(body.remote_key.get(), body.imm_or_key.get()),
        part,
        behind,
    ];
    words.map(u64::to_le)
}

/// A [`ResponseLine`](nupa_proto::pool::line::ResponseLine).
#[inline]
fn response_words(body: &ResponseBody, part: Part, two: bool) -> LineWords {
    let head = head_and(Kind::Response, two, [body.reply, body.status]);
    let [low, high] = body.credits.get().to_le_bytes();
    let last = u32::from_le_bytes([body.rnr_timer, body.check, low, high]);
    let words = [
        pair(head, body.sequence.get()),
        pair(body.source_qpn.get(), body.target_qpn.get()),
        pair(part.behind, part.offset),
        pair(part.payload_len, last),
        body.found.get(),
        0,
        0,
    ];
    words.map(u64::to_le)
}

impl Lines {
    /// How many lines an entry has, as its first one says.
    #[inline]
    pub(crate) fn count(first: &LineBody) -> Result<u32, Violation> {
        let [_, lines, ..] = *first;
        match u32::from(lines) {
            count @ 1..=MAX_LINES => Ok(count),
            _ => Err(Violation::Value(lines)),
        }
    }

    /// Checks what an entry in a ring of a class says. `own_epoch` is what a request has to be for; `most`: bytes of payload that an entry may have.
    #[inline]
    pub(crate) fn read(
        &self,
        class: Class,
        own_epoch: u32,
        most: u32,
    ) -> Result<(Body, Part), Violation> {
        let [kind, ..] = self.first;
        let (body, part) = match kind_of(class, kind)? {
            Kind::Request => self.read_request(class, own_epoch)?,
            Kind::Response => self.read_response()?,
            Kind::Frame => {
                self.must_be_one()?;
                let line: FrameLine = transmute!(self.first);
                let mut body = FrameBody::new_zeroed();
                (body.meta, body.source_qpn, body.flags) = (line.meta, line.source_qpn, line.flags);
                let payload_len = line.payload_len.get();
                let part = Part {
                    payload_len,
                    ..Part::default()
                };
                (frame(body)?, part)
            }
            Kind::Notify => {
                self.must_be_one()?;
                let line: NotifyLine = transmute!(self.first);
                let mut body = NotifyBody::new_zeroed();
                (body.qpn, body.source_qpn, body.flags) = (line.qpn, line.source_qpn, line.flags);
                let behind = line.behind.get();
                let part = Part {
                    behind,
                    ..Part::default()
                };
                (notify(body)?, part)
            }
        };
        check_lengths(class, &body, part.payload_len, part.offset, most)?;
        Ok((body, part))
    }

    fn must_be_one(&self) -> Result<(), Violation> {
        match self.second {
            None => Ok(()),
            Some(_) => Err(Violation::Value(2)),
        }
    }

    #[inline]
    fn read_request(&self, class: Class, own_epoch: u32) -> Result<(Body, Part), Violation> {
        let line: RequestLine = transmute!(self.first);
        let operand: Option<OperandLine> = self.second.map(|second| transmute!(second));
        let (vlan_id, operand) = match operand {
            Some(line) => (line.vlan_id, line.operand),
            None => (0.into(), [0; OPERAND_SIZE]),
        };
        let datagram = line.flags & REQUEST_DATAGRAM != 0;
        let body = request(RequestBody {
            opcode: line.opcode,
            flags: line.flags,
            vlan_id,
            sequence: line.sequence,
            source_qpn: line.source_qpn,
            target_qpn: line.target_qpn,
            // The link is that of two epochs.
            target_epoch: if datagram { 0 } else { own_epoch }.into(),
            len: line.len,
            remote_addr: line.remote_addr,
            remote_key: line.remote_key,
            imm_or_key: line.imm_or_key,
            operand,
            psn: line.psn,
            reserved1: [0; 4],
        })?;
        let Body::Request(opcode, request) = &body else {
            return Err(Violation::Kind(line.head.kind));
        };
        if has_second(*opcode, line.flags) != self.second.is_some() {
            return Err(Violation::Value(line.head.lines));
        }
        let part = match class {
            Class::Request => {
                let part: LongPart = transmute!(line.room);
                Part {
                    payload_len: part.payload_len.get(),
                    offset: part.offset.get(),
                    behind: part.behind.get(),
                }
            }
            _ => Part {
                payload_len: request.payload_len(),
                ..Part::default()
            },
        };
        Ok((body, part))
    }

    #[inline]
    fn read_response(&self) -> Result<(Body, Part), Violation> {
        let line: ResponseLine = transmute!(self.first);
        let mut body = ResponseBody::new_zeroed();
        (body.reply, body.status, body.check) = (line.reply, line.status, line.check);
        (body.rnr_timer, body.credits) = (line.rnr_timer, line.credits);
        (body.sequence, body.found) = (line.sequence, line.found);
        (body.source_qpn, body.target_qpn) = (line.source_qpn, line.target_qpn);
        if let Some(second) = self.second {
            let grant: GrantLine = transmute!(second);
            (body.grant_serial, body.grant_offset) = (grant.serial, grant.offset);
            (body.grant_addr, body.grant_len) = (grant.addr, grant.len);
            (body.grant_key, body.grant_slot) = (grant.key, grant.slot);
            body.grant_flags = grant.flags;
        }
        let part = Part {
            payload_len: line.payload_len.get(),
            offset: line.offset.get(),
            behind: line.behind.get(),
        };
        Ok((response(body)?, part))
    }
}
