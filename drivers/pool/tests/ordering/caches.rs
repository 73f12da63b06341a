// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hosts with caches of their own. Others see what a host stores once its cache writes the line back, and a host sees what others have
//! stored once its cache has dropped the line.
//!
//! Caches do that when they are asked to, and at any other time; so a run is a sequence of choices. At each access to a line that both hosts
//! use, the other host may go on, and the caches may write the line back or drop it. When a line gets to the memory, the other cache may have
//! fetched it just before. What a cache is asked to write back it may keep until the host issues a full fence or has slept, or until the cache
//! writes back something that was stored later. While a host sleeps the other one may stand still, but not between looking at a word that it
//! exchanges and showing the new one: that is what nodes that claim a slot rely on.

mod state;

use crate::{
    check,
    cold::{pieces, Cold},
    explore::Choices,
    Hosts, Setup,
};
use nupa_pool::{Poisoned, Time, Window};
use state::{Cache, State};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    fmt,
    panic::{catch_unwind, AssertUnwindSafe},
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

/// Such hosts.
pub type Caches = Faulty<NO_FAULT>;

/// Such hosts, whose caches do not do all that they are asked for.
pub struct Faulty<const FAULT: u8>;

const NO_FAULT: u8 = 0;
/// They write nothing back when asked to.
const NO_WRITE_BACK: u8 = 1;
/// They drop nothing when asked to.
const NO_DROP: u8 = 2;
/// They keep what they were asked to write back when there is a full fence.
const NO_FENCE: u8 = 3;

/// What is kept from one run to the next.
struct Exploration {
    choices: Choices,
    /// Lines that both hosts use, and at least one writes.
    shared: BTreeSet<u64>,
    /// Nothing is chosen but who begins; it is found out which lines are shared.
    learns: bool,
    /// A line that turned out to be shared later on. Then all begins anew.
    missed: Option<u64>,
    /// What happens in the run, if it is made to be read.
    trace: Option<Vec<String>>,
}

