// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A pool in memory, and hosts that map it: with coherent caches, or with caches of their own.
//!
//! Hosts may be run as threads, of which one runs at a time; who goes on is drawn at each access to the pool, from a seed.
//! Time is virtual: it goes on by itself, and jumps when all hosts sleep.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(
    clippy::arithmetic_side_effects,
    dead_code,
    reason = "as above; each test uses some"
)]

pub use nupa_testing::caches::Random;

use nupa_pool::{
    Blocked, Body, FormatOptions, JoinOptions, Link, Membership, Message, Outgoing, Poisoned, Pool,
    Reservation, Sender, Time, Window,
};
use nupa_proto::{
    pool::{
        message::{FrameBody, NotifyBody, RequestBody, ResponseBody, ENTRY_SIZE},
        Class, Superblock, CAP_POOL_LINES, LINK_RINGS, MIN_LOG_BULK, SHORT_LOG_BULK,
    },
    wqe::Opcode,
};
use nupa_testing::caches::Memory;
use std::{
    collections::BTreeMap,
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc, Condvar, Mutex, MutexGuard,
    },
};
use zerocopy::FromZeros;

/// Microseconds that an access takes.
const ACCESS_US: u64 = 1;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Thread {
    Ready,
    Asleep(u64),
    Done,
}

struct State {
    memory: Memory,
    random: Random,
    now: u64,
    threads: Vec<Thread>,
    running: usize,
}

impl State {
    /// Lets a thread run; which one, is drawn.
    fn switch(&mut self) {
        loop {
            let now = self.now;
            for thread in &mut self.threads {
                if matches!(thread, Thread::Asleep(until) if *until <= now) {
                    *thread = Thread::Ready;
                }
            }
            let ready = |t: &&usize| self.threads[**t] == Thread::Ready;
            let all: Vec<usize> = (0..self.threads.len()).collect();
            let ready: Vec<usize> = all.iter().filter(ready).copied().collect();
            if !ready.is_empty() {
                self.running = ready[self.random.below(ready.len() as u64) as usize];
                return;
            }
            let wakes = self.threads.iter().filter_map(|t| match t {
                Thread::Asleep(until) => Some(*until),
                _ => None,
            });
            let Some(first) = wakes.min() else { return };
            self.now = first;
        }
    }
}

/// What a host does.
pub type Run<'a, R> = Box<dyn FnOnce(Host) -> R + Send + 'a>;

