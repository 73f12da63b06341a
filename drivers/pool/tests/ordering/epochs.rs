// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Epochs: what was sent to a host before it began anew is not taken for what is sent afterwards, and a host whose epoch is refused learns it.

use crate::{of_all_hosts, Hosts, Setup};
use nupa_pool::{Body, Link, Membership, Outgoing, Time, Window};
use nupa_proto::pool::{message::FrameBody, Class, CAP_POOL_LINES, HEARTBEAT_US};
use std::sync::Arc;
use zerocopy::FromZeros;

of_all_hosts! {
    #[test]
    fn an_entry_of_an_epoch_before_is_not_taken() { begin_anew::<false> }

    #[test]
    fn an_entry_of_lines_of_an_epoch_before_is_not_taken() { begin_anew::<true> }

    #[test]
    fn what_an_earlier_link_left_is_not_taken() { make_link }

    #[test]
    fn who_is_refused_learns_it() { refuse }
}

/// Bytes of a frame. It has no room in a line.
const LEN: u32 = 60;

/// Sends a frame with a payload of so many bytes.
pub fn send(memory: &impl Window, link: &mut Link, len: u32) {
    let ring = &mut link.send.frame;
    let place = ring.reserve(memory, len).unwrap();
    let frame = FrameBody::new_zeroed();
    let message = Outgoing::Frame(&frame);
    ring.commit(memory, place, &message, 0, 0).unwrap();
    ring.publish(memory);
}

/// Looks around until both nodes see each other, and links the one to the other.
pub fn link<W: Window>(
    hosts: &[Arc<W>; 2],
    time: &impl Time,
    nodes: &mut [Membership; 2],
    node: usize,
) -> Link {
    for _ in 0..10 {
        time.sleep_us(HEARTBEAT_US);
        for (each, memory) in nodes.iter_mut().zip(hosts) {
            each.tick(&**memory, time.now_us());
        }
        if let Some(link) = nodes[node].open(&*hosts[node], 1 - node as u16) {
            return link;
        }
    }
    panic!("the other node does not come up")
}

/// Node 0 sends while node 1 leaves its epoch for the next, and makes the link anew.
fn begin_anew<H: Hosts, const LINES: bool>(setup: &Setup) {
    let memory = setup.memory();
    let capabilities = if LINES { CAP_POOL_LINES } else { 0 };
    let (mut nodes, [mut out, _]) = setup.opened(&memory, capabilities);
    let ring = setup.frames(LINES);
    let hot = if LINES {
        ring.entry(0)
    } else {
        ring.producer()
    };
    let hosts = H::map(memory, &[hot]);
    let both = hosts.clone();
    let renew = move |memory: &H::Host| {
        let time = H::clock(&both[1]);
        assert!(nodes[1].renew(memory));
        nodes[1].enable(memory);
        let mut back = link(&both, &time, &mut nodes, 1);
        assert!(back.receive.frame.next(memory).unwrap().is_none());
        (time, nodes, back)
    };
    let begin = move |memory: &H::Host| send(memory, &mut out, LEN);
    let ((), (time, mut nodes, mut back)) = H::run(&hosts, begin, renew);
    let [one, other] = &hosts;
    assert!(back.receive.frame.next(&**other).unwrap().is_none());
    // What comes by the new link is there.
    let mut out = link(&hosts, &time, &mut nodes, 0);
    send(&**one, &mut out, LEN);
    let found = back.receive.frame.next(&**other).unwrap().unwrap();
    assert!(matches!(found.body, Body::Frame(_)));
}

/// Node 0 makes its side of a link where lines of an earlier one with the same tags are left, and sends, while node 1 looks for what comes by
/// its side, which is there.
fn make_link<H: Hosts>(setup: &Setup) {
    let earlier = setup.memory();
    let (_, [mut out, _]) = setup.opened(&earlier, CAP_POOL_LINES);
    for _ in 0..2 {
        send(&earlier, &mut out, LEN);
    }
    let memory = setup.memory();
    let [mut one, mut other] = setup.joined(&memory, CAP_POOL_LINES);
    let ring = setup.frames(true);
    let lines = [0, 1].map(|index| ring.entry(index));
    for line in lines {
        memory.set_line(line, earlier.line(line));
    }
    let mut back = other.open(&memory, 0).unwrap();
    let [first, second] = lines;
    let hosts = H::map(memory, &[ring.producer(), first, first + 8, second]);
    let make = move |memory: &H::Host| {
        let mut out = one.open(memory, 1).unwrap();
        send(memory, &mut out, LEN + 1);
    };
    let look = move |memory: &H::Host| {
        let taken = (0..3).filter(|_| take(memory, &mut back)).count();
        (back, taken)
    };
    let ((), (mut back, mut taken)) = H::run(&hosts, make, look);
    taken += usize::from(take(&*hosts[1], &mut back));
    assert_eq!(taken, 1, "one was sent");
}

/// Takes a frame out; false if there is none.
fn take(memory: &impl Window, link: &mut Link) -> bool {
    let ring = &mut link.receive.frame;
    let Some(found) = ring.next(memory).unwrap() else {
        return false;
    };
    let len = found.payload.end - found.payload.start;
    assert_eq!(len, u64::from(LEN + 1), "it is of the link before");
    ring.release(memory);
    true
}

/// Node 0 refuses the epoch of node 1, which looks around meanwhile and afterwards.
fn refuse<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let ([mut one, mut other], _) = setup.opened(&memory, 0);
    let word = setup.pool.geometry().ring(1, 0, Class::Request).consumer();
    let hosts = H::map(memory, &[word]);
    let time = H::clock(&hosts[1]);
    let isolate = move |memory: &H::Host| assert!(one.isolate(memory, 1));
    let look = move |memory: &H::Host| {
        time.sleep_us(10 * HEARTBEAT_US);
        other.tick(memory, time.now_us());
        (time, other)
    };
    let ((), (time, mut other)) = H::run(&hosts, isolate, look);
    time.sleep_us(HEARTBEAT_US);
    let events = other.tick(&*hosts[1], time.now_us());
    assert!(events.refused_by.contains(0), "it does not learn it");
}
