// SPDX-License-Identifier: GPL-2.0
//! Who works with the station: softirqs, which never wait, or a task, which may sleep meanwhile. As for a socket
//! (`lock_sock()`), a softirq that comes while a task has it leaves its work behind.

use super::station::Station;
use kernel::{
    new_mutex, new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, Full},
        Mutex, SpinLock,
    },
};
use nk::bh;

/// Where the station is.
#[pin_data]
pub(super) struct Desk {
    /// Tasks wait for each other here.
    #[pin]
    tasks: Mutex<()>,
    /// Empty while a task has it, and while it is closed. Held with softirqs off.
    #[pin]
    station: SpinLock<Option<KBox<Station>>>,
    /// Somebody found it taken.
    missed: Atomic<bool>,
}

impl Desk {
    pub(super) fn new(station: KBox<Station>) -> impl PinInit<Self> {
        pin_init!(Self {
            tasks <- new_mutex!(()),
            station <- new_spinlock!(Some(station)),
            missed: Atomic::new(false),
        })
    }

    /// Runs `f`, which may sleep, with the station. `ENODEV` once it is closed. What comes meanwhile is missed. Sleeps.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Station) -> R) -> Result<R> {
        let _turn = self.tasks.lock();
        let mut station = self.take().ok_or(ENODEV)?;
        let result = f(&mut station);
        bh::disabled(|| *self.station.lock() = Some(station));
        Ok(result)
    }

    /// Runs `f` with the station; `None` if somebody has it, who then [misses](Self::take_missed) something, or if it is
    /// closed. With softirqs off.
    pub(super) fn try_with<R>(&self, f: impl FnOnce(&mut Station) -> R) -> Option<R> {
        let mut station = self.station.try_lock();
        if station.as_ref().is_none_or(|station| station.is_none()) {
            drop(station);
            // Who has it looks at this after giving it back. If that was just now, it is there by now.
            self.missed.xchg(true, Full);
            station = self.station.try_lock();
        }
        Option::as_mut(&mut *station?).map(|station| f(station))
    }

    /// Whether somebody found the station taken since the last time this was asked. To be asked after each use of it: it is
    /// to be looked at again then. Any context.
    pub(super) fn take_missed(&self) -> bool {
        self.missed.xchg(false, Full)
    }

    /// Takes the station away, until [`Desk::open`]. Sleeps.
    pub(super) fn close(&self) -> Option<KBox<Station>> {
        let _turn = self.tasks.lock();
        self.take()
    }

    /// Puts the station back. Sleeps.
    pub(super) fn open(&self, station: KBox<Station>) {
        let _turn = self.tasks.lock();
        bh::disabled(|| *self.station.lock() = Some(station));
    }

    /// The mutex `tasks` is held: nobody but a softirq on another processor has it.
    fn take(&self) -> Option<KBox<Station>> {
        bh::disabled(|| self.station.lock().take())
    }
}
