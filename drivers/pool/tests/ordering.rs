// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Handing over an entry, and waking who sleeps, under every ordering that the memory model allows (loom).
//!
//! The words that order things are loom's atomics, and so is one word of the entry, which is accessed relaxed; all else is
//! set up before the hosts run against each other.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

use loom::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};
use nupa_pool::{Body, JoinOptions, Link, Membership, Options, Outgoing, Pool, Time, Window};
use nupa_proto::pool::{
    message::FrameBody, Slot, Superblock, HEARTBEAT_US, PAGE, RING_ENTRIES, SLOT_SIZE,
};
use std::{
    cell::Cell,
    collections::BTreeMap,
    mem::offset_of,
    sync::{Arc, Mutex},
};
use zerocopy::{FromBytes, FromZeros};

/// Bytes of the smallest pool for two nodes.
const SIZE: usize = 3 << 20;
/// Words of a thread's stack.
const STACK: usize = 0x8000;

/// A coherent pool: words that are hot, and the rest.
struct Memory {
    cold: Mutex<Vec<u8>>,
    hot: BTreeMap<u64, AtomicU64>,
}

impl Memory {
    /// Calls `hot` with each hot word in a range, and where in the range it begins.
    fn each_hot(&self, offset: u64, len: usize, mut hot: impl FnMut(usize, &AtomicU64)) {
        for (at, word) in self.hot.range(offset..offset + len as u64) {
            assert!(at + 8 <= offset + len as u64);
            hot((at - offset) as usize, word);
        }
    }
}

impl Window for Memory {
    fn len(&self) -> u64 {
        SIZE as u64
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn load(&self, offset: u64) -> u64 {
        match self.hot.get(&offset) {
            Some(word) => word.load(Ordering::Acquire),
            None => {
                let at = offset as usize;
                u64::from_le_bytes(self.cold.lock().unwrap()[at..at + 8].try_into().unwrap())
            }
        }
    }

    fn store(&self, offset: u64, value: u64) {
        match self.hot.get(&offset) {
            Some(word) => word.store(value, Ordering::Release),
            None => {
                let at = offset as usize;
                self.cold.lock().unwrap()[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> bool {
        let same = self.load(offset) == current;
        if same {
            self.store(offset, new);
        }
        same
    }

    fn read(&self, offset: u64, buf: &mut [u8]) {
        let at = offset as usize;
        buf.copy_from_slice(&self.cold.lock().unwrap()[at..at + buf.len()]);
        self.each_hot(offset, buf.len(), |at, word| {
            let value = word.load(Ordering::Relaxed);
            buf[at..at + 8].copy_from_slice(&value.to_le_bytes());
        });
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        self.cold.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        self.each_hot(offset, bytes.len(), |at, word| {
            let value = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            word.store(value, Ordering::Relaxed);
        });
    }

    fn publish(&self, _: u64, _: u64) {}

    fn refresh(&self, _: u64, _: u64) {}

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Time that passes when somebody sleeps.
struct Steps(Cell<u64>);

impl Time for Steps {
    fn now_us(&self) -> u64 {
        self.0.get()
    }

    fn sleep_us(&self, us: u64) {
        self.0.set(self.0.get() + us);
    }
}

fn cold(bytes: Vec<u8>) -> Memory {
    Memory {
        cold: Mutex::new(bytes),
        hot: BTreeMap::new(),
    }
}

/// Two nodes that are linked, and the words that are hot between them.
fn linked(bytes: &[u8], pool: &Pool) -> (Memory, [Membership; 2], [Link; 2]) {
    let memory = cold(bytes.to_vec());
    let time = Steps(Cell::new(0));
    let mut nodes = [1, 2].map(|token| {
        let mut node = pool.join(&memory, &time, &JoinOptions::new(token)).unwrap();
        node.enable(&memory);
        node
    });
    for _ in 0..3 {
        time.sleep_us(HEARTBEAT_US);
        for node in &mut nodes {
            node.tick(&memory, time.now_us());
        }
    }
    let [a, b] = &mut nodes;
    let mut links = [a.open(&memory, 1).unwrap(), b.open(&memory, 0).unwrap()];
    // It has seen that the other side is there.
    assert!(links[0].send.frame.reserve(&memory, 0).is_ok());
    let block = Superblock::read_from_bytes(&bytes[..size_of::<Superblock>()]).unwrap();
    // The third ring is that of frames from node 0 to node 1.
    let ring = block.rings.get() + 2 * block.ring_stride.get();
    let presence = PAGE + SLOT_SIZE as u64 + offset_of!(Slot, presence) as u64;
    let hot = [ring, ring + RING_ENTRIES, presence].map(|at| (at, AtomicU64::new(memory.load(at))));
    let memory = Memory {
        hot: hot.into_iter().collect(),
        ..memory
    };
    (memory, nodes, links)
}

#[test]
fn an_entry_is_seen_whole_and_nobody_sleeps_through_it() {
    let memory = cold(vec![0; SIZE]);
    let options = Options {
        format: true,
        max_nodes: 2,
        token: 1,
    };
    let pool = Pool::attach(&memory, &Steps(Cell::new(0)), &options).unwrap();
    let bytes = Arc::new(memory.cold.into_inner().unwrap());
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let bytes = bytes.clone();
        spawn(move || hand_over(&bytes, &pool)).join().unwrap();
    });
}

fn spawn<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> loom::thread::JoinHandle<T> {
    let builder = loom::thread::Builder::new().stack_size(STACK);
    builder.spawn(body).unwrap()
}

fn hand_over(bytes: &[u8], pool: &Pool) {
    let (memory, [sender, mut receiver], [mut out, mut back]) = linked(bytes, pool);
    let memory = Arc::new(memory);
    let woken = Arc::new(AtomicBool::new(false));
    let (there, wake) = (memory.clone(), woken.clone());
    let sending = spawn(move || {
        let ring = &mut out.send.frame;
        let place = ring.reserve(&*there, 60).unwrap();
        let frame = FrameBody::new_zeroed();
        let message = Outgoing::Frame(&frame);
        ring.commit(&*there, place, &message, 60).unwrap();
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
