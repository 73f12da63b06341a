// SPDX-License-Identifier: GPL-2.0
//! The poll function of a channel: completions of both halves, new receive buffers, moderation.

use crate::{
    moderation::Sampler,
    nic::Nic,
    rx::{Destination, Rx},
    tx,
};
use kernel::sync::{aref::ARef, Arc};
use nk::net::{Device, Napi, NapiContext, Poll, TxQueueRef};
use nupa_fabric::CqHandler;

/// What the NAPI instance of a channel polls.
pub(crate) struct Poller {
    pub(crate) rx: Rx,
    pub(crate) index: usize,
    pub(crate) dev: ARef<Device<Nic>>,
    /// Finds a moderation that suits the load, if the user wants that.
    pub(crate) moderation: Option<Sampler>,
}

/// Receives until nothing is left, or `budget` frames.
fn receive(rx: &mut Rx, to: &Destination<'_>, budget: u32) -> u32 {
    let mut work = 0u32;
    while work < budget {
        work = work.wrapping_add(rx.receive(to, budget.wrapping_sub(work)));
        if !rx.refill(Some(to.context)) {
            to.stats.alloc_failed.add(1);
            if rx.is_starved() {
                // No event would come: stay in polling until there is memory.
                return budget;
            }
        }
        if work < budget && !rx.arm() {
            break;
        }
    }
    work
}

impl Poll for Poller {
    fn poll(&mut self, context: &NapiContext<'_>, budget: u32) -> u32 {
        let Some(stats) = self.dev.data().get_ref().channel_stats(self.index) else {
            return 0;
        };
        if let Some(queue) = self.dev.tx_queue(self.index) {
            if let Some(mut queue) = queue.lock().queue() {
                tx::event(&mut queue, &stats.tx);
            }
        }
        let to = Destination::new(context, &self.dev, &stats.rx);
        let work = receive(&mut self.rx, &to, budget);
        if let Some(xdp) = &mut self.rx.xdp {
            xdp.flush(&to, &stats.tx, self.index);
        }
        if let Some(moderation) = &mut self.moderation {
            moderation.sample(work);
        }
        work
    }

    fn reclaim(&mut self) {
        let Some(stats) = self.dev.data().get_ref().channel_stats(self.index) else {
            return;
        };
        // Whoever has the lock may be what was interrupted on this CPU; then the next transmit reclaims.
        let queue = self.dev.tx_queue(self.index);
        if let Some(mut queue) = queue.and_then(TxQueueRef::try_lock) {
            if let Some(mut queue) = queue.queue() {
                tx::event(&mut queue, &stats.tx);
            }
        }
    }
}

/// Schedules a channel's poll function at an event of either completion queue.
pub(crate) struct Wake(pub(crate) Arc<Napi<Poller>>);

impl CqHandler for Wake {
    fn completion(&self) {
        self.0.schedule();
    }

    fn is_vital(&self) -> bool {
        true
    }
}
