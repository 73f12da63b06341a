// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Entries of rings: of the right form, with what was seen in others' entries, and not true.

use nupa_pool::{in_lines, of_line, Place};
use nupa_proto::admin::{MAX_RNR_TIMER, MAX_VLAN_ID};
use nupa_proto::frame::{FrameMeta, FRAME_L4_HASH, MIN_FRAME};
use nupa_proto::ident::{node_mac, GSI_QKEY, GSI_QPN, MULTICAST_QPN};
use nupa_proto::pool::line::{line_inline, LINE_BODY, LINE_STAMP};
use nupa_proto::pool::message::{
    bulk_size, bulk_start, max_payload, takes_entry, Entry, FrameBody, Header, Kind, NotifyBody,
    Reply, RequestBody, ResponseBody, BODY_SIZE, ENTRY_PAYLOAD, MAX_INLINE, MAX_SHORT, NOTIFY_ALL,
    NOTIFY_EVENT, OPERAND_SIZE, READ_PIECE, REQUEST_BYPASSED, REQUEST_DATAGRAM, REQUEST_IPV4,
    REQUEST_SOLICITED, REQUEST_START, REQUEST_VLAN,
};
use nupa_proto::pool::{Class, LinkWord, GRANT_SLOTS};
use nupa_proto::status::WcStatus;
use nupa_proto::wqe::Opcode;
use zerocopy::{transmute, FromZeros, IntoBytes};

use super::link::Link;
use super::HostileMember;

/// Bytes of a payload that are written; the rest is what was there.
const WRITTEN: usize = 256;
/// Ethernet types that a stack looks into: IPv4, ARP, VLAN, IPv6, and one that nobody knows.
const TYPES: [[u8; 2]; 5] = [[8, 0], [8, 6], [0x81, 0], [0x86, 0xdd], [0x88, 0xb5]];
/// Operations that datagrams can have, and others.
const DATAGRAMS: [Opcode; 2] = [Opcode::Send, Opcode::SendImm];
const REMOTE: [Opcode; 10] = [
    Opcode::Send,
    Opcode::SendImm,
    Opcode::SendInv,
    Opcode::Write,
    Opcode::WriteImm,
    Opcode::Read,
    Opcode::CompareSwap,
    Opcode::FetchAdd,
    Opcode::Flush,
    Opcode::AtomicWrite,
];
/// First bytes of a management datagram: base version, class (connection management), its version, method (send).
const MAD: [u8; 4] = [1, 7, 2, 3];

