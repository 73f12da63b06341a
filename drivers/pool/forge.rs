// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Entries of lines as a hostile host writes them: nothing of what they say is checked.

use crate::{
    line::{first_line, second_line, stamp, takes_two, Part},
    message::Outgoing,
    place::Place,
};
use nupa_proto::pool::{
    line::{RequestLine, ResponseLine, LINE_BODY},
    message::{Entry, Kind, RequestBody, ResponseBody, BODY_SIZE},
    Class, LinkWord,
};
use zerocopy::{transmute, transmute_ref, FromZeros};

/// What an entry of 256 bytes says, as the lines of one in a ring of a class: what stands in each behind its stamp.
pub fn in_lines(class: Class, entry: &Entry) -> ([u8; LINE_BODY], Option<[u8; LINE_BODY]>) {
    let header = &entry.header;
    let message = match class {
        Class::Request | Class::ShortRequest => Outgoing::Request(transmute_ref!(&entry.body)),
        Class::Response | Class::ShortResponse if header.kind == Kind::Notify.to_wire() => {
            Outgoing::Notify(transmute_ref!(&entry.body))
        }
        Class::Response | Class::ShortResponse => Outgoing::Response(transmute_ref!(&entry.body)),
        Class::Frame => Outgoing::Frame(transmute_ref!(&entry.body)),
    };
    let part = Part {
        payload_len: header.payload_len.get(),
        offset: header.offset.get(),
        behind: header.behind.get(),
    };
    let mut first: [u8; LINE_BODY] = transmute!(first_line(class, &message, part));
    let second = takes_two(&message).then(|| transmute!(second_line(&message)));
    let [kind, ..] = &mut first;
    *kind = header.kind;
    (first, second)
}

/// The body of an entry of 256 bytes that says what the first line of one in a ring of a class does, if that is a request or a response.
pub fn of_line(class: Class, line: &[u8; LINE_BODY]) -> [u8; BODY_SIZE] {
    match class {
        Class::Request | Class::ShortRequest => {
            let line: RequestLine = transmute!(*line);
            let mut body = RequestBody::new_zeroed();
            (body.opcode, body.flags, body.len) = (line.opcode, line.flags, line.len);
            (body.sequence, body.psn) = (line.sequence, line.psn);
            (body.source_qpn, body.target_qpn) = (line.source_qpn, line.target_qpn);
            (body.remote_addr, body.remote_key) = (line.remote_addr, line.remote_key);
            body.imm_or_key = line.imm_or_key;
            transmute!(body)
        }
        _ => {
            let line: ResponseLine = transmute!(*line);
            let mut body = ResponseBody::new_zeroed();
            (body.reply, body.status) = (line.reply, line.status);
            (body.sequence, body.credits) = (line.sequence, line.credits);
            (body.source_qpn, body.target_qpn) = (line.source_qpn, line.target_qpn);
            transmute!(body)
        }
    }
}

/// Index behind the lines that are there from the index of `consumer` on, which is a ring's.
pub fn behind_lines(place: &Place, consumer: LinkWord, load: impl Fn(u64) -> u64) -> u32 {
    let there = |number: &u32| {
        let index = consumer.index.wrapping_add(*number);
        load(place.entry(index)) == stamp(consumer, index)
    };
    let count = (0..place.entries()).take_while(there).count();
    consumer.index.wrapping_add(count as u32)
}
