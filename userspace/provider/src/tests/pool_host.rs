// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What messages cost between two hosts of a pool that both poll: two processes, each with a core, the provider, the engine and a pool in memory that
//! both map. No kernel and no virtual machine has a part in it.
//!
//! As a test it checks that the two understand each other. `make bench BENCH=pool-host` measures: with more rounds, on a quiet machine. It prints one
//! line of JSON; times are in nanoseconds.

mod measurements;

use std::cell::RefCell;
use std::env;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use guestmem::{GuestMemory, MmapRegion};
use nupa_pool::{FormatOptions, Survey};
use nupa_poolmem::{HostTime, PoolMemory};
use nupa_poolnode::{MappedRegion, PoolProcess};
use nupa_proto::admin::{ACCESS_ALL, RNR_RETRY_FOREVER};
use nupa_proto::regs::DEVICE_MEMORY_BASE;
use rustix::process::{getppid, set_parent_process_death_signal, Signal};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

use super::common::guest::{Bars, Guest, Irqs, RAM_SIZE};
use super::common::DOORBELL_PAGES;
use super::node::{pattern, Kicks, Node, Shape, TestCq, TestQp, LEN};
use super::rings::Rings;
use crate::ffi::testing::{no_completion, recv, send, sys, SendExt};

/// Bytes of the pool, and of what the processes tell each other beside it.
const POOL: usize = 64 << 20;
const BOARD: usize = 4096;
/// What tells the second process which it is, and where the memory is.
const PEER: &str = "NUPA_POOL_HOST_PEER";
/// How long one side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(30);
/// WRITEs after which a region is mapped that can be.
const MAPPED_BY: u64 = 1000;
/// Looks that find nothing between two looks at the clock.
const EMPTY: u64 = 1 << 16;
/// Bytes of the largest message.
const BULK: u32 = LEN as u32;
/// What is sent inline.
static SMALL_DATA: [u8; 8] = [7; 8];
/// Messages under way.
const WINDOW: u64 = 32;
const INLINE: u32 = sys::IBV_SEND_INLINE;
const SIGNALED: u32 = sys::IBV_SEND_SIGNALED;
/// Says how many round trips times are measured in; a few, if it does not.
const ROUNDS: &str = "NUPA_POOL_HOST_ROUNDS";
const FEW: u64 = 400;
/// Says which messages go past the engines: none with `0`, not all that could with `mixed`.
const RINGS_MODE: &str = "NUPA_PROCESS_RINGS";

/// A pool's function, in this process.
#[derive(Clone)]
pub(super) struct Pool(Rc<RefCell<PoolProcess>>);

impl Pool {
    /// A pool of two nodes.
    pub(super) fn format() -> MmapRegion {
        let pool = MmapRegion::new("pool-host", POOL).unwrap();
        let (window, time) = (PoolMemory::new(&pool, true), HostTime::new());
        let options = FormatOptions::new(2, 1);
        let formatted = Survey::new(&window, &time).format(&window, &time, &options);
        formatted.unwrap();
        pool
    }

    /// Joins it as a node, whose driver has this memory.
    pub(super) fn join(pool: MmapRegion, ram: &MmapRegion, id: u16) -> Self {
        let process = PoolProcess::join(&Rc::new(pool), ram, id, DOORBELL_PAGES).unwrap();
        assert_eq!(process.id(), id);
        Self(Rc::new(RefCell::new(process)))
    }

    /// The node of a process that has joined.
    pub(super) fn node(&self, id: u16, ram: MmapRegion) -> Node<Self> {
        let doorbells: GuestMemory = Guest::<Self>::doorbells_in(&ram);
        let guest = Guest::of(self, id, ram, Irqs::default(), doorbells);
        guest.enable();
        Node::of(guest, Kicks::Called)
    }

    /// Does what is due.
    pub(super) fn poll(&self) {
        self.0.borrow_mut().poll();
    }

    /// Where in the pool its device memory begins.
    pub(super) fn device_memory(&self) -> usize {
        usize::try_from(self.0.borrow().device_memory()).unwrap()
    }

    /// Lets this process map what a queue pair has a grant for, by its key.
    pub(super) fn map_grant(&self, qpn: u32, key: u32) -> Option<MappedRegion> {
        self.0.borrow_mut().map_grant(qpn, key)
    }

    /// Whether it may still.
    pub(super) fn is_granted(&self, region: &MappedRegion) -> bool {
        self.0.borrow_mut().is_granted(region)
    }

    /// It is not mapped any more.
    pub(super) fn unmap_grant(&self, region: &MappedRegion) {
        self.0.borrow_mut().unmap_grant(region);
    }

