// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes to a pool behind the back of whoever owns it. Where things lie is worked out anew from what the superblock says.

use super::{
    rig::World,
    steps::{Forged, Says, Word},
};
use nupa_proto::pool::{
    message::{
        bulk_start, FrameBody, Header, NotifyBody, RequestBody, ResponseBody, ENTRY_PAYLOAD,
        ENTRY_SIZE, MAX_FRAGMENT, MAX_INLINE,
    },
    LinkWord, Superblock, CONSUMER_BULK, PAGE, RING_CONSUMER, RING_ENTRIES, RING_PRODUCER,
    SLOT_SIZE,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// What the hostile host knows of the pool.
pub struct Forge {
    block: Superblock,
    source: u16,
    target: u16,
    /// Position behind the payloads of each ring to the victim.
    bulk: [u32; 3],
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
    pub fn new(world: &World, source: u16, target: u16) -> Self {
        let bytes = world.shared.peek::<128>(0);
        Self {
            block: Superblock::read_from_bytes(&bytes).unwrap(),
            source,
            target,
            bulk: [0; 3],
        }
    }

    /// Where the ring of a class from one node to another is.
    fn ring(&self, source: u16, target: u16, class: u8) -> u64 {
        let others = u64::from(self.block.max_nodes.get()) - 1;
        let before = u64::from(target) - u64::from(target > source);
        let number = 3 * (u64::from(source) * others + before) + u64::from(class);
        self.block.rings.get() + number * self.block.ring_stride.get()
    }

    fn out(&self, class: u8) -> u64 {
        self.ring(self.source, self.target, class)
    }

    /// Where a link word is.
    fn word(&self, class: u8, word: Word) -> u64 {
        match word {
            Word::Producer => self.out(class) + RING_PRODUCER,
            Word::Consumer => self.ring(self.target, self.source, class) + RING_CONSUMER,
            Word::Bulk => {
                self.ring(self.target, self.source, class) + RING_CONSUMER + CONSUMER_BULK
            }
        }
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
        self.bulk = [0; 3];
    }

    pub fn slot(&self, world: &World, at: u8, value: u64) {
        let slot = PAGE + u64::from(self.source) * SLOT_SIZE as u64;
        let at = slot + u64::from(at) * 8;
        world.shared.poke(at, &value.to_le_bytes());
    }

    pub fn payload(&self, world: &World, class: u8, at: u32, bytes: &[u8]) {
        let start = self.out(class) + RING_ENTRIES;
        let len = self.block.ring_stride.get() - RING_ENTRIES - bytes.len() as u64;
        world.shared.poke(start + u64::from(at) % len, bytes);
    }

    /// Writes an entry, and its payload as far as there is one.
    pub fn entry(&mut self, world: &World, names: &Names, forged: &Forged) {
        let class = forged.class;
        let start = self.out(class);
        let producer = self.load(world, start + RING_PRODUCER);
        let index = producer.index.wrapping_add(u32::from(forged.ahead));
        let header = Header {
            kind: forged.kind,
            payload_len: forged.payload.into(),
            total_len: forged.total.into(),
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
        let entries = 1u64 << self.block.log_entries;
        let at = start + RING_ENTRIES + u64::from(index) % entries * ENTRY_SIZE;
        world.shared.poke(at, &bytes);
        let bulk = &mut self.bulk[usize::from(class)];
        let area = start + RING_ENTRIES + entries * ENTRY_SIZE;
        let mut place = at + ENTRY_PAYLOAD;
        // One that is absurdly long gets no place: it is refused before anybody looks there.
        if forged.payload > MAX_INLINE && forged.payload <= MAX_FRAGMENT {
            let position = bulk_start(*bulk, forged.payload, self.block.log_bulk);
            place = area + u64::from(position) % (1 << self.block.log_bulk);
            *bulk = position.wrapping_add(forged.payload.next_multiple_of(64));
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
        Says::Nothing => {}
    }
    bytes
}
