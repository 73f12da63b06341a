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
use nupa_proto::{
    pool::{
        epoch_tag,
        line::RequestLine,
        message::{max_frame, RequestBody, MAX_FRAGMENT, MAX_INLINE},
        Class, LinkWord, MIN_LOG_BULK,
    },
    wqe::Opcode,
};
use rig::{frame, notify, pair_in, response, sequence, settle, write_request, Node, Random, World};

both_formats!(
    payloads_of_all_sizes_arrive_through_many_laps,
    parts_of_long_messages_lie_between_each_other,
    long_messages_come_behind_short_ones_that_were_sent_before,
    a_full_ring_takes_nothing_until_there_are_credits,
    who_waits_for_room_is_woken_and_nobody_else,
    a_reservation_counts_once,
    nothing_is_sent_before_the_peer_has_made_its_side,
    indices_go_on_behind_the_largest_one,
);

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.draw() as u8).collect()
}

fn payloads_of_all_sizes_arrive_through_many_laps(in_lines: bool) {
    let (_, mut a, mut b) = pair_in(in_lines);
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
            .send(sender, &Outgoing::Request(&body), &data, 0)
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
        // It tells at once when a quarter of the ring is free.
        let mut done = a.done(1, Class::Response);
        receiver.publish(&b.host);
        done.extend(a.done(1, Class::Response));
        assert_eq!(done, if in_lines { vec![number] } else { vec![] });
    }
    let sender = &mut a.link(1).send.request;
    assert_eq!(sender.is_drained(&b.host), Ok(true));
}

fn parts_of_long_messages_lie_between_each_other(in_lines: bool) {
    let (_, mut a, mut b) = pair_in(in_lines);
    let (here, there) = (a.host.clone(), b.host.clone());
    let mut random = Random(3);
    let data = [700_001, 300_000].map(|len| bytes(&mut random, len));
    let bodies = [0u32, 1].map(|number| write_request(data[number as usize].len() as u32, number));
    let (mut sent, mut got) = ([0; 2], [const { Vec::new() }; 2]);
    let mut done = Vec::new();
    while got != data {
        let sender = &mut a.link(1).send.request;
        for number in [0, 1, 0] {
            let end = data[number].len().min(sent[number] + MAX_FRAGMENT as usize);
            let piece = &data[number][sent[number]..end];
            let message = Outgoing::Request(&bodies[number]);
            // The whole does not fit at once.
            if piece.is_empty() {
                continue;
            }
            match here.send(sender, &message, piece, sent[number] as u32) {
                Ok(()) => sent[number] = end,
                Err(blocked) => assert_eq!(blocked, Blocked::Full),
            }
        }
        sender.publish(&here);
        let receiver = &mut b.link(0).receive.request;
        while let Some(message) = receiver.next(&there).unwrap() {
            let got = &mut got[sequence(&message) as usize];
            assert_eq!(message.offset as usize, got.len());
            got.extend(there.payload(&message));
            let whole = data[sequence(&message) as usize].len();
            assert_eq!(message.is_last(), got.len() == whole);
            receiver.release(&there);
        }
        receiver.publish(&there);
        done.extend(a.done(1, Class::Response));
    }
    done.sort_unstable();
    assert_eq!(done, if in_lines { vec![0, 1] } else { vec![] });
}

fn long_messages_come_behind_short_ones_that_were_sent_before(in_lines: bool) {
    let (_, mut a, mut b) = pair_in(in_lines);
    let (here, there) = (a.host.clone(), b.host.clone());
    for round in 0..600 {
        let link = a.link(1);
        let (before, long, behind) = (
            write_request(8, 3 * round),
            write_request(500, 3 * round + 1),
            write_request(8, 3 * round + 2),
        );
        let sent = [
            (Class::ShortRequest, &before),
            (Class::Request, &long),
            (Class::ShortRequest, &behind),
        ];
        for (class, body) in sent {
            let len = body.len.get();
            let place = link.send.of(class).reserve(&here, len).unwrap();
            here.fill(&place, &vec![1; len as usize]);
            let message = Outgoing::Request(body);
            link.commit(&here, class, place, &message, 0).unwrap();
        }
        // Whatever the other sees first.
        link.send.request.publish(&here);
        let back = b.link(0);
        assert_eq!(back.next(&there, Class::Request), Ok(None));
        link.send.short_request.publish(&here);
        assert_eq!(back.next(&there, Class::Request), Ok(None));
        for (class, body) in sent {
            let message = back.next(&there, class).unwrap().unwrap();
            assert_eq!(sequence(&message), body.sequence.get());
            let receiver = back.receive.of(class);
            receiver.release(&there);
            receiver.publish(&there);
        }
        if in_lines {
            let [short, long] =
                [Class::ShortResponse, Class::Response].map(|class| a.done(1, class));
            // Of the two short ones, the last.
            assert_eq!((short, long), (vec![3 * round + 2], vec![3 * round + 1]));
        }
    }
}

