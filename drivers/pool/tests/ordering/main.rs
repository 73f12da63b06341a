// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Handing over an entry, waking who sleeps, and sharing memory, under the orderings that loom explores.
//!
//! The words that order things are loom's atomics, and so is one word of the entry, which is accessed relaxed; all else is
//! set up before the hosts run against each other.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod claims;
mod epochs;
mod grants;
mod memory;

use loom::sync::atomic::{AtomicBool, Ordering};
use memory::{cold, heat, Memory, Steps, SIZE};
use nupa_pool::{
    Body, FormatOptions, JoinOptions, Link, Membership, Outgoing, Pool, Sharing, Time,
};
use nupa_proto::pool::{
    message::{FrameBody, RequestBody, ResponseBody, ENTRY_SIZE},
    sharing::{EXPORT_TABLE, HOLD_TABLE},
    Class, Slot, Superblock, CAP_POOL_LINES, HEARTBEAT_US, LINK_BULK, LINK_CONSUMER, LINK_RINGS,
    LINK_WANT, MIN_LOG_BULK, PAGE, SLOT_SIZE,
};
use nupa_proto::wqe::Opcode;
use std::{cell::Cell, mem::offset_of, sync::Arc};
use zerocopy::{FromBytes, FromZeros};

/// Words of a thread's stack.
const STACK: usize = 0x8000;

/// Two nodes that see each other, and know these things.
fn joined(memory: &Memory, pool: &Pool, capabilities: u64) -> [Membership; 2] {
    let time = Steps(Cell::new(0));
    let mut nodes = [1, 2].map(|token| {
        let options = JoinOptions {
            capabilities,
            ..JoinOptions::new(token)
        };
        let mut node = pool.join(memory, &time, &options).unwrap();
        node.enable(memory);
        node
    });
    for _ in 0..3 {
        time.sleep_us(HEARTBEAT_US);
        for node in &mut nodes {
            node.tick(memory, time.now_us());
        }
    }
    nodes
}

/// Two nodes that are linked.
fn opened(memory: &Memory, pool: &Pool, capabilities: u64) -> ([Membership; 2], [Link; 2]) {
    let mut nodes = joined(memory, pool, capabilities);
    let [a, b] = &mut nodes;
    let mut links = [a.open(memory, 1).unwrap(), b.open(memory, 0).unwrap()];
    // It has seen that the other side is there.
    assert!(links[0].send.frame.reserve(memory, 0).is_ok());
    (nodes, links)
}

/// Where the words of the ring of frames from node 0 to node 1 are, the third one, and where its first entry is.
fn frames(bytes: &[u8]) -> (u64, u64) {
    let block = Superblock::read_from_bytes(&bytes[..size_of::<Superblock>()]).unwrap();
    // Of requests, and as long of responses.
    let log_bulk = (block.log_bulk - 1).max(MIN_LOG_BULK);
    let ring = (ENTRY_SIZE << block.log_entries) + (1 << log_bulk);
    let link = block.rings.get();
    (link + 2 * 8, link + LINK_RINGS + 2 * ring)
}

/// Two nodes that are linked, and the words that are hot between them.
fn linked(bytes: &[u8], pool: &Pool, capabilities: u64) -> (Memory, [Membership; 2], [Link; 2]) {
    let memory = cold(bytes.to_vec());
    let (nodes, links) = opened(&memory, pool, capabilities);
    let (word, entry) = frames(bytes);
    let presence = PAGE + SLOT_SIZE as u64 + offset_of!(Slot, presence) as u64;
    // The first word of an entry, or the stamp of its line and what is behind it.
    let hot = match capabilities {
        0 => [word, entry, presence],
        _ => [entry, entry + 8, presence],
    };
    (heat(memory, &hot), nodes, links)
}

/// Runs `body` with a pool that is formatted, its bytes and its description, in all orders.
fn model(body: fn(&[u8], &Pool)) {
    let memory = cold(vec![0; SIZE]);
    let options = FormatOptions {
        max_nodes: 2,
        token: 1,
    };
    let time = Steps(Cell::new(0));
    let pool = Pool::attach_or_format(&memory, &time, &options, |_| true).unwrap();
    let bytes = Arc::new(memory.cold.into_inner().unwrap());
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let bytes = bytes.clone();
        spawn(move || body(&bytes, &pool)).join().unwrap();
    });
}

#[test]
fn an_entry_is_seen_whole_and_nobody_sleeps_through_it() {
    model(|bytes, pool| hand_over(bytes, pool, 0));
}

#[test]
fn an_entry_of_lines_is_seen_whole_and_nobody_sleeps_through_it() {
    model(|bytes, pool| hand_over(bytes, pool, CAP_POOL_LINES));
}

#[test]
fn no_request_is_done_before_what_is_said_against_it() {
    model(refuse);
}

#[test]
fn nobody_sleeps_through_room_that_he_waits_for() {
    model(make_room);
}

#[test]
fn memory_is_not_free_and_imported() {
    model(share);
}

