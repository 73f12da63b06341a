// SPDX-License-Identifier: GPL-2.0
//! Workers of the kernel's that copy payload together with who runs the function.

use super::window::{HostClock, PoolWindow};
use crate::module_parameters;
use core::hint::spin_loop;
use kernel::{
    cpu,
    device::{Bound, Device},
    impl_has_work, new_work,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, AtomicType, Full, Relaxed, Release},
        Arc,
    },
    workqueue::{Work, WorkItem},
};
use nk::{
    bh,
    hostmem::HostMemory,
    kthread::is_online,
    sched::cond_resched,
    work::{disable_sync, unbound},
};
use nupa_function::pool::{CopyQueue, Counter, Piece, Word};
use nupa_proto::pool::GRANT_STEP;

/// Bytes from which on a copy is shared: waking and waiting for others takes longer than it takes to copy less than this.
const FROM: u32 = 32 << 10;
/// Most bytes of a piece.
const PIECE: usize = 4096;
/// Most pieces under way.
const PIECES: usize = 32;
/// Pieces that are begun at a time: for less, handing over costs more than it gains (`cargo bench -p guestmem --bench copy`).
const GROUP: u32 = 4;
/// Most workers: the engine submits no more at one go than so many and who submits can begin.
const MOST: usize = GRANT_STEP as usize / (PIECE * GROUP as usize) - 1;
/// Microseconds that a worker waits for more before it ends, instead of being woken again: more than the engine does between two copies.
const LINGER_US: u64 = 50;
/// Microseconds after which a worker ends in any case, and is queued anew if there is more: others wait until each task has left the processor of its own
/// accord (RCU Tasks).
const RUN_US: u64 = 5_000;
/// How long who submits waits for a worker to begin, if a test wants that.
const TEST_WAIT_US: u64 = 500_000;

/// A word of the kernel's.
struct Shared<T: AtomicType>(Atomic<T>);

macro_rules! words {
    ($($type:ty),*) => {$(
        impl Word<$type> for Shared<$type> {
            fn new(value: $type) -> Self {
                Self(Atomic::new(value))
            }

            fn load_relaxed(&self) -> $type {
                self.0.load(Relaxed)
            }

            fn load_acquire(&self) -> $type {
                self.0.load(Acquire)
            }

            fn store_relaxed(&self, value: $type) {
                self.0.store(value, Relaxed);
            }

            fn store_release(&self, value: $type) {
                self.0.store(value, Release);
            }
        }
    )*};
}

words!(u32, u64);

impl Counter for Shared<u32> {
    fn exchange(&self, old: u32, new: u32) -> bool {
        self.0.cmpxchg(old, new, Acquire).is_ok()
    }

    fn add_release(&self, more: u32) {
        self.0.fetch_add(more, Release);
    }
}

/// What all of them share.
struct Batch {
    queue: CopyQueue<Shared<u32>, Shared<u64>, PIECES, GROUP>,
    host: HostMemory,
    /// Bytes that workers have copied, and pieces that they could not copy.
    bytes: Atomic<u64>,
    failed: Atomic<u64>,
    /// They are to end.
    stops: Atomic<bool>,
}

impl Batch {
    fn copy(&self, piece: Piece) -> bool {
        let len = usize::try_from(piece.len).unwrap_or(0);
        self.host.copy(piece.from, piece.to, len).is_ok()
    }

    /// The same by a worker.
    fn copy_and_count(&self, piece: Piece) -> bool {
        let copied = self.copy(piece);
        match copied {
            true => self.bytes.fetch_add(piece.len, Relaxed),
            false => self.failed.fetch_add(1, Relaxed),
        };
        copied
    }

    /// Copies as long as there is something to copy, and a moment longer. Sleeps.
    fn run(&self) {
        let clock = HostClock::new();
        let begun_us = clock.now_us();
        let mut last_us = begun_us;
        while !self.stops.load(Relaxed) {
            // Who runs the function waits for what is begun here, so nobody else has this processor meanwhile.
            let made = bh::disabled(|| self.queue.work(|piece| self.copy_and_count(piece)));
            let now_us = clock.now_us();
            if made != 0 {
                last_us = now_us;
            }
            if now_us.saturating_sub(last_us) >= LINGER_US
                || now_us.saturating_sub(begun_us) >= RUN_US
            {
                break;
            }
            spin_loop();
            cond_resched();
        }
    }

    /// Waits for a worker to begin, but not for long.
    #[cold]
    fn await_worker(&self) {
        let clock = HostClock::new();
        let until_us = clock.now_us().saturating_add(TEST_WAIT_US);
        while !self.queue.is_begun() && clock.now_us() < until_us {
            spin_loop();
        }
    }
}

/// A work item that copies.
#[pin_data]
struct Worker {
    batch: Arc<Batch>,
    /// It is queued, or runs.
    runs: Atomic<bool>,
    #[pin]
    work: Work<Worker>,
}

impl_has_work! {
    impl HasWork<Self> for Worker { self.work }
}

