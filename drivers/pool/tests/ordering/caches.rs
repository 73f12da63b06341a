// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hosts with caches of their own. Others see what a host stores once its cache writes the line back, and a host sees what others have
//! stored once its cache has dropped the line.
//!
//! Caches do that when they are told to, and whenever they like; so a run is a sequence of choices. At each access to a line that both hosts
//! use, the other host may go on, and each cache may drop such a line or fetch one. What a cache is told to write back it may keep until the
//! host issues a full fence or sleeps, or until the cache writes back something that was stored later.

mod state;

use crate::{
    check,
    cold::{pieces, Cold},
    explore::Choices,
    Hosts, Setup,
};
use nupa_pool::{Poisoned, Time, Window};
use nupa_proto::pool::LINE;
use state::State;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    panic::{catch_unwind, AssertUnwindSafe},
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

/// Such hosts.
pub type Caches = Forgetful<NOTHING>;

/// Such hosts, whose caches do not do all that they are told.
pub struct Forgetful<const WHAT: u8>;

pub const NOTHING: u8 = 0;
/// They write nothing back when told to.
const WRITE_BACK: u8 = 1;
/// They drop nothing when told to.
const DROP: u8 = 2;
/// They do not write all back at a full fence.
const FENCE: u8 = 3;

/// Choices of a run that may be other than the plain ones, in which one host runs before the other, and caches do what they are told to.
const BOUND: usize = 3;

/// What is kept from one run to the next.
struct Exploration {
    choices: Choices,
    /// Lines that both hosts use, and at least one writes.
    shared: BTreeSet<u64>,
    /// Nothing is chosen but who begins; it is found out which lines are shared.
    learns: bool,
}

