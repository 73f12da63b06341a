// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sender and receiver of a ring in all orders that the memory model allows and a bound on preemptions (loom). Both are the real thing, but for the fence of who arms the
//! completion queue; the words of the ring that they use are loom's atomics, those of entries' contents relaxed ones. What each process has for itself, such as its locks, is
//! the standard library's. The receiver's engine is in `engine`; the kernel is not here.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

mod engine;
mod machine;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use nupa_engine::rings::Data;
use nupa_proto::cqe::Cqe;
use nupa_proto::doorbell::PAGE_SIZE;
use nupa_proto::process_ring::{
    CONTROL_SIZE, LINES, LINE_SIZE, POSTED, RECEIVED, ROOM, SECRET, STATE, TAKEN, TAKER,
    TOTALS_PUT, TOTALS_TAKEN,
};
use nupa_proto::status::WcStatus;
use nupa_proto::wqe::{Sge, WQE_SIGNALED};

use super::ring::testing::Kept;
use super::{
    Body, BypassState, Connection, MappedRegion, Message, Put, Receiver, Ring, RingSource, Sender,
    Sent,
};
use crate::ffi::modelled::{explore, spawn, Words};
use crate::ffi::testing::process_bytes;
use crate::ffi::{fence, DoorbellPair, Lock, Pages, Slot};
use crate::queue::done::Done;
use crate::queue::{Lookup, RecvQueue, RecvSize, Region, Regions};

/// Preemptions in an exploration.
const PREEMPTIONS: usize = 3;
/// Lines of the ring that models use.
const USED: usize = 3;
/// Key and first address of the receiver's memory.
const KEY: u32 = 7;
const START: u64 = 0x10000;
/// Bytes of a message, and between the buffers for two.
const LEN: u32 = 8;

/// What the kernels are asked for.
#[derive(Debug, Default)]
struct Source {
    kicks: AtomicUsize,
    failures: AtomicUsize,
}

impl RingSource for Source {
    fn find(&self) -> Option<Ring> {
        None
    }

    fn make(&self) -> Option<Ring> {
        None
    }

    fn map_region(&self, _: u32) -> Option<MappedRegion> {
        None
    }

    fn kick_peer(&self) {
        self.kicks.fetch_add(1, Ordering::Relaxed);
    }

    fn make_event(&self) {}

