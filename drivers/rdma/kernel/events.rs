// SPDX-License-Identifier: GPL-2.0
//! Events of the kernel's queue pairs, whose users take them in process context.

use crate::pending::PendingEvents;
use kernel::{
    impl_has_work, new_work,
    prelude::*,
    sync::Arc,
    workqueue::{self, Work, WorkItem},
};
use nk_rdma::{Event, QpNotifier};

/// Takes events in any context and tells them in process context.
#[pin_data]
pub(crate) struct LateEvents {
    notifier: Arc<QpNotifier>,
    pending: PendingEvents,
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for LateEvents { self.work }
}

impl WorkItem for LateEvents {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        for event in this.pending.take() {
            this.notifier.event_may_sleep(event);
        }
    }
}

impl LateEvents {
    /// For users of the queue pair that `notifier` leads to.
    pub(super) fn new(notifier: Arc<QpNotifier>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                notifier,
                pending: PendingEvents::new(),
                work <- new_work!("nupa_rdma::LateEvents"),
            }),
            GFP_KERNEL,
        )
    }

    /// Has an event told soon. Any context.
    pub(crate) fn add(self: &Arc<Self>, event: Event) {
        self.pending.add(event);
        // An error means that it is queued already, or that the queue pair is being destroyed.
        let _ = workqueue::system_highpri().enqueue(self.clone());
    }

    /// Ends that: when this returns none is being told, and none will be. Sleeps.
    pub(super) fn end(self: &Arc<Self>) {
        nk::work::disable_sync(self);
    }
}
