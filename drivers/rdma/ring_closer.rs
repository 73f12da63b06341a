// SPDX-License-Identifier: GPL-2.0
//! The end of process rings of queue pairs that their controllers have failed (`Documentation/process-rings.md`).

use crate::{pending::PendingEvents, state::State};
use kernel::{
    impl_has_work, new_work,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc, Mutex,
    },
    workqueue::{self, Work, WorkItem},
};
use nk_rdma::{Event, QpNotifier};

/// Passes events of a process's queue pair on. If they say that the pair receives no more, and it has a process ring, that is closed before: no
/// completion may come that tells the process, and its peer would go on as if the messages arrived.
#[pin_data]
pub(crate) struct RingCloser {
    state: Arc<Mutex<State>>,
    notifier: Arc<QpNotifier>,
    /// The pair has, or is about to have, a process ring, or had one.
    has_ring: Atomic<bool>,
    /// The controller has failed the pair since that was said last.
    failed: Atomic<bool>,
    /// Told when the ring is closed.
    pending: PendingEvents,
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for RingCloser { self.work }
}

impl WorkItem for RingCloser {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // First: `failed` is set before an event is added.
        let events = this.pending.take();
        let mut state = this.state.lock();
        // Else the pair was connected anew, and has another ring perhaps.
        if this.failed.load(Relaxed) {
            state.close_ring();
        }
        drop(state);
        for event in events {
            this.notifier.event(event);
        }
    }
}

impl RingCloser {
    /// For the pair of this state, whose process `notifier` tells.
    pub(crate) fn new(state: Arc<Mutex<State>>, notifier: Arc<QpNotifier>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                state,
                notifier,
                has_ring: Atomic::new(false),
                failed: Atomic::new(false),
                pending: PendingEvents::new(),
                work <- new_work!("nupa_rdma::RingCloser"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The pair is about to have a ring, and its state is locked: the ring is closed if the controller fails the pair from now on. Whether it has done
    /// so before is to be looked at afterwards.
    pub(crate) fn expect_ring(&self) {
        self.failed.store(false, Relaxed);
        let _ = self.has_ring.xchg(true, Full);
    }

    /// Passes an event on. Any context.
    pub(crate) fn event(self: &Arc<Self>, event: Event) {
        let ends = matches!(event, Event::QpFatal | Event::QpAccess | Event::LastWqe);
        if !ends || !self.has_ring.load(Relaxed) {
            return self.notifier.event(event);
        }
        self.failed.store(true, Relaxed);
        self.pending.add(event);
        // Not one of high priority: it waits for commands that hold the lock. An error means that it is queued already, or that the queue pair is
        // being destroyed.
        let _ = workqueue::system_long().enqueue(self.clone());
    }

    /// Ends that: when this returns none is being told of those that came late, and none will be. Sleeps; not with the state locked.
    pub(crate) fn end(self: &Arc<Self>) {
        nk::work::disable_sync(self);
    }
}
