// SPDX-License-Identifier: GPL-2.0
//! Timers that expire again and again.
//!
//! C header: `include/linux/hrtimer.h`.

use kernel::{
    impl_has_hr_timer,
    prelude::*,
    sync::{Arc, ArcBorrow},
    time::{
        hrtimer::{
            ArcHrTimerHandle, HrTimer, HrTimerCallback, HrTimerCallbackContext, HrTimerPointer,
            HrTimerRestart, RelativeMode,
        },
        Delta, Monotonic,
    },
};

/// What a [`PeriodicTimer`] calls.
pub trait Tick: Send + Sync {
    /// The time has come. Hard interrupt context.
    fn tick(&self);
}

/// Calls something again and again.
#[pin_data]
pub struct PeriodicTimer<T: Tick + 'static> {
    #[pin]
    timer: HrTimer<Self>,
    period: Delta,
    #[pin]
    target: T,
}

/// A timer that is set; dropping it cancels it, and waits for a call to end.
pub type TimerHandle<T> = ArcHrTimerHandle<PeriodicTimer<T>>;

impl<T: Tick + 'static> PeriodicTimer<T> {
    /// A timer that is not set. Sleeps.
    pub fn new(target: impl PinInit<T>, period: Delta) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                timer <- HrTimer::new(),
                period,
                target <- target,
            }),
            GFP_KERNEL,
        )
    }

    /// Calls the target from now on, as long as the handle is there. Any context.
    pub fn set(self: &Arc<Self>) -> TimerHandle<T> {
        self.clone().start(self.period)
    }

    /// What is called.
    pub fn target(&self) -> &T {
        &self.target
    }
}

impl<T: Tick + 'static> HrTimerCallback for PeriodicTimer<T> {
    type Pointer<'a> = Arc<Self>;

    fn run(
        this: ArcBorrow<'_, Self>,
        mut context: HrTimerCallbackContext<'_, Self>,
    ) -> HrTimerRestart {
        this.target.tick();
        context.forward_now(this.period);
        HrTimerRestart::Restart
    }
}

impl_has_hr_timer! {
    impl{T: Tick + 'static} HasHrTimer<Self> for PeriodicTimer<T> {
        mode: RelativeMode<Monotonic>, field: self.timer
    }
}
