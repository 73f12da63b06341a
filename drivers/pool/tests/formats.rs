// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Nodes that know entries of lines, and such that do not.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod rig;

use nupa_pool::Outgoing;
use nupa_proto::pool::{Class, HEARTBEAT_US};
use rig::{frame, options, settle, write_request, Node, World, MEDIUM};
use std::sync::Arc;

/// Sends something of two classes, and compares what arrives. Returns whether entries were of lines: those are there before they are published.
fn talk(from: &mut Node, to: &mut Node, number: u32) -> bool {
    let (source, target) = (from.member.node(), to.member.node());
    let (here, there) = (from.host.clone(), to.host.clone());
    let (link, back) = (from.link(target), to.link(source));
    let (request, frame) = (write_request(8, number), frame(number));
    let mut in_lines = false;
    for (class, message, len) in [
        (Class::ShortRequest, Outgoing::Request(&request), 8),
        (Class::Frame, Outgoing::Frame(&frame), 1500),
    ] {
        let bytes = vec![number as u8; len];
        here.send(link.send.of(class), &message, &bytes, 0).unwrap();
        let receiver = back.receive.of(class);
        in_lines = receiver.has_next(&there);
        link.send.of(class).publish(&here);
        let message = receiver.next(&there).unwrap().unwrap();
        assert_eq!(there.payload(&message), bytes);
        receiver.release(&there);
        receiver.publish(&there);
    }
    let done = from.done(target, Class::ShortResponse);
    assert_eq!(done, if in_lines { vec![number] } else { vec![] });
    in_lines
}

fn node(world: &Arc<World>, number: u16, in_lines: bool) -> Node {
    world.know_lines(in_lines);
    let host = world.host(usize::from(number));
    let pool = host.attach(&options(true, 3, 9)).unwrap();
    let mut wishes = host.wishes(u64::from(number) + 1);
    wishes.prefer = Some(number);
    Node::join(&host, &pool, &wishes)
}

#[test]
fn two_that_know_lines_use_them_and_others_go_on_beside_them() {
    let world = World::new(MEDIUM, 3, true, 1);
    let mut nodes = [(0, true), (1, false), (2, true)].map(|(n, known)| node(&world, n, known));
    let [a, b, c] = &mut nodes;
    settle(&mut [a, b, c]);
    for number in 0..300 {
        assert!(!talk(a, b, number) && !talk(b, a, number));
        assert!(!talk(b, c, number) && !talk(c, b, number));
        assert!(talk(a, c, number) && talk(c, a, number));
    }
}

#[test]
fn hosts_are_upgraded_one_by_one_and_back() {
    let world = World::new(MEDIUM, 3, true, 1);
    let mut nodes = [0, 1, 2].map(|number| node(&world, number, false));
    for (changed, known) in [(0, true), (1, true), (2, true), (1, false), (1, true)] {
        nodes[changed].member.leave(&world.host(changed));
        {
            let [a, b, c] = &mut nodes;
            settle(&mut [a, b, c]);
        }
        nodes[changed] = node(&world, changed as u16, known);
        let [a, b, c] = &mut nodes;
        settle(&mut [a, b, c]);
        assert_eq!([a, b, c].map(|node| node.links.len()), [2; 3]);
        for number in 0..10 {
            let [a, b, c] = &mut nodes;
            assert_eq!(talk(a, b, number), talk(b, a, number));
            assert_eq!(talk(b, c, number), talk(c, b, number));
            assert_eq!(talk(a, c, number), talk(c, a, number));
        }
    }
    let [a, b, c] = &mut nodes;
    assert!(talk(a, b, 1) && talk(b, c, 1) && talk(c, a, 1));
}

/// A pool that is formatted anew has nodes with the epochs of the first ones.
#[test]
fn lines_of_another_time_are_not_taken_for_new_ones() {
    let world = World::new(MEDIUM, 2, true, 1);
    let host = world.host(0);
    for _ in 0..2 {
        // Nobody knows that there was a pool.
        world.poke(0, &[0; 4096]);
        let mut nodes = [0, 1].map(|number| node(&world, number, true));
        let [a, b] = &mut nodes;
        let there = world.host(1);
        for _ in 0..4 {
            world.pass(HEARTBEAT_US);
            a.member.tick(&host, rig::now(&host));
            b.tick();
        }
        assert_eq!((a.member.epoch(), b.member.epoch()), (1, 1));
        // The other has not made its side of the link.
        assert_eq!(b.link(0).receive.frame.next(&there), Ok(None));
        a.links.insert(1, a.member.open(&host, 1).unwrap());
        assert_eq!(b.link(0).receive.frame.next(&there), Ok(None));
        for _ in 0..5 {
            let sender = &mut a.link(1).send.frame;
            let message = frame(1);
            host.send(sender, &Outgoing::Frame(&message), &[1; 60], 0)
                .unwrap();
        }
        assert!(talk(b, a, 1));
        a.member.leave(&world.host(0));
        b.member.leave(&world.host(1));
    }
}
