// SPDX-License-Identifier: GPL-2.0
//! Sleep, hibernation and shutdown of the host.

use crate::controller::{attention, Controller, State};
use kernel::{error::code::ENODEV, sync::Arc};
use nk::power::Transition;

impl Controller {
    /// Something happens to the host. Sleeps.
    pub(crate) fn power(self: &Arc<Self>, transition: Transition) {
        match transition {
            Transition::Suspend => self.suspend(),
            Transition::Resume => self.wake_up(),
            Transition::Shutdown => self.shutdown(),
        }
    }

    /// The host goes to sleep: leaves the fabric, as for a reset. Afterwards the function neither uses memory nor does anything
    /// by itself. Sleeps.
    fn suspend(self: &Arc<Self>) {
        self.pause(true);
        self.function.revoke_dma();
        self.function.suspend();
    }

    /// The host is awake again, its programs are not yet. Sleeps.
    fn wake_up(self: &Arc<Self>) {
        let resumed = self.function.resume();
        let _life = self.lifecycle.lock();
        if self.state() != State::Paused {
            return;
        }
        match resumed {
            Ok(()) => {}
            // At once: what programs have mapped of the pool may be somebody else's now.
            Err(why) if why == ENODEV => {
                return self.lose(
                    "its place in the pool was taken while the host slept: rebind the driver",
                );
            }
            Err(_) => {
                return self
                    .lose("no thread polls the pool after the host slept: rebind the driver");
            }
        }
        if self.restart() {
            // Users of the old device may wait for programs or threads that still sleep, so that is for later.
            self.wake(attention::RENEW_RDMA);
        }
    }

    /// The machine goes down or starts another kernel: is down for the others from then on, as during a reset. Sleeps.
    fn shutdown(&self) {
        self.end();
        self.function.shutdown();
    }
}