    /// Epoch of another node, if that is up as seen from here.
    pub(super) fn epoch_of(&self, node: u16) -> Option<u32> {
        self.0.borrow().epoch_of(node)
    }
}

impl Bars for Pool {
    fn read(&self, _: u16, bar: u8, offset: u64, data: &mut [u8]) {
        self.0.borrow_mut().bar_read(bar, offset, data);
    }

    fn write(&self, _: u16, bar: u8, offset: u64, data: &[u8]) {
        self.0.borrow_mut().bar_write(bar, offset, data);
    }

    fn settle(&self) {
        self.0.borrow_mut().poll();
    }

    fn disconnect(&self, _: u16) {}
}

/// Words that both processes see, each of one writer. What is between the two must not go through what is measured.
struct Board(MmapRegion);

impl Board {
    /// The word of a number, in a line of its own, of one side.
    fn at(side: u16, number: usize) -> usize {
        (usize::from(side) * 16 + number) * 64
    }

    fn put(&self, side: u16, number: usize, value: u64) {
        self.0.store_u64(Self::at(side, number), value).unwrap();
    }

    fn get(&self, side: u16, number: usize) -> u64 {
        self.0.load_u64(Self::at(side, number)).unwrap()
    }
}

/// Words of a side on the board: how far it is, and what the other has to know of it.
const STEP: usize = 0;
const QPN: usize = 1;
const EPOCH: usize = 2;
const KEY: usize = 3;
const POOL_KEY: usize = 4;
const PING: usize = 5;

/// What a request does with memory of the other.
#[derive(Clone, Copy, Debug)]
enum Request {
    Write,
    Read,
}

/// One host: its node, and a connected queue pair.
struct Side {
    id: u16,
    board: Board,
    pool: Pool,
    node: Node<Pool>,
    cq: TestCq,
    qp: TestQp,
    wc: sys::ibv_wc,
    /// Key of its device memory.
    pool_key: u32,
    step: u64,
    /// Polls in a row that found nothing, and since about when.
    empty: u64,
    since: Option<Instant>,
    /// Receive buffers.
    receives: u64,
    /// Where this thread may run.
    cores: CpuSet,
    rings: Rings,
    /// The pool, and what this host has mapped of the other's.
    memory: MmapRegion,
    region: Option<MappedRegion>,
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.cores);
    }
}

/// Binds this thread to one of the two cores that it may run on, if there are two. Returns the cores that it could run on before.
fn bind(number: u16) -> CpuSet {
    let all = sched_getaffinity(None).unwrap();
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
    if all.count() >= 2 {
        let mut one = CpuSet::new();
        one.set(cores.nth(number.into()).unwrap());
        sched_setaffinity(None, &one).unwrap();
    }
    all
}

impl Side {
    fn new(id: u16, pool: MmapRegion, board: MmapRegion, memories: &[MmapRegion; 2]) -> Self {
        let rings = Rings::new(memories.each_ref(), 0, id);
        let memory = again(&pool);
        let ram = again(&memories[usize::from(id)]);
        let pool = Pool::join(pool, &ram, id);
        // Behind the start of the heartbeat's thread, which is not to wait for this one.
        let cores = bind(id);
        let node = pool.node(id, ram);
        let pool_key = node
            .guest
            .register(node.pd, DEVICE_MEMORY_BASE, LEN as u64, ACCESS_ALL);
        let shape = Shape {
            kicks: Kicks::Called,
            ..Shape::default()
        };
        let cq = node.cq(8);
        // Their programs do nothing but poll.
        cq.cq.shared().lock().set_silent();
        let qp = node.qp(shape, [&cq, &cq], None);
        Self {
            id,
            board: Board(board),
            pool,
            node,
            cq,
            qp,
            wc: no_completion(),
            pool_key: pool_key.unwrap(),
            step: 0,
            empty: 0,
            since: None,
            receives: 0,
            cores,
            rings,
            memory,
            region: None,
        }
    }

    fn other(&self) -> u16 {
        1 - self.id
    }