thread_local! {
    /// That of the test that this thread runs.
    static EXPLORATION: RefCell<Option<Arc<Mutex<Exploration>>>> = const { RefCell::new(None) };
    /// Number of the host that this thread is.
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

impl<const FAULT: u8> Hosts for Faulty<FAULT> {
    type Host = Host<FAULT>;
    type Clock = Host<FAULT>;
    const COHERENT: bool = false;

    fn check(setup: Setup, body: fn(&Setup)) {
        match (FAULT, explore(&setup, body)) {
            (NO_FAULT, Ok(runs)) => println!("{runs} runs"),
            (NO_FAULT, Err(failure)) => panic!("{failure}"),
            (_, Ok(runs)) => panic!("not found in {runs} runs"),
            // Without any write-back nothing works, but the others show in some runs only.
            (_, Err(failure)) => {
                assert!(FAULT == NO_WRITE_BACK || !failure.learned, "{failure}");
                assert!(failure.message.contains("nobody wakes it"), "{failure}");
            }
        }
    }

    fn map(cold: Cold, _: &[u64]) -> [Arc<Host<FAULT>>; 2] {
        Self::map_with(cold, Default::default())
    }

    fn clock(host: &Arc<Host<FAULT>>) -> Host<FAULT> {
        Host::clone(host)
    }

    fn run<A: Send + 'static, B: Send>(
        [first, second]: &[Arc<Host<FAULT>>; 2],
        one: impl FnOnce(&Host<FAULT>) -> A + Send + 'static,
        other: impl FnOnce(&Host<FAULT>) -> B + Send,
    ) -> (A, B) {
        first.world.begin();
        let results = std::thread::scope(|scope| {
            let one = scope.spawn(|| first.as_thread(|| one(first)));
            let other = scope.spawn(|| second.as_thread(|| other(second)));
            (one.join(), other.join())
        });
        first.world.end();
        match results {
            (Ok(one), Ok(other)) => (one, other),
            (Err(panic), _) | (_, Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl<const FAULT: u8> Faulty<FAULT> {
    /// As [`Hosts::map`], where the caches have each line as it was in `old`. Lines at `dirty` were stored to by that host, and not written back.
    pub fn map_over(cold: Cold, old: Arc<Cold>, dirty: [&[u64]; 2]) -> [Arc<Host<FAULT>>; 2] {
        let caches = dirty.map(|dirty| Cache::with_old_lines(old.clone(), dirty));
        Self::map_with(cold, caches)
    }

    fn map_with(cold: Cold, caches: [Cache; 2]) -> [Arc<Host<FAULT>>; 2] {
        let exploration = EXPLORATION.with_borrow(|current| current.clone().unwrap());
        let world = Arc::new(World {
            state: Mutex::new(State {
                cold,
                caches,
                now: 0,
                threads: None,
                running: 0,
                used: Default::default(),
                exchanging: [false; 2],
                exploration,
            }),
            turn: Condvar::new(),
        });
        [0, 1].map(|number| {
            let world = world.clone();
            Arc::new(Host { world, number })
        })
    }
}

/// A run in which something is wrong.
struct Failure {
    /// While it was found out which lines are shared.
    learned: bool,
    message: String,
    trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, after\n{}", self.message, self.trace.join("\n"))
    }
}

/// Runs `body` once. The error is what it panicked with.
fn attempt(setup: &Setup, body: fn(&Setup)) -> Result<(), String> {
    let result = catch_unwind(AssertUnwindSafe(|| body(setup)));
    result.map_err(|panic| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic
            .downcast::<&str>()
            .map_or(String::new(), |message| message.to_string()),
    })
}

/// Runs `body` in all ways; how many there are. In a plain run one host runs before the other, as far as neither sleeps, and caches do
/// what they are asked for, and nothing else.
fn explore(setup: &Setup, body: fn(&Setup)) -> Result<usize, Failure> {
    let exploration = Arc::new(Mutex::new(Exploration {
        choices: Choices::new(0),
        shared: BTreeSet::new(),
        learns: true,
        missed: None,
        trace: None,
    }));
    EXPLORATION.set(Some(exploration.clone()));
    let lock = || {
        exploration
            .lock()
            .unwrap_or_else(|error| error.into_inner())
    };
    let mut runs = 0;
    loop {
        if let Err(message) = attempt(setup, body) {
            lock().choices.rewind();
            lock().trace = Some(Vec::new());
            let _ = attempt(setup, body);
            let mut exploration = lock();
            return Err(Failure {
                learned: exploration.learns,
                message,
                trace: exploration.trace.take().unwrap_or_default(),
            });
        }
        let missed = lock().missed.take();
        if let Some(line) = missed {
            let exploration = &mut *lock();
            exploration.shared.insert(line);
            exploration.choices = Choices::new(setup.bound);
            runs = 0;
            continue;
        }
        runs += usize::from(!lock().learns);
        if lock().choices.next_run() {
            continue;
        }
        if !std::mem::take(&mut lock().learns) {
            return Ok(runs);
        }
        lock().choices = Choices::new(setup.bound);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Thread {
    Ready,
    Asleep(u64),
    Done,
}

impl State {
    fn wake(&mut self) {
        let now = self.now;
        for thread in self.threads.iter_mut().flatten() {
            if matches!(thread, Thread::Asleep(until) if *until <= now) {
                *thread = Thread::Ready;
            }
        }
    }

    /// Lets another host run, or this one if the others are done.
    fn leave(&mut self) {
        let Some(threads) = self.threads else {
            return;
        };
        let wakes = |thread: usize| match threads[thread] {
            Thread::Ready => Some((self.now, thread)),
            Thread::Asleep(until) => Some((until, thread)),
            Thread::Done => None,
        };
        let other = 1 - self.running;
        let next = [other, self.running].map(wakes).into_iter().flatten();
        if let Some((until, next)) = next.min_by_key(|(until, _)| *until) {
            (self.now, self.running) = (self.now.max(until), next);
            self.wake();
        }
    }

    /// Whether the other host goes on before this one accesses a line.
    fn switches(&self, at: u64) -> bool {
        let other = self.threads.map(|threads| threads[1 - self.running]);
        other == Some(Thread::Ready) && self.choose(at, 2) == 1
    }
}

struct World {
    state: Mutex<State>,
    turn: Condvar,
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Begins to run the hosts against each other; either may be the first.
    fn begin(&self) {
        let state = &mut *self.lock();
        state.threads = Some([Thread::Ready; 2]);
        let first = state.exploration().choices.choose_freely(2);
        state.running = first;
    }

    /// Both are done, and what their caches were asked for as well.
    fn end(&self) {
        let state = &mut *self.lock();
        state.threads = None;
        [0, 1].map(|host| state.settle_all(host));
        let [first, second] = &state.used;
        let written = |(at, wrote): (&u64, &bool)| match second.get(at) {
            Some(too) if *too || *wrote => Some(*at),
            _ => None,
        };
        let mut exploration = state.exploration();
        for line in first.iter().filter_map(written) {
            match exploration.learns {
                true => drop(exploration.shared.insert(line)),
                false if exploration.shared.contains(&line) => {}
                false => exploration.missed = Some(line),
            }
        }
    }
}

/// A host.
#[derive(Clone)]
pub struct Host<const FAULT: u8> {
    world: Arc<World>,
    number: usize,
}

impl<const FAULT: u8> Host<FAULT> {
    /// Does what this host does when it runs against the other.
    fn as_thread<R>(&self, body: impl FnOnce() -> R) -> R {
        THREAD.set(self.number);
        let _done = Done(&self.world);
        drop(self.wait(self.world.lock()));
        body()
    }

    /// The word at an offset.
    fn look(&self, offset: u64) -> Result<u64, Poisoned> {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Waits until this thread is the one that runs.
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.threads.is_some() && state.running != THREAD.get() {
            let waited = self.world.turn.wait(state);
            state = waited.unwrap_or_else(|error| error.into_inner());
        }
        state
    }

    /// Lets other things happen, and then accesses a line.
    fn access(&self, at: u64, writes: bool) -> MutexGuard<'_, State> {
        let mut state = self.world.lock();
        while state.switches(at) {
            state.trace(self.number, "stands still before it uses", at);
            state.running = 1 - state.running;
            self.world.turn.notify_all();
            state = self.wait(state);
        }
        state.now += 1;
        state.wake();
        if state.threads.is_some() {
            *state.used[self.number].entry(at).or_default() |= writes;
        }
        state.act_unasked(self.number, at, writes);
        state.trace(self.number, if writes { "writes" } else { "reads" }, at);
        state
    }
}

/// Lets the other host run when one is done, however it ends.
struct Done<'a>(&'a World);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if let Some(threads) = &mut state.threads {
            threads[THREAD.get()] = Thread::Done;
        }
        state.leave();
        self.0.turn.notify_all();
    }
}

