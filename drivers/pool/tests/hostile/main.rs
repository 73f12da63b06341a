// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A node that writes anything to whatever it may write: no panic, nothing outside its rings is read as payload, it is
//! isolated until it comes back, and the others go on.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

#[path = "../rig/mod.rs"]
mod rig;
mod rules;

use nupa_pool::{Blocked, Body, Message, Outgoing, Violation};
use nupa_proto::pool::{line::*, message::*, *};
use proptest::prelude::*;
use rig::{frame, notify, response, settle, write_request, Host, Node, Ring, World, MEDIUM};
use std::sync::Arc;
use zerocopy::{transmute, FromBytes, IntoBytes};

/// The hostile node, and the one that is to bear it.
const HOSTILE: u16 = 1;
const VICTIM: u16 = 0;
const OTHER: u16 = 2;
/// Bytes of the longest payload: a frame.
const LONGEST: u32 = max_frame(MIN_LOG_BULK);

/// What the hostile node does.
#[derive(Clone, Debug)]
enum Step {
    /// Writes a link word: of a ring to the victim, or of one from it (then entries or bytes), with its real tags or others,
    /// and an index a little beside the real one.
    Link {
        class: u8,
        word: u8,
        tags: Option<u32>,
        index: i32,
    },
    /// Writes an entry of a ring to the victim, ahead of the one that is next: a good one, but for some bytes.
    Entry {
        class: u8,
        ahead: u32,
        good: Good,
        edits: Vec<(usize, u8)>,
    },
    /// Writes to its slot.
    Slot { at: u8, value: u64 },
    /// Sends something as it should.
    Send { class: u8, len: u32 },
    /// Comes back with another epoch.
    Renew,
    /// Lets time pass.
    Wait,
}

/// Fields of an entry that is right by itself.
#[derive(Clone, Debug)]
struct Good {
    kind: u8,
    payload: u32,
    offset: u32,
    /// Bytes of the message.
    len: u32,
    opcode: u8,
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 0u32..300, 0u32..140_000, any::<u32>()]
}

fn good() -> impl Strategy<Value = Good> {
    (
        0u8..6,
        length(),
        prop_oneof![3 => Just(0), 1 => length()],
        prop_oneof![Just(None), length().prop_map(Some)],
        0u8..19,
    )
        .prop_map(|(kind, payload, offset, len, opcode)| Good {
            kind,
            payload,
            offset,
            len: len.unwrap_or(payload),
            opcode,
        })
}

fn step() -> impl Strategy<Value = Step> {
    let tags = prop_oneof![4 => Just(None), 1 => any::<u32>().prop_map(Some)];
    let index = prop_oneof![4 => -3i32..4, 1 => -300i32..300, 1 => any::<i32>()];
    let edits = prop::collection::vec((0usize..128, any::<u8>()), 0..3);
    prop_oneof![
        4 => (0u8..5, 0u8..3, tags, index).prop_map(|(class, word, tags, index)| Step::Link {
            class,
            word,
            tags,
            index
        }),
        6 => (0u8..5, 0u32..3, good(), edits).prop_map(|(class, ahead, good, edits)| Step::Entry {
            class,
            ahead,
            good,
            edits
        }),
        1 => (0u8..32, any::<u64>()).prop_map(|(at, value)| Step::Slot { at, value }),
        4 => (0u8..5, 14u32..9000).prop_map(|(class, len)| Step::Send { class, len }),
        1 => Just(Step::Renew),
        2 => Just(Step::Wait),
    ]
}

/// First line of a request that is right by itself.
fn request_line(class: u8, good: &Good) -> [u8; LINE_BODY] {
    let mut line = RequestLine {
        opcode: good.opcode,
        sequence: 1.into(),
        len: good.len.into(),
        ..RequestLine::default()
    };
    if class == 0 {
        line.room = transmute!(LongPart {
            offset: good.offset.into(),
            payload_len: good.payload.into(),
            ..LongPart::default()
        });
    }
    transmute!(line)
}