/// Node 0 frees memory that node 1 imports.
fn share(bytes: &[u8], pool: &Pool) {
    let memory = cold(bytes.to_vec());
    let [owner, user] = joined(&memory, pool, 0);
    let mut exports = Sharing::new();
    let place = (pool.device_memory(0).start, PAGE);
    let handle = exports.export(&memory, &owner, place, 7).unwrap();
    let table = |node, table| pool.geometry().directory(node).unwrap().start + table;
    // The first lines: the secret of the one, the length of the other.
    let memory = heat(memory, &[table(0, EXPORT_TABLE), table(1, HOLD_TABLE)]);
    let memory = Arc::new(memory);
    let there = memory.clone();
    let importing = spawn(move || {
        let imported = Sharing::new().import(&*there, &user, &handle);
        imported.is_ok()
    });
    exports.withdraw(&*memory, &owner, handle.index.get());
    let mut held = false;
    pool.held(&*memory, 0, |_| held = true);
    let imported = importing.join().unwrap();
    assert!(held || !imported, "it is free, and in use");
}

fn spawn<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> loom::thread::JoinHandle<T> {
    let builder = loom::thread::Builder::new().stack_size(STACK);
    builder.spawn(body).unwrap()
}

/// Node 1 frees what node 0 has no room for.
fn make_room(bytes: &[u8], pool: &Pool) {
    const LEN: u32 = 60_000;
    let memory = cold(bytes.to_vec());
    let (_, [mut out, mut back]) = opened(&memory, pool, 0);
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
    let (at, _) = frames(bytes);
    let words = [LINK_WANT, LINK_CONSUMER, LINK_BULK];
    let memory = Arc::new(heat(memory, &words.map(|word| at + word)));
    let there = memory.clone();
    let waiting = spawn(move || out.send.frame.reserve(&*there, LEN).is_err());
    back.receive.frame.publish(&*memory);
    let woken = back.receive.frame.take_wanted();
    let waits = waiting.join().unwrap();
    assert!(woken || !waits, "it waits, and nobody wakes it");
}

/// Node 1 refuses a request of node 0, and takes it out.
fn refuse(bytes: &[u8], pool: &Pool) {
    let memory = cold(bytes.to_vec());
    let (_, [mut out, mut back]) = opened(&memory, pool, CAP_POOL_LINES);
    let mut request = RequestBody::new_zeroed();
    request.opcode = Opcode::Write.to_wire();
    let ring = &mut out.send.short_request;
    let place = ring.reserve(&memory, 0).unwrap();
    let message = Outgoing::Request(&request);
    ring.commit(&memory, place, &message, 0, 0).unwrap();
    assert!(back.next(&memory, Class::ShortRequest).unwrap().is_some());
    assert!(back.send.short_response.reserve(&memory, 0).is_ok());
    let consumer = pool.geometry().ring(0, 1, Class::ShortRequest).consumer();
    let responses = pool.geometry().ring(1, 0, Class::ShortResponse).in_lines();
    let memory = Arc::new(heat(memory, &[consumer, responses.entry(0)]));
    let there = memory.clone();
    let refusing = spawn(move || {
        let ring = &mut back.send.short_response;
        let place = ring.reserve(&*there, 0).unwrap();
        let response = ResponseBody::new_zeroed();
        let message = Outgoing::Response(&response);
        ring.commit(&*there, place, &message, 0, 0).unwrap();
        back.release(&*there, Class::ShortRequest);
        back.receive.short_request.publish(&*there);
    });
    if let Some(found) = out.next(&*memory, Class::ShortResponse).unwrap() {
        assert!(matches!(found.body, Body::Response(..)), "it was refused");
    }
    refusing.join().unwrap();
    let found = out.next(&*memory, Class::ShortResponse).unwrap();
    assert!(found.is_some_and(|found| matches!(found.body, Body::Response(..))));
}

fn hand_over(bytes: &[u8], pool: &Pool, capabilities: u64) {
    let (memory, [sender, mut receiver], [mut out, mut back]) = linked(bytes, pool, capabilities);
    let memory = Arc::new(memory);
    let woken = Arc::new(AtomicBool::new(false));
    let (there, wake) = (memory.clone(), woken.clone());
    let sending = spawn(move || {
        let ring = &mut out.send.frame;
        let place = ring.reserve(&*there, 60).unwrap();
        let frame = FrameBody::new_zeroed();
        let message = Outgoing::Frame(&frame);
        ring.commit(&*there, place, &message, 0, 0).unwrap();
        ring.publish(&*there);
        if sender.must_wake(&*there, 1) {
            wake.store(true, Ordering::SeqCst);
        }
    });
    let ring = &mut back.receive.frame;
    let mut found = ring.next(&*memory).unwrap();
    if found.is_none() {
        receiver.set_polling(&*memory, false);
        found = ring.next(&*memory).unwrap();
    }
    sending.join().unwrap();
    match found {
        Some(message) => assert!(matches!(message.body, Body::Frame(_))),
        None => assert!(
            woken.load(Ordering::SeqCst),
            "it sleeps, and nobody wakes it"
        ),
    }
}
