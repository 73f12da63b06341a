// SPDX-License-Identifier: GPL-2.0
//! NAPI for what is no network device: work in softirq context, at once or some time later.
//!
//! C headers: `include/linux/netdevice.h` (`alloc_netdev_dummy()`), `include/linux/hrtimer.h`.

use super::napi::{private::Raw, Kept, Napi, Poll};
use crate::{
    bindings,
    irqlock::{new_spinlock_irq, SpinLockIrq},
};
use core::{ffi::c_int, ptr::NonNull};
use kernel::{
    container_of,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc,
    },
    time::Delta,
    types::Opaque,
};

/// Budget of a poll, which says by returning it that it is not done: what it does is not counted in packets. So little, that it
/// is the time of softirqs that ends a round of polls.
const WEIGHT: c_int = 1;

/// Nanoseconds from one tick of a processor to the next.
const TICK: i64 = bindings::nk_const_NK_TICK_NSEC as i64;

/// When a timer expires again and again.
#[derive(Clone, Copy, Debug)]
pub enum Repeat {
    /// So long after it was set and after each time.
    Period(Delta),
    /// With the processor's tick. That costs nothing more where the tick is not stopped because the processor idles.
    Tick,
}

impl Repeat {
    /// The longest time from one tick to the next.
    pub const TICK: Delta = Delta::from_nanos(TICK);

    /// The first time after `now`.
    fn after(self, now: i64) -> i64 {
        match self {
            Self::Period(period) => now.saturating_add(period.as_nanos().max(0)),
            // Ticks are at multiples of their period (`tick_setup_sched_timer()`).
            Self::Tick => now.saturating_sub(now % TICK).saturating_add(TICK),
        }
    }
}

/// A NAPI instance without a network device, and a timer that schedules it.
///
/// Dropping it may sleep, so the last reference must go in process context.
#[pin_data(PinnedDrop)]
pub struct DetachedNapi<P: Poll> {
    #[pin]
    timer: Opaque<bindings::hrtimer>,
    /// When the timer expires again. Whoever changes when it expires holds the lock.
    #[pin]
    repeat: SpinLockIrq<Repeat>,
    /// The next expiry in nanoseconds of `CLOCK_MONOTONIC`, or one that has passed.
    due: Atomic<i64>,
    /// The timer has expired since that was last asked.
    expired: Atomic<bool>,
    /// The target is being polled, and says at the end when it is polled next.
    polling: Atomic<bool>,
    /// The only reference, which goes before the device does.
    napi: Option<Arc<Napi<P>>>,
    _dev: DummyDevice,
}

// SAFETY: The timer may be started and cancelled from any thread; the rest is `Send` by itself.
unsafe impl<P: Poll> Send for DetachedNapi<P> {}
// SAFETY: As above.
unsafe impl<P: Poll> Sync for DetachedNapi<P> {}

impl<P: Poll> DetachedNapi<P> {
    /// One that is disabled. May sleep.
    pub fn new() -> Result<Arc<Self>> {
        let dev = DummyDevice::new()?;
        // SAFETY: The device lives as long as the instance: both are in the same object, which drops them in that order.
        let napi = unsafe { Napi::add(dev.0, Kept::Nothing { weight: WEIGHT }) }?;
        Arc::pin_init(
            pin_init!(Self {
                timer <- Opaque::ffi_init(|timer: *mut bindings::hrtimer| {
                    // SAFETY: `timer` is ours to initialise and stays pinned.
                    unsafe {
                        bindings::hrtimer_setup(
                            timer,
                            Some(Self::expired),
                            bindings::CLOCK_MONOTONIC as bindings::clockid_t,
                            bindings::hrtimer_mode_HRTIMER_MODE_ABS,
                        );
                    }
                }),
                repeat <- new_spinlock_irq!(Repeat::Tick),
                due: Atomic::new(0),
                expired: Atomic::new(false),
                polling: Atomic::new(false),
                napi: Some(napi),
                _dev: dev,
            }),
            GFP_KERNEL,
        )
    }

    /// Starts polling of `target` whenever this is scheduled. `EBUSY` if it is enabled already. May sleep.
    pub fn enable(&self, target: P) -> Result {
        self.napi.as_ref().ok_or(ENODEV)?.enable(target)
    }

    /// Ends polling, waiting for a running poll, and returns what was polled. May sleep.
    pub fn disable(&self) -> Option<P> {
        self.napi.as_ref()?.disable()
    }

    /// Has the target polled soon, if it is enabled. Any context.
    #[inline]
    pub fn schedule(&self) {
        let _ = self.try_schedule();
    }

