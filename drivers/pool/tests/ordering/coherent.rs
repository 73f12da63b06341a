// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hosts whose caches are kept coherent: some words of the pool are loom's atomics, and are seen in every order that the memory model
//! allows.

use crate::{
    cold::{Cold, Steps},
    Hosts, Setup,
};
use loom::{
    sync::atomic::{fence, AtomicU64, AtomicUsize, Ordering},
    thread::{self, JoinHandle, ThreadId},
};
use nupa_pool::{Poisoned, Time, Window};
use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Words of a thread's stack.
const STACK: usize = 0x20000;

/// Most preemptions of a run, unless this variable of the environment is set: then as many as a model says. Those of three take four times as long as all others.
const PREEMPTIONS: usize = 2;
const LONG: &str = "NUPA_TEST_LONG";

/// Such hosts. `TORN`: they cannot compare and exchange a word atomically; each loads it and stores it.
pub struct Coherent<const TORN: bool>;

/// The pool as they see it.
pub struct Memory {
    cold: Cold,
    hot: BTreeMap<u64, Arc<AtomicU64>>,
    /// Stored to before each access to those, and before fences, so that loom takes all of them for dependent. It remembers no more than the last access to a word, and would
    /// not try a load of one host behind a store of another one that has loaded the word itself before; and it does not switch threads at a fence.
    steps: AtomicUsize,
    torn: Option<Settling>,
    /// Stores past the caches that are under way, and which thread's they are.
    streams: Mutex<Vec<(ThreadId, JoinHandle<()>)>>,
}

impl<const TORN: bool> Hosts for Coherent<TORN> {
    type Host = Memory;
    type Clock = Sleeps;
    const COHERENT: bool = true;

    fn check(setup: Setup, body: fn(&Setup)) {
        let mut model = loom::model::Builder::new();
        let most = if std::env::var_os(LONG).is_some() {
            usize::MAX
        } else {
            PREEMPTIONS
        };
        model.preemption_bound = Some(setup.bound.min(most));
        model.check(move || {
            let setup = setup.clone();
            spawn(move || body(&setup)).join().unwrap();
        });
    }

    fn map(cold: Cold, hot: &[u64]) -> [Arc<Memory>; 2] {
        let word = |at: &u64| (*at, Arc::new(AtomicU64::new(cold.load(*at).unwrap())));
        let memory = Arc::new(Memory {
            hot: hot.iter().map(word).collect(),
            steps: AtomicUsize::new(0),
            torn: TORN.then(Settling::new),
            streams: Mutex::default(),
            cold,
        });
        [memory.clone(), memory]
    }

    fn clock(host: &Arc<Memory>) -> Sleeps {
        Sleeps {
            memory: host.clone(),
            steps: Steps(Cell::new(0)),
        }
    }

    fn run<A: Send + 'static, B: Send>(
        [first, second]: &[Arc<Memory>; 2],
        one: impl FnOnce(&Memory) -> A + Send + 'static,
        other: impl FnOnce(&Memory) -> B + Send,
    ) -> (A, B) {
        let memory = first.clone();
        let thread = spawn(move || one(&memory));
        let other = other(second);
        let one = thread.join().unwrap();
        first.drain(|_| true);
        (one, other)
    }
}

fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let builder = loom::thread::Builder::new().stack_size(STACK);
    builder.spawn(body).unwrap()
}

/// What hosts rely on that cannot exchange words atomically: what one has stored is seen by others, and what others had begun before
/// they saw it is over, within the time that it waits after it has stored a word (`SETTLE_US`).
struct Settling {
    /// Hosts that are between their load and their store.
    under_way: AtomicUsize,
    /// Stores that all see who begin now.
    seen: AtomicUsize,
}

impl Settling {
    fn new() -> Self {
        Self {
            under_way: AtomicUsize::new(0),
            seen: AtomicUsize::new(0),
        }
    }

