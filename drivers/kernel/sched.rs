// SPDX-License-Identifier: GPL-2.0
//! The scheduler, as far as drivers that do much at once have to do with it.
//!
//! C header: `include/linux/sched.h`.

use crate::bindings;
use kernel::{current, task::Pid};

/// Lets others run that wait for this processor (`cond_resched()`). May sleep.
#[inline]
pub fn cond_resched() {
    // SAFETY: No requirements on memory; where sleeping is not allowed the kernel says so.
    unsafe { bindings::nk_cond_resched() }
}

/// The running task, and how often it has waited for something by now (`task_struct::nvcsw`): the same as before as long as the same task
/// has run without sleeping, preempted or not. Process context.
#[inline]
pub fn running_task() -> (Pid, u64) {
    let current = current!();
    // SAFETY: The task runs, so it is there, and the scheduler changes this only when it stops to run.
    let waits = unsafe { (*current.as_ptr()).nvcsw };
    (current.pid(), u64::try_from(waits).unwrap_or(0))
}
