// SPDX-License-Identifier: GPL-2.0
//! Threads of the kernel that are bound to a processor and do nothing but poll.
//!
//! C header: `include/linux/kthread.h`.

use crate::{bh, bindings};
use core::{
    ffi::{c_int, c_void},
    mem::ManuallyDrop,
    ptr::NonNull,
};
use kernel::{error::from_err_ptr, prelude::*, str::CStr};

/// What such a thread polls.
pub trait BusyPoll: Send + 'static {
    /// Does what there is to do, if there is anything. False if it could not look, because somebody else has what it needs: then others
    /// on this processor come first, who may be who has it. In process context with softirqs held back, so it must not sleep; those
    /// that it raises run before the next call.
    fn busy_poll(&mut self) -> bool;
}

/// Whether there is such a processor, and it is online now. Any context.
pub fn is_online(cpu: u32) -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::nk_cpu_is_online(cpu) }
}

/// A thread that polls a target without a pause until it is stopped. The scheduler gives its processor to others as it does with any thread
/// that never sleeps.
pub struct PollThread<T: BusyPoll> {
    task: NonNull<bindings::task_struct>,
    /// From `KBox::leak`. It is the thread's until that has stopped.
    target: NonNull<T>,
}

// SAFETY: The handle does not touch the target while the thread runs, and any thread may stop another one.
unsafe impl<T: BusyPoll> Send for PollThread<T> {}

impl<T: BusyPoll> PollThread<T> {
    /// Starts one on a processor; if that is offline, it runs elsewhere. The thread is called `name/cpu`.
    ///
    /// `EINVAL` if there can be no such processor; the target comes back with each error. May sleep.
    pub fn new(
        name: &'static CStr,
        cpu: u32,
        target: KBox<T>,
    ) -> core::result::Result<Self, (Error, KBox<T>)> {
        let target = NonNull::from(KBox::leak(target));
        // SAFETY: `run` is given what it wants: the target lives until the thread has stopped, and is used by nobody else until then.
        let task = from_err_ptr(unsafe {
            bindings::nk_kthread_run_on(
                Some(Self::run),
                target.as_ptr().cast(),
                cpu,
                name.as_char_ptr(),
            )
        });
        match task.map(NonNull::new) {
            Ok(Some(task)) => Ok(Self { task, target }),
            failed => {
                // SAFETY: From `KBox::leak` above; there is no thread that has it.
                let target = unsafe { KBox::from_raw(target.as_ptr()) };
                Err((failed.err().unwrap_or(ENOMEM), target))
            }
        }
    }

    /// Ends the thread, waiting for a running poll, and returns what was polled. Sleeps.
    pub fn stop(self) -> KBox<T> {
        ManuallyDrop::new(self).end()
    }

    /// Called once: by `stop` or when it is dropped.
    fn end(&mut self) -> KBox<T> {
        // SAFETY: The thread was started by `new` and returns only when it is told to stop, which happens once, here. So it is there.
        unsafe { bindings::kthread_stop(self.task.as_ptr()) };
        // SAFETY: From `KBox::leak`; the thread, which had it, is gone.
        unsafe { KBox::from_raw(self.target.as_ptr()) }
    }

    /// The thread.
    ///
    /// # Safety
    ///
    /// `target` is a `T` that nobody else uses while this runs.
    unsafe extern "C" fn run(target: *mut c_void) -> c_int {
        // SAFETY: By this function's contract.
        let target = unsafe { &mut *target.cast::<T>() };
        let mut told = 0;
        // SAFETY: No requirements: this is a thread of the kernel's.
        while unsafe { !bindings::kthread_should_stop() } {
            if !bh::disabled(|| target.busy_poll()) {
                // SAFETY: Nothing is held here, so it may sleep.
                unsafe { bindings::nk_yield() };
            }
            // SAFETY: `told` is this function's. It is no reader of RCU here.
            unsafe { bindings::nk_kthread_pause(&mut told) };
        }
        0
    }
}

impl<T: BusyPoll> Drop for PollThread<T> {
    fn drop(&mut self) {
        drop(self.end());
    }
}
