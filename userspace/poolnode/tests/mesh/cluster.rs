// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The process that starts the nodes, kills some of them, and looks at the pool afterwards.

use std::env;
use std::fmt;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use guestmem::MmapRegion;
use nupa_pool::{check, Format, FormatOptions, Pool, Survey};
use nupa_poolmem::{HostTime, PoolMemory};
use nupa_proto::pool::DIRECTORY_SIZE;

use crate::board::{now_us, Board, NodeWord, Phase};
use crate::memory::exposed;
use crate::options::Options;

/// Tells a process which node it is, and where the memory is.
pub(crate) const NODE: &str = "NUPA_MESH_NODE";
/// The longest that all nodes take to connect, to complete what is under way, or to leave.
const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes between two nodes in one direction: all rings with the smallest payload areas.
const RINGS: usize = 1_380_352;

/// Bytes of a pool in which each node has as much device memory as it exposes. With many nodes nothing is left for rings that are larger than
/// the smallest.
pub(crate) fn pool_len(nodes: u16) -> usize {
    let count = usize::from(nodes);
    let memory = count * (exposed(nodes) + DIRECTORY_SIZE as usize + 4096);
    let rings = count * (count - 1) * RINGS;
    // Larger rings leave a quarter of the pool.
    (rings + memory).max(4 * memory).next_multiple_of(1 << 20) + (1 << 20)
}

