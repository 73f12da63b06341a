// SPDX-License-Identifier: GPL-2.0
//! Completion queues that the kernel polls.

use super::{completion::translate, qp::Pair};
use crate::{
    cq::{Cq, Handler},
    device::Rdma,
};
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::{atomic::Atomic, Arc},
};
use nk::{irqlock::SpinLockIrq, new_spinlock_irq};
use nk_rdma::{Completions, CqInit, CqNotifier, Device, QpHandle, WorkCompletion};

/// What it takes to poll a completion queue.
#[pin_data]
pub(crate) struct KernelCq {
    notifier: Arc<CqNotifier>,
    #[pin]
    inner: SpinLockIrq<Inner>,
}

struct Inner {
    cq: nupa_fabric::Cq,
    /// Queue pairs that complete here, by number.
    pairs: RBTree<u32, Arc<Pair>>,
    /// Completions that the controller has no part in, oldest first.
    own: KVec<Own>,
}

/// A completion that the controller has no part in.
struct Own {
    qpn: u32,
    handle: QpHandle,
    completion: WorkCompletion,
}

impl KernelCq {
    /// Takes completions until there are none or there is no room. Any context.
    pub(super) fn poll(&self, completions: &mut Completions<'_>) {
        let mut inner = self.inner.lock();
        let Inner { cq, pairs, own } = &mut *inner;
        while !completions.is_full() {
            let Some(cqe) = cq.poll() else {
                let Ok(own) = own.remove(0) else { return };
                completions.push(own.handle, &own.completion);
                continue;
            };
            // Those of pairs that are gone interest nobody.
            if let Some(pair) = pairs.get(&cqe.qpn.get()) {
                pair.completed(&cqe);
                completions.push(pair.handle(), &translate(&cqe));
            }
        }
        cq.publish();
    }

    /// Asks for an event; returns whether there are completions already. Any context.
    pub(super) fn arm(&self, solicited_only: bool) -> bool {
        let mut inner = self.inner.lock();
        inner.cq.arm(solicited_only) || !inner.own.is_empty()
    }

    /// Adds completions of a pair that the controller has no part in, and tells the queue's user. Any context.
    pub(super) fn add(
        &self,
        qpn: u32,
        handle: QpHandle,
        completions: &mut dyn Iterator<Item = WorkCompletion>,
    ) -> Result {
        let mut inner = self.inner.lock();
        let mut result = Ok(());
        for completion in completions {
            let own = Own {
                qpn,
                handle,
                completion,
            };
            result = result.and(inner.own.push(own, GFP_ATOMIC));
        }
        drop(inner);
        self.notifier.completion();
        Ok(result?)
    }

    /// Makes a pair known. May sleep.
    pub(super) fn attach(&self, qpn: u32, pair: Arc<Pair>) -> Result {
        let node = RBTreeNode::new(qpn, pair, GFP_KERNEL)?;
        let old = self.inner.lock().pairs.insert(node);
        drop(old);
        Ok(())
    }

    /// Forgets a pair that is in the reset state.
    pub(super) fn detach(&self, qpn: u32) {
        self.disown(qpn);
        let mut inner = self.inner.lock();
        let old = inner.pairs.remove_node(&qpn);
        inner.own.retain(|own| own.qpn != qpn);
        drop(inner);
        drop(old);
    }

    /// Forgets the completions of a pair that is in the reset state.
    pub(super) fn disown(&self, qpn: u32) {
        let mut inner = self.inner.lock();
        let Inner { cq, pairs, .. } = &mut *inner;
        if let Some(pair) = pairs.get(&qpn) {
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
            own: KVec::new(),
        };
        let kernel = Arc::pin_init(
            pin_init!(KernelCq {
                notifier: notifier.clone(),
                inner <- new_spinlock_irq!(inner),
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
