// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rings: an entry is seen whole, nobody sleeps through what he waits for, and a request is not done before what is said against it.

use crate::{of_all_hosts, Hosts, Setup};
use nupa_pool::{Body, Link, Outgoing, Window};
use nupa_proto::{
    pool::{
        message::{FrameBody, RequestBody, ResponseBody, MAX_INLINE, OPERAND_SIZE},
        Class, Slot, CAP_POOL_LINES, PAGE, SLOT_SIZE,
    },
    wqe::Opcode,
};
use std::mem::offset_of;
use zerocopy::FromZeros;

of_all_hosts! {
    #[test]
    fn an_entry_is_seen_whole_and_nobody_sleeps_through_it() { hand_over::<false> }

    #[test]
    fn an_entry_of_lines_is_seen_whole_and_nobody_sleeps_through_it() { hand_over::<true> }

    #[test]
    fn the_second_line_of_an_entry_is_seen_with_the_first() { ask }

    #[test]
    fn no_request_is_done_before_what_is_said_against_it() { refuse }

    #[test]
    fn nobody_sleeps_through_what_makes_a_request_done() { hear }

    #[test]
    fn nobody_sleeps_through_room_that_he_waits_for() { make_room }
}

/// Bytes of a payload that has no room in an entry of either kind.
const PAYLOAD: u32 = MAX_INLINE + 8;
/// Any byte of it.
const BYTE: u8 = 0xa5;

/// Where a node says whether it polls.
fn presence(node: u64) -> u64 {
    PAGE + node * SLOT_SIZE as u64 + offset_of!(Slot, presence) as u64
}

/// Node 0 sends a frame, while node 1 looks for one and then sleeps.
pub fn hand_over<H: Hosts, const LINES: bool>(setup: &Setup) {
    let memory = setup.memory();
    let capabilities = if LINES { CAP_POOL_LINES } else { 0 };
    let ([sender, mut receiver], [mut out, mut back]) = setup.opened(&memory, capabilities);
    let ring = setup.frames(LINES);
    let entry = ring.entry(0);
    let payload = out.send.frame.reserve(&memory, PAYLOAD).unwrap().payload;
    // The first word of an entry, or the stamp of its line and what is behind it.
    let hot = match LINES {
        false => [ring.producer(), entry, presence(1), payload.start],
        true => [entry, entry + 8, presence(1), payload.start],
    };
    let hosts = H::map(memory, &hot);
    let send = move |memory: &H::Host| {
        let ring = &mut out.send.frame;
        let place = ring.reserve(memory, PAYLOAD).unwrap();
        memory.write(place.payload.start, &[BYTE; PAYLOAD as usize]);
        let frame = FrameBody::new_zeroed();
        let message = Outgoing::Frame(&frame);
        ring.commit(memory, place, &message, 0, 0).unwrap();
        ring.publish(memory);
        sender.must_wake(memory, 1)
    };
    let receive = move |memory: &H::Host| {
        let ring = &mut back.receive.frame;
        let mut found = ring.next(memory).unwrap();
        if found.is_none() {
            receiver.set_polling(memory, false);
            found = ring.next(memory).unwrap();
        }
        found.inspect(|message| {
            let mut payload = [0; PAYLOAD as usize];
            memory.read(message.payload.start, &mut payload).unwrap();
            assert!(
                payload == [BYTE; PAYLOAD as usize],
                "the payload is missing"
            );
        })
    };
    let (woken, found) = H::run(&hosts, send, receive);
    match found {
        Some(message) => assert!(matches!(message.body, Body::Frame(_))),
        None => assert!(woken, "it sleeps, and nobody wakes it"),
    }
}

/// Node 0 asks for an atomic operation, whose operand is in a line of its own, while node 1 looks twice.
fn ask<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let (_, [mut out, mut back]) = setup.opened(&memory, CAP_POOL_LINES);
    assert!(out.send.short_request.reserve(&memory, 0).is_ok());
    let ring = setup.pool.geometry().ring(0, 1, Class::ShortRequest);
    let lines = [0, 1].map(|index| ring.in_lines().entry(index));
    let hosts = H::map(memory, &lines.map(|line| [line, line + 8]).concat());
    let ask = move |memory: &H::Host| {
        let mut request = RequestBody::new_zeroed();
        request.opcode = Opcode::FetchAdd.to_wire();
        request.len.set(8);
        request.operand = [BYTE; OPERAND_SIZE];
        let ring = &mut out.send.short_request;
        let place = ring.reserve(memory, 0).unwrap();
        let message = Outgoing::Request(&request);
        ring.commit(memory, place, &message, 0, 0).unwrap();
    };
    let look = move |memory: &H::Host| {
        for _ in 0..2 {
            if let Some(found) = back.next(memory, Class::ShortRequest).unwrap() {
                let Body::Request(_, request) = found.body else {
                    panic!("it is none: {found:?}");
                };
                assert!(
                    request.operand == [BYTE; OPERAND_SIZE],
                    "the operand is missing"
                );
            }
        }
        back
    };
    let ((), mut back) = H::run(&hosts, ask, look);
    let [_, memory] = &hosts;
    assert!(back.next(&**memory, Class::ShortRequest).unwrap().is_some());
}

