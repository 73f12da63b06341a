// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Entries of lines: what they look like.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod rig;

use nupa_pool::in_lines;
use nupa_proto::pool::{
    line::{LineHead, LongPart, RequestLine, ResponseLine, LINE_BODY},
    message::{Entry, Kind, RequestBody, ResponseBody, REQUEST_DATAGRAM},
    Class,
};
use rig::Random;
use zerocopy::{transmute, FromZeros, IntoBytes};

/// An entry of which every byte is drawn but for its kind.
fn drawn(random: &mut Random, kind: Kind) -> Entry {
    let mut entry = Entry::new_zeroed();
    for byte in entry.as_mut_bytes() {
        *byte = random.draw() as u8;
    }
    entry.header.kind = kind.to_wire();
    entry
}

/// Fields are put together by shifts, so each must come to lie where the layout has it.
#[test]
fn requests_and_responses_are_laid_out_as_is_said() {
    let mut random = Random(7);
    for _ in 0..2000 {
        let entry = drawn(&mut random, Kind::Request);
        let body: RequestBody = transmute!(entry.body);
        for class in [Class::Request, Class::ShortRequest] {
            let (first, second) = in_lines(class, &entry);
            let long = LongPart {
                offset: entry.header.offset,
                payload_len: entry.header.payload_len,
                behind: entry.header.behind,
                reserved: [0; 4],
            };
            let expected = RequestLine {
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
                room: match class {
                    Class::Request => transmute!(long),
                    _ => [0; 16],
                },
            };
            assert_eq!(first, expected.as_bytes());
            assert!(second.is_some() || body.flags & REQUEST_DATAGRAM == 0);
        }
        let entry = drawn(&mut random, Kind::Response);
        let body: ResponseBody = transmute!(entry.body);
        let (first, second) = in_lines(Class::Response, &entry);
        let expected = ResponseLine {
            head: head(Kind::Response, second.is_some()),
            reply: body.reply,
            status: body.status,
            sequence: body.sequence,
            source_qpn: body.source_qpn,
            target_qpn: body.target_qpn,
            behind: entry.header.behind,
            offset: entry.header.offset,
            payload_len: entry.header.payload_len,
            rnr_timer: body.rnr_timer,
            check: body.check,
            credits: body.credits,
            found: body.found,
            ..ResponseLine::default()
        };
        let expected: [u8; LINE_BODY] = transmute!(expected);
        assert_eq!(first, expected);
    }
}

fn head(kind: Kind, two: bool) -> LineHead {
    LineHead {
        kind: kind.to_wire(),
        lines: if two { 2 } else { 1 },
    }
}