/// Makes each function, which takes whether entries are of lines, two tests.
#[macro_export]
macro_rules! both_formats {
    ($($test:ident),+ $(,)?) => {
        mod entries_of_256_bytes {
            $(#[test] fn $test() { super::$test(false); })+
        }
        mod entries_of_lines {
            $(#[test] fn $test() { super::$test(true); })+
        }
    };
}

/// The pool and its hosts.
pub struct World {
    state: Mutex<State>,
    turn: Condvar,
    /// Nodes that join know entries of lines.
    in_lines: AtomicBool,
}

impl World {
    /// A pool of zeroes with `hosts` hosts.
    pub fn new(size: usize, hosts: usize, coherent: bool, seed: u64) -> Arc<Self> {
        let state = State {
            memory: Memory::new(size, if coherent { 0 } else { hosts }, seed),
            random: Random(seed),
            now: 0,
            threads: Vec::new(),
            running: 0,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            turn: Condvar::new(),
            in_lines: AtomicBool::new(false),
        })
    }

    /// Whether nodes that join from now on know entries of lines.
    pub fn know_lines(&self, known: bool) {
        self.in_lines.store(known, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A host.
    pub fn host(self: &Arc<Self>, number: usize) -> Host {
        Host {
            world: self.clone(),
            number,
        }
    }

    /// Runs hosts as threads, in an order that is drawn.
    pub fn run<'a, R: Send + 'a>(self: &Arc<Self>, hosts: Vec<Run<'a, R>>) -> Vec<R> {
        self.lock().threads = vec![Thread::Ready; hosts.len()];
        let results = std::thread::scope(|scope| {
            let spawn = |(number, body): (usize, Run<'a, R>)| {
                let host = self.host(number);
                scope.spawn(move || {
                    let done = Done(host.clone());
                    drop(host.wait(host.world.lock()));
                    let result = body(host);
                    drop(done);
                    result
                })
            };
            let threads: Vec<_> = hosts.into_iter().enumerate().map(spawn).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        self.lock().threads.clear();
        results
    }

    /// Overwrites bytes of the pool behind everybody's back.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.lock();
        let at = offset as usize;
        state.memory.bytes()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Looks at bytes of the pool.
    pub fn peek<const N: usize>(&self, offset: u64) -> [u8; N] {
        let at = offset as usize;
        self.lock().memory.bytes()[at..at + N].try_into().unwrap()
    }

    /// Poisons the line of an offset.
    pub fn poison(&self, offset: u64) {
        self.lock().memory.poison(offset);
    }

    /// Repairs the line of an offset, which is zero then.
    pub fn poke_whole(&self, offset: u64) {
        let line = offset / 64 * 64;
        self.lock().memory.write(0, line, &[0; 64]);
    }

    /// Lets time pass.
    pub fn pass(&self, us: u64) {
        self.lock().now += us;
    }
}

/// Lets the next thread run when one is done, however it ends.
struct Done(Host);

impl Drop for Done {
    fn drop(&mut self) {
        let mut state = self.0.world.lock();
        state.threads[self.0.number] = Thread::Done;
        state.switch();
        self.0.world.turn.notify_all();
    }
}

/// A host that maps the pool.
#[derive(Clone)]
pub struct Host {
    pub world: Arc<World>,
    number: usize,
}

impl Host {
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while !state.threads.is_empty() && state.running != self.number {
            state = self
                .world
                .turn
                .wait(state)
                .unwrap_or_else(|e| e.into_inner());
        }
        state
    }

    /// Waits for its turn to touch the pool.
    fn turn(&self) -> MutexGuard<'_, State> {
        let mut state = self.world.lock();
        state.now += ACCESS_US;
        if !state.threads.is_empty() && state.random.below(4) == 0 {
            state.switch();
            if state.running != self.number {
                self.world.turn.notify_all();
                state = self.wait(state);
            }
        }
        state
    }

    /// Whether a node that joins from now on knows entries of lines.
    pub fn knows_lines(&self) -> bool {
        self.world.in_lines.load(Ordering::SeqCst)
    }

    /// What a node of this host wants.
    pub fn wishes(&self, token: u64) -> JoinOptions {
        JoinOptions {
            capabilities: if self.knows_lines() {
                CAP_POOL_LINES
            } else {
                0
            },
            ..JoinOptions::new(token)
        }
    }

    pub fn attach(&self, options: &Options) -> Result<Pool, nupa_pool::Refusal> {
        Pool::attach_or_format(self, self, &options.pool, |_| options.format)
    }

    /// Copies payload to its place.
    pub fn fill(&self, reservation: &Reservation, bytes: &[u8]) {
        assert_eq!(
            reservation.payload.end - reservation.payload.start,
            bytes.len() as u64
        );
        self.write(reservation.payload.start, bytes);
    }

    /// Reads a message's payload.
    pub fn payload(&self, message: &Message) -> Vec<u8> {
        let mut bytes = vec![0; message.payload_len() as usize];
        self.read(message.payload.start, &mut bytes).unwrap();
        bytes
    }

    /// Sends an entry, behind nothing in the ring of short messages.
    pub fn send(
        &self,
        sender: &mut Sender,
        message: &Outgoing<'_>,
        bytes: &[u8],
        offset: u32,
    ) -> Result<(), Blocked> {
        let place = sender.reserve(self, bytes.len() as u32)?;
        self.fill(&place, bytes);
        sender.commit(self, place, message, offset, 0).unwrap();
        Ok(())
    }
}

fn check(state: &State, offset: u64, len: usize) -> Result<(), Poisoned> {
    let bad = state.memory.poisoned(offset, len);
    bad.map_or(Ok(()), |offset| Err(Poisoned { offset }))
}

impl Window for Host {
    fn len(&self) -> u64 {
        self.world.lock().memory.size() as u64
    }

    fn is_coherent(&self) -> bool {
        self.world.lock().memory.is_coherent()
    }

    fn load(&self, offset: u64) -> Result<u64, Poisoned> {
        let mut bytes = [0; 8];
        assert_eq!(offset % 8, 0);
        self.read(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&self, offset: u64, value: u64) {
        assert_eq!(offset % 8, 0);
        self.turn()
            .memory
            .write(self.number, offset, &value.to_le_bytes());
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned> {
        if !self.is_coherent() {
            // Not atomic at all.
            let same = self.load(offset)? == current;
            if same {
                self.store(offset, new);
            }
            return Ok(same);
        }
        let mut state = self.turn();
        check(&state, offset, 8)?;
        let mut bytes = [0; 8];
        state.memory.read(self.number, offset, &mut bytes);
        let same = u64::from_le_bytes(bytes) == current;
        if same {
            state.memory.write(self.number, offset, &new.to_le_bytes());
        }
        Ok(same)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Poisoned> {
        let mut state = self.turn();
        check(&state, offset, buf.len())?;
        state.memory.read(self.number, offset, buf);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.turn().memory.write(self.number, offset, bytes);
    }

    fn publish(&self, offset: u64, len: u64) {
        self.turn().memory.publish(self.number, offset, len);
    }

    fn refresh(&self, offset: u64, len: u64) {
        self.turn().memory.refresh(self.number, offset, len);
    }

    fn fence(&self) {}
}

impl Time for Host {
    fn now_us(&self) -> u64 {
        self.world.lock().now
    }

    fn sleep_us(&self, us: u64) {
        let mut state = self.world.lock();
        if state.threads.is_empty() {
            state.now += us;
            return;
        }
        state.threads[self.number] = Thread::Asleep(state.now + us);
        state.switch();
        self.world.turn.notify_all();
        drop(self.wait(state));
    }
}

/// Bytes of the smallest pool for two nodes, and for three.
pub const SMALL: usize = 4 << 20;
pub const MEDIUM: usize = 10 << 20;

/// What a host does where there is no pool.
pub struct Options {
    pub format: bool,
    pub pool: FormatOptions,
}

pub fn options(format: bool, max_nodes: u16, token: u64) -> Options {
    Options {
        format,
        pool: FormatOptions::new(max_nodes, token),
    }
}

/// A node that takes part.
pub struct Node {
    pub host: Host,
    pub member: Membership,
    pub links: BTreeMap<u16, Link>,
}

impl Node {
    /// Attaches, joins and is enabled.
    pub fn new(host: &Host, max_nodes: u16, token: u64) -> Self {
        let pool = host.attach(&options(true, max_nodes, token)).unwrap();
        Self::join(host, &pool, &host.wishes(token))
    }

    pub fn join(host: &Host, pool: &Pool, options: &JoinOptions) -> Self {
        let mut member = pool.join(host, host, options).unwrap();
        member.enable(host);
        Self {
            host: host.clone(),
            member,
            links: BTreeMap::new(),
        }
    }

    /// Looks around, and makes and forgets links.
    pub fn tick(&mut self) -> nupa_pool::Events {
        let events = self.member.tick(&self.host, self.host.now_us());
        for node in events.down.iter() {
            self.links.remove(&node);
        }
        for node in events.up.iter() {
            let link = self.member.open(&self.host, node).unwrap();
            self.links.insert(node, link);
        }
        events
    }

    pub fn link(&mut self, node: u16) -> &mut Link {
        self.links.get_mut(&node).unwrap()
    }

    /// Numbers of the requests to a node that are done because they were taken out.
    pub fn done(&mut self, node: u16, responses: Class) -> Vec<u32> {
        let host = self.host.clone();
        let link = self.link(node);
        let mut found = Vec::new();
        while let Some(message) = link.next(&host, responses).unwrap() {
            let Body::Done(done) = message.body else {
                panic!("nobody has answered");
            };
            found.push(done.sequence);
            link.release(&host, responses);
        }
        found
    }
}

/// Lets some rounds of heartbeats pass.
pub fn settle(nodes: &mut [&mut Node]) {
    for _ in 0..4 {
        let world = nodes[0].host.world.clone();
        world.pass(nupa_proto::pool::HEARTBEAT_US);
        for node in nodes.iter_mut() {
            node.tick();
        }
    }
}

/// Nodes 0 and 1 of one pool, linked.
pub fn pair(coherent: bool, seed: u64) -> (Arc<World>, Node, Node) {
    pair_of(World::new(SMALL, 2, coherent, seed))
}

/// The same, whose rings have entries of lines or not.
pub fn pair_in(in_lines: bool) -> (Arc<World>, Node, Node) {
    let world = World::new(SMALL, 2, true, 1);
    world.know_lines(in_lines);
    pair_of(world)
}

fn pair_of(world: Arc<World>) -> (Arc<World>, Node, Node) {
    let mut a = Node::new(&world.host(0), 2, 1);
    let mut b = Node::new(&world.host(1), 2, 2);
    settle(&mut [&mut a, &mut b]);
    assert!(a.links.contains_key(&1) && b.links.contains_key(&0));
    (world, a, b)
}

/// Where a ring lies, worked out anew from what the superblock says.
pub struct Ring {
    /// The word of the ring in the producer's line; the others are in the lines behind.
    pub word: u64,
    /// Entries.
    pub entries: u64,
    pub log_entries: u8,
    /// Payload area.
    pub payload: u64,
    pub end: u64,
}

pub fn ring(block: &Superblock, source: u16, target: u16, class: Class) -> Ring {
    let others = u64::from(block.max_nodes.get()) - 1;
    let before = u64::from(target) - u64::from(target > source);
    let pair = u64::from(source) * others + before;
    let link = block.rings.get() + pair * block.ring_stride.get();
    let number = class as u64;
    let entries = (1u64 << block.log_entries) * ENTRY_SIZE;
    let len = |class: Class| {
        let log_bulk = match class {
            Class::Frame => block.log_bulk,
            Class::Request | Class::Response => (block.log_bulk - 1).max(MIN_LOG_BULK),
            Class::ShortRequest | Class::ShortResponse => SHORT_LOG_BULK,
        };
        entries + (1 << log_bulk)
    };
    let before = Class::ALL
        .iter()
        .take_while(|other| **other as u64 != number);
    let at = link + LINK_RINGS + before.map(|other| len(*other)).sum::<u64>();
    Ring {
        word: link + 8 * number,
        entries: at,
        log_entries: block.log_entries,
        payload: at + entries,
        end: at + len(class),
    }
}

/// A request whose payload has `len` bytes.
pub fn write_request(len: u32, sequence: u32) -> RequestBody {
    let mut body = RequestBody::new_zeroed();
    body.opcode = Opcode::Write.to_wire();
    body.len.set(len);
    body.sequence.set(sequence);
    body
}

pub fn response(sequence: u32) -> ResponseBody {
    let mut body = ResponseBody::new_zeroed();
    body.sequence.set(sequence);
    body
}

pub fn frame(qpn: u32) -> FrameBody {
    let mut body = FrameBody::new_zeroed();
    body.source_qpn.set(qpn);
    body
}

pub fn notify(qpn: u32) -> NotifyBody {
    let mut body = NotifyBody::new_zeroed();
    body.qpn.set(qpn);
    body
}

/// Sequence of a request.
pub fn sequence(message: &Message) -> u32 {
    match &message.body {
        Body::Request(_, body) => body.sequence.get(),
        other => panic!("no request: {other:?}"),
    }
}

/// Virtual time.
pub fn now(host: &Host) -> u64 {
    host.now_us()
}
