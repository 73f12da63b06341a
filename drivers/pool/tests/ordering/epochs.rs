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
    fn who_is_refused_learns_it() { refuse }
}

fn send(memory: &impl Window, link: &mut Link) {
    let ring = &mut link.send.frame;
    let place = ring.reserve(memory, 60).unwrap();
    let frame = FrameBody::new_zeroed();
    let message = Outgoing::Frame(&frame);
    ring.commit(memory, place, &message, 0, 0).unwrap();
    ring.publish(memory);
}

/// Looks around until both nodes see each other, and links the one to the other.
fn link<W: Window>(
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
    let begin = move |memory: &H::Host| send(memory, &mut out);
    let ((), (time, mut nodes, mut back)) = H::run(&hosts, begin, renew);
    let [one, other] = &hosts;
    assert!(back.receive.frame.next(&**other).unwrap().is_none());
    // What comes by the new link is there.
    let mut out = link(&hosts, &time, &mut nodes, 0);
    send(&**one, &mut out);
    let found = back.receive.frame.next(&**other).unwrap().unwrap();
    assert!(matches!(found.body, Body::Frame(_)));
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