impl WorkItem for Worker {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.batch.run();
        this.runs.store(false, Release);
    }
}

impl Worker {
    fn new(batch: Arc<Batch>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                batch,
                runs: Atomic::new(false),
                work <- new_work!("CopyWorkers"),
            }),
            GFP_KERNEL,
        )
    }

    /// Has it run. Any context.
    fn wake(self: &Arc<Self>) {
        if !self.runs.load(Relaxed) && !self.runs.xchg(true, Full) {
            // It is not queued, but for one that is ending: then others copy.
            let _ = unbound().enqueue::<Arc<Self>, 0>(self.clone());
        }
    }
}

/// Workers, and what they copy together with who has the node.
///
/// Who submits copies also makes them, and waits only for what a worker has begun: nothing depends on when workers run, or whether they do.
pub(super) struct CopyWorkers {
    batch: Arc<Batch>,
    workers: KVec<Arc<Worker>>,
    /// Groups of pieces that were submitted since the last time that all was copied.
    groups: Atomic<u32>,
    /// Who submits leaves workers the time to begin, for tests.
    waits: Atomic<bool>,
}

impl CopyWorkers {
    /// As many as the module's parameters want and there are other processors for; `None` if that is none. Sleeps. By itself because of the space
    /// that it takes on the stack.
    #[inline(never)]
    pub(super) fn new(
        device: &Device<Bound>,
        window: &PoolWindow,
        behind_caches: bool,
    ) -> Result<Option<Arc<Self>>> {
        let online = (0..cpu::nr_cpu_ids()).filter(|cpu| is_online(*cpu)).count();
        let others = online.saturating_sub(1);
        let wanted = usize::try_from(*module_parameters::copy_workers.value()).unwrap_or(0);
        let count = wanted.min(others).min(MOST);
        if count == 0 {
            return Ok(None);
        }
        if behind_caches {
            dev_info!(
                device,
                "one processor copies: copy_workers is for coherent pools that do not outlive a loss of power\n"
            );
            return Ok(None);
        }
        let batch = Arc::new(
            Batch {
                queue: CopyQueue::new(),
                host: HostMemory::of_window(window.mapping().clone()),
                bytes: Atomic::new(0),
                failed: Atomic::new(0),
                stops: Atomic::new(false),
            },
            GFP_KERNEL,
        )?;
        let mut workers = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            workers.push(Worker::new(batch.clone())?, GFP_KERNEL)?;
        }
        dev_info!(device, "up to {count} workers copy long payload as well\n");
        let this = Self {
            batch,
            workers,
            groups: Atomic::new(0),
            waits: Atomic::new(false),
        };
        Ok(Some(Arc::new(this, GFP_KERNEL)?))
    }

    /// Least bytes that are shared.
    #[inline]
    pub(super) fn from(&self) -> u32 {
        FROM
    }

    /// Copies from one physical address to another, sooner or later: see [`CopyWorkers::finish`]. The node is the caller's, who must not sleep until that
    /// has returned.
    pub(super) fn submit(&self, from: u64, to: u64, len: usize) {
        let batch = &self.batch;
        for at in (0..len).step_by(PIECE) {
            if batch.queue.is_full() {
                batch.queue.drain(|piece| batch.copy(piece), spin_loop);
            }
            let piece = Piece {
                from: from.wrapping_add(at as u64),
                to: to.wrapping_add(at as u64),
                len: len.saturating_sub(at).min(PIECE) as u64,
            };
            if batch.queue.submit(piece) {
                self.wake_next();
            }
        }
    }

    /// Wakes a worker for a group of pieces, another one for each.
    fn wake_next(&self) {
        let group = self.groups.load(Relaxed);
        self.groups.store(group.wrapping_add(1), Relaxed);
        let worker = usize::try_from(group)
            .ok()
            .and_then(|number| self.workers.get(number));
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    /// Waits for what was submitted; false if some of it could not be copied. As [`CopyWorkers::submit`].
    pub(super) fn finish(&self) -> bool {
        let batch = &self.batch;
        if self.groups.load(Relaxed) != 0 && self.waits.load(Relaxed) {
            batch.await_worker();
        }
        self.groups.store(0, Relaxed);
        batch.queue.finish(|piece| batch.copy(piece), spin_loop)
    }

    /// Ends them for good. Nobody has the node. Sleeps.
    pub(super) fn stop(&self) {
        self.batch.stops.store(true, Relaxed);
        self.workers.iter().for_each(disable_sync::<Worker, 0>);
    }

    /// Says whether who submits leaves workers the time to begin, for tests.
    pub(super) fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Relaxed);
    }

    /// Writes how many there are, how many bytes they have copied, and how many pieces they could not copy.
    pub(super) fn show(&self, f: &mut crate::fmt::Formatter<'_>) -> crate::fmt::Result {
        writeln!(f, "workers {}", self.workers.len())?;
        writeln!(f, "bytes {}", self.batch.bytes.load(Relaxed))?;
        writeln!(f, "failed {}", self.batch.failed.load(Relaxed))
    }
}
