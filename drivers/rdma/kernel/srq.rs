// SPDX-License-Identifier: GPL-2.0
//! Shared receive queues that the kernel posts to.

use super::{qp::recv_stride, request::post_receives};
use crate::{
    device::Rdma,
    srq::{Handler, Srq},
};
use kernel::{prelude::*, sync::Arc};
use nk::{irqlock::SpinLockIrq, new_spinlock_irq};
use nk_rdma::{Device, RecvWrs, SrqInit, SrqNotifier};
use nupa_fabric::RecvPoster;
use nupa_proto::wqe::MAX_RECV_SGE;

/// What it takes to post to a shared receive queue.
#[pin_data]
pub(crate) struct KernelSrq {
    #[pin]
    ring: SpinLockIrq<RecvPoster>,
}

impl KernelSrq {
    /// Posts requests. Any context.
    pub(super) fn post(&self, requests: &mut RecvWrs<'_>) -> Result {
        let mut ring = self.ring.lock();
        let result = post_receives(&mut ring, requests);
        ring.ring();
        result
    }

    /// Frees the entries before the index of a completion. Any context.
    pub(super) fn completed(&self, queue_index: u32) {
        // The controller takes entries in order, but their completions may be polled in any: an index that is older
        // than one that was seen is refused, and frees nothing new.
        let _ = self.ring.lock().completed(queue_index);
    }
}

impl Srq {
    /// Makes one whose ring is the port's, and says in `init` how much it holds.
    pub(super) fn for_kernel(
        dev: &Device<Rdma>,
        init: &mut SrqInit<'_, Rdma>,
        notifier: &Arc<SrqNotifier>,
    ) -> Result<Self> {
        let attributes = init.attributes;
        if attributes.max_sge > MAX_RECV_SGE as u32 || attributes.max_wr == 0 {
            return Err(EINVAL);
        }
        let entries = attributes
            .max_wr
            .checked_next_power_of_two()
            .ok_or(EINVAL)?;
        let log_entries = u8::try_from(entries.trailing_zeros())?;
        if log_entries > dev.port().info().limits.max_log_srq {
            return Err(EINVAL);
        }
        init.attributes.max_wr = entries;
        let attributes = init.attributes;
        let handler = Arc::new(Handler(notifier.clone()), GFP_KERNEL)?;
        let log_stride = recv_stride(attributes.max_sge);
        let (object, ring) =
            dev.port()
                .create_kernel_srq(init.pd, log_entries, log_stride, handler)?;
        if attributes.limit != 0 {
            object.set_limit(attributes.limit)?;
        }
        let kernel = Arc::pin_init(
            pin_init!(KernelSrq { ring <- new_spinlock_irq!(ring) }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            object,
            attributes,
            kernel: Some(kernel),
        })
    }

    /// What it takes to post to it. `EINVAL` for one of a process.
    pub(super) fn kernel(&self) -> Result<&Arc<KernelSrq>> {
        self.kernel.as_ref().ok_or(EINVAL)
    }
}
