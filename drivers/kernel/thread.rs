// SPDX-License-Identifier: GPL-2.0
//! Kernel threads that wait for work, and those who have some for them.
//!
//! C headers: `include/linux/kthread.h`, `include/linux/hrtimer.h`.

use crate::bindings;
use core::{cell::UnsafeCell, ops::Deref, ptr};
use kernel::{
    error::from_err_ptr,
    ffi::{c_int, c_void},
    prelude::*,
    str::CStr,
    sync::{
        aref::ARef,
        atomic::{Atomic, Full, Relaxed},
        Arc, SetOnce,
    },
    task::Task,
    time::Delta,
    types::NotThreadSafe,
};

/// What a thread does.
pub trait Body: Send + 'static {
    /// Runs in the thread, once, until [`Current::should_stop`]; it may return before. Sleeping is allowed.
    fn run(&mut self, current: &Current<'_>);
}

/// Wakes one thread, which need not have been started yet.
pub struct Waker {
    /// Somebody woke the thread, and it does not know yet.
    woken: Atomic<bool>,
    /// The thread sleeps, or is about to.
    asleep: Atomic<bool>,
    task: SetOnce<ARef<Task>>,
}

impl Waker {
    /// A waker that no thread belongs to yet.
    pub fn new() -> Result<Arc<Self>> {
        let waker = Self {
            woken: Atomic::new(false),
            asleep: Atomic::new(false),
            task: SetOnce::new(),
        };
        Ok(Arc::new(waker, GFP_KERNEL)?)
    }

    /// Ends the thread's sleep, or its next one if it is not asleep now. What was stored before can be seen by the thread
    /// afterwards. Any context.
    #[inline]
    pub fn wake(&self) {
        // A full barrier, which the thread has between its two flags as well: it sees that it was woken, or is seen asleep.
        self.woken.xchg(true, Full);
        if !self.asleep.load(Relaxed) {
            return;
        }
        if let Some(task) = self.task.as_ref() {
            task.wake_up();
        }
    }
}

/// A running thread, seen from within.
pub struct Current<'a> {
    waker: &'a Waker,
    _here: NotThreadSafe,
}

impl Current<'_> {
    /// Whether somebody waits for the thread to end.
    pub fn should_stop(&self) -> bool {
        // SAFETY: A `Current` exists in kernel threads only, which it cannot leave.
        unsafe { bindings::nk_thread_should_stop() }
    }

    /// Sleeps until the thread is woken or stopped, `limit` at most; not at all if it was woken since it last slept. Not
    /// with locks held. Says whether it was woken.
    pub fn sleep(&self, limit: Delta) -> bool {
        let nanoseconds = u64::try_from(limit.as_nanos()).unwrap_or(0);
        self.waker.asleep.store(true, Relaxed);
        // SAFETY: The flag lives as long as `self`, and is only accessed by atomic operations. This is process context.
        unsafe { bindings::nk_thread_sleep(self.waker.woken.as_ptr(), nanoseconds) };
        self.waker.asleep.store(false, Relaxed);
        self.take_wake()
    }

    /// Whether the thread was woken since it was last asked or slept.
    pub fn take_wake(&self) -> bool {
        self.waker.woken.load(Relaxed) && self.waker.woken.xchg(false, Full)
    }
}

/// A kernel thread; dropping it (not in itself; sleeps) stops it, waits for its end, and drops its body.
///
/// It has the lowest of the real-time priorities: it runs at once when there is work, and must not spin for long.
pub struct Thread<B: Body> {
    task: ARef<Task>,
    start: KBox<Start<B>>,
}

/// What the thread gets.
struct Start<B> {
    /// The thread's own as long as it runs.
    body: UnsafeCell<B>,
    waker: Arc<Waker>,
}

// SAFETY: A shared `Thread` gives access to the waker only; the body, which is `Send`, is used by the thread alone.
unsafe impl<B: Body> Sync for Thread<B> {}

impl<B: Body> Thread<B> {
    /// Starts a thread that `waker` wakes. Sleeps. `EBUSY` if that one has a thread already, `EINTR` if the caller is
    /// being killed.
    pub fn new(name: &CStr, waker: Arc<Waker>, body: B) -> Result<Self> {
        let start = KBox::new(
            Start {
                body: UnsafeCell::new(body),
                waker,
            },
            GFP_KERNEL,
        )?;
        let data = ptr::from_ref::<Start<B>>(&start).cast_mut();
        // SAFETY: `run::<B>` takes a pointer to a `Start<B>`, which lives in its box until `Thread` has stopped the
        // thread. The name is copied.
        let task = from_err_ptr(unsafe {
            bindings::nk_thread_create(Some(run::<B>), data.cast(), name.as_char_ptr())
        })?;
        // SAFETY: The thread has not been woken, so it exists. `Task` is a transparent wrapper of its C object.
        let task = ARef::from(unsafe { &*task.cast::<Task>() });
        // SAFETY: As above.
        unsafe { bindings::sched_set_fifo_low(task.as_ptr().cast()) };
        let thread = Self { task, start };
        if !thread.start.waker.task.populate(thread.task.clone()) {
            return Err(EBUSY);
        }
        thread.task.wake_up();
        Ok(thread)
    }
}

impl<B: Body> Deref for Thread<B> {
    type Target = Waker;

    fn deref(&self) -> &Waker {
        &self.start.waker
    }
}

impl<B: Body> Drop for Thread<B> {
    fn drop(&mut self) {
        // SAFETY: The reference held keeps the task of this kernel thread, also if it has ended by itself. One that has
        // not run yet ends without calling `run`.
        unsafe { bindings::kthread_stop(self.task.as_ptr().cast()) };
    }
}

/// # Safety
///
/// `data` must point to a `Start<B>` that lives until the thread has ended, and whose body nobody else uses.
unsafe extern "C" fn run<B: Body>(data: *mut c_void) -> c_int {
    // SAFETY: By this function's contract.
    let start = unsafe { &*data.cast::<Start<B>>() };
    // SAFETY: By this function's contract.
    let body = unsafe { &mut *start.body.get() };
    body.run(&Current {
        waker: &start.waker,
        _here: NotThreadSafe,
    });
    0
}
