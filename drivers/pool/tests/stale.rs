// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Two nodes talk in schedules that are drawn at random, on a coherent pool and on one where each has a cache of its own that
//! moves when told to, or when it is least expected. All data is compared.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod rig;

use nupa_pool::{Blocked, Body, Message, Outgoing, Time};
use nupa_proto::pool::{message::MAX_FRAGMENT, Class, CLASSES};
use rig::{frame, options, response, write_request, Host, Node, Random, Run, World, SMALL};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Messages of each class in each direction.
const MESSAGES: u32 = 12;

/// Payload of a message, the same at both ends.
fn data(seed: u64, node: u16, class: Class, number: u32) -> Vec<u8> {
    let mut random =
        Random(seed ^ (u64::from(node) << 40) ^ ((class as u64) << 48) ^ u64::from(number));
    let len = match class {
        Class::Frame => 60 + random.below(9000),
        // Now and then in fragments.
        Class::Request | Class::Response if random.below(6) == 0 => random.below(150_000),
        Class::ShortRequest | Class::ShortResponse => random.below(250),
        _ => random.below(600),
    };
    (0..len).map(|_| random.draw() as u8).collect()
}

/// What one direction of one class is at.
#[derive(Default)]
struct Stream {
    number: u32,
    offset: usize,
}

impl Stream {
    fn is_done(&self) -> bool {
        self.number == MESSAGES
    }

    fn advance(&mut self, by: usize, total: usize) {
        self.offset += by;
        if self.offset >= total {
            (self.number, self.offset) = (self.number + 1, 0);
        }
    }
}

struct Talk<'a> {
    host: Host,
    seed: u64,
    node: &'a mut Node,
    sent: [Stream; CLASSES],
    received: [Stream; CLASSES],
    /// Requests that are done because the other end took them out and said nothing, by the class of their responses. Only those in lines are.
    done: [u32; CLASSES],
    in_lines: bool,
}

impl Talk<'_> {
    fn send(&mut self, class: Class, random: &mut Random) {
        let (own, stream) = (self.node.member.node(), &mut self.sent[class as usize]);
        let sender = self.node.links.get_mut(&(1 - own)).unwrap().send.of(class);
        while !stream.is_done() && random.below(4) != 0 {
            let bytes = data(self.seed, own, class, stream.number);
            let total = bytes.len() as u32;
            let end = bytes.len().min(stream.offset + MAX_FRAGMENT as usize);
            let piece = &bytes[stream.offset..end];
            let (request, response, frame) = (
                write_request(total, stream.number),
                response(stream.number),
                frame(stream.number),
            );
            let message = match class {
                Class::Request | Class::ShortRequest => Outgoing::Request(&request),
                Class::Response | Class::ShortResponse => Outgoing::Response(&response),
                Class::Frame => Outgoing::Frame(&frame),
            };
            let offset = stream.offset as u32;
            match self.host.send(sender, &message, piece, offset) {
                Ok(()) => stream.advance(piece.len(), bytes.len()),
                Err(Blocked::Full | Blocked::Down) => break,
                Err(other) => panic!("{other:?}"),
            }
        }
        sender.publish(&self.host);
    }

    fn receive(&mut self, class: Class, random: &mut Random) {
        let (own, stream) = (self.node.member.node(), &mut self.received[class as usize]);
        let link = self.node.links.get_mut(&(1 - own)).unwrap();
        while random.below(4) != 0 {
            let Some(message) = link.next(&self.host, class).unwrap() else {
                break;
            };
            if let Body::Done(done) = message.body {
                let count = &mut self.done[class as usize];
                // Those before it are done with it.
                assert!(done.sequence >= *count);
                *count = done.sequence + 1;
                link.release(&self.host, class);
                continue;
            }
            let bytes = data(self.seed, 1 - own, class, stream.number);
            assert_eq!(message.offset as usize, stream.offset);
            check_number(&message, stream.number);
            let got = self.host.payload(&message);
            assert!(
                got == bytes[stream.offset..][..got.len()],
                "{class:?} {}",
                stream.number
            );
            stream.advance(got.len(), bytes.len());
            link.release(&self.host, class);
        }
        link.receive.of(class).publish(&self.host);
    }

    fn is_done(&self) -> bool {
        let expected = |class: Class| match class {
            Class::Response | Class::ShortResponse if self.in_lines => MESSAGES,
            _ => 0,
        };
        let mut classes = Class::ALL.iter();
        self.sent.iter().chain(&self.received).all(Stream::is_done)
            && classes.all(|class| self.done[*class as usize] == expected(*class))
    }
}

fn check_number(message: &Message, number: u32) {
    let found = match &message.body {
        Body::Request(_, body) => body.sequence.get(),
        Body::Response(_, _, body) => body.sequence.get(),
        Body::Frame(body) => body.source_qpn.get(),
        Body::Notify(_) | Body::Done(_) => panic!("nobody sent that"),
    };
    assert_eq!(found, number);
}

fn talk(host: Host, seed: u64, token: u64, done: &AtomicUsize) {
    let pool = host.attach(&options(true, 2, token)).unwrap();
    let node = &mut Node::join(&host, &pool, &host.wishes(token));
    let mut random = Random(seed ^ token);
    let mut talk = Talk {
        host: host.clone(),
        seed,
        node,
        sent: Default::default(),
        received: Default::default(),
        done: [0; CLASSES],
        in_lines: host.knows_lines(),
    };
    let mut counted = false;
    while done.load(Ordering::SeqCst) < 2 {
        assert!(host.now_us() < 60_000_000, "it does not come to an end");
        let events = talk.node.tick();
        assert!(events.down.is_empty() && events.refused_by.is_empty() && !events.evicted);
        if !talk.node.links.is_empty() {
            for class in Class::ALL {
                talk.send(*class, &mut random);
                talk.receive(*class, &mut random);
            }
        }
        if talk.is_done() && !counted {
            counted = true;
            done.fetch_add(1, Ordering::SeqCst);
        }
        if random.below(4) == 0 {
            host.sleep_us(random.below(5000));
        }
    }
}

fn schedules(coherent: bool, in_lines: bool) {
    let count = std::env::var("PROPTEST_CASES").ok();
    let count = count.and_then(|count| count.parse().ok()).unwrap_or(40u64);
    for seed in 1..=count {
        let world = World::new(SMALL, 2, coherent, seed);
        world.know_lines(in_lines);
        let done = &AtomicUsize::new(0);
        let end =
            |token: u64| -> Run<'_, ()> { Box::new(move |host| talk(host, seed, token, done)) };
        world.run(vec![end(1), end(2)]);
    }
}

both_formats!(
    coherent_hosts_understand_each_other,
    hosts_with_caches_of_their_own_understand_each_other,
);

fn coherent_hosts_understand_each_other(in_lines: bool) {
    schedules(true, in_lines);
}

fn hosts_with_caches_of_their_own_understand_each_other(in_lines: bool) {
    schedules(false, in_lines);
}
