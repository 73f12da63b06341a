// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Direct writes: memory whose grant the owner has taken back, and that the peer was seen not to write, is the owner's alone.

use crate::{
    check,
    coherent::{Coherent, Memory},
    Hosts, Setup,
};
use loom::sync::atomic::{AtomicU64, Ordering};
use nupa_pool::{Grant, Grants, Window};
use nupa_proto::pool::{GRANT_BUSY, GRANT_MAPPED, GRANT_TABLE, LINE};
use std::sync::Arc;

/// What the owner writes into memory that it has back.
const OWNERS: u64 = 100;

/// Memory that is granted: what the owner may see of it, and what was written.
struct Granted {
    seen: AtomicU64,
    written: std::sync::atomic::AtomicU64,
    grant: Grant,
}

impl Granted {
    fn write(&self, value: u64) {
        self.seen.store(value, Ordering::Relaxed);
        self.written.store(value, Ordering::Relaxed);
    }

    /// Whether all that was written is seen.
    fn is_settled(&self) -> bool {
        self.seen.load(Ordering::Relaxed) == self.written.load(Ordering::Relaxed)
    }
}

/// Serial of the grant.
const SERIAL: u64 = 7;

/// Leave to write to the first line of an owner's memory.
fn grant(owner: &Grants) -> Grant {
    Grant {
        slot: 0,
        serial: SERIAL,
        offset: owner.memory().start,
        addr: 0,
        len: LINE,
        key: 1,
        reads: true,
    }
}

/// The grant's word, which is node 1's, and the busy word of node 0.
fn words(setup: &Setup) -> [u64; 2] {
    let directory = |node| setup.pool.geometry().directory(node).unwrap().start;
    // The first row and line are about node 0, the second ones about node 1.
    [directory(1) + GRANT_TABLE, directory(0) + GRANT_BUSY + LINE]
}

/// Node 0 writes; node 1 takes its memory back meanwhile. `more`: words of node 0 beside the busy word, from there on.
fn take_back_from<H: Hosts>(
    setup: &Setup,
    more: &[u64],
    write: impl FnOnce(&H::Host, &Grants, &Granted) + Send + 'static,
) {
    let memory = setup.memory();
    let (_, [writer, owner]) = setup.opened(&memory, 0);
    let (writer, owner) = (writer.grants.unwrap(), owner.grants.unwrap());
    owner.give(&memory, 0, SERIAL);
    let [given, busy] = words(setup);
    let hot: Vec<u64> = [given, busy]
        .into_iter()
        .chain(more.iter().map(|offset| busy + offset))
        .collect();
    let hosts = H::map(memory, &hot);
    let granted = Arc::new(Granted {
        seen: AtomicU64::new(0),
        written: std::sync::atomic::AtomicU64::new(0),
        grant: grant(&owner),
    });
    let cell = granted.clone();
    let write = move |memory: &H::Host| write(memory, &writer, &cell);
    let take = |memory: &H::Host| {
        owner.give(memory, 0, 0);
        let is_back = !owner.in_use(memory).unwrap().has(0, SERIAL);
        if is_back {
            assert!(granted.is_settled(), "something is still to arrive");
            granted.write(OWNERS);
        }
        is_back
    };
    let ((), is_back) = H::run(&hosts, write, take);
    let last = granted.seen.load(Ordering::Relaxed);
    assert!(!is_back || last == OWNERS, "it is written");
}

/// Node 0 writes twice.
fn take_back<H: Hosts>(setup: &Setup) {
    take_back_from::<H>(setup, &[], |memory, writer, granted| {
        for value in 1..=2 {
            if writer.begin(memory, &granted.grant).unwrap() {
                granted.write(value);
                writer.end(memory);
            }
        }
    });
}

/// A process of node 0 maps the memory, and writes there until it is seen that the grant has gone.
fn take_back_mapped<H: Hosts>(setup: &Setup) {
    take_back_from::<H>(setup, &[GRANT_MAPPED], |memory, writer, granted| {
        if writer.map(memory, &granted.grant).unwrap() {
            granted.write(1);
            if writer.holds(memory, &granted.grant).unwrap() {
                granted.write(2);
            }
            writer.unmap(memory, granted.grant.slot).unwrap();
        }
    });
}

/// Node 0 writes past its caches; node 1 takes its memory back meanwhile.
fn take_back_late<H: Hosts<Host = Memory>>(setup: &Setup) {
    let memory = setup.memory();
    let (_, [writer, owner]) = setup.opened(&memory, 0);
    let (writer, owner) = (writer.grants.unwrap(), owner.grants.unwrap());
    owner.give(&memory, 0, SERIAL);
    let grant = grant(&owner);
    let [given, busy] = words(setup);
    let hosts = H::map(memory, &[given, busy, grant.offset]);
    let write = move |memory: &Memory| {
        if writer.begin(memory, &grant).unwrap() {
            memory.stream(grant.offset, 1);
            writer.end(memory);
        }
    };
    let take = |memory: &Memory| {
        owner.give(memory, 0, 0);
        let is_back = !owner.in_use(memory).unwrap().has(0, SERIAL);
        if is_back {
            memory.store(grant.offset, OWNERS);
        }
        is_back
    };
    let ((), is_back) = H::run(&hosts, write, take);
    let last = hosts[0].load(grant.offset).unwrap();
    assert!(!is_back || last == OWNERS, "it is written");
}

#[test]
fn memory_that_was_mapped_and_taken_back_is_not_written() {
    check::<Coherent<false>>(take_back_mapped::<Coherent<false>>);
}

#[test]
fn memory_that_was_taken_back_is_not_written_later_past_the_caches() {
    check::<Coherent<false>>(take_back_late::<Coherent<false>>);
}

#[test]
fn memory_that_was_taken_back_is_not_written() {
    // Where caches are not coherent there are no grants.
    check::<Coherent<false>>(take_back::<Coherent<false>>);
}
