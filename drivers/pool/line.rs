// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Entries of lines: how messages are written there, and what is believed of them.

use crate::message::{
    check_lengths, frame, kind_of, request, response, Acknowledged, Body, Outgoing, Violation,
};
use nupa_proto::{
    pool::{
        line::{
            FrameLine, GrantLine, LineHead, LongPart, NotifyLine, OperandLine, RequestLine,
            ResponseLine, LINE_BODY, MAX_LINES,
        },
        message::{
            has_operand, has_payload, FrameBody, Kind, NotifyBody, RequestBody, ResponseBody,
            OPERAND_SIZE, REQUEST_DATAGRAM,
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
    has_operand(opcode) || flags & REQUEST_DATAGRAM != 0
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

impl Lines {
    /// What a message takes.
    #[inline]
    pub(crate) fn write(class: Class, message: &Outgoing<'_>, part: Part) -> Self {
        match message {
            Outgoing::Request(body) => Self::request(class, body, part),
            Outgoing::Response(body) => Self::response(body, part),
            Outgoing::Frame(body) => Self::one(transmute!(FrameLine {
                head: head(Kind::Frame, false),
                flags: body.flags,
                payload_len: part.payload_len.into(),
                source_qpn: body.source_qpn,
                meta: body.meta,
                ..FrameLine::default()
            })),
            Outgoing::Notify(body) => Self::one(transmute!(NotifyLine {
                head: head(Kind::Notify, false),
                source_qpn: body.source_qpn,
                qpn: body.qpn,
                behind: part.behind.into(),
                ..NotifyLine::new_zeroed()
            })),
        }
    }

    fn one(first: LineBody) -> Self {
        Self {
            first,
            second: None,
        }
    }

    #[inline]
    fn request(class: Class, body: &RequestBody, part: Part) -> Self {
        let opcode = Opcode::try_from(body.opcode).unwrap_or(Opcode::Nop);
        let second = has_second(opcode, body.flags).then(|| {
            transmute!(OperandLine {
                operand: body.operand,
                vlan_id: body.vlan_id,
                reserved: [0; 6],
            })
        });
        let room = match class {
            Class::Request => transmute!(LongPart {
                offset: part.offset.into(),
                payload_len: part.payload_len.into(),
                behind: part.behind.into(),
                reserved: [0; 4],
            }),
            // Here is the payload, or nothing.
            _ => Default::default(),
        };
        let first = RequestLine {
            head: head(Kind::Request, second.is_some()),
            opcode: body.opcode,
            flags: body.flags,
            sequence: body.sequence,
            source_qpn: body.source_qpn,
            target_qpn: body.target_qpn,
            psn: body.psn,
            len: body.len,
            remote_addr: body.remote_addr,
            remote_key: body.remote_key,
            imm_or_key: body.imm_or_key,
            room,
        };
        Self {
            first: transmute!(first),
            second,
        }
    }

    fn response(body: &ResponseBody, part: Part) -> Self {
        let second = (body.grant_serial.get() != 0).then(|| {
            transmute!(GrantLine {
                serial: body.grant_serial,
                offset: body.grant_offset,
                addr: body.grant_addr,
                len: body.grant_len,
                key: body.grant_key,
                slot: body.grant_slot,
                reserved: [0; 18],
            })
        });
        let first = ResponseLine {
            head: head(Kind::Response, second.is_some()),
            reply: body.reply,
            status: body.status,
            sequence: body.sequence,
            source_qpn: body.source_qpn,
            target_qpn: body.target_qpn,
            behind: part.behind.into(),
            offset: part.offset.into(),
            payload_len: part.payload_len.into(),
            rnr_timer: body.rnr_timer,
            check: body.check,
            credits: body.credits,
            found: body.found,
            ..ResponseLine::default()
        };
        Self {
            first: transmute!(first),
            second,
        }
    }

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
                (body.qpn, body.source_qpn) = (line.qpn, line.source_qpn);
                let behind = line.behind.get();
                let part = Part {
                    behind,
                    ..Part::default()
                };
                (Body::Notify(body), part)
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
        }
        let part = Part {
            payload_len: line.payload_len.get(),
            offset: line.offset.get(),
            behind: line.behind.get(),
        };
        Ok((response(body)?, part))
    }
}