fn ring(world: &Arc<World>, source: u16, target: u16, class: u8) -> Ring {
    let block = Superblock::read_from_bytes(&world.peek::<128>(0)).unwrap();
    rig::ring(&block, source, target, Class::ALL[usize::from(class)])
}

struct Rig {
    world: Arc<World>,
    victim: Node,
    hostile: Node,
    other: Node,
    in_lines: bool,
    /// Epoch of the hostile node that the victim has isolated.
    isolated: Option<u32>,
    sent: u32,
    violations: u32,
}

impl Rig {
    fn new(in_lines: bool) -> Self {
        let world = World::new(MEDIUM, 3, true, 1);
        world.know_lines(in_lines);
        let mut nodes = [1, 2, 3].map(|token| Node::new(&world.host(token as usize - 1), 3, token));
        let [a, b, c] = &mut nodes;
        settle(&mut [a, b, c]);
        let [victim, hostile, other] = nodes;
        Self {
            world,
            victim,
            hostile,
            other,
            in_lines,
            isolated: None,
            sent: 0,
            violations: 0,
        }
    }

    /// Offset and present value of a link word that the hostile node may write.
    fn word(&self, class: u8, word: u8) -> u64 {
        let (source, target) = match word {
            0 => (HOSTILE, VICTIM),
            _ => (VICTIM, HOSTILE),
        };
        let ring = ring(&self.world, source, target, class);
        ring.word + [LINK_PRODUCER, LINK_CONSUMER, LINK_BULK][usize::from(word)]
    }