    fn fail(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// Both ends of a ring, of which one message has gone through the engines.
struct Ends {
    sender: Sender,
    receiver: Receiver,
    queue: Arc<Lock<RecvQueue>>,
    source: Arc<Source>,
    /// What the receiver's program has registered.
    memory: Arc<Pages>,
}

/// The words of a ring.
fn words() -> Arc<Words> {
    let lines = (0..USED).flat_map(|line| {
        let start = CONTROL_SIZE + line * LINE_SIZE;
        (0..7).map(move |word| start + 8 * word)
    });
    let others = [
        SECRET,
        TAKER,
        TOTALS_TAKEN,
        TOTALS_TAKEN + 8,
        TOTALS_PUT,
        TOTALS_PUT + 8,
    ];
    let wholes: Vec<usize> = others.into_iter().chain(lines).collect();
    Words::new(&[STATE, POSTED, TAKEN, RECEIVED, ROOM], &wholes)
}

/// What both ends are made of.
struct Parts {
    words: Arc<Words>,
    /// Memory of the receiver's, and its key.
    memory: Arc<Pages>,
    key: u32,
}

impl Parts {
    fn new() -> Self {
        Self {
            words: words(),
            memory: Arc::new(Pages::anonymous(PAGE_SIZE).unwrap()),
            key: KEY,
        }
    }
}

impl Ends {
    /// With receive entries for so many messages, of `LEN` bytes each.
    fn new(entries: u32) -> Self {
        Self::with(entries, Parts::new())
    }

    /// The same made of these parts.
    fn with(entries: u32, parts: Parts) -> Self {
        let Parts { words, memory, key } = parts;
        let ring = || Arc::new(Ring::new(Arc::clone(&words), Box::new(Kept)));
        let made = ring();
        made.prepare(1 << 63);

        let pages = || Pages::anonymous(PAGE_SIZE).unwrap();
        let pair = Arc::new(DoorbellPair {
            shared: pages(),
            trapped: pages(),
            push: false,
        });
        let slot = Slot::new(&pair, 0).unwrap();
        let regions = Arc::new(Regions::default());
        regions.insert(
            key,
            Region {
                domain: 0,
                start: START,
                memory: process_bytes(&memory, PAGE_SIZE),
                writable: true,
                remote_writable: true,
            },
        );
        let source = Arc::new(Source::default());
        let connection = || Connection {
            source: Arc::clone(&source) as _,
            lookup: Lookup::new(Arc::clone(&regions), 0),
            recv_lookup: Lookup::new(Arc::clone(&regions), 0),
            shared: false,
            slot: slot.clone(),
            send_slot: slot.clone(),
            requests: 4,
            bypass_state: Arc::new(BypassState::default()),
            with_events: true,
            writes: true,
            mixed: false,
        };

        let size = RecvSize::new(4, 1, 4).unwrap();
        let queue = Arc::new(Lock::new(RecvQueue::new(pages(), slot.clone(), size)));
        for number in 0..=entries {
            post(&queue, number, LEN, key);
        }
        queue.lock().done().advance(1);
        let of = connection();
        of.bypass_state.allow_writes(true);
        let receiver = Receiver::open(&Cqe::default(), 1, made, &of, Arc::clone(&queue)).unwrap();

        let of = connection();
        of.bypass_state.set_ready(true);
        let done = Arc::new(Done::default());
        let sent = Arc::new(Sent::new(4, Arc::clone(&done), true));
        let mut sender = Sender::new(1, &of, Weak::new(), sent).with_ring(ring());
        sender.note(
            super::Kind::of(0, 0, &nupa_engine::rings::Operation::Send { imm: None }),
            1,
        );
        done.set(1);
        Self {
            sender,
            receiver,
            queue,
            source,
            memory,
        }
    }
}

/// Orders of a model in which something has happened.
struct Seen(AtomicUsize);

impl Seen {
    const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    fn note(&self, has_happened: bool) {
        self.0
            .fetch_add(usize::from(has_happened), Ordering::Relaxed);
    }

    fn check(&self, what: &str) {
        assert_ne!(self.0.load(Ordering::Relaxed), 0, "never: {what}");
    }
}

/// Posts a receive entry for a message of this number, in memory of this key.
fn post(queue: &Lock<RecvQueue>, number: u32, len: u32, key: u32) {
    let mut queue = queue.lock();
    let sge = Sge {
        addr: (START + u64::from(number * LEN)).into(),
        len: len.into(),
        lkey: key.into(),
    };
    queue.post(number.into(), &[sge]).unwrap();
    queue.ring();
}

/// What a message carries.
fn data(number: u32) -> [u8; LEN as usize] {
    u64::from(number + 100).to_le_bytes()
}

/// Sends a message of this number, if it may go into the ring.
fn send(sender: &mut Sender, number: u32) -> bool {
    send_of_list(sender, number, false) == Put::Yes
}

/// The same, with more in its list or not.
fn send_of_list(sender: &mut Sender, number: u32, more: bool) -> Put {
    let message = Message {
        wr_id: number.into(),
        flags: WQE_SIGNALED,
        body: Body::Send { imm: None },
    };
    sender.send(message, Data::Inline(&data(number)), more)
}

/// Sends two messages as a list. How many of them are there for good.
fn send_both(sender: &mut Sender) -> u32 {
    let first = send_of_list(sender, 1, true);
    let second = send_of_list(sender, 2, false);
    assert!(sender.is_confirmed() && !sender.sent().is_begun());
    match (first, second) {
        (_, Put::Closed) | (Put::No, Put::No) => 0,
        (Put::Yes, Put::No) => 1,
        (Put::Yes, Put::Yes) => 2,
        other => panic!("{other:?}"),
    }
}

/// Takes both, as far as they are there. How many are.
fn take_both(receiver: &mut Receiver, memory: &Pages) -> u32 {
    (1..=2)
        .take_while(|number| take(receiver, memory, *number))
        .map(|_| 1)
        .sum()
}

/// Takes the next message, which is of this number, and looks at what has arrived.
fn take(receiver: &mut Receiver, memory: &Pages, number: u32) -> bool {
    let mut cqe = Cqe::default();
    if !receiver.take(&mut cqe) {
        return false;
    }
    assert_eq!(cqe.status, WcStatus::Success.to_wire());
    assert_eq!(cqe.wr_id.get(), u64::from(number), "it is another one");
    let found = memory.load_wide((number * LEN) as usize);
    assert_eq!(found.to_le_bytes(), data(number), "its data is missing");
    true
}

#[test]
fn messages_are_seen_whole_and_in_order() {
    explore(PREEMPTIONS, || {
        let Ends {
            mut sender,
            mut receiver,
            memory,
            ..
        } = Ends::new(2);
        let at = Arc::clone(&memory);
        let receives = spawn(move || {
            let mut next = 1;
            for _ in 0..3 {
                next += u32::from(take(&mut receiver, &at, next));
            }
            (receiver, next)
        });
        assert!(send(&mut sender, 1) && send(&mut sender, 2));
        let (mut receiver, mut next) = receives.join().unwrap();
        while take(&mut receiver, &memory, next) {
            next += 1;
        }
        assert_eq!(next, 3);
    });
}

#[test]
fn what_was_sent_is_received_although_the_ring_is_closed() {
    explore(PREEMPTIONS, || {
        let Ends {
            mut sender,
            mut receiver,
            memory,
            ..
        } = Ends::new(1);
        let receives = spawn(move || {
            receiver.close();
            take(&mut receiver, &memory, 1)
        });
        let sent = send(&mut sender, 1);
        let received = receives.join().unwrap();
        assert!(
            received || !sent,
            "it lies in a ring that nobody looks at any more"
        );
    });
}

#[test]
fn what_was_sent_as_a_list_is_received_although_the_ring_is_closed() {
    static BOTH: Seen = Seen::new();
    static AGAIN: Seen = Seen::new();
    explore(PREEMPTIONS, || {
        let Ends {
            mut sender,
            mut receiver,
            memory,
            ..
        } = Ends::new(2);
        let receives = spawn(move || {
            receiver.close();
            take_both(&mut receiver, &memory)
        });
        let sent = send_both(&mut sender);
        let received = receives.join().unwrap();
        assert!(received >= sent, "{sent} were sent, {received} received");
        BOTH.note(sent == 2);
        AGAIN.note(sent == 0 && received == 1);
    });
    BOTH.check("both are sent");
    AGAIN.check("what was received is to be posted again");
}

#[test]
fn nobody_sleeps_through_a_list() {
    static BOTH: Seen = Seen::new();
    static ONE: Seen = Seen::new();
    explore(PREEMPTIONS, || {
        let Ends {
            mut sender,
            mut receiver,
            memory,
            source,
            ..
        } = Ends::new(2);
        let receives = spawn(move || {
            receiver.set_armed(true);
            // That of who arms the completion queue.
            fence(Ordering::SeqCst);
            take_both(&mut receiver, &memory)
        });
        let sent = send_both(&mut sender);
        let found = receives.join().unwrap();
        let woken = source.kicks.load(Ordering::Relaxed) != 0;
        assert!(found >= sent || woken, "it sleeps, and nobody wakes it");
        BOTH.note(sent == 2 && woken);
        ONE.note(sent == 1 && woken);
    });
    BOTH.check("it is woken for both");
    ONE.check("it is woken for the one that was before it said that it waits");
}

#[test]
fn nobody_sleeps_through_a_message() {
    explore(PREEMPTIONS, || {
        let Ends {
            mut sender,
            mut receiver,
            memory,
            source,
            ..
        } = Ends::new(1);
        let receives = spawn(move || {
            receiver.set_armed(true);
            // That of who arms the completion queue.
            fence(Ordering::SeqCst);
            take(&mut receiver, &memory, 1)
        });
        let sent = send(&mut sender, 1);
        let found = receives.join().unwrap();
        let woken = source.kicks.load(Ordering::Relaxed) != 0;
        assert!(found || woken || !sent, "it sleeps, and nobody wakes it");
    });
}

#[test]
fn no_message_goes_to_an_entry_that_is_too_small() {
    explore(PREEMPTIONS, || {
        let Ends {
            mut sender,
            mut receiver,
            memory,
            queue,
            source,
            ..
        } = Ends::new(0);
        let posts = spawn(move || post(&queue, 1, LEN - 1, KEY));
        let sent = send(&mut sender, 1);
        posts.join().unwrap();
        assert!(!sent && !take(&mut receiver, &memory, 1));
        assert_eq!(source.failures.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn an_entry_is_not_written_over_before_it_is_received() {
    static SENT: Seen = Seen::new();
    explore(PREEMPTIONS, || {
        let Ends {
            mut sender,
            mut receiver,
            memory,
            ..
        } = Ends::new(2);
        assert!(send(&mut sender, 1));
        // Its line is the next one again.
        sender.skip_lines(LINES - 1);
        let at = Arc::clone(&memory);
        let receives = spawn(move || {
            assert!(take(&mut receiver, &at, 1));
            receiver
        });
        let sent = send(&mut sender, 2);
        let mut receiver = receives.join().unwrap();
        receiver.skip_lines(LINES - 1);
        assert_eq!(take(&mut receiver, &memory, 2), sent);
        SENT.note(sent);
    });
    SENT.check("the line is free");
}

#[test]
fn what_was_taken_back_is_not_written_later() {
    explore(PREEMPTIONS, || {
        let Ends {
            mut sender,
            mut receiver,
            memory,
            ..
        } = Ends::new(1);
        receiver.offer_writes();
        let message = Message {
            wr_id: 1,
            flags: WQE_SIGNALED,
            body: Body::Write {
                addr: START,
                rkey: KEY,
            },
        };
        let put = sender.send(message, Data::Inline(&data(1)), false);
        assert_eq!(put, Put::Yes);
        let receives = spawn(move || {
            assert!(!receiver.take(&mut Cqe::default()), "there is no message");
            receiver
        });
        drop(sender);
        let before = memory.load_wide(0);
        let mut receiver = receives.join().unwrap();
        assert!(!receiver.take(&mut Cqe::default()));
        assert_eq!(memory.load_wide(0), before, "its queue pair is no more");
    });
}
