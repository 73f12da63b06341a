// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Epochs: what was sent to a host before it began anew is not taken for what is sent afterwards.

use crate::{
    linked,
    memory::{Memory, Steps},
    model, spawn,
};
use nupa_pool::{Body, Link, Membership, Outgoing, Pool, Time};
use nupa_proto::pool::{message::FrameBody, HEARTBEAT_US};
use std::{cell::Cell, sync::Arc};
use zerocopy::FromZeros;

fn send(memory: &Memory, link: &mut Link) {
    let ring = &mut link.send.frame;
    let place = ring.reserve(memory, 60).unwrap();
    let frame = FrameBody::new_zeroed();
    let message = Outgoing::Frame(&frame);
    ring.commit(memory, place, &message, 0, 0).unwrap();
    ring.publish(memory);
}

/// Looks around until both nodes see each other, and links the second one to the first.
fn link(memory: &Memory, time: &Steps, nodes: &mut [Membership; 2], node: usize) -> Link {
    for _ in 0..10 {
        time.sleep_us(HEARTBEAT_US);
        for each in nodes.iter_mut() {
            each.tick(memory, time.now_us());
        }
        if let Some(link) = nodes[node].open(memory, 1 - node as u16) {
            return link;
        }
    }
    panic!("the other node does not come up")
}

/// Node 0 sends while node 1 leaves its epoch for the next.
fn begin_anew(bytes: &[u8], pool: &Pool) {
    let (memory, mut nodes, [mut out, _]) = linked(bytes, pool, 0);
    let memory = Arc::new(memory);
    let there = memory.clone();
    let sending = spawn(move || send(&there, &mut out));
    let time = Steps(Cell::new(HEARTBEAT_US * 10));
    assert!(nodes[1].renew(&*memory));
    nodes[1].enable(&*memory);
    let mut back = link(&memory, &time, &mut nodes, 1);
    assert!(back.receive.frame.next(&*memory).unwrap().is_none());
    sending.join().unwrap();
    assert!(back.receive.frame.next(&*memory).unwrap().is_none());
    // What comes by the new link is there.
    let mut out = link(&memory, &time, &mut nodes, 0);
    send(&memory, &mut out);
    let found = back.receive.frame.next(&*memory).unwrap().unwrap();
    assert!(matches!(found.body, Body::Frame(_)));
}

#[test]
fn an_entry_of_an_epoch_before_is_not_taken() {
    model(begin_anew);
}