impl HostileMember<'_> {
    /// An entry where the next one of a ring belongs, or anywhere else in it.
    pub(super) fn entry_anywhere(&mut self) {
        let (source, target) = self.way();
        let class = self.class();
        let place = self.ring(source, target, class);
        let producer = self.word(place.producer());
        let in_lines = self.draw.once_in(2);
        let next = match in_lines {
            true => self.word(place.consumer()).index,
            false => producer.index,
        };
        let index = match self.draw.once_in(4) {
            true => self.draw.word(),
            false => next.wrapping_add(self.draw.small(3)),
        };
        let tags = (producer.source, producer.target);
        let victim = self.draw.one_or(&[source, target], target);
        let (entry, payload) = self.entry(class, &place, (source, victim), tags, index);
        if in_lines {
            self.lines(class, &place.in_lines(), tags, index, &entry);
        } else {
            self.write("entries", place.entry(index), entry.as_bytes());
        }
        let at = place.bulk(self.draw.word());
        self.write("payload", at, &payload);
    }

    /// The next entry of a link, with its payload, which the victim is shown.
    pub(super) fn entry_on(&mut self, link: &mut Link) {
        if link.in_lines {
            return self.lines_on(link);
        }
        let class = self.class();
        let place = self.ring(link.mask, link.victim, class);
        let number = usize::from(class.to_wire());
        let (Some(next), Some(bulk)) = (link.next.get_mut(number), link.bulk.get_mut(number))
        else {
            return;
        };
        let (entry, payload) =
            self.entry(class, &place, (link.mask, link.victim), link.tags, *next);
        let (at, len) = (place.entry(*next), entry.header.payload_len.get());
        let mut to = at.saturating_add(ENTRY_PAYLOAD);
        if len > MAX_INLINE {
            let size = bulk_size(len, MAX_INLINE);
            let start = bulk_start(*bulk, size, place.log_bulk());
            *bulk = start.wrapping_add(size);
            to = place.bulk(start);
        }
        self.write("entries", at, entry.as_bytes());
        self.payload_at(to, len, &payload);
        *next = next.wrapping_add(1);
        self.seen.shown = self.seen.shown.saturating_add(1);
        let word = LinkWord {
            source: link.tags.0,
            target: link.tags.1,
            index: *next,
        };
        self.store("shown", place.producer(), word.to_wire());
    }

    /// The same of a link with entries of lines, which the victim sees by themselves.
    fn lines_on(&mut self, link: &mut Link) {
        let class = self.class();
        let place = self.ring(link.mask, link.victim, class).in_lines();
        let number = usize::from(class.to_wire());
        let (Some(next), Some(bulk)) = (link.next.get_mut(number), link.bulk.get_mut(number))
        else {
            return;
        };
        let (entry, payload) =
            self.entry(class, &place, (link.mask, link.victim), link.tags, *next);
        let len = entry.header.payload_len.get();
        let size = bulk_size(len, line_inline(class));
        if size != 0 {
            let start = bulk_start(*bulk, size, place.log_bulk());
            *bulk = start.wrapping_add(size);
            self.payload_at(place.bulk(start), len, &payload);
        }
        let taken = self.lines(class, &place, link.tags, *next, &entry);
        *next = next.wrapping_add(taken);
        self.seen.shown = self.seen.shown.saturating_add(1);
    }

    /// Writes an entry of lines, the stamp of the first one last. Returns how many they are.
    fn lines(
        &mut self,
        class: Class,
        place: &Place,
        (source, target): (u16, u16),
        index: u32,
        entry: &Entry,
    ) -> u32 {
        let (mut first, second) = in_lines(class, entry);
        if self.draw.once_in(60) {
            self.draw.spoil(&mut first);
        }
        let behind = index.wrapping_add(1);
        for (body, index) in second
            .iter()
            .map(|second| (second, behind))
            .chain([(&first, index)])
        {
            let line = place.entry(index);
            self.write("lines", line.saturating_add(LINE_STAMP), body);
            let stamp = LinkWord {
                source,
                target,
                index,
            };
            self.store("stamps", line, stamp.to_wire());
        }
        if second.is_some() {
            2
        } else {
            1
        }
    }

    /// Writes the start of a payload of `len` bytes.
    fn payload_at(&mut self, at: u64, len: u32, payload: &[u8]) {
        let inside = payload.get(..payload.len().min(index(len)));
        self.write("payload", at, inside.unwrap_or(payload));
    }

    /// What keeps the rules, mostly, but is not true, and the start of its payload. `ends`: who sends it, and to whom.
    fn entry(
        &mut self,
        class: Class,
        place: &Place,
        ends: (u16, u16),
        tags: (u16, u16),
        index: u32,
    ) -> (Entry, Vec<u8>) {
        let (kind, body, len, offset) = self.body(class, place, ends);
        let header = Header {
            kind,
            payload_len: len.into(),
            offset: offset.into(),
            index: index.into(),
            source: tags.0.into(),
            target: tags.1.into(),
            behind: match self.draw.once_in(16) {
                true => self.draw.lie().into(),
                false => 0.into(),
            },
            ..Header::default()
        };
        let mut entry = Entry { header, body };
        if self.draw.once_in(60) {
            self.draw.spoil(entry.as_mut_bytes());
        }
        (entry, self.payload_of(class, ends.1))
    }

    /// Kind, body, bytes of payload of an entry, and of the message before it.
    fn body(
        &mut self,
        class: Class,
        place: &Place,
        (mask, victim): (u16, u16),
    ) -> (u8, [u8; BODY_SIZE], u32, u32) {
        let most = max_payload(class, place.log_bulk());
        let len = match self.draw.small(6) {
            0 => 0,
            1..=3 => self.draw.small(MAX_SHORT.min(most)),
            _ => self.draw.small(most),
        };
        let mut bytes = [0; BODY_SIZE];
        let (kind, len, offset) = match class {
            Class::Request | Class::ShortRequest => {
                let (body, len, offset) = self.request(class, victim, len);
                bytes.copy_from_slice(body.as_bytes());
                (Kind::Request, len, offset)
            }
            Class::Response if self.draw.once_in(8) => {
                let body = self.notify(victim);
                bytes.copy_from_slice(body.as_bytes());
                (Kind::Notify, 0, 0)
            }
            Class::Response | Class::ShortResponse => {
                let body = self.response(mask, victim);
                bytes.copy_from_slice(body.as_bytes());
                let offset = self.draw.one_or(&[0, 0, 0, READ_PIECE], 0);
                (Kind::Response, len, offset)
            }
            Class::Frame => {
                let body = self.frame();
                bytes.copy_from_slice(body.as_bytes());
                (Kind::Frame, len.max(MIN_FRAME), 0)
            }
        };
        match self.draw.small(200) {
            0 => (self.draw.byte(), bytes, len, offset),
            1 => (kind.to_wire(), bytes, self.draw.lie(), offset),
            2 => (kind.to_wire(), bytes, len, self.draw.lie()),
            _ => (kind.to_wire(), bytes, len, offset),
        }
    }

    /// A body that somebody has sent to the victim, or that it has sent: with numbers and keys that are in use.
    fn seen_body(&mut self, victim: u16, answers: bool) -> [u8; BODY_SIZE] {
        let other = self.draw.one_or(self.victims, self.own);
        let other = if other == victim { self.own } else { other };
        let class = match answers {
            true => self
                .draw
                .one_or(&[Class::Response, Class::ShortResponse], Class::Response),
            false => self
                .draw
                .one_or(&[Class::Request, Class::ShortRequest], Class::Request),
        };
        let (source, target) = self
            .draw
            .one_or(&[(other, victim), (victim, other)], (other, victim));
        let place = self.ring(source, target, class);
        if self.draw.once_in(2) {
            let mut entry = Entry::new_zeroed();
            let at = place.entry(self.draw.small(place.entries()));
            self.copy_out(at, entry.as_mut_bytes());
            return entry.body;
        }
        let place = place.in_lines();
        let mut line = [0; LINE_BODY];
        let at = place.entry(self.draw.small(place.entries()));
        self.copy_out(at.saturating_add(LINE_STAMP), &mut line);
        of_line(class, &line)
    }

    /// Copies what is there.
    fn copy_out(&self, at: u64, bytes: &mut [u8]) {
        for (number, piece) in (0u64..).zip(bytes.chunks_mut(8)) {
            let word = self
                .memory
                .load(at.saturating_add(number.saturating_mul(8)));
            piece
                .iter_mut()
                .zip(word.to_le_bytes())
                .for_each(|(to, from)| *to = from);
        }
    }

    /// A queue pair, of those that there may be.
    fn pair(&mut self) -> u32 {
        match self.draw.small(6) {
            0 => GSI_QPN,
            1 => MULTICAST_QPN,
            2 => NOTIFY_ALL,
            3 => self.draw.lie(),
            _ => self.draw.small(64),
        }
    }

    /// A request, bytes of its payload in this entry, and before it.
    fn request(&mut self, class: Class, victim: u16, len: u32) -> (RequestBody, u32, u32) {
        let mut body: RequestBody = transmute!(self.seen_body(victim, false));
        if self.draw.once_in(2) {
            body.sequence.set(self.draw.lie());
            body.source_qpn.set(self.pair());
            body.target_epoch.set(self.epoch(victim));
            body.imm_or_key.set(self.draw.lie());
            let operand = self.draw.bytes(OPERAND_SIZE);
            body.operand.copy_from_slice(&operand);
        }
        if self.draw.once_in(4) {
            body.target_qpn.set(self.pair());
            let key = body.remote_key.get();
            body.remote_key
                .set(self.draw.one_or(&[GSI_QKEY, 0, key], key));
        }
        if self.draw.once_in(8) {
            body.remote_addr.set(self.draw.long());
        }
        let datagram = class == Class::ShortRequest && self.draw.once_in(2);
        let opcodes = if datagram {
            &DATAGRAMS[..]
        } else {
            &REMOTE[..]
        };
        let opcode = self.draw.one_or(opcodes, Opcode::Send);
        let flags = match datagram {
            true => REQUEST_SOLICITED | REQUEST_IPV4 | REQUEST_VLAN,
            false if (takes_entry(opcode) || opcode == Opcode::Write) && self.draw.once_in(8) => {
                let count = [self.draw.small(4), self.draw.lie(), 1];
                let count = self.draw.one_or(&count, 1).max(1);
                if let Some(to) = body.operand.first_chunk_mut() {
                    *to = count.to_le_bytes();
                }
                REQUEST_SOLICITED | REQUEST_START | REQUEST_BYPASSED
            }
            false => REQUEST_SOLICITED | REQUEST_START,
        };
        body.flags = self.draw.byte() & flags;
        body.vlan_id.set(self.draw.small_short(MAX_VLAN_ID));
        (body.opcode, body.len) = (opcode.to_wire(), len.into());
        if datagram {
            body.flags |= REQUEST_DATAGRAM;
        } else if class == Class::ShortRequest {
            body.len.set(len.min(MAX_SHORT));
            if opcode == Opcode::Flush {
                body.opcode = Opcode::Read.to_wire();
            }
        }
        if self.draw.once_in(40) {
            (body.opcode, body.flags) = (self.draw.small_byte(32), self.draw.byte());
        }
        let len = body.payload_len();
        match !datagram && len > 1 && self.draw.once_in(8) {
            true => (body, len / 2, self.draw.small(len / 2)),
            false => (body, len, 0),
        }
    }

    fn response(&mut self, mask: u16, victim: u16) -> ResponseBody {
        let mut body: ResponseBody = transmute!(self.seen_body(victim, true));
        if self.draw.once_in(2) {
            body.reply = self.draw.one_or(Reply::ALL, Reply::Complete).to_wire();
            body.status = self.draw.one_or(WcStatus::ALL, WcStatus::Success).to_wire();
            body.sequence.set(self.draw.lie());
            body.source_qpn.set(self.pair());
            body.found.set(self.draw.long());
            body.credits.set(self.draw.small_short(u16::MAX));
        }
        body.rnr_timer = self.draw.small_byte(MAX_RNR_TIMER);
        let own = self.memory.geometry().device_memory(mask);
        let (offset, len) = match self.draw.small(40) {
            0 => self.range(),
            1..=8 => (own.start, own.end.saturating_sub(own.start)),
            _ => return body,
        };
        body.grant_serial.set(self.serial(victim, mask));
        body.grant_offset.set(offset);
        body.grant_len.set(len);
        body.grant_addr.set(self.draw.long() >> 1);
        body.grant_slot.set(self.draw.small_short(GRANT_SLOTS));
        body.grant_flags = self.draw.byte();
        body
    }

    fn notify(&mut self, victim: u16) -> NotifyBody {
        let seen: ResponseBody = transmute!(self.seen_body(victim, true));
        let mut body = NotifyBody::new_zeroed();
        (body.qpn, body.source_qpn) = (seen.target_qpn, seen.source_qpn);
        if self.draw.once_in(2) {
            body.qpn.set(self.pair());
            body.source_qpn.set(self.pair());
        }
        if self.draw.once_in(2) {
            body.flags = NOTIFY_EVENT;
        }
        body
    }

    fn frame(&mut self) -> FrameBody {
        let mut body = FrameBody::new_zeroed();
        body.flags = self.draw.small_byte(2);
        let mut meta = FrameMeta::default();
        let bytes = self.draw.bytes(size_of::<FrameMeta>());
        match self.draw.small(4) {
            0 => meta.as_mut_bytes().copy_from_slice(&bytes),
            1 => meta.flags = self.draw.small_byte(FRAME_L4_HASH << 1),
            2 => self.draw.spoil(meta.as_mut_bytes()),
            _ => {}
        }
        body.meta = meta;
        body
    }

    /// The start of a payload: a frame for somebody, a management datagram, or anything.
    fn payload_of(&mut self, class: Class, victim: u16) -> Vec<u8> {
        let mut bytes = self.draw.bytes(WRITTEN);
        let head = match class {
            Class::Frame => {
                let to = self.draw.one_or(&[node_mac(victim), [0xff; 6]], [0xff; 6]);
                let from = self.draw.small_short(self.memory.nodes());
                let kind = self.draw.one_or(&TYPES, [8, 0]);
                [to.as_slice(), &node_mac(from), &kind, &[0x45]].concat()
            }
            _ => MAD.to_vec(),
        };
        bytes.iter_mut().zip(head).for_each(|(to, from)| *to = from);
        bytes
    }
}

/// A length as one of memory.
fn index(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
