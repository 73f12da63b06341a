// SPDX-License-Identifier: GPL-2.0
//! The heartbeat of this host's node. It has its own timer, so that no work, lock or process of this host delays it.

use super::window::PoolWindow;
use kernel::{prelude::*, sync::Arc, time::Delta};
use nk::{
    irqlock::{new_spinlock_irq, SpinLockIrq},
    timer::{PeriodicTimer, Tick, TimerHandle},
};
use nupa_pool::Heartbeat;
use nupa_proto::pool::HEARTBEAT_US;

/// What gives the sign.
pub(super) type HeartbeatTimer = PeriodicTimer<Beat>;
/// While this is there, it is given.
pub(super) type Beating = TimerHandle<Beat>;

/// One sign.
#[pin_data]
pub(super) struct Beat {
    window: PoolWindow,
    #[pin]
    heartbeat: SpinLockIrq<Heartbeat>,
}

impl Beat {
    /// The timer for it, which is not set. Sleeps.
    pub(super) fn timer(window: PoolWindow, heartbeat: Heartbeat) -> Result<Arc<HeartbeatTimer>> {
        let beat = pin_init!(Self {
            window,
            heartbeat <- new_spinlock_irq!(heartbeat),
        });
        PeriodicTimer::new(beat, Delta::from_micros(HEARTBEAT_US as i64))
    }

    /// The node has another epoch. Any context.
    pub(super) fn set(&self, heartbeat: Heartbeat) {
        *self.heartbeat.lock() = heartbeat;
    }
}

impl Tick for Beat {
    fn tick(&self) {
        // Who works with the node finds out by itself if the slot is lost.
        let _ = self.heartbeat.lock().beat(&self.window);
    }
}