    /// Polls until it is so.
    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.work();
            assert!(
                start.elapsed() < TIMEOUT,
                "host {} waited for nothing",
                self.id
            );
        }
    }

    /// Waits for the other to be as far.
    fn meet(&mut self) {
        self.step += 1;
        self.board.put(self.id, STEP, self.step);
        let (other, step) = (self.other(), self.step);
        self.until(|side| side.board.get(other, STEP) >= step);
    }

    fn connect(&mut self) {
        let epoch = self.node.guest.epoch();
        for (number, value) in [
            (QPN, self.qp.qpn),
            (EPOCH, epoch),
            (KEY, self.node.key),
            (POOL_KEY, self.pool_key),
        ] {
            self.board.put(self.id, number, value.into());
        }
        self.meet();
        let other = self.other();
        let [qpn, epoch] = [QPN, EPOCH].map(|number| self.board.get(other, number) as u32);
        self.until(|side| side.pool.epoch_of(other) == Some(epoch));
        let peer = Some((other, qpn, epoch));
        self.node.ready_for(&self.qp, peer, RNR_RETRY_FOREVER);
        let mode = env::var(RINGS_MODE).unwrap_or_default();
        if mode != "0" {
            self.rings.enable(&self.node, &self.qp, mode == "mixed");
        }
        self.meet();
    }

    /// Takes a completion if there is one; if not, does what is due and looks again, as a program does whose polls of an empty queue run the engine.
    #[inline]
    fn poll(&mut self) -> bool {
        let mut found = self.cq.cq.poll_one(&mut self.wc);
        if !found && !self.cq.cq.found_nothing() {
            self.work();
            found = self.cq.cq.poll_one(&mut self.wc);
        }
        if found {
            assert_eq!(self.wc.status, sys::IBV_WC_SUCCESS);
        }
        self.note(found);
        found
    }

    /// Takes the completions that there are, as [`Side::poll`] takes one; returns how many.
    #[inline]
    fn poll_many(&mut self, completions: &mut [sys::ibv_wc]) -> usize {
        let mut found = self.cq.cq.poll_into(completions);
        if found == 0 && !self.cq.cq.found_nothing() {
            self.work();
            found = self.cq.cq.poll_into(completions);
        }
        for wc in &completions[..found] {
            assert_eq!(wc.status, sys::IBV_WC_SUCCESS);
        }
        self.note(found != 0);
        found
    }

    /// Does what is due, as the engine does in a poll of an empty queue.
    fn work(&self) {
        self.node.run_if_asked();
        self.pool.poll();
    }

    /// Fails if polls have `found` nothing for too long.
    #[inline]
    fn note(&mut self, found: bool) {
        if found {
            (self.empty, self.since) = (0, None);
            return;
        }
        self.empty += 1;
        if self.empty % EMPTY == 0 {
            let since = self.since.get_or_insert_with(Instant::now);
            assert!(since.elapsed() < TIMEOUT, "host {}: no completion", self.id);
        }
    }

    /// Waits for a completion of an operation.
    #[inline]
    fn take(&mut self, opcode: sys::ibv_wc_opcode) {
        while !self.poll() || self.wc.opcode != opcode {}
    }

    /// Posts receive buffers until there are as many as messages may be under way.
    fn fill(&mut self) {
        while self.receives < WINDOW {
            self.receive();
            self.receives += 1;
        }
    }

    /// Posts a receive buffer for any message, in place of one that was used.
    #[inline]
    fn receive(&mut self) {
        let mut sges = [self.node.sge(0, BULK)];
        self.qp.qp.post_recv(&mut [recv(1, &mut sges)]).unwrap();
    }

    /// The first bytes of the memory; what is inline is read by the provider, at its address in this process.
    #[inline]
    fn data(&self, len: u32, flags: u32) -> sys::ibv_sge {
        let mut sge = self.node.sge(0, len);
        if flags & INLINE != 0 {
            sge.addr = SMALL_DATA.as_ptr() as u64;
        }
        sge
    }

    #[inline]
    fn send(&mut self, len: u32, flags: u32) {
        let mut sges = [self.data(len, flags)];
        let message = send(2, sys::IBV_WR_SEND, flags).with(&mut sges);
        self.qp.qp.post_send(&mut [message]).unwrap();
    }

    /// Posts a list of messages.
    #[inline]
    fn send_list<const COUNT: usize>(&self, len: u32) {
        let mut entries = [[self.data(len, 0)]; COUNT];
        let mut list = entries
            .each_mut()
            .map(|sges| send(2, sys::IBV_WR_SEND, SIGNALED).with(sges));
        self.qp.qp.post_send(&mut list).unwrap();
    }

    /// Posts a list of receive buffers.
    #[inline]
    fn receive_list<const MOST: usize>(&self, count: usize) {
        let mut entries = [[self.node.sge(0, BULK)]; MOST];
        let mut list = entries.each_mut().map(|sges| recv(1, sges));
        self.qp.qp.post_recv(&mut list[..count]).unwrap();
    }

    /// Has host 0 map the other's device memory, as its kernel does when its provider asks for that. WRITEs there are what asks.
    fn map_region(&mut self, remote: (u64, u32)) {
        self.meet();
        let (_, key) = remote;
        for _ in 0..MAPPED_BY * u64::from(self.id == 0) {
            self.request(Request::Write, 8, remote);
            if self.region.is_none() {
                self.region = self.pool.map_grant(self.qp.qpn, key);
                if let Some(region) = &self.region {
                    let (offset, place) = (region.offset(), region.place());
                    self.rings.grant(key, &self.memory, offset, place);
                }
            }
        }
        assert!(self.id != 0 || self.region.is_some(), "there is no grant");
        self.meet();
    }

    /// Host 0 has other bytes in its memory from now on, and host 1 none of them.
    fn prepare(&mut self, seed: u8) {
        let bytes = match self.id {
            0 => pattern(LEN, seed),
            _ => vec![0; LEN],
        };
        self.node.fill(0, &bytes);
        self.meet();
    }

    /// Both have them now.
    fn check(&mut self, seed: u8) {
        let same = self.node.bytes(0, LEN) == pattern(LEN, seed);
        assert!(same, "host {}: wrong bytes", self.id);
        self.meet();
    }

    /// Fetches what host 0 has written to the other's memory, into the memory of both.
    fn read_back(&mut self, remote: (u64, u32)) {
        self.meet();
        if self.id == 0 {
            self.node.fill(0, &[0; LEN]);
            self.request(Request::Read, BULK, remote);
            let (address, key) = (self.node.memory, self.board.get(1, KEY) as u32);
            self.request(Request::Write, BULK, (address, key));
        }
        self.meet();
    }

    /// Posts a request to write to memory of the other, or to read there; short WRITEs are inline.
    #[inline]
    fn post(&mut self, request: Request, len: u32, flags: u32, remote: (u64, u32)) {
        let (opcode, inline) = match request {
            Request::Write if len == 8 => (sys::IBV_WR_RDMA_WRITE, INLINE),
            Request::Write => (sys::IBV_WR_RDMA_WRITE, 0),
            Request::Read => (sys::IBV_WR_RDMA_READ, 0),
        };
        let mut sges = [self.data(len, inline)];
        let message = send(3, opcode, flags | inline).with(&mut sges);
        let message = message.remote(remote.0, remote.1);
        self.qp.qp.post_send(&mut [message]).unwrap();
    }

    /// The same, and waits for its completion.
    #[inline]
    fn request(&mut self, request: Request, len: u32, remote: (u64, u32)) {
        self.post(request, len, SIGNALED, remote);
        self.take(match request {
            Request::Write => sys::IBV_WC_RDMA_WRITE,
            Request::Read => sys::IBV_WC_RDMA_READ,
        });
    }
}