/// The process of a node.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Node {
    /// What it has said, once it has ended.
    fn said(&mut self) -> String {
        let mut text = Vec::new();
        if let Some(mut pipe) = self.0.stderr.take() {
            let _ = pipe.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

pub(crate) struct Cluster {
    options: Options,
    pool: MmapRegion,
    board: Board,
    /// The name of the test, which each process runs.
    test: &'static str,
    nodes: Vec<Option<Node>>,
    random: fastrand::Rng,
    kills: u32,
}

/// What was done.
pub(crate) struct Report {
    nodes: u16,
    seconds: f64,
    requests: u64,
    least: u64,
    bytes: u64,
    direct_writes: u64,
    waits: u64,
    kills: u32,
    failures: u64,
    noticed_us: u64,
    silence_us: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_node = self.requests / u64::from(self.nodes);
        let seconds = |us: u64| us as f64 / 1e6;
        write!(
            f,
            "{} nodes, {:.1} s: {} requests ({per_node} of a node, {} at least), {} MB, {} direct writes, {} waits for a receive buffer; \
             nodes killed: {}, connections that failed: {}, at the latest after {:.2} s; longest silence {:.2} s",
            self.nodes,
            self.seconds,
            self.requests,
            self.least,
            self.bytes / 1_000_000,
            self.direct_writes,
            self.waits,
            self.kills,
            self.failures,
            seconds(self.noticed_us),
            seconds(self.silence_us),
        )
    }
}

fn path(region: &MmapRegion) -> String {
    let (process, file) = (std::process::id(), region.file().as_raw_fd());
    format!("/proc/{process}/fd/{file}")
}

impl Cluster {
    /// Makes a pool for the nodes, and what they connect by.
    pub(crate) fn new(options: Options, test: &'static str) -> Self {
        let pool = MmapRegion::new("mesh-pool", pool_len(options.nodes)).unwrap();
        let board = MmapRegion::new("mesh-board", Board::len(options.nodes)).unwrap();
        let (window, time) = (PoolMemory::new(&pool, true), HostTime::new());
        let format = FormatOptions {
            format: match options.inboxes {
                true => Format::Inboxes,
                false => Format::Areas,
            },
            ..FormatOptions::new(options.nodes, options.seed)
        };
        let made = Survey::new(&window, &time).format(&window, &time, &format);
        made.unwrap();
        let random = fastrand::Rng::with_seed(options.seed);
        Self {
            board: Board::new(board, options.nodes),
            nodes: (0..options.nodes).map(|_| None).collect(),
            pool,
            test,
            random,
            kills: 0,
            options,
        }
    }

    fn ids(&self) -> impl Iterator<Item = u16> {
        0..self.options.nodes
    }

    fn start(&mut self, id: u16) {
        let (pool, board) = (path(&self.pool), path(self.board.memory()));
        let started = Command::new(env::current_exe().unwrap())
            .args(["--exact", "--nocapture", self.test])
            .env(NODE, format!("{id} {pool} {board}"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        self.nodes[usize::from(id)] = Some(Node(started.unwrap()));
    }

    fn kill(&mut self, id: u16) {
        let killed = now_us();
        // SIGKILL, as whatever else ends a process that does not expect it.
        drop(self.nodes[usize::from(id)].take());
        self.kills += 1;
        self.board.withdraw_all(id);
        // Nobody misses it before its time is over, and another process has its slot later than that.
        let epoch = self.board.get(id, NodeWord::Epoch);
        if epoch != 0 {
            self.board.put(id, NodeWord::KilledAt, killed);
            self.board.put(id, NodeWord::KilledEpoch, epoch);
            self.board.put(id, NodeWord::Epoch, 0);
        }
    }

    /// Fails if a process has ended that was to go on.
    fn look(&mut self) {
        let mut ended = Vec::new();
        for (id, node) in self.nodes.iter_mut().enumerate() {
            if let Some(status) = node.as_mut().and_then(|node| node.0.try_wait().unwrap()) {
                ended.push((id, status, node.take().map(|mut node| node.said())));
            }
        }
        if ended.is_empty() {
            return;
        }
        self.nodes.clear();
        let say = |(id, status, said): (usize, ExitStatus, Option<String>)| {
            format!(
                "node {id} has ended, {status}:\n{}",
                said.unwrap_or_default()
            )
        };
        let text: Vec<String> = ended.into_iter().map(say).collect();
        panic!("seed {}: {}", self.options.seed, text.join("\n"));
    }

    fn pause(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.look();
            sleep(LOOK);
        }
    }

    /// A part of so many milliseconds.
    fn part_of(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.random.u64(..=most))
    }

    fn wait(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let limit = LIMIT * self.options.patience;
        let start = Instant::now();
        while !done(self) {
            self.look();
            assert!(
                start.elapsed() < limit,
                "after {limit:?} not all nodes have {what}"
            );
            sleep(LOOK);
        }
    }

    fn wait_for_connections(&mut self) {
        self.wait("connected to all others", |cluster| {
            cluster.board.all_connected()
        });
    }

    /// Kills some nodes and starts them again, some of them twice.
    fn kill_some(&mut self) {
        let most = usize::from((self.options.nodes / 4).clamp(1, 3));
        let mut ids: Vec<u16> = self.ids().collect();
        self.random.shuffle(&mut ids);
        ids.truncate(self.random.usize(1..=most));
        for id in ids {
            self.kill(id);
            // Others learn of its end by themselves, or from the process that takes its place.
            if self.kills == 1 || self.random.bool() {
                self.wait("missed a node that was killed", |cluster| {
                    cluster.board.is_missed(id)
                });
            } else {
                let down = self.part_of(1500);
                self.pause(down);
            }
            self.start(id);
            // In the middle of taking its place, or of connecting.
            if self.random.u32(..4) == 0 {
                let up = self.part_of(2500);
                self.pause(up);
                self.kill(id);
                self.start(id);
            }
        }
    }

    /// Has all nodes reach a phase.
    fn advance(&mut self, phase: Phase, what: &str) {
        self.board.set_phase(phase);
        self.wait(what, |cluster| {
            let mut ids = cluster.ids();
            ids.all(|id| cluster.board.get(id, NodeWord::Reached) >= phase as u64)
        });
    }

    pub(crate) fn run(&mut self) -> Report {
        let start = Instant::now();
        for id in self.ids() {
            self.start(id);
        }
        self.wait_for_connections();
        let end = Instant::now() + self.options.time;
        loop {
            let quiet = Duration::from_millis(500) + self.part_of(1500);
            self.pause(quiet);
            if self.kills > 0 && Instant::now() >= end {
                break;
            }
            self.kill_some();
            self.wait_for_connections();
        }
        self.advance(Phase::Drain, "completed what was under way");
        self.advance(Phase::Check, "compared what has come");
        self.leave();
        let report = self.report(start.elapsed());
        self.check_pool();
        report
    }

    /// Has all processes end.
    fn leave(&mut self) {
        self.board.set_phase(Phase::Leave);
        let limit = Instant::now() + LIMIT * self.options.patience;
        for (id, node) in self.nodes.iter_mut().enumerate() {
            let node = node.as_mut().unwrap();
            let status = loop {
                if let Some(status) = node.0.try_wait().unwrap() {
                    break status;
                }
                assert!(Instant::now() < limit, "node {id} does not leave");
                sleep(LOOK);
            };
            assert!(status.success(), "node {id}, {status}:\n{}", node.said());
        }
    }

    fn report(&self, time: Duration) -> Report {
        let sum = |word| self.ids().map(|id| self.board.get(id, word)).sum::<u64>();
        let most = |word| {
            self.ids()
                .map(|id| self.board.get(id, word))
                .max()
                .unwrap_or(0)
        };
        let requests = self.ids().map(|id| self.board.get(id, NodeWord::Requests));
        Report {
            nodes: self.options.nodes,
            seconds: time.as_secs_f64(),
            requests: sum(NodeWord::Requests),
            least: requests.min().unwrap_or(0),
            bytes: sum(NodeWord::Bytes),
            direct_writes: sum(NodeWord::DirectWrites),
            waits: sum(NodeWord::Waits),
            kills: self.kills,
            failures: sum(NodeWord::Failures),
            noticed_us: most(NodeWord::Noticed),
            silence_us: most(NodeWord::Silence),
        }
    }

    /// All have left: nothing contradicts the specification, no slot is taken, nothing is granted, shared or held.
    fn check_pool(&self) {
        let window = PoolMemory::new(&self.pool, true);
        let mut problems = Vec::new();
        check(&window, |problem| problems.push(problem.to_string()));
        assert!(
            problems.is_empty(),
            "the pool is damaged: {}",
            problems.join("; ")
        );
        let pool = Pool::attach(&window, &HostTime::new()).unwrap();
        let (live, silent) = pool.nodes(&window, &HostTime::new());
        assert!(
            live.is_empty() && silent.is_empty(),
            "slots are taken: {live:?}, {silent:?}"
        );
        for id in self.ids() {
            let directory = pool.geometry().directory(id).unwrap();
            let mut bytes = vec![0; DIRECTORY_SIZE as usize];
            let start = usize::try_from(directory.start).unwrap();
            self.pool.read(start, &mut bytes).unwrap();
            let left = bytes.iter().position(|byte| *byte != 0);
            assert_eq!(left, None, "node {id} has left something in its directory");
        }
    }
}