thread_local! {
    /// That of the test that this thread runs.
    static EXPLORATION: RefCell<Option<Arc<Mutex<Exploration>>>> = const { RefCell::new(None) };
    /// Number of the host that this thread is.
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

impl<const WHAT: u8> Hosts for Forgetful<WHAT> {
    type Host = Host<WHAT>;
    type Clock = Host<WHAT>;
    const COHERENT: bool = false;

    fn check(setup: Setup, body: fn(&Setup)) {
        let found = explore(&setup, body);
        match WHAT {
            NOTHING => println!("{} runs", found.unwrap()),
            _ => assert!(found.is_err(), "the test does not need what they forget"),
        }
    }

    fn map(cold: Cold, _: &[u64]) -> [Arc<Host<WHAT>>; 2] {
        let exploration = EXPLORATION.with_borrow(|current| current.clone().unwrap());
        let world = Arc::new(World {
            state: Mutex::new(State {
                cold,
                caches: Default::default(),
                now: 0,
                threads: None,
                running: 0,
                used: Default::default(),
                exploration,
            }),
            turn: Condvar::new(),
        });
        [0, 1].map(|number| {
            let world = world.clone();
            Arc::new(Host { world, number })
        })
    }

    fn clock(host: &Arc<Host<WHAT>>) -> Host<WHAT> {
        Host::clone(host)
    }

    fn run<A: Send + 'static, B: Send>(
        [first, second]: &[Arc<Host<WHAT>>; 2],
        one: impl FnOnce(&Host<WHAT>) -> A + Send + 'static,
        other: impl FnOnce(&Host<WHAT>) -> B + Send,
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

/// Runs `body` in all ways; how many there are. The error says in which one it panicked.
fn explore(setup: &Setup, body: fn(&Setup)) -> Result<usize, String> {
    let exploration = Arc::new(Mutex::new(Exploration {
        choices: Choices::new(0),
        shared: BTreeSet::new(),
        learns: true,
    }));
    EXPLORATION.set(Some(exploration.clone()));
    let lock = || exploration.lock().unwrap();
    for runs in 1.. {
        if catch_unwind(AssertUnwindSafe(|| body(setup))).is_err() {
            return Err(format!(
                "in run {runs}, with {:?}",
                lock().choices.deviations()
            ));
        }
        if lock().choices.next_run() {
            continue;
        }
        if !std::mem::take(&mut lock().learns) {
            return Ok(runs);
        }
        lock().choices = Choices::new(BOUND);
    }
    Ok(0)
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
        state.running = state.exploration.lock().unwrap().choices.choose_freely(2);
    }

    /// Both are done, and what their caches were told to do as well.
    fn end(&self) {
        let state = &mut *self.lock();
        state.threads = None;
        [0, 1].map(|host| state.settle_all(host));
        let [first, second] = &state.used;
        let written = |(at, wrote): (&u64, &bool)| match second.get(at) {
            Some(too) if *too || *wrote => Some(*at),
            _ => None,
        };
        let mut exploration = state.exploration.lock().unwrap();
        if exploration.learns {
            exploration.shared.extend(first.iter().filter_map(written));
        }
    }
}

/// A host.
#[derive(Clone)]
pub struct Host<const WHAT: u8> {
    world: Arc<World>,
    number: usize,
}

impl<const WHAT: u8> Host<WHAT> {
    /// Does what this host does when it runs against the other.
    fn as_thread<R>(&self, body: impl FnOnce() -> R) -> R {
        THREAD.set(self.number);
        let _done = Done(&self.world);
        drop(self.wait(self.world.lock()));
        body()
    }

    /// Waits until this thread is the one that runs.
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.threads.is_some() && state.running != THREAD.get() {
            let waited = self.world.turn.wait(state);
            state = waited.unwrap_or_else(|error| error.into_inner());
        }
        state
    }

    /// Lets other things happen, then accesses a line.
    fn access(&self, at: u64, writes: bool) -> MutexGuard<'_, State> {
        let mut state = self.world.lock();
        while state.switches(at) {
            state.running = 1 - state.running;
            self.world.turn.notify_all();
            state = self.wait(state);
        }
        state.now += 1;
        state.wake();
        if state.threads.is_some() {
            *state.used[self.number].entry(at).or_default() |= writes;
        }
        state.stir(self.number, at, writes);
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

impl<const WHAT: u8> Window for Host<WHAT> {
    fn len(&self) -> u64 {
        self.world.lock().cold.len()
    }

    fn is_coherent(&self) -> bool {
        false
    }

    fn load(&self, offset: u64) -> Result<u64, Poisoned> {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&self, offset: u64, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned> {
        // Not atomic at all.
        let same = self.load(offset)? == current;
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
        if WHAT == WRITE_BACK {
            return;
        }
        let mut state = self.world.lock();
        for (line, ..) in pieces(offset, len as usize) {
            state.tell(self.number, line);
        }
        if state.choose(offset - offset % LINE, 2) == 0 {
            state.settle_all(self.number);
        }
    }

    fn refresh(&self, offset: u64, len: u64) {
        if WHAT == DROP {
            return;
        }
        let mut state = self.world.lock();
        for (line, ..) in pieces(offset, len as usize) {
            state.evict(self.number, line);
        }
    }

    fn fence(&self) {
        if WHAT == FENCE {
            return;
        }
        self.world.lock().settle_all(self.number);
    }
}

impl<const WHAT: u8> Time for Host<WHAT> {
    fn now_us(&self) -> u64 {
        self.world.lock().now
    }

    /// What hosts rely on that cannot exchange words atomically: what was stored and told before is seen after a sleep.
    fn sleep_us(&self, us: u64) {
        let mut state = self.world.lock();
        [0, 1].map(|host| state.settle_all(host));
        let until = state.now + us;
        match &mut state.threads {
            None => state.now = until,
            Some(threads) => {
                threads[THREAD.get()] = Thread::Asleep(until);
                state.leave();
                self.world.turn.notify_all();
                drop(self.wait(state));
            }
        }
    }
}

/// What the caches are told is needed: the tests find it out if that is not done.
mod needed {
    use super::{check, Forgetful, DROP, FENCE, WRITE_BACK};
    use crate::rings::hand_over;

    #[test]
    fn writing_back() {
        check::<Forgetful<WRITE_BACK>>(hand_over::<Forgetful<WRITE_BACK>, true>);
    }

    #[test]
    fn dropping() {
        check::<Forgetful<DROP>>(hand_over::<Forgetful<DROP>, true>);
    }

    #[test]
    fn fences() {
        check::<Forgetful<FENCE>>(hand_over::<Forgetful<FENCE>, true>);
    }
}
