// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rings between two nodes: what is sent arrives, in order, and no more is sent than there is room for.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod rig;

use nupa_pool::{Blocked, Body, Outgoing, Stale};
use nupa_proto::pool::{
    message::{max_frame, MAX_FRAGMENT, MAX_INLINE},
    MIN_LOG_BULK,
};
use rig::{frame, notify, pair, response, sequence, write_request, Random};

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

#[test]
fn payloads_of_all_sizes_arrive_through_many_laps() {
    let (_, mut a, mut b) = pair(true, 1);
    let mut random = Random(7);
    let sizes = [0, 1, MAX_INLINE, MAX_INLINE + 1, 4096, 65536, MAX_FRAGMENT];
    for number in 0..2000u32 {
        let len = match number % 3 {
            0 => sizes[random.below(7) as usize],
            1 => random.below(300) as u32,
            _ => random.below(u64::from(MAX_FRAGMENT)) as u32,
        };
        let data = bytes(&mut random, len as usize);
        let body = write_request(len, number);
        let sender = &mut a.links.get_mut(&1).unwrap().send.request;
        a.host
            .send(sender, &Outgoing::Request(&body), &data, len)
            .unwrap();
        assert!(sender.publish(&a.host) && !sender.publish(&a.host));
        let receiver = &mut b.links.get_mut(&0).unwrap().receive.request;
        let message = receiver.next(&b.host).unwrap().unwrap();
        assert_eq!(sequence(&message), number);
        assert!(message.is_last());
        assert_eq!(b.host.payload(&message), data);
        // The same one until it is released.
        assert_eq!(receiver.next(&b.host).unwrap().unwrap(), message);
        receiver.release(&b.host);
        assert_eq!(receiver.next(&b.host), Ok(None));
        receiver.publish(&b.host);
    }
    let sender = &mut a.link(1).send.request;
    assert_eq!(sender.is_drained(&b.host), Ok(true));
}

#[test]
fn a_long_message_comes_in_fragments() {
    let (_, mut a, mut b) = pair(true, 1);
    let data = bytes(&mut Random(3), 700_001);
    let total = data.len() as u32;
    let body = write_request(total, 5);
    let mut left = data.chunks(MAX_FRAGMENT as usize);
    let mut next = left.next();
    let (mut got, mut entries) = (Vec::new(), 0);
    while got.len() < data.len() {
        let sender = &mut a.link(1).send.request;
        while let Some(chunk) = next {
            let first = chunk.as_ptr() == data.as_ptr();
            let message = match first {
                true => Outgoing::Request(&body),
                false => Outgoing::Data,
            };
            // The whole does not fit at once.
            match rig::Host::send(&b.host, sender, &message, chunk, total) {
                Ok(()) => next = left.next(),
                Err(blocked) => {
                    assert_eq!(blocked, Blocked::Full);
                    break;
                }
            }
        }
        sender.publish(&b.host);
        let host = b.host.clone();
        let receiver = &mut b.link(0).receive.request;
        while let Some(message) = receiver.next(&host).unwrap() {
            assert_eq!(message.offset as usize, got.len());
            assert_eq!(matches!(message.body, Body::Request(..)), entries == 0);
            assert_eq!(message.total_len, total);
            got.extend(host.payload(&message));
            assert_eq!(message.is_last(), got.len() == data.len());
            entries += 1;
            receiver.release(&host);
        }
        receiver.publish(&host);
    }
    assert_eq!(got, data);
}

