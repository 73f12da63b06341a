// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What messages cost between two hosts of a pool that both poll: two processes, each with a core, the provider, the engine and a pool in memory that
//! both map. No kernel and no virtual machine has a part in it.
//!
//! As a test it checks that the two understand each other. `make bench BENCH=pool-host` measures: with more rounds, on a quiet machine. It prints one
//! line of JSON; times are in nanoseconds.

use std::cell::RefCell;
use std::env;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use guestmem::{GuestMemory, MmapRegion};
use nupa_pool::{FormatOptions, Survey};
use nupa_poolmem::{HostTime, PoolMemory};
use nupa_poolnode::PoolProcess;
use nupa_proto::admin::{ACCESS_ALL, RNR_RETRY_FOREVER};
use nupa_proto::regs::DEVICE_MEMORY_BASE;
use rustix::process::{getppid, set_parent_process_death_signal, Signal};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use serde_json::{json, Value};

use super::common::guest::{Bars, Guest, Irqs, RAM_SIZE};
use super::common::DOORBELL_PAGES;
use super::node::{pattern, Kicks, Node, Shape, TestCq, TestQp, LEN};
use crate::ffi::testing::{no_completion, recv, send, sys, SendExt};

/// Bytes of the pool, and of what the processes tell each other beside it.
const POOL: usize = 64 << 20;
const BOARD: usize = 4096;
/// What tells the second process which it is, and where the memory is.
const PEER: &str = "NUPA_POOL_HOST_PEER";
/// How long one side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Looks that find nothing between two looks at the clock.
const EMPTY: u64 = 1 << 16;
/// Bytes of a message of the measurements of rates and of bulk.
const SMALL: u32 = 64;
const BULK: u32 = LEN as u32;
/// What is sent inline.
static SMALL_DATA: [u8; 8] = [7; 8];
/// Messages under way.
const WINDOW: u64 = 32;

/// A pool's function, in this process.
#[derive(Clone)]
struct Pool(Rc<RefCell<PoolProcess>>);

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
    fn new(id: u16, pool: MmapRegion, board: MmapRegion) -> Self {
        let ram = MmapRegion::new("pool-host-ram", RAM_SIZE).unwrap();
        let process = PoolProcess::join(&Rc::new(pool), &ram, id, DOORBELL_PAGES).unwrap();
        assert_eq!(process.id(), id);
        // Behind the start of the heartbeat's thread, which is not to wait for this one.
        let cores = bind(id);
        let pool = Pool(Rc::new(RefCell::new(process)));
        let doorbells: GuestMemory = Guest::<Pool>::doorbells_in(&ram);
        let guest = Guest::of(&pool, id, ram, Irqs::default(), doorbells);
        guest.enable();
        let node = Node::of(guest, Kicks::Called);
        let pool_key = node
            .guest
            .register(node.pd, DEVICE_MEMORY_BASE, LEN as u64, ACCESS_ALL);
        let shape = Shape {
            kicks: Kicks::Called,
            ..Shape::default()
        };
        let cq = node.cq(8);
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
        }
    }

    fn other(&self) -> u16 {
        1 - self.id
    }

    /// Polls until it is so.
    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.node.run_if_asked();
            self.pool.0.borrow_mut().poll();
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
        self.until(|side| side.pool.0.borrow().epoch_of(other) == Some(epoch));
        let peer = Some((other, qpn, epoch));
        self.node.ready_for(&self.qp, peer, RNR_RETRY_FOREVER);
        self.meet();
    }

    /// Does what is due, and takes a completion if there is one.
    #[inline]
    fn poll(&mut self) -> bool {
        self.node.run_if_asked();
        self.pool.0.borrow_mut().poll();
        let found = self.cq.cq.poll_one(&mut self.wc);
        if found {
            assert_eq!(self.wc.status, sys::IBV_WC_SUCCESS);
            (self.empty, self.since) = (0, None);
        } else {
            self.empty += 1;
            if self.empty % EMPTY == 0 {
                let since = self.since.get_or_insert_with(Instant::now);
                assert!(since.elapsed() < TIMEOUT, "host {}: no completion", self.id);
            }
        }
        found
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
            let mut sges = [self.node.sge(0, BULK)];
            let message = send(4, sys::IBV_WR_RDMA_READ, SIGNALED).with(&mut sges);
            let message = message.remote(remote.0, remote.1);
            self.qp.qp.post_send(&mut [message]).unwrap();
            self.take(sys::IBV_WC_RDMA_READ);
            let (address, key) = (self.node.memory, self.board.get(1, KEY) as u32);
            self.write(BULK, SIGNALED, (address, key));
            self.take(sys::IBV_WC_RDMA_WRITE);
        }
        self.meet();
    }

    /// Writes to the other's memory; in the pool or not.
    #[inline]
    fn write(&mut self, len: u32, flags: u32, remote: (u64, u32)) {
        let mut sges = [self.data(len, flags)];
        let message = send(3, sys::IBV_WR_RDMA_WRITE, flags).with(&mut sges);
        let message = message.remote(remote.0, remote.1);
        self.qp.qp.post_send(&mut [message]).unwrap();
    }
}