    fn exchange(&self, word: &AtomicU64, current: u64, new: u64) -> bool {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.seen.fetch_add(0, Ordering::Acquire);
        let same = word.load(Ordering::Acquire) == current;
        if same {
            word.store(new, Ordering::Release);
        }
        self.under_way.fetch_sub(1, Ordering::Release);
        same
    }

    fn wait(&self) {
        self.seen.fetch_add(1, Ordering::Release);
        // Not a load, which loom may have return an old value for ever.
        while self.under_way.fetch_add(0, Ordering::Acquire) != 0 {
            thread::yield_now();
        }
    }
}

impl Memory {
    /// Stores a hot word past the caches: others see that at any time, but before anything that this thread does behind a full fence. It is a
    /// thread's by itself, because loom keeps stores in order before a release.
    pub fn stream(&self, offset: u64, value: u64) {
        let word = self.hot[&offset].clone();
        let store = spawn(move || word.store(value, Ordering::Relaxed));
        let mut streams = self.streams.lock().unwrap();
        streams.push((thread::current().id(), store));
    }

    /// Waits for such stores.
    fn drain(&self, whose: impl Fn(ThreadId) -> bool) {
        let streams = std::mem::take(&mut *self.streams.lock().unwrap());
        let (ends, goes_on): (Vec<_>, _) =
            streams.into_iter().partition(|(thread, _)| whose(*thread));
        self.streams.lock().unwrap().extend::<Vec<_>>(goes_on);
        for (_, store) in ends {
            store.join().unwrap();
        }
    }

    /// The hot word at an offset, if there is one; it is about to be accessed.
    fn hot(&self, offset: u64) -> Option<&AtomicU64> {
        let word = self.hot.get(&offset)?;
        self.steps.store(0, Ordering::Relaxed);
        Some(word)
    }

    /// Calls `hot` with each hot word in a range, and where in the range it begins.
    fn each_hot(&self, offset: u64, len: usize, mut hot: impl FnMut(usize, &AtomicU64)) {
        for (at, word) in self.hot.range(offset..offset + len as u64) {
            self.steps.store(0, Ordering::Relaxed);
            assert!(at + 8 <= offset + len as u64);
            hot((at - offset) as usize, word);
        }
    }
}

impl Window for Memory {
    fn len(&self) -> u64 {
        self.cold.len()
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn load(&self, offset: u64) -> Result<u64, Poisoned> {
        match self.hot(offset) {
            Some(word) => Ok(word.load(Ordering::Acquire)),
            None => self.cold.load(offset),
        }
    }

    fn store(&self, offset: u64, value: u64) {
        match self.hot(offset) {
            Some(word) => word.store(value, Ordering::Release),
            None => self.cold.store(offset, value),
        }
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned> {
        let Some(word) = self.hot(offset) else {
            return self.cold.compare_exchange(offset, current, new);
        };
        Ok(match &self.torn {
            Some(settling) => settling.exchange(word, current, new),
            None => word
                .compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
                .is_ok(),
        })
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Poisoned> {
        self.cold.read(offset, buf)?;
        self.each_hot(offset, buf.len(), |at, word| {
            let value = word.load(Ordering::Relaxed);
            buf[at..at + 8].copy_from_slice(&value.to_le_bytes());
        });
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.cold.write(offset, bytes);
        self.each_hot(offset, bytes.len(), |at, word| {
            let value = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            word.store(value, Ordering::Relaxed);
        });
    }

    fn publish(&self, _: u64, _: u64) {}

    fn refresh(&self, _: u64, _: u64) {}

    fn fence(&self) {
        let own = thread::current().id();
        self.drain(|thread| thread == own);
        self.steps.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// Time of a host that runs against others. After a sleep, exchanges that others had begun before are complete and visible.
pub struct Sleeps {
    memory: Arc<Memory>,
    steps: Steps,
}

impl Time for Sleeps {
    fn now_us(&self) -> u64 {
        self.steps.now_us()
    }

    fn sleep_us(&self, us: u64) {
        self.steps.sleep_us(us);
        if let Some(settling) = &self.memory.torn {
            settling.wait();
        }
    }
}
