// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rings that have gone around once: what the consumer still reads is not written over, and what is written there anew is not taken from an
//! old copy.

use crate::{cold::Cold, of_all_hosts, Hosts, Setup};
use nupa_pool::{Blocked, Body, Link, Message, Outgoing, Window};
use nupa_proto::pool::{message::FrameBody, CAP_POOL_LINES, LINE};
use zerocopy::FromZeros;

of_all_hosts! {
    #[test]
    fn a_payload_is_not_written_over_before_it_is_read() { reuse_payload::<false> }

    #[test]
    fn a_payload_of_lines_is_not_written_over_before_it_is_read() { reuse_payload::<true> }

    #[test]
    fn an_entry_is_not_written_over_before_it_is_read() { reuse_entry::<false> }

    #[test]
    fn an_entry_of_lines_is_not_written_over_before_it_is_read() { reuse_entry::<true> }
}

/// Payloads of so many bytes of which the payload area has room for [`PAYLOADS`].
const LEN: u32 = 60_000;
const PAYLOADS: u32 = 4;

/// Sends a frame with a number, whose payload begins with a line of that. False if there is no room.
fn send(memory: &impl Window, link: &mut Link, number: u32, len: u32) -> bool {
    let ring = &mut link.send.frame;
    let place = match ring.reserve(memory, len) {
        Ok(place) => place,
        Err(Blocked::Full) => return false,
        Err(why) => panic!("{why:?}"),
    };
    memory.write(place.payload.start, &[number as u8; LINE as usize]);
    let mut frame = FrameBody::new_zeroed();
    frame.source_qpn.set(number);
    let message = Outgoing::Frame(&frame);
    ring.commit(memory, place, &message, 0, 0).unwrap();
    ring.publish(memory);
    true
}

/// The next frame, which is there.
fn next(memory: &impl Window, link: &mut Link) -> Message {
    link.receive.frame.next(memory).unwrap().unwrap()
}

/// Checks that a frame has this number, and its payload.
fn expect(memory: &impl Window, message: &Message, number: u32) {
    let Body::Frame(frame) = message.body else {
        panic!("it is none: {message:?}");
    };
    assert_eq!(frame.source_qpn.get(), number, "it is another entry");
    let mut payload = [0; LINE as usize];
    memory.read(message.payload.start, &mut payload).unwrap();
    assert_eq!(
        payload, [number as u8; LINE as usize],
        "payload of {number}"
    );
}

/// What goes through a ring that is full.
struct Lap {
    /// Frames that it has room for.
    frames: u32,
    /// Bytes of a payload.
    len: u32,
    /// Frames that are sent behind these while as many are taken out.
    more: u32,
}

/// Node 0 sends more than the ring has room for, while node 1 reads what was sent first and frees it.
fn go_around<H: Hosts>(memory: Cold, [mut out, mut back]: [Link; 2], hot: &[u64], lap: Lap) {
    let Lap { frames, len, more } = lap;
    let all = frames + more;
    for number in 0..frames {
        assert!(send(&memory, &mut out, number, len));
    }
    let hosts = H::map(memory, hot);
    let [one, other] = &hosts;
    // It has copies of entry and payload.
    expect(&**other, &next(&**other, &mut back), 0);
    let go_on = move |memory: &H::Host| {
        let mut number = frames;
        while number != all && send(memory, &mut out, number, len) {
            number += 1;
        }
        (out, number)
    };
    let read = move |memory: &H::Host| {
        for number in 0..more {
            expect(memory, &next(memory, &mut back), number);
            back.receive.frame.release(memory);
            back.receive.frame.publish(memory);
        }
        back
    };
    let ((mut out, sent), mut back) = H::run(&hosts, go_on, read);
    for number in sent..all {
        assert!(send(&**one, &mut out, number, len), "what was freed is not");
    }
    for number in more..all {
        expect(&**other, &next(&**other, &mut back), number);
        back.receive.frame.release(&**other);
    }
}

/// The payload area goes around.
fn reuse_payload<H: Hosts, const LINES: bool>(setup: &Setup) {
    let memory = setup.memory();
    let capabilities = if LINES { CAP_POOL_LINES } else { 0 };
    let (_, mut links) = setup.opened(&memory, capabilities);
    let payload = links[0].send.frame.reserve(&memory, LEN).unwrap().payload;
    let ring = setup.frames(LINES);
    let hot = [payload.start, ring.consumer(), ring.consumer_bulk()];
    let lap = Lap {
        frames: PAYLOADS,
        len: LEN,
        more: 1,
    };
    go_around::<H>(memory, links, &hot, lap);
}

/// The entries go around.
fn reuse_entry<H: Hosts, const LINES: bool>(setup: &Setup) {
    let memory = setup.memory();
    let capabilities = if LINES { CAP_POOL_LINES } else { 0 };
    let (_, links) = setup.opened(&memory, capabilities);
    let ring = setup.frames(LINES);
    let entry = ring.entry(0);
    // Where the index is, or the stamp, and the number. One of lines is always free.
    let (words, more) = match LINES {
        false => ([8, 48], 1),
        true => ([0, 16], 2),
    };
    let [index, number] = words.map(|word| entry + word);
    let lap = Lap {
        frames: ring.entries() - (more - 1),
        len: LINE as u32,
        more,
    };
    go_around::<H>(memory, links, &[index, number, ring.consumer()], lap);
}