/// The same memory, mapped once more.
pub(super) fn again(region: &MmapRegion) -> MmapRegion {
    let file = region.file().try_clone_to_owned().unwrap();
    MmapRegion::of_memory(file, region.len()).unwrap()
}

/// Memory of another process, by its process id and descriptor.
fn shared(of: &str, len: usize) -> MmapRegion {
    let file = std::fs::File::options().read(true).write(true).open(of);
    MmapRegion::of_memory(file.unwrap().into(), len).unwrap()
}

fn path(region: &MmapRegion) -> String {
    use std::os::fd::AsRawFd;
    format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        region.file().as_raw_fd()
    )
}

/// Ends the other process, whatever becomes of this one.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the two processes, of which this one is the first, and prints what it measured. The second one calls this as well.
#[test]
fn two_processes_are_two_hosts() {
    const TEST: &str = "tests::pool_host::two_processes_are_two_hosts";
    let rounds = env::var(ROUNDS).map_or(FEW, |count| count.parse().unwrap());
    if let Ok(names) = env::var(PEER) {
        let mut names = names.split(' ');
        let [pool, board, memory, own] = std::array::from_fn(|_| names.next().unwrap());
        // It ends with the first one, which may be killed.
        set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
        let first = format!("/proc/{}/", getppid().unwrap().as_raw_nonzero());
        assert!(pool.starts_with(&first), "the first process has ended");
        let memories = [memory, own].map(|name| shared(name, RAM_SIZE));
        let (pool, board) = (shared(pool, POOL), shared(board, BOARD));
        measurements::run(&mut Side::new(1, pool, board, &memories), rounds);
        return;
    }
    let pool = Pool::format();
    let board = MmapRegion::new("pool-host-board", BOARD).unwrap();
    let memories = [0, 1].map(|_| MmapRegion::new("pool-host-ram", RAM_SIZE).unwrap());
    let names = [&pool, &board, &memories[0], &memories[1]]
        .map(path)
        .join(" ");
    let other = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture", TEST])
        .env(PEER, names)
        .stdout(Stdio::null())
        .spawn();
    let _other = Other(other.unwrap());
    println!(
        "{}",
        measurements::run(&mut Side::new(0, pool, board, &memories), rounds)
    );
}
