// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes instructions one at a time: to count them, for machines that let nobody use their counters, and to stand still behind any of them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::arch::asm;
use std::cell::Cell;
use std::sync::atomic::{compiler_fence, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use signal_hook::consts::SIGTRAP;
use signal_hook::low_level::register;

/// Held by who uses the words below.
static IN_USE: Mutex<()> = Mutex::new(());
static STEPS: AtomicUsize = AtomicUsize::new(0);
/// Behind so many instructions the thread stands still, or behind the next one that is not the allocator's; 0: behind none.
static STOP: AtomicUsize = AtomicUsize::new(0);
static STATE: AtomicU8 = AtomicU8::new(RUNS);
static HANDLER: Once = Once::new();

/// The system's, whose locks a thread that stands still would keep others from: it does not stand still in there.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

struct Allocator;

thread_local! {
    static ALLOCATES: Cell<bool> = const { Cell::new(false) };
}

impl Allocator {
    fn within<T>(work: impl FnOnce() -> T) -> T {
        ALLOCATES.set(true);
        // For the signal handler of this thread.
        compiler_fence(Ordering::SeqCst);
        let result = work();
        compiler_fence(Ordering::SeqCst);
        ALLOCATES.set(false);
        result
    }
}

// SAFETY: it is the system's.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's word.
        Self::within(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's word.
        Self::within(|| unsafe { System.dealloc(place, layout) });
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's word.
        Self::within(|| unsafe { System.realloc(place, layout, size) })
    }
}

/// What a thread that may stand still does.
const RUNS: u8 = 0;
const STANDS: u8 = 1;
const GOES_ON: u8 = 2;
const ENDED: u8 = 3;

/// Instructions that this thread executes in `work`, all functions that it calls included.
pub(crate) fn count(work: impl FnOnce()) -> usize {
    let _held = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    STOP.store(0, Ordering::Relaxed);
    // What is counted but not the work's: the instructions that end the stepping.
    let overhead = step(|| ());
    step(work).wrapping_sub(overhead)
}

/// Does `work` in a thread of its own. Behind so many instructions that thread stands still, as one that gets no processor does: then `meanwhile` is
/// done, and then `work` goes on. It should not panic, since it would take minutes to say where. False if `work` has fewer instructions; then `meanwhile`
/// is done behind it.
pub(crate) fn stop_behind(
    instructions: usize,
    work: impl FnOnce() + Send,
    meanwhile: impl FnOnce(),
) -> bool {
    let _held = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    STOP.store(instructions, Ordering::Relaxed);
    STATE.store(RUNS, Ordering::SeqCst);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Also if it panics, which the scope passes on. It does not stand still behind that.
            let _ended = AtEnd(ENDED);
            step(work);
        });
        while STATE.load(Ordering::SeqCst) == RUNS {
            thread::yield_now();
        }
        let stood = STATE.load(Ordering::SeqCst) == STANDS;
        let _goes_on = AtEnd(GOES_ON);
        meanwhile();
        stood
    })
}

/// Says at its end what a thread does then.
struct AtEnd(u8);

impl Drop for AtEnd {
    fn drop(&mut self) {
        STOP.store(0, Ordering::SeqCst);
        STATE.store(self.0, Ordering::SeqCst);
    }
}

/// Behind each instruction that is stepped over. In a signal handler.
fn trapped() {
    let steps = STEPS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let stop = STOP.load(Ordering::Relaxed);
    if stop != 0 && steps >= stop && !ALLOCATES.get() {
        STOP.store(0, Ordering::Relaxed);
        STATE.store(STANDS, Ordering::SeqCst);
        while STATE.load(Ordering::SeqCst) == STANDS {
            thread::yield_now();
        }
    }
}

#[expect(clippy::expect_used, reason = "a test fails by panicking")]
#[inline(never)]
fn step(work: impl FnOnce()) -> usize {
    HANDLER.call_once(|| {
        // SAFETY: the handler uses atomics, and yields the processor by a system call, which it may at any time.
        unsafe { register(SIGTRAP, trapped) }.expect("a handler");
    });
    STEPS.store(0, Ordering::Relaxed);
    // SAFETY: sets the trap flag, which the kernel turns into a signal behind each instruction; the handler is there.
    // The red zone is not used, because the block may push.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    work();
    // SAFETY: clears the flag.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    STEPS.load(Ordering::Relaxed)
}
