// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes to a pool behind the back of whoever owns it. Where things lie is worked out anew from what the superblock says.

use super::steps::{Forged, Says, Word};
use nupa_pool::in_lines;
use nupa_proto::pool::{
    line::{line_inline, LINES_PER_ENTRY},
    message::{
        bulk_size, bulk_start, Entry, FrameBody, Header, NotifyBody, RequestBody, ResponseBody,
        ENTRY_PAYLOAD, ENTRY_SIZE, MAX_FRAGMENT, MAX_INLINE,
    },
    Class, LinkWord, Superblock, CLASSES, LINE, LINK_BULK, LINK_CONSUMER, LINK_PRODUCER,
    LINK_RINGS, MIN_LOG_BULK, PAGE, SHORT_LOG_BULK, SLOT_SIZE,
};
use nupa_testing::World;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// What the hostile host knows of the pool.
pub struct Forge {
    block: Superblock,
    source: u16,
    target: u16,
    /// Entries are of lines.
    in_lines: bool,
    /// Position behind the payloads of each ring to the victim.
    bulk: [u32; CLASSES],
}

/// What numbers in entries stand for.
pub struct Names {
    pub pairs: [u32; 6],
    pub keys: [u32; 2],
}

impl Names {
    fn pair(&self, number: u8) -> u32 {
        let pair = self.pairs.get(usize::from(number));
        pair.copied().unwrap_or(u32::MAX)
    }

    fn key(&self, number: u8) -> u32 {
        let key = self.keys.get(usize::from(number));
        key.copied().unwrap_or(u32::from(number))
    }
}

impl Forge {
    /// For a host that talks to another.
    pub fn new(world: &World, source: u16, target: u16, in_lines: bool) -> Self {
        let bytes = world.shared.peek::<128>(0);
        Self {
            block: Superblock::read_from_bytes(&bytes).unwrap(),
            source,
            target,
            in_lines,
            bulk: [0; CLASSES],
        }
    }

    /// Where what one node writes for another begins.
    fn rings(&self, source: u16, target: u16) -> u64 {
        let others = u64::from(self.block.max_nodes.get()) - 1;
        let before = u64::from(target) - u64::from(target > source);
        let number = u64::from(source) * others + before;
        self.block.rings.get() + number * self.block.ring_stride.get()
    }

    /// log2 of the bytes of a ring's payload area.
    fn log_bulk(&self, class: u8) -> u8 {
        match class {
            0 | 1 => (self.block.log_bulk - 1).max(MIN_LOG_BULK),
            2 => self.block.log_bulk,
            _ => SHORT_LOG_BULK,
        }
    }

    /// Where the entries of a ring to the victim are, and its payload area.
    fn places(&self, class: u8) -> [u64; 2] {
        let entries = ENTRY_SIZE << self.block.log_entries;
        let before = (0..class).map(|class| entries + (1 << self.log_bulk(class)));
        let start = self.rings(self.source, self.target) + LINK_RINGS + before.sum::<u64>();
        [start, start + entries]
    }

    /// Where a link word is.
    fn word(&self, class: u8, word: Word) -> u64 {
        let out = self.rings(self.source, self.target);
        let back = self.rings(self.target, self.source);
        let line = match word {
            Word::Producer => out + LINK_PRODUCER,
            Word::Consumer => back + LINK_CONSUMER,
            Word::Bulk => back + LINK_BULK,
        };
        line + 8 * u64::from(class)
    }

    fn load(&self, world: &World, at: u64) -> LinkWord {
        LinkWord::from_wire(u64::from_le_bytes(world.shared.peek(at)))
    }

    pub fn link(
        &mut self,
        world: &World,
        class: u8,
        word: Word,
        tags: Option<[u16; 2]>,
        index: i32,
    ) {
        let at = self.word(class, word);
        let mut link = self.load(world, at);
        if let Some(tags) = tags {
            [link.source, link.target] = tags;
        }
        link.index = link.index.wrapping_add(index as u32);
        world.shared.poke(at, &link.to_wire().to_le_bytes());
    }

    /// Its rings begin anew.
    pub fn renew(&mut self) {
        self.bulk = [0; CLASSES];
    }

    pub fn slot(&self, world: &World, at: u8, value: u64) {
        let slot = PAGE + u64::from(self.source) * SLOT_SIZE as u64;
        let at = slot + u64::from(at) * 8;
        world.shared.poke(at, &value.to_le_bytes());
    }

    pub fn payload(&self, world: &World, class: u8, at: u32, bytes: &[u8]) {
        let [start, payload] = self.places(class);
        let len = payload - start + (1 << self.log_bulk(class)) - bytes.len() as u64;
        world.shared.poke(start + u64::from(at) % len, bytes);
    }

