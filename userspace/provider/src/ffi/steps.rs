// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts instructions by executing them one at a time, for machines that let nobody use their counters.

use std::arch::asm;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Once;

use signal_hook::consts::SIGTRAP;
use signal_hook::low_level::register;

static STEPS: AtomicUsize = AtomicUsize::new(0);
static HANDLER: Once = Once::new();

/// Instructions that this thread executes in `work`, all functions that it calls included. To be called by one thread
/// at a time.
pub(crate) fn count(work: impl FnOnce()) -> usize {
    // What is counted but not the work's: the instructions that end the stepping.
    let overhead = step(|| ());
    step(work).wrapping_sub(overhead)
}

#[expect(clippy::expect_used, reason = "a test fails by panicking")]
#[inline(never)]
fn step(work: impl FnOnce()) -> usize {
    HANDLER.call_once(|| {
        let trapped = || {
            STEPS.fetch_add(1, Ordering::Relaxed);
        };
        // SAFETY: the handler stores to an atomic, which it may at any time.
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