fn a_full_ring_takes_nothing_until_there_are_credits(in_lines: bool) {
    let (_, mut a, mut b) = pair_in(in_lines);
    let (here, there) = (a.host.clone(), b.host.clone());
    let sender = &mut a.link(1).send.response;
    let receiver = &mut b.link(0).receive.response;
    // Of lines, any entry has to fit, and the longest have two.
    let (entries, spare) = if in_lines { (1024u32, 1) } else { (256, 0) };
    for number in 0..entries - spare {
        let body = response(number);
        here.send(sender, &Outgoing::Response(&body), &[], 0)
            .unwrap();
    }
    assert_eq!(sender.reserve(&here, 0).unwrap_err(), Blocked::Full);
    // Lines are there at once.
    assert_eq!(receiver.next(&there).unwrap().is_some(), in_lines);
    sender.publish(&here);
    for number in 0..entries - spare {
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
        .send(sender, &Outgoing::Frame(&frame(1)), &[1; 60_000], 0)
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

fn who_waits_for_room_is_woken_and_nobody_else(in_lines: bool) {
    let (_, mut a, mut b) = pair_in(in_lines);
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
    here.send(sender, &frame, &data, 0).unwrap();
    sender.publish(&here);
    take(false);
    while here.send(sender, &frame, &data, 0).is_ok() {
        sender.publish(&here);
    }
    take(true);
    // It has not looked again.
    take(false);
    while here.send(sender, &frame, &data, 0).is_ok() {}
    sender.publish(&here);
    // Once more in vain does not count twice.
    assert_eq!(sender.reserve(&here, 60_000).unwrap_err(), Blocked::Full);
    take(true);
}

fn a_reservation_counts_once(in_lines: bool) {
    let (_, mut a, mut b) = pair_in(in_lines);
    let (here, there) = (a.host.clone(), b.host.clone());
    let sender = &mut a.link(1).send.response;
    let (first, second) = (
        sender.reserve(&here, 0).unwrap(),
        sender.reserve(&here, 500).unwrap(),
    );
    let body = notify(9);
    assert_eq!(
        sender.commit(&here, first, &Outgoing::Notify(&body), 0, 0),
        Ok(())
    );
    assert_eq!(
        sender.commit(&here, second, &Outgoing::Notify(&body), 0, 0),
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

fn nothing_is_sent_before_the_peer_has_made_its_side(in_lines: bool) {
    let world = rig::World::new(rig::SMALL, 2, true, 1);
    world.know_lines(in_lines);
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

/// A request that is on its way, and what it carries.
type Sent = (Class, RequestBody, Vec<u8>);

/// Sends a few requests, as many as there is room for, from the first node to the second.
fn send_some(
    a: &mut Node,
    random: &mut Random,
    numbers: &mut std::ops::RangeFrom<u32>,
) -> Vec<Sent> {
    let here = a.host.clone();
    let mut sent = Vec::new();
    for _ in 0..1 + random.below(8) {
        let (class, len) = match random.below(2) {
            0 => (Class::ShortRequest, random.below(257) as u32),
            _ => (Class::Request, 257 + random.below(4000) as u32),
        };
        let link = a.link(1);
        let number = numbers.next().unwrap();
        let mut body = write_request(len, number);
        // Each of another queue pair, so that of each it is said when it is done.
        body.source_qpn.set(number);
        if random.below(3) == 0 {
            body.opcode = Opcode::Read.to_wire();
        }
        let data = bytes(random, body.payload_len() as usize);
        match link.send.of(class).reserve(&here, data.len() as u32) {
            Ok(place) => {
                here.fill(&place, &data);
                let message = Outgoing::Request(&body);
                link.commit(&here, class, place, &message, 0).unwrap();
                sent.push((class, body, data));
            }
            Err(blocked) => assert_eq!(blocked, Blocked::Full),
        }
    }
    for class in [Class::ShortRequest, Class::Request] {
        a.link(1).send.of(class).publish(&here);
    }
    sent
}

fn indices_go_on_behind_the_largest_one(in_lines: bool) {
    const BEFORE: u32 = 1024;
    let (_, mut a, mut b) = pair_in(in_lines);
    let (here, there) = (a.host.clone(), b.host.clone());
    a.link(1).begin_at(&here, BEFORE.wrapping_neg());
    b.link(0).begin_at(&there, BEFORE.wrapping_neg());
    let (mut random, mut numbers) = (Random(7), 0..);
    for _ in 0..1500 {
        let sent = send_some(&mut a, &mut random, &mut numbers);
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        for (class, body, data) in sent {
            let message = b.link(0).next(&there, class).unwrap().unwrap();
            assert_eq!(sequence(&message), body.sequence.get());
            assert!(b.host.payload(&message) == data);
            b.link(0).release(&there, class);
            if body.opcode == Opcode::Read.to_wire() {
                let responses = match class {
                    Class::Request => Class::Response,
                    _ => Class::ShortResponse,
                };
                answer(&mut b, responses, body.sequence.get());
                expected.push(("answered", body.sequence.get()));
            } else if in_lines {
                expected.push(("done", body.sequence.get()));
            }
        }
        for class in [Class::ShortResponse, Class::Response] {
            b.link(0).send.of(class).publish(&there);
        }
        for class in [Class::ShortRequest, Class::Request] {
            assert_eq!(b.link(0).next(&there, class), Ok(None));
            b.link(0).receive.of(class).publish(&there);
        }
        for class in [Class::ShortResponse, Class::Response] {
            found.extend(std::iter::from_fn(|| next(&mut a, class)));
            a.link(1).receive.of(class).publish(&here);
        }
        found.sort_by_key(|(_, number)| *number);
        assert_eq!(found, expected);
    }
    for class in [Class::ShortRequest, Class::Request] {
        let sent = a.link(1).send.of(class).written().wrapping_add(BEFORE);
        // Several times through the ring since.
        assert!(sent > 2 * BEFORE, "{class:?}: {sent}");
    }
}

/// A request of an operation that is answered.
fn read_request(sequence: u32) -> RequestBody {
    let mut body = write_request(8, sequence);
    body.opcode = Opcode::Read.to_wire();
    body
}

/// Sends a request without payload from the first of two nodes, and takes it out at the other.
fn pass(a: &mut Node, b: &mut Node, class: Class, body: &RequestBody) {
    let (here, there) = (a.host.clone(), b.host.clone());
    let sender = a.link(1).send.of(class);
    let len = body.payload_len();
    let bytes = vec![0; len as usize];
    here.send(sender, &Outgoing::Request(body), &bytes, 0)
        .unwrap();
    assert!(b.link(0).next(&there, class).unwrap().is_some());
    b.link(0).release(&there, class);
}

fn answer(b: &mut Node, class: Class, number: u32) {
    let host = b.host.clone();
    let message = response(number);
    let link = b.link(0);
    let place = link.send.of(class).reserve(&host, 0).unwrap();
    let message = Outgoing::Response(&message);
    link.commit(&host, class, place, &message, 0).unwrap();
}

/// Number of the answer that comes next, or of the request that is done.
fn next(a: &mut Node, class: Class) -> Option<(&'static str, u32)> {
    let host = a.host.clone();
    let message = a.link(1).next(&host, class).unwrap()?;
    a.link(1).release(&host, class);
    Some(match message.body {
        Body::Response(_, _, body) => ("answered", body.sequence.get()),
        Body::Done(done) => ("done", done.sequence),
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_long_request_is_done_behind_the_answers_to_short_ones_before_it() {
    let (_, mut a, mut b) = pair_in(true);
    let there = b.host.clone();
    for round in 0..500 {
        pass(
            &mut a,
            &mut b,
            Class::ShortRequest,
            &read_request(2 * round),
        );
        let long = write_request(500, 2 * round + 1);
        pass(&mut a, &mut b, Class::Request, &long);
        answer(&mut b, Class::ShortResponse, 2 * round);
        b.link(0).receive.short_request.publish(&there);
        b.link(0).receive.request.publish(&there);
        assert_eq!(next(&mut a, Class::Response), None);
        let answered = next(&mut a, Class::ShortResponse);
        assert_eq!(answered, Some(("answered", 2 * round)));
        assert_eq!(next(&mut a, Class::Response), Some(("done", 2 * round + 1)));
        assert_eq!(next(&mut a, Class::Response), None);
        assert_eq!(next(&mut a, Class::ShortResponse), None);
        b.link(0).receive.of(Class::ShortRequest).publish(&there);
    }
}

#[test]
fn answers_are_found_behind_what_says_nothing_by_being_taken_out() {
    let (_, mut a, mut b) = pair_in(true);
    let there = b.host.clone();
    let class = Class::ShortRequest;
    for round in 0..500 {
        pass(&mut a, &mut b, class, &write_request(8, 3 * round));
        pass(&mut a, &mut b, class, &read_request(3 * round + 1));
        answer(&mut b, Class::ShortResponse, 3 * round + 1);
        b.link(0).receive.short_request.publish(&there);
        let mut found = Vec::new();
        while let Some(one) = next(&mut a, Class::ShortResponse) {
            found.push(one);
            if one.0 == "done" {
                // The line of the first READ is still to be looked at.
                answer(&mut b, Class::ShortResponse, 3 * round + 2);
            }
        }
        let expected = [
            ("answered", 3 * round + 1),
            ("done", 3 * round),
            ("answered", 3 * round + 2),
        ];
        assert_eq!(found, expected);
    }
}

/// Another host writes to a line of this one, so that it seems to say nothing by being taken out.
#[test]
fn nothing_is_done_that_was_not_taken_out_whatever_others_write() {
    let (world, mut a, mut b) = pair_in(true);
    let (here, there) = (a.host.clone(), b.host.clone());
    let class = Class::ShortRequest;
    let geometry = a.member.pool().geometry();
    let first = geometry.ring(0, 1, class).in_lines().entry(0);
    pass(&mut a, &mut b, class, &write_request(8, 0));
    pass(&mut a, &mut b, class, &read_request(1));
    answer(&mut b, Class::ShortResponse, 1);
    b.link(0).receive.short_request.publish(&there);
    // By the way, it is asked what else was taken out.
    let answered = next(&mut a, Class::ShortResponse);
    assert_eq!(answered, Some(("answered", 1)));
    let opcode = first + 8 + std::mem::offset_of!(RequestLine, opcode) as u64;
    world.poke(opcode, &[Opcode::Read.to_wire()]);
    pass(&mut a, &mut b, class, &read_request(2));
    b.link(0).receive.short_request.publish(&there);
    a.link(1).send.short_request.freed(&here).unwrap();
    // This one is not taken out yet.
    let sender = &mut a.link(1).send.short_request;
    let body = write_request(8, 3);
    here.send(sender, &Outgoing::Request(&body), &[0; 8], 0)
        .unwrap();
    assert_eq!(next(&mut a, Class::ShortResponse), None);
    assert!(b.link(0).next(&there, class).unwrap().is_some());
    b.link(0).release(&there, class);
    b.link(0).receive.short_request.publish(&there);
    assert_eq!(next(&mut a, Class::ShortResponse), Some(("done", 3)));
}

/// After very many epochs, tags come around again: lines of long ago then have the stamps that come next.
#[test]
fn lines_of_long_ago_are_not_there() {
    renewed_over(|world, line, stamp, body| {
        world.poke(line, &stamp.to_wire().to_le_bytes());
        world.poke(line + 8, body);
    });
}

#[test]
fn lines_that_could_not_be_read_are_written_anew() {
    renewed_over(|world, line, _, _| world.poison(line));
}

/// The source of a link takes a new epoch, after `spoil` did something to each line of a ring: it gets the stamp that comes next there, and what else there
/// could be in the line. What was there is not found, and all that is sent is.
fn renewed_over(spoil: impl Fn(&World, u64, LinkWord, &[u8])) {
    let (world, mut a, mut b) = pair_in(true);
    let (here, there) = (a.host.clone(), b.host.clone());
    let class = Class::ShortRequest;
    let place = a.member.pool().geometry().ring(0, 1, class).in_lines();
    pass(&mut a, &mut b, class, &write_request(8, 0));
    let line = world.peek::<64>(place.entry(0));
    assert!(a.member.renew(&here));
    a.member.enable(&here);
    let word = LinkWord {
        source: epoch_tag(a.member.epoch()),
        target: epoch_tag(b.member.epoch()),
        index: 0,
    };
    for index in 0..place.entries() {
        spoil(
            &world,
            place.entry(index),
            LinkWord { index, ..word },
            &line[8..],
        );
    }
    a.links.clear();
    settle(&mut [&mut a, &mut b]);
    assert!(b.link(0).next(&there, class).unwrap().is_none());
    let mut fetch_add = write_request(8, 0);
    fetch_add.opcode = Opcode::FetchAdd.to_wire();
    let mut random = Random(1);
    for _ in 0..2 * place.entries() {
        let body = if random.draw() % 2 == 0 {
            write_request(8, 0)
        } else {
            fetch_add
        };
        pass(&mut a, &mut b, class, &body);
        assert!(b.link(0).next(&there, class).unwrap().is_none());
        b.link(0).receive.of(class).publish(&there);
        a.done(1, Class::ShortResponse);
    }
}