/// Minimum and median of all but the first tenth.
fn of(mut times: Vec<u64>) -> Value {
    times.drain(..times.len() / 10);
    times.sort_unstable();
    json!({ "min": times[0], "median": times[times.len() / 2] })
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap()
}

/// Says how many round trips times are measured in; a few, if it does not.
const ROUNDS: &str = "NUPA_POOL_HOST_ROUNDS";
const FEW: u64 = 400;
const INLINE: u32 = sys::IBV_SEND_INLINE;
const SIGNALED: u32 = sys::IBV_SEND_SIGNALED;

/// Half of the time until a word that this core has written in a line of its own is answered by the other one's: no protocol can be faster.
fn line(side: &mut Side, rounds: u64) -> Value {
    let (id, other, mut times) = (side.id, side.other(), Vec::new());
    side.meet();
    for round in 1..=rounds {
        let start = Instant::now();
        if id == 0 {
            side.board.put(id, PING, round);
        }
        let mut spins = 0;
        while side.board.get(other, PING) != round {
            spins += 1;
            assert!(
                spins % EMPTY != 0 || start.elapsed() < TIMEOUT,
                "host {id}: no line"
            );
        }
        if id == 1 {
            side.board.put(id, PING, round);
        }
        times.push(nanoseconds(start) / 2);
    }
    of(times)
}

/// Half of a round trip of a SEND of 8 bytes.
fn send_latency(side: &mut Side, rounds: u64) -> Value {
    let mut times = Vec::new();
    side.fill();
    side.meet();
    for round in 0..rounds {
        // A send queue has room again for what completes.
        let signaled = if round % 16 == 0 { SIGNALED } else { 0 };
        let start = Instant::now();
        if side.id == 0 {
            side.send(8, INLINE | signaled);
        }
        side.take(sys::IBV_WC_RECV);
        side.receive();
        if side.id == 1 {
            side.send(8, INLINE | signaled);
        }
        times.push(nanoseconds(start) / 2);
    }
    side.meet();
    of(times)
}

/// A WRITE of 8 bytes until its completion, to memory in the pool or not.
fn write_latency(side: &mut Side, rounds: u64, remote: (u64, u32)) -> Value {
    let mut times = Vec::new();
    side.meet();
    for _ in 0..rounds * u64::from(side.id == 0) {
        let start = Instant::now();
        side.write(8, INLINE | SIGNALED, remote);
        side.take(sys::IBV_WC_RDMA_WRITE);
        times.push(nanoseconds(start));
    }
    side.meet();
    match side.id {
        0 => of(times),
        _ => Value::Null,
    }
}

