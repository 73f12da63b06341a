// SPDX-License-Identifier: GPL-2.0
//! Interrupt moderation of a receive queue that follows its load.
//!
//! The poll function watches; a work item tells the controller, since that may sleep.

use crate::adaptive::{Adaptive, LEVELS};
use kernel::{
    impl_has_work, new_work,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
    workqueue::{self, Work, WorkItem},
};
use nupa_fabric::CqControl;

/// Tells the controller.
#[pin_data]
struct Moderator {
    #[pin]
    work: Work<Self>,
    cq: CqControl,
    level: Atomic<u32>,
}

impl_has_work! {
    impl HasWork<Self> for Moderator { self.work }
}

impl WorkItem for Moderator {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if let Some((usecs, frames)) = LEVELS.get(this.level.load(Relaxed) as usize) {
            // A lost controller moderates nothing, and its successor starts with new queues.
            let _ = this.cq.set_moderation(*usecs, *frames);
        }
    }
}

/// Watches one receive queue; belongs to its poll function. Dropping it waits for the work item.
pub(crate) struct Sampler {
    rule: Adaptive,
    moderator: Arc<Moderator>,
}

impl Sampler {
    /// Starts with no moderation. May sleep.
    pub(crate) fn new(cq: CqControl) -> Result<Self> {
        let moderator = Arc::pin_init(
            pin_init!(Moderator {
                work <- new_work!("nupa_net::Moderator::work"),
                cq,
                level: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            rule: Adaptive::default(),
            moderator,
        })
    }

    /// Notes a poll that found so many frames. Softirq context.
    #[inline]
    pub(crate) fn sample(&mut self, frames: u32) {
        if let Some(level) = self.rule.sample(frames) {
            self.moderator.level.store(level as u32, Relaxed);
            // Were it queued already, that run will see the new level. A controller may take long to answer.
            let _ = workqueue::system_long().enqueue(self.moderator.clone());
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        nk::work::disable_sync(&self.moderator);
    }
}