impl<const FAULT: u8> Window for Host<FAULT> {
    fn len(&self) -> u64 {
        self.world.lock().cold.len()
    }

    fn is_coherent(&self) -> bool {
        false
    }

    fn load(&self, offset: u64) -> Result<u64, Poisoned> {
        let found = self.look(offset);
        self.world.lock().exchanging[THREAD.get()] = false;
        found
    }

    fn store(&self, offset: u64, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned> {
        // Not atomic at all.
        self.world.lock().exchanging[THREAD.get()] = true;
        let same = self.look(offset)? == current;
        if same {
            self.store(offset, new);
        }
        Ok(same)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Poisoned> {
        for (line, start, at, count) in pieces(offset, buf.len()) {
            let mut state = self.access(line, false);
            let line = state.line(self.number, line);
            buf[at..at + count].copy_from_slice(&line.bytes[start..start + count]);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        for (line, start, at, count) in pieces(offset, bytes.len()) {
            let mut state = self.access(line, true);
            let now = state.now;
            let line = state.line(self.number, line);
            line.bytes[start..start + count].copy_from_slice(&bytes[at..at + count]);
            line.dirty = Some(now);
        }
    }

    fn publish(&self, offset: u64, len: u64) {
        if FAULT == NO_WRITE_BACK {
            return;
        }
        let mut state = self.world.lock();
        for (line, ..) in pieces(offset, len as usize) {
            state.ask(self.number, line);
        }
        state.exchanging[THREAD.get()] = false;
        let shared = |line: &u64| state.exploration().shared.contains(line);
        let line = pieces(offset, len as usize)
            .map(|(line, ..)| line)
            .find(shared);
        if line.is_none_or(|line| state.choose(line, 2) == 0) {
            state.settle_all(self.number);
        }
    }

    fn refresh(&self, offset: u64, len: u64) {
        if FAULT == NO_DROP {
            return;
        }
        let mut state = self.world.lock();
        state.exchanging[THREAD.get()] = true;
        for (line, ..) in pieces(offset, len as usize) {
            state.evict(self.number, line);
        }
    }

    fn fence(&self) {
        if FAULT == NO_FENCE {
            return;
        }
        self.world.lock().settle_all(self.number);
    }
}

impl<const FAULT: u8> Time for Host<FAULT> {
    fn now_us(&self) -> u64 {
        self.world.lock().now
    }

    /// What was stored and published before is in the memory afterwards.
    fn sleep_us(&self, us: u64) {
        let own = THREAD.get();
        let mut state = self.world.lock();
        let until = state.now + us;
        let other = state.threads.map(|threads| threads[1 - own]);
        let may_stand = other == Some(Thread::Ready) && !state.exchanging[1 - own];
        if other.is_none() || may_stand && state.choose_anywhere(2) == 1 {
            state.now = until;
            state.wake();
        } else if let Some(threads) = &mut state.threads {
            threads[own] = Thread::Asleep(until);
            state.leave();
            self.world.turn.notify_all();
            state = self.wait(state);
        }
        [own, 1 - own].map(|host| state.settle_all(host));
    }
}

/// That all of this finds something.
mod self_checks {
    use super::{check, Faulty, NO_DROP, NO_FENCE, NO_WRITE_BACK};
    use crate::rings::hand_over;

    #[test]
    fn a_cache_that_does_not_write_back_is_found() {
        check::<Faulty<NO_WRITE_BACK>>(hand_over::<Faulty<NO_WRITE_BACK>, true>);
    }

    #[test]
    fn a_cache_that_does_not_drop_is_found() {
        check::<Faulty<NO_DROP>>(hand_over::<Faulty<NO_DROP>, true>);
    }

    #[test]
    fn a_cache_that_keeps_lines_past_a_fence_is_found() {
        check::<Faulty<NO_FENCE>>(hand_over::<Faulty<NO_FENCE>, true>);
    }
}