#[test]
fn a_message_that_ends_early_leaves_room_for_the_next() {
    let (_, mut a, mut b) = pair(true, 1);
    let (here, there) = (a.host.clone(), b.host.clone());
    let sender = &mut a.link(1).send.request;
    let receiver = &mut b.link(0).receive.request;
    let (long, short) = (write_request(200_000, 1), write_request(5, 2));
    let part = [7; 65536];
    let long = Outgoing::Request(&long);
    here.send(sender, &long, &part, 200_000).unwrap();
    here.send(sender, &Outgoing::Data, &part, 200_000).unwrap();
    here.send(sender, &Outgoing::Abort, &[], 200_000).unwrap();
    let next = Outgoing::Request(&short);
    here.send(sender, &next, b"short", 5).unwrap();
    sender.publish(&here);
    let mut seen = Vec::new();
    while let Some(message) = receiver.next(&there).unwrap() {
        seen.push((message.offset, message.payload_len(), message.is_last()));
        let aborted = message.body == Body::Abort;
        assert_eq!(aborted, seen.len() == 3);
        receiver.release(&there);
    }
    let expected = [
        (0, 65536, false),
        (65536, 65536, false),
        (131_072, 0, false),
        (0, 5, true),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_full_ring_takes_nothing_until_there_are_credits() {
    let (_, mut a, mut b) = pair(true, 1);
    let (here, there) = (a.host.clone(), b.host.clone());
    let sender = &mut a.link(1).send.response;
    let receiver = &mut b.link(0).receive.response;
    let entries = 256;
    for number in 0..entries {
        let body = response(number);
        here.send(sender, &Outgoing::Response(&body), &[], 0)
            .unwrap();
    }
    assert_eq!(sender.reserve(&here, 0).unwrap_err(), Blocked::Full);
    // Not published yet.
    assert_eq!(receiver.next(&there), Ok(None));
    sender.publish(&here);
    for number in 0..entries {
        let message = receiver.next(&there).unwrap().unwrap();
        assert!(
            matches!(message.body, Body::Response(_, _, body) if body.sequence.get() == number)
        );
        receiver.release(&there);
        // Credits come back in quarters, without being asked for.
        let full = sender.reserve(&here, 0).is_err();
        assert_eq!(full, number < entries / 4 - 1);
    }
    // Payload has credits of its own.
    let sender = &mut a.link(1).send.frame;
    let mut sent = 0;
    while here
        .send(sender, &Outgoing::Frame(&frame(1)), &[1; 60_000], 60_000)
        .is_ok()
    {
        sent += 1;
    }
    assert_eq!(sent, 4);
    assert!(sender.reserve(&here, 60).is_ok());
    assert_eq!(
        sender
            .reserve(&here, max_frame(MIN_LOG_BULK) + 1)
            .unwrap_err(),
        Blocked::TooLong
    );
    let sender = &mut a.link(1).send.request;
    assert_eq!(
        sender.reserve(&here, MAX_FRAGMENT + 1).unwrap_err(),
        Blocked::TooLong
    );
}

#[test]
fn who_waits_for_room_is_woken_and_nobody_else() {
    let (_, mut a, mut b) = pair(true, 1);
    let (here, there) = (a.host.clone(), b.host.clone());
    let sender = &mut a.link(1).send.frame;
    let receiver = &mut b.link(0).receive.frame;
    let (body, data) = (frame(1), [1; 60_000]);
    let frame = Outgoing::Frame(&body);
    let mut take = |wanted: bool| {
        receiver.next(&there).unwrap().unwrap();
        receiver.release(&there);
        assert!(receiver.publish(&there));
        assert_eq!(receiver.take_wanted(), wanted);
        assert!(!receiver.take_wanted());
    };
    here.send(sender, &frame, &data, 60_000).unwrap();
    sender.publish(&here);
    take(false);
    while here.send(sender, &frame, &data, 60_000).is_ok() {
        sender.publish(&here);
    }
    take(true);
    // It has not looked again.
    take(false);
    while here.send(sender, &frame, &data, 60_000).is_ok() {}
    sender.publish(&here);
    // Once more in vain does not count twice.
    assert_eq!(sender.reserve(&here, 60_000).unwrap_err(), Blocked::Full);
    take(true);
}

#[test]
fn a_reservation_counts_once() {
    let (_, mut a, mut b) = pair(true, 1);
    let (here, there) = (a.host.clone(), b.host.clone());
    let sender = &mut a.link(1).send.response;
    let (first, second) = (
        sender.reserve(&here, 0).unwrap(),
        sender.reserve(&here, 500).unwrap(),
    );
    let body = notify(9);
    assert_eq!(
        sender.commit(&here, first, &Outgoing::Notify(&body), 0),
        Ok(())
    );
    assert_eq!(
        sender.commit(&here, second, &Outgoing::Notify(&body), 0),
        Err(Stale)
    );
    sender.publish(&here);
    let receiver = &mut b.link(0).receive.response;
    let message = receiver.next(&there).unwrap().unwrap();
    assert_eq!(message.body, Body::Notify(body));
    receiver.release(&there);
    // Released is released.
    receiver.release(&there);
    assert_eq!(receiver.next(&there), Ok(None));
}

#[test]
fn nothing_is_sent_before_the_peer_has_made_its_side() {
    let world = rig::World::new(rig::SMALL, 2, true, 1);
    let mut a = rig::Node::new(&world.host(0), 2, 1);
    let mut b = rig::Node::new(&world.host(1), 2, 2);
    a.tick();
    for _ in 0..3 {
        world.pass(nupa_proto::pool::HEARTBEAT_US);
        b.member.tick(&b.host, rig::now(&b.host));
        a.tick();
    }
    let here = a.host.clone();
    let sender = &mut a.link(1).send.frame;
    assert_eq!(sender.reserve(&here, 60).unwrap_err(), Blocked::Down);
    assert!(b.member.open(&b.host, 0).is_some());
    assert!(b.member.open(&b.host, 0).is_none());
    assert!(sender.reserve(&here, 60).is_ok());
}