    fn load(&self, at: u64) -> LinkWord {
        LinkWord::from_wire(u64::from_le_bytes(self.world.peek(at)))
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Link {
                class,
                word,
                tags,
                index,
            } => {
                let at = self.word(*class, *word);
                let mut link = self.load(at);
                if let Some(tags) = tags {
                    (link.source, link.target) = ((tags >> 16) as u16, *tags as u16);
                }
                link.index = link.index.wrapping_add(*index as u32);
                self.world.poke(at, &link.to_wire().to_le_bytes());
            }
            Step::Entry {
                class,
                ahead,
                good,
                edits,
            } if self.in_lines => self.forge_lines(*class, *ahead, good, edits),
            Step::Entry {
                class,
                ahead,
                good,
                edits,
            } => self.forge(*class, *ahead, good, edits),
            Step::Slot { at, value } => {
                let slot = PAGE + u64::from(HOSTILE) * SLOT_SIZE as u64;
                self.world
                    .poke(slot + u64::from(*at) * 8, &value.to_le_bytes());
            }
            Step::Send { class, len } => self.send_well(Class::ALL[usize::from(*class)], *len),
            Step::Renew => {
                self.hostile.links.clear();
                if self.hostile.member.renew(&self.hostile.host) {
                    self.hostile.member.enable(&self.hostile.host);
                }
            }
            Step::Wait => self.world.pass(HEARTBEAT_US),
        }
    }

    fn forge(&mut self, class: u8, ahead: u32, good: &Good, edits: &[(usize, u8)]) {
        let ring = ring(&self.world, HOSTILE, VICTIM, class);
        let producer = self.load(ring.word);
        let index = producer.index.wrapping_add(ahead);
        let mut body = write_request(good.len, 1);
        body.opcode = good.opcode;
        if ![0, 3].contains(&class) {
            body = FromBytes::read_from_bytes(response(1).as_bytes()).unwrap();
        }
        let header = Header {
            kind: good.kind,
            payload_len: good.payload.into(),
            offset: good.offset.into(),
            index: index.into(),
            source: producer.source.into(),
            target: producer.target.into(),
            ..Header::default()
        };
        let mut bytes = [header.as_bytes(), body.as_bytes()].concat();
        for (at, value) in edits {
            bytes[*at] = *value;
        }
        let number = u64::from(index) % (1 << ring.log_entries);
        self.world.poke(ring.entries + number * ENTRY_SIZE, &bytes);
    }

    /// The same, of lines. Bytes from the 64th on are those of the second one.
    fn forge_lines(&mut self, class: u8, ahead: u32, good: &Good, edits: &[(usize, u8)]) {
        let ring = ring(&self.world, HOSTILE, VICTIM, class);
        let word = self.load(ring.word);
        let Some(link) = self.hostile.links.get_mut(&VICTIM) else {
            return;
        };
        let sender = link.send.of(Class::ALL[usize::from(class)]);
        let index = sender.written().wrapping_add(ahead);
        let mut bytes = [0; 128];
        for (number, line) in (0..).zip(bytes.chunks_mut(LINE as usize)) {
            let index = index.wrapping_add(number);
            let stamp = LinkWord { index, ..word }.to_wire();
            line[..8].copy_from_slice(&stamp.to_le_bytes());
        }
        bytes[8..64].copy_from_slice(&match class {
            0 | 3 => request_line(class, good),
            _ if good.kind == Kind::Notify.to_wire() => [0; LINE_BODY],
            2 => transmute!(FrameLine {
                payload_len: good.payload.into(),
                ..FrameLine::default()
            }),
            _ => transmute!(ResponseLine {
                reply: good.opcode,
                offset: good.offset.into(),
                payload_len: good.payload.into(),
                ..ResponseLine::default()
            }),
        });
        (bytes[8], bytes[9]) = (good.kind, 1);
        for (at, value) in edits {
            bytes[*at] = *value;
        }
        let lines = LINES_PER_ENTRY << ring.log_entries;
        let said = usize::from(bytes[9].clamp(1, 2));
        for (number, line) in (0..).zip(bytes.chunks(LINE as usize).take(said)) {
            let index = u64::from(index.wrapping_add(number) % lines);
            self.world.poke(ring.entries + index * LINE, line);
        }
    }

    fn send_well(&mut self, class: Class, len: u32) {
        let host = self.hostile.host.clone();
        let Some(link) = self.hostile.links.get_mut(&VICTIM) else {
            return;
        };
        let sender = link.send.of(class);
        let bytes = vec![1; len as usize];
        let (request, response, frame) = (write_request(len, 1), response(1), frame(1));
        let message = match class {
            Class::Request | Class::ShortRequest => Outgoing::Request(&request),
            Class::Response | Class::ShortResponse => Outgoing::Response(&response),
            Class::Frame => Outgoing::Frame(&frame),
        };
        let _ = host.send(sender, &message, &bytes, 0);
        sender.publish(&host);
    }

    /// The victim takes whatever came from the hostile node, and sends it something.
    fn bear(&mut self) {
        let host = self.victim.host.clone();
        self.hostile.tick();
        let events = self.victim.tick();
        assert!(
            !events.evicted && !events.down.contains(OTHER) && !events.refused_by.contains(OTHER)
        );
        if events.up.contains(HOSTILE) {
            let epoch = self.victim.link(HOSTILE).epoch;
            assert_ne!(self.isolated, Some(epoch), "an isolated epoch came back");
        }
        let Some(link) = self.victim.links.get_mut(&HOSTILE) else {
            return;
        };
        let epoch = link.epoch;
        let mut broken = None;
        for class in Class::ALL {
            let ring = ring(&self.world, HOSTILE, VICTIM, class.to_wire());
            broken = broken.or(consume(&host, link.receive.of(*class), &ring));
            let sender = link.send.of(*class);
            match host.send(sender, &Outgoing::Notify(&notify(1)), &[], 0) {
                Err(Blocked::Violation(violation)) => broken = Some(violation),
                Err(Blocked::TooLong) => panic!("it is not"),
                Ok(()) | Err(Blocked::Full | Blocked::Down) => {}
            }
            sender.publish(&host);
        }
        if broken.is_some() {
            self.violations += 1;
            assert!(self.victim.member.isolate(&host, HOSTILE));
            assert!(!self.victim.member.isolate(&host, HOSTILE));
            self.victim.links.remove(&HOSTILE);
            assert!(self.victim.member.open(&host, HOSTILE).is_none());
            self.isolated = Some(epoch);
        }
    }

    /// The others go on.
    fn go_on(&mut self) {
        let (here, there) = (self.victim.host.clone(), self.other.host.clone());
        let events = self.other.tick();
        assert!(!events.evicted && !events.down.contains(VICTIM));
        self.sent += 1;
        let len = 100 + self.sent * 37 % 4000;
        let bytes = vec![self.sent as u8; len as usize];
        let sender = &mut self.victim.link(OTHER).send.frame;
        let body = frame(self.sent);
        here.send(sender, &Outgoing::Frame(&body), &bytes, 0)
            .unwrap();
        sender.publish(&here);
        let receiver = &mut self.other.link(VICTIM).receive.frame;
        let message = receiver.next(&there).unwrap().unwrap();
        assert_eq!(there.payload(&message), bytes);
        receiver.release(&there);
        receiver.publish(&there);
    }
}