/// Messages that one side sends to the other, of so many bytes: how many a second.
fn send_rate(side: &mut Side, len: u32, count: u64) -> f64 {
    let mut posted = 0;
    side.fill();
    side.meet();
    let start = Instant::now();
    let mut done = 0;
    while done < count {
        if side.id == 0 {
            while posted < count && posted - done < WINDOW {
                side.send(len, SIGNALED);
                posted += 1;
            }
            done += u64::from(side.poll());
        } else if side.poll() {
            done += 1;
            side.receive();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    side.meet();
    count as f64 / seconds
}

/// WRITEs of so many bytes, with some under way: bytes in a nanosecond.
fn write_rate(side: &mut Side, len: u32, count: u64, remote: (u64, u32)) -> f64 {
    side.meet();
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while side.id == 0 && done < count {
        while posted < count && posted - done < 4 {
            side.write(len, SIGNALED, remote);
            posted += 1;
        }
        done += u64::from(side.poll());
    }
    let time = nanoseconds(start);
    side.meet();
    (count * u64::from(len)) as f64 / time as f64
}

/// Bytes in a nanosecond that a copy from one piece of memory to another moves, again and again: from caches to caches.
fn copy_rate() -> f64 {
    let bytes = BULK as usize;
    let from = vec![1_u8; bytes];
    let mut to = vec![0_u8; bytes];
    let rates = (0..200).map(|_| {
        let start = Instant::now();
        std::hint::black_box(&mut to[..]).copy_from_slice(std::hint::black_box(&from));
        bytes as f64 / nanoseconds(start) as f64
    });
    let mut rates: Vec<f64> = rates.collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// What both sides do, with so many round trips. What was written is checked.
fn run(side: &mut Side, rounds: u64) -> Value {
    side.connect();
    let other = side.other();
    let key = |number| side.board.get(other, number) as u32;
    let private = (side.node.memory, key(KEY));
    let granted = (DEVICE_MEMORY_BASE, key(POOL_KEY));
    let line = line(side, rounds);
    let count = rounds / 40;
    let mut result = json!({ "line": line, "send_8": send_latency(side, rounds) });
    assert_eq!(side.node.bytes(0, 8), SMALL_DATA, "host {}", side.id);
    result["write_8"] = write_latency(side, rounds, private);
    result["write_8_pool"] = write_latency(side, rounds, granted);
    result["sends_64"] = send_rate(side, SMALL, rounds * 10).round().into();
    side.prepare(2);
    result["send_1m"] = (send_rate(side, BULK, count) * f64::from(BULK) / 1e9).into();
    side.check(2);
    side.prepare(3);
    result["write_1m"] = write_rate(side, BULK, count, private).into();
    side.check(3);
    side.prepare(4);
    result["write_1m_pool"] = write_rate(side, BULK, count, granted).into();
    side.read_back(granted);
    side.check(4);
    result["memcpy_1m"] = copy_rate().into();
    side.meet();
    result
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
        let (pool, board) = names.split_once(' ').unwrap();
        // It ends with the first one, which may be killed.
        set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
        let first = format!("/proc/{}/", getppid().unwrap().as_raw_nonzero());
        assert!(pool.starts_with(&first), "the first process has ended");
        let memory = (shared(pool, POOL), shared(board, BOARD));
        run(&mut Side::new(1, memory.0, memory.1), rounds);
        return;
    }
    let pool = MmapRegion::new("pool-host", POOL).unwrap();
    let board = MmapRegion::new("pool-host-board", BOARD).unwrap();
    let (window, time) = (PoolMemory::new(&pool, true), HostTime::new());
    let options = FormatOptions {
        max_nodes: 2,
        token: 1,
    };
    let formatted = Survey::new(&window, &time).format(&window, &time, &options);
    formatted.unwrap();
    let other = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture", TEST])
        .env(PEER, format!("{} {}", path(&pool), path(&board)))
        .stdout(Stdio::null())
        .spawn();
    let _other = Other(other.unwrap());
    println!("{}", run(&mut Side::new(0, pool, board), rounds));
}
