// SPDX-License-Identifier: GPL-2.0
//! Events of the kernel's queue pairs, whose users take them in process context.

use kernel::{
    impl_has_work, new_work,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc,
    },
    workqueue::{self, Work, WorkItem},
};
use nk_rdma::{Event, QpNotifier};

/// Events that a queue pair can have, in the order in which they are told.
const EVENTS: [Event; 5] = [
    Event::CommEstablished,
    Event::SqDrained,
    Event::QpAccess,
    Event::QpFatal,
    Event::LastWqe,
];

/// Takes events in any context and tells them in process context.
#[pin_data]
pub(crate) struct LateEvents {
    notifier: Arc<QpNotifier>,
    /// Those to be told, one bit each.
    pending: Atomic<u32>,
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for LateEvents { self.work }
}

impl WorkItem for LateEvents {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let pending = this.pending.xchg(0, Full);
        for (bit, event) in EVENTS.iter().enumerate() {
            if pending & 1 << bit != 0 {
                this.notifier.event_may_sleep(*event);
            }
        }
    }
}

impl LateEvents {
    /// For users of the queue pair that `notifier` leads to.
    pub(super) fn new(notifier: Arc<QpNotifier>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                notifier,
                pending: Atomic::new(0),
                work <- new_work!("nupa_rdma::LateEvents"),
            }),
            GFP_KERNEL,
        )
    }

    /// Has an event told soon. Any context.
    pub(crate) fn add(self: &Arc<Self>, event: Event) {
        let Some(bit) = EVENTS.iter().position(|known| *known == event) else {
            return;
        };
        let mut old = self.pending.load(Relaxed);
        while let Err(now) = self.pending.cmpxchg(old, old | 1 << bit, Full) {
            old = now;
        }
        // An error means that it is queued already, or that the queue pair is being destroyed.
        let _ = workqueue::system_highpri().enqueue(self.clone());
    }

    /// Ends that: when this returns none is being told, and none will be. Sleeps.
    pub(super) fn end(self: &Arc<Self>) {
        nk::work::disable_sync(self);
    }
}