    /// Writes an entry, and its payload as far as there is one.
    pub fn entry(&mut self, world: &World, names: &Names, forged: &Forged) {
        let class = forged.class;
        let [start, area] = self.places(class);
        let producer = self.load(world, self.word(class, Word::Producer));
        let next = if self.in_lines {
            self.behind_lines(world, class)
        } else {
            producer.index
        };
        let index = next.wrapping_add(u32::from(forged.ahead));
        let header = Header {
            kind: forged.kind,
            payload_len: forged.payload.into(),
            offset: forged.offset.into(),
            index: index.into(),
            source: producer.source.into(),
            target: producer.target.into(),
            ..Header::default()
        };
        let mut bytes = [header.as_bytes(), &body(names, &forged.says)].concat();
        for (at, value) in &forged.edits {
            if let Some(byte) = bytes.get_mut(usize::from(*at)) {
                *byte = *value;
            }
        }
        if self.in_lines {
            return self.lines(world, forged, producer, index, &bytes);
        }
        let entries = 1u64 << self.block.log_entries;
        let at = start + u64::from(index) % entries * ENTRY_SIZE;
        let log_bulk = self.log_bulk(class);
        world.shared.poke(at, &bytes);
        let bulk = &mut self.bulk[usize::from(class)];
        let mut place = at + ENTRY_PAYLOAD;
        // One that is absurdly long gets no place: it is refused before anybody looks there.
        if forged.payload > MAX_INLINE && forged.payload <= MAX_FRAGMENT {
            let size = bulk_size(forged.payload, MAX_INLINE);
            let position = bulk_start(*bulk, size, log_bulk);
            place = area + u64::from(position) % (1 << log_bulk);
            *bulk = position.wrapping_add(size);
        }
        // An address that a frame is for, and something to see.
        let bytes = [[0xff; 6].as_slice(), &[forged.kind; 58]].concat();
        let len = bytes.len().min(forged.payload as usize);
        world.shared.poke(place, &bytes[..len]);
        if forged.show {
            let index = i32::from(forged.ahead) + 1;
            self.link(world, class, Word::Producer, None, index);
        }
    }
}

/// Entries of lines.
impl Forge {
    /// Where the line of an index is.
    fn line(&self, class: u8, index: u32) -> u64 {
        let [start, _] = self.places(class);
        let lines = LINES_PER_ENTRY << self.block.log_entries;
        start + u64::from(index % lines) * LINE
    }

    /// Index behind what is there.
    fn behind_lines(&self, world: &World, class: u8) -> u32 {
        let at = self.rings(self.source, self.target) + LINK_CONSUMER + 8 * u64::from(class);
        let consumer = self.load(world, at);
        let lines = LINES_PER_ENTRY << self.block.log_entries;
        let there = |number: &u32| {
            let index = consumer.index.wrapping_add(*number);
            let found = self.load(world, self.line(class, index));
            found == LinkWord { index, ..consumer }
        };
        consumer
            .index
            .wrapping_add((0..lines).take_while(there).count() as u32)
    }

    /// Writes what an entry of 256 bytes says, in lines. Those are there at once.
    fn lines(
        &mut self,
        world: &World,
        forged: &Forged,
        producer: LinkWord,
        index: u32,
        bytes: &[u8],
    ) {
        let Ok((entry, _)) = Entry::read_from_prefix(bytes) else {
            return;
        };
        let class = forged.class;
        let known = Class::ALL[usize::from(class)];
        let (first, second) = in_lines(known, &entry);
        let size = bulk_size(forged.payload, line_inline(known));
        if size != 0 && forged.payload <= MAX_FRAGMENT {
            let log_bulk = self.log_bulk(class);
            let bulk = &mut self.bulk[usize::from(class)];
            let position = bulk_start(*bulk, size, log_bulk);
            *bulk = position.wrapping_add(size);
            let [_, area] = self.places(class);
            let place = area + u64::from(position) % (1 << log_bulk);
            let bytes = [[0xff; 6].as_slice(), &[forged.kind; 58]].concat();
            let len = bytes.len().min(forged.payload as usize);
            world.shared.poke(place, &bytes[..len]);
        }
        for (number, body) in (0..).zip([Some(first), second].iter().flatten()) {
            let index = index.wrapping_add(number);
            let stamp = LinkWord { index, ..producer }.to_wire().to_le_bytes();
            world
                .shared
                .poke(self.line(class, index), &[&stamp[..], body].concat());
        }
    }
}

/// The part of an entry behind the header.
fn body(names: &Names, says: &Says) -> [u8; 96] {
    let mut bytes = [0; 96];
    match says {
        Says::Request {
            opcode,
            flags,
            vlan_id,
            sequence,
            pairs,
            epoch,
            len,
            addr,
            key,
        } => {
            let mut body = RequestBody::new_zeroed();
            (body.opcode, body.flags) = (*opcode, *flags);
            body.vlan_id.set(*vlan_id);
            body.sequence.set(*sequence);
            body.source_qpn.set(names.pair(pairs[0]));
            body.target_qpn.set(names.pair(pairs[1]));
            body.target_epoch.set(*epoch);
            body.len.set(*len);
            body.remote_addr.set(*addr);
            body.remote_key.set(names.key(*key));
            body.imm_or_key.set(names.key(*key ^ 1));
            bytes.copy_from_slice(body.as_bytes());
        }
        Says::Response {
            reply,
            status,
            sequence,
            pairs,
        } => {
            let mut body = ResponseBody::new_zeroed();
            (body.reply, body.status) = (*reply, *status);
            body.sequence.set(*sequence);
            body.source_qpn.set(names.pair(pairs[0]));
            body.target_qpn.set(names.pair(pairs[1]));
            bytes.copy_from_slice(body.as_bytes());
        }
        Says::Frame { flags, meta } => {
            let mut body = FrameBody::new_zeroed();
            body.flags = *flags;
            body.meta.as_mut_bytes().copy_from_slice(meta);
            bytes.copy_from_slice(body.as_bytes());
        }
        Says::Notify(qpn) => {
            let mut body = NotifyBody::new_zeroed();
            body.qpn.set(*qpn);
            bytes.copy_from_slice(body.as_bytes());
        }
    }
    bytes
}
