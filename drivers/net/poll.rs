// SPDX-License-Identifier: GPL-2.0
//! The poll function of a channel: completions of both halves, new receive buffers, moderation.

use crate::{
    nic::Nic,
    rx::{Destination, Rx},
    tx,
};
use kernel::sync::{aref::ARef, Arc};
use nk::net::{dim, Device, Napi, NapiContext, Poll};
use nupa_fabric::{CqControl, CqHandler};

/// What the NAPI instance of a channel polls.
pub(crate) struct Poller {
    pub(crate) rx: Rx,
    pub(crate) index: usize,
    pub(crate) dev: ARef<Device<Nic>>,
    /// Finds a moderation that suits the load, if the user wants that.
    pub(crate) moderation: Option<dim::Sampler<Moderator>>,
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
        let mut work = 0u32;
        while work < budget {
            work = work.wrapping_add(self.rx.receive(&to, budget.wrapping_sub(work)));
            if !self.rx.refill() {
                stats.rx.alloc_failed.add(1);
                if self.rx.is_starved() {
                    // No event would come: stay in polling until there is memory.
                    return budget;
                }
            }
            if work < budget && !self.rx.arm() {
                break;
            }
        }
        if let Some(moderation) = self.moderation.as_mut().filter(|_| work != 0) {
            moderation.sample(
                stats.rx.received.packets.get(),
                stats.rx.received.bytes.get(),
            );
        }
        work
    }
}

/// Schedules a channel's poll function at an event of either completion queue.
pub(crate) struct Wake(pub(crate) Arc<Napi<Poller>>);

impl CqHandler for Wake {
    fn completion(&self) {
        self.0.schedule_irqoff();
    }
}

/// Sets the moderation that was found to suit the load.
pub(crate) struct Moderator(pub(crate) CqControl);

/// Moderation of each level: microseconds and frames.
///
/// Shorter than those that the kernel suggests for Ethernet adapters (64 to 256 microseconds): the fabric's round trip
/// is, and where a guest is behind it every wait is longer than asked for.
const LEVELS: [(u16, u16); dim::LEVELS] = [(0, 0), (4, 8), (8, 16), (16, 32), (32, 64)];

impl dim::Apply for Moderator {
    fn apply(&self, level: usize) {
        if let Some((usecs, frames)) = LEVELS.get(level) {
            // A lost controller moderates nothing, and its successor starts with new queues.
            let _ = self.0.set_moderation(*usecs, *frames);
        }
    }
}
