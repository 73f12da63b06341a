// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Entries of lines: what they look like, and which requests are done when they are taken out.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod rig;

use nupa_pool::{in_lines, Body, Outgoing};
use nupa_proto::pool::{
    line::{LineHead, LongPart, RequestLine, ResponseLine, LINE_BODY},
    message::{Entry, Kind, RequestBody, ResponseBody, REQUEST_DATAGRAM},
    Class,
};
use rig::{pair_in, write_request, Node, Random};
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

/// Sends requests of queue pairs from the first of two nodes, and takes them out at the other.
fn pass(a: &mut Node, b: &mut Node, class: Class, requests: &[(u32, u32)]) {
    let (here, there) = (a.host.clone(), b.host.clone());
    for (qpn, number) in requests {
        let mut body = write_request(8, *number);
        body.source_qpn.set(*qpn);
        body.target_qpn.set(qpn.wrapping_add(100));
        let sender = a.link(1).send.of(class);
        here.send(sender, &Outgoing::Request(&body), &[0; 8], 0)
            .unwrap();
        assert!(b.link(0).next(&there, class).unwrap().is_some());
        b.link(0).release(&there, class);
    }
    b.link(0).receive.of(class).publish(&there);
}

/// Which requests are said to be done: queue pair and number.
fn done(a: &mut Node, responses: Class) -> Vec<(u32, u32)> {
    let host = a.host.clone();
    let mut found = Vec::new();
    while let Some(message) = a.link(1).next(&host, responses).unwrap() {
        let Body::Done(done) = message.body else {
            panic!("nobody has answered");
        };
        assert_eq!(done.target_qpn, done.source_qpn.wrapping_add(100));
        found.push((done.source_qpn, done.sequence));
        a.link(1).release(&host, responses);
    }
    found
}

#[test]
fn of_several_requests_of_a_queue_pair_the_last_is_said_to_be_done() {
    for (requests, responses) in [
        (Class::ShortRequest, Class::ShortResponse),
        (Class::Request, Class::Response),
    ] {
        let (_, mut a, mut b) = pair_in(true);
        // Around the ring several times.
        for round in 0..300 {
            let number = |index: u32| round * 8 + index;
            let sent = [
                (1, number(0)),
                (1, number(1)),
                (1, number(2)),
                (2, number(3)),
                (1, number(4)),
                (3, number(5)),
                (3, number(6)),
            ];
            pass(&mut a, &mut b, requests, &sent);
            let expected = [
                (1, number(2)),
                (2, number(3)),
                (1, number(4)),
                (3, number(6)),
            ];
            assert_eq!(done(&mut a, responses), expected);
        }
    }
}