/// Node 1 frees what node 0 has no room for.
fn make_room<H: Hosts>(setup: &Setup) {
    const LEN: u32 = 60_000;
    let memory = setup.memory();
    let (_, [mut out, mut back]) = setup.opened(&memory, 0);
    let ring = &mut out.send.frame;
    let frame = FrameBody::new_zeroed();
    for _ in 0..4 {
        let place = ring.reserve(&memory, LEN).unwrap();
        let message = Outgoing::Frame(&frame);
        ring.commit(&memory, place, &message, 0, 0).unwrap();
    }
    ring.publish(&memory);
    assert!(back.receive.frame.next(&memory).unwrap().is_some());
    back.receive.frame.release(&memory);
    let ring = setup.frames(false);
    let words = [ring.producer_want(), ring.consumer(), ring.consumer_bulk()];
    let hosts = H::map(memory, &words);
    let (waits, woken) = H::run(
        &hosts,
        move |memory| out.send.frame.reserve(memory, LEN).is_err(),
        move |memory| {
            back.receive.frame.publish(memory);
            back.receive.frame.take_wanted()
        },
    );
    assert!(woken || !waits, "it waits, and nobody wakes it");
}

/// Has node 0 ask for something, and node 1 see it.
fn asked(memory: &impl Window, out: &mut Link, back: &mut Link) {
    let mut request = RequestBody::new_zeroed();
    request.opcode = Opcode::Write.to_wire();
    let ring = &mut out.send.short_request;
    let place = ring.reserve(memory, 0).unwrap();
    let message = Outgoing::Request(&request);
    ring.commit(memory, place, &message, 0, 0).unwrap();
    assert!(back.next(memory, Class::ShortRequest).unwrap().is_some());
}

/// Node 1 takes a request of node 0 out, which waits for that and then sleeps.
fn hear<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let ([mut asker, answerer], [mut out, mut back]) = setup.opened(&memory, CAP_POOL_LINES);
    asked(&memory, &mut out, &mut back);
    let consumer = setup
        .pool
        .geometry()
        .ring(0, 1, Class::ShortRequest)
        .consumer();
    let hosts = H::map(memory, &[consumer, presence(0)]);
    let wait = move |memory: &H::Host| {
        if out.next(memory, Class::ShortResponse).unwrap().is_some() {
            return true;
        }
        asker.set_polling(memory, false);
        out.has_any(memory)
    };
    let tell = move |memory: &H::Host| {
        back.release(memory, Class::ShortRequest);
        let ring = &mut back.receive.short_request;
        ring.publish(memory);
        ring.take_wanted() && answerer.must_wake(memory, 0)
    };
    let (found, woken) = H::run(&hosts, wait, tell);
    assert!(found || woken, "it sleeps, and nobody wakes it");
}

/// Node 1 refuses a request of node 0, and takes it out.
fn refuse<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let (_, [mut out, mut back]) = setup.opened(&memory, CAP_POOL_LINES);
    asked(&memory, &mut out, &mut back);
    assert!(back.send.short_response.reserve(&memory, 0).is_ok());
    let geometry = setup.pool.geometry();
    let consumer = geometry.ring(0, 1, Class::ShortRequest).consumer();
    let responses = geometry.ring(1, 0, Class::ShortResponse).in_lines();
    let hosts = H::map(memory, &[consumer, responses.entry(0)]);
    let refuse = move |memory: &H::Host| {
        let ring = &mut back.send.short_response;
        let place = ring.reserve(memory, 0).unwrap();
        let response = ResponseBody::new_zeroed();
        let message = Outgoing::Response(&response);
        ring.commit(memory, place, &message, 0, 0).unwrap();
        back.release(memory, Class::ShortRequest);
        back.receive.short_request.publish(memory);
    };
    let look = move |memory: &H::Host| {
        if let Some(found) = out.next(memory, Class::ShortResponse).unwrap() {
            assert!(matches!(found.body, Body::Response(..)), "it was refused");
        }
        out
    };
    let ((), mut out) = H::run(&hosts, refuse, look);
    let [_, memory] = &hosts;
    let found = out.next(&**memory, Class::ShortResponse).unwrap();
    assert!(found.is_some_and(|found| matches!(found.body, Body::Response(..))));
}