    /// The same; false if it is about to be polled anyway.
    #[inline]
    fn try_schedule(&self) -> bool {
        match &self.napi {
            // SAFETY: Added by `Napi::add`; scheduling is harmless while disabled.
            Some(napi) => unsafe { bindings::nk_napi_schedule_any(napi.as_napi()) },
            None => false,
        }
    }

    /// Has the target polled at a time and then again and again, and not at the times that were said before. It is not repeated
    /// while the target has not been polled for the last time, is being polled, or says that it is not done: who polls then says
    /// again when. Any context but the timer's own.
    pub fn schedule_every(&self, repeat: Repeat) {
        let mut current = self.repeat.lock();
        *current = repeat;
        let due = repeat.after(now());
        self.due.store(due, Relaxed);
        // SAFETY: Set up in `new`; it is cancelled before it goes.
        unsafe {
            bindings::hrtimer_start_range_ns(
                self.timer.get(),
                due,
                0,
                bindings::hrtimer_mode_HRTIMER_MODE_ABS,
            );
        }
    }

    /// The time until the target is polled next as [`schedule_every`](Self::schedule_every) had it; not above zero if it is not to
    /// be. Any context.
    #[inline]
    pub fn until_due(&self) -> Delta {
        Delta::from_nanos(self.due.load(Relaxed).saturating_sub(now()))
    }

    /// Whether the target is polled because its time has come. Of the target's poll function.
    #[inline]
    pub fn take_expired(&self) -> bool {
        let expired = self.expired.load(Relaxed);
        if expired {
            self.expired.store(false, Relaxed);
        }
        expired
    }

    /// From now on until [`end_poll`](Self::end_poll) the timer has nobody polled and is not repeated: if a poll takes longer than
    /// the time after which the next one is to be, there would never be a pause. Of the target's poll function.
    #[inline]
    pub fn begin_poll(&self) {
        self.polling.store(true, Relaxed);
    }

    /// Ends that. Of the target's poll function, before it asks [`until_due`](Self::until_due) and returns that it is done.
    #[inline]
    pub fn end_poll(&self) {
        // Full: a timer that expires later than the time that is read next must see it.
        self.polling.xchg(false, Full);
    }

    /// # Safety
    ///
    /// Only for the timer of a live `Self`, which calls it.
    unsafe extern "C" fn expired(timer: *mut bindings::hrtimer) -> bindings::hrtimer_restart {
        // SAFETY: By this function's contract; a pinned `Self` cancels its timer before it goes.
        let this = unsafe { &*container_of!(Opaque::cast_from(timer), Self, timer) };
        if this.polling.load(Relaxed) {
            return bindings::hrtimer_restart_HRTIMER_NORESTART;
        }
        this.expired.store(true, Relaxed);
        // It is set again here and not only after the poll: where a hypervisor emulates the hardware's timer, each time that it is
        // set costs as much as a poll.
        if !this.try_schedule() {
            return bindings::hrtimer_restart_HRTIMER_NORESTART;
        }
        let repeat = this.repeat.lock();
        let due = repeat.after(now());
        // SAFETY: It is in the timer's function, which called this one, and who starts the timer holds the lock.
        if !unsafe { bindings::nk_hrtimer_set_next(timer, due) } {
            return bindings::hrtimer_restart_HRTIMER_NORESTART;
        }
        this.due.store(due, Relaxed);
        bindings::hrtimer_restart_HRTIMER_RESTART
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline]
fn now() -> i64 {
    // SAFETY: No requirements.
    unsafe { bindings::ktime_get() }
}

#[pinned_drop]
impl<P: Poll> PinnedDrop for DetachedNapi<P> {
    fn drop(self: Pin<&mut Self>) {
        // What is polled may start the timer.
        drop(self.disable());
        // SAFETY: Set up in `new`. Nobody has a reference to start it again, and its function does not while polling is disabled.
        unsafe { bindings::hrtimer_cancel(self.timer.get()) };
        *self.project().napi = None;
    }
}

/// Whether nobody but the softirq that calls this wants the processor: it may poll on. Softirq context.
#[inline]
pub fn is_alone() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::nk_softirq_is_alone() }
}

/// A network device that only has NAPI instances.
struct DummyDevice(NonNull<bindings::net_device>);

// SAFETY: The device is used by its NAPI instances only, which may be used from any thread.
unsafe impl Send for DummyDevice {}
// SAFETY: As above.
unsafe impl Sync for DummyDevice {}

impl DummyDevice {
    fn new() -> Result<Self> {
        // SAFETY: No requirements.
        let dev = unsafe { bindings::alloc_netdev_dummy(0) };
        Ok(Self(NonNull::new(dev).ok_or(ENOMEM)?))
    }
}

impl Drop for DummyDevice {
    fn drop(&mut self) {
        // SAFETY: It is ours, was never registered, and its instances are gone.
        unsafe { bindings::free_netdev(self.0.as_ptr()) };
    }
}