/// Consumes all that is there, but no more than a ring holds. Returns how the peer broke the rules.
fn consume(host: &Host, receiver: &mut nupa_pool::Receiver, ring: &Ring) -> Option<Violation> {
    for _ in 0..LINES_PER_ENTRY << ring.log_entries {
        match receiver.next(host) {
            Ok(Some(message)) => check(&message, ring),
            Ok(None) => return None,
            Err(violation) => return Some(violation),
        }
        receiver.release(host);
        receiver.publish(host);
    }
    panic!("more than a ring holds");
}

fn check(message: &Message, ring: &Ring) {
    let payload = &message.payload;
    assert!(ring.entries <= payload.start && payload.end <= ring.end);
    let most = match message.body {
        Body::Frame(_) => LONGEST,
        _ => MAX_FRAGMENT,
    };
    assert!(message.payload_len() <= most);
    if let Body::Request(_, body) = &message.body {
        let end = u64::from(message.offset) + u64::from(message.payload_len());
        assert!(end <= u64::from(body.len.get()));
    }
}

proptest! {
    #[test]
    fn others_go_on(steps in prop::collection::vec(step(), 1..40), in_lines: bool) {
        let mut rig = Rig::new(in_lines);
        for step in &steps {
            rig.act(step);
            rig.bear();
            rig.go_on();
        }
    }
}

#[test]
fn violations_are_found_and_forgiven_with_another_epoch() {
    forgiven(
        false,
        &Step::Link {
            class: 1,
            word: 0,
            tags: None,
            index: 300,
        },
    );
    let good = Good {
        kind: 9,
        payload: 0,
        offset: 0,
        len: 0,
        opcode: 0,
    };
    forgiven(
        true,
        &Step::Entry {
            class: 1,
            ahead: 0,
            good,
            edits: Vec::new(),
        },
    );
}

fn forgiven(in_lines: bool, violation: &Step) {
    let mut rig = Rig::new(in_lines);
    rig.act(violation);
    rig.bear();
    assert_eq!((rig.violations, rig.isolated), (1, Some(1)));
    rig.world.pass(HEARTBEAT_US);
    assert!(rig.hostile.tick().refused_by.contains(VICTIM));
    rig.bear();
    assert!(!rig.victim.links.contains_key(&HOSTILE));
    rig.act(&Step::Renew);
    settle(&mut [&mut rig.victim, &mut rig.hostile, &mut rig.other]);
    assert_eq!(rig.victim.link(HOSTILE).epoch, 2);
    rig.act(&Step::Send { class: 2, len: 500 });
    let host = rig.victim.host.clone();
    let receiver = &mut rig.victim.link(HOSTILE).receive.frame;
    assert!(receiver.next(&host).unwrap().is_some());
}
