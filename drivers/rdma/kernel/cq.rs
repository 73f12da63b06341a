// SPDX-License-Identifier: GPL-2.0
//! Completion queues that the kernel polls.

use super::{completion::translate, lost::Member};
use crate::{
    cq::{Cq, Handler},
    device::Rdma,
};
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::{atomic::Atomic, Arc},
};
use nk::{
    irq_work::{IrqWork, IrqWorkItem},
    irqlock::SpinLockIrq,
    new_spinlock_irq,
};
use nk_rdma::{Completions, CqInit, CqNotifier, Device};

/// What it takes to poll a completion queue.
#[pin_data]
pub(crate) struct KernelCq {
    #[pin]
    inner: SpinLockIrq<Inner>,
    #[pin]
    late: IrqWork<LateCompletion>,
}

/// Tells the user of a queue of completions without the controller. Posting makes some, and a driver must not call back from
/// within a call of its user's (the kernel's Documentation/infiniband/core_locking.rst).
struct LateCompletion(Arc<CqNotifier>);

impl IrqWorkItem for LateCompletion {
    fn run(&self) {
        self.0.completion();
    }
}

struct Inner {
    cq: nupa_fabric::Cq,
    /// Queue pairs that complete here, by number.
    pairs: RBTree<u32, Member>,
    /// Whether some of them were lost, and complete without the controller.
    lost: bool,
    /// Whether the user has asked for an event. The controller's event does not take this back: one event too many is
    /// allowed, one that was never asked for is not (`ib_cq_completion_direct()`).
    armed: bool,
}

impl KernelCq {
    /// Takes completions until there are none or there is no room. Any context.
    pub(super) fn poll(&self, completions: &mut Completions<'_>) {
        let mut inner = self.inner.lock();
        let Inner {
            cq, pairs, lost, ..
        } = &mut *inner;
        while !completions.is_full() {
            let Some(cqe) = cq.poll() else {
                // What the controller has completed comes first.
                if *lost {
                    pairs.values().for_each(|member| member.flush(completions));
                }
                return;
            };
            // Those of pairs that are gone interest nobody.
            if let Some(Member { pair, .. }) = pairs.get(&cqe.qpn.get()) {
                pair.completed(&cqe);
                completions.push(pair.handle(), &translate(&cqe));
            }
        }
        cq.publish();
    }

    /// Asks for an event; returns whether there are completions already. Any context.
    pub(super) fn arm(&self, solicited_only: bool) -> bool {
        let mut inner = self.inner.lock();
        inner.armed = true;
        inner.cq.arm(solicited_only) || inner.lost && inner.pairs.values().any(Member::has_lost)
    }

    /// A pair was lost, or was posted to since: has the user poll soon, if that is waiting for an event. Any context.
    pub(super) fn lose(&self) {
        let mut inner = self.inner.lock();
        inner.lost = true;
        let armed = core::mem::take(&mut inner.armed);
        drop(inner);
        if armed {
            self.late.queue();
        }
    }

    /// Makes a pair known. May sleep.
    pub(super) fn attach(&self, qpn: u32, member: Member) -> Result {
        let node = RBTreeNode::new(qpn, member, GFP_KERNEL)?;
        let old = self.inner.lock().pairs.insert(node);
        drop(old);
        Ok(())
    }

    /// Forgets a pair that is in the reset state and cannot be lost any more: nothing is told for its sake from then on. Sleeps.
    pub(super) fn detach(&self, qpn: u32) {
        self.disown(qpn);
        let mut inner = self.inner.lock();
        let old = inner.pairs.remove_node(&qpn);
        drop(inner);
        drop(old);
        // The queue outlives its pairs, and its user ends what the handler starts only before it destroys the queue.
        self.late.sync();
    }

    /// Forgets the completions of a pair that is in the reset state.
    pub(super) fn disown(&self, qpn: u32) {
        let mut inner = self.inner.lock();
        let Inner { cq, pairs, .. } = &mut *inner;
        if let Some(Member { pair, .. }) = pairs.get(&qpn) {
            cq.disown(qpn, |cqe| pair.completed(cqe));
        }
    }
}

impl Cq {
    /// Makes one whose ring is the port's.
    pub(super) fn for_kernel(
        dev: &Device<Rdma>,
        init: &CqInit,
        notifier: &Arc<CqNotifier>,
    ) -> Result<Self> {
        let entries = init
            .entries
            .checked_add(nupa_fabric::Cq::SLACK)
            .ok_or(EINVAL)?;
        let ring_entries = entries.checked_next_power_of_two().ok_or(EINVAL)?;
        let log_entries = u8::try_from(ring_entries.trailing_zeros())?;
        let handler = Arc::new(Handler(notifier.clone()), GFP_KERNEL)?;
        let cq = dev.port().create_cq(log_entries, init.vector, handler)?;
        let control = cq.control().clone();
        let inner = Inner {
            cq,
            pairs: RBTree::new(),
            lost: false,
            armed: false,
        };
        let kernel = Arc::pin_init(
            pin_init!(KernelCq {
                inner <- new_spinlock_irq!(inner),
                late <- IrqWork::new(LateCompletion(notifier.clone())),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            control,
            entries: init.entries,
            ring_entries: Atomic::new(ring_entries),
            vector: init.vector,
            kernel: Some(kernel),
        })
    }

    /// What it takes to poll it. `EINVAL` for one of a process.
    pub(super) fn kernel(&self) -> Result<&Arc<KernelCq>> {
        self.kernel.as_ref().ok_or(EINVAL)
    }
}
