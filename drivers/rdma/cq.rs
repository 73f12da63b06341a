// SPDX-License-Identifier: GPL-2.0
//! Completion queues.

use crate::{
    context::{UserContext, Wanted},
    device::Rdma,
    kernel::KernelCq,
    ring::UserRing,
};
use kernel::{prelude::*, sync::Arc};
use nk_rdma::{CompletionQueue, CqInit, CqNotifier, Device, Event, Pins, Udata};
use nupa_fabric::{CqControl, CqHandler};
use nupa_proto::{cqe::CQE_SIZE, uabi};

/// log2 of the bytes of an entry.
const LOG_ENTRY: u8 = CQE_SIZE.trailing_zeros() as u8;

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) control: CqControl,
    pub(crate) entries: u32,
    /// Entries of the ring.
    pub(crate) ring_entries: u32,
    /// Completion vector.
    pub(crate) vector: u32,
    /// One that the kernel polls.
    pub(crate) kernel: Option<Arc<KernelCq>>,
}

impl CompletionQueue for Cq {
    fn entries(&self) -> u32 {
        self.entries
    }
}

impl Cq {
    /// The queue in the controller.
    pub(crate) fn control(&self) -> &CqControl {
        &self.control
    }

    /// Makes one whose ring is the process's.
    pub(crate) fn for_user(
        dev: &Device<Rdma>,
        init: &CqInit,
        notifier: &Arc<CqNotifier>,
        pins: &Pins,
        udata: &mut Udata<'_, Rdma>,
    ) -> Result<Self> {
        let request: uabi::CreateCqRequest = udata.request()?;
        let port = dev.port();
        let log = request.log_entries;
        let ring_entries = 1u32.checked_shl(log.into()).ok_or(EINVAL)?;
        if request.reserved != [0; 7] || ring_entries < init.entries {
            return Err(EINVAL);
        }
        let max = port.info().limits.max_log_cq;
        let ring = UserRing::pin(dev, pins, request.ring.get(), log, LOG_ENTRY, max)?;
        let doorbells = UserContext::doorbells(udata.context()?, Wanted::Queue)?;
        let handler = Arc::new(Handler(notifier.clone()), GFP_KERNEL)?;
        let control =
            port.create_user_cq(&ring.queue_ring(), doorbells.slot, init.vector, handler)?;
        udata.respond(&uabi::CreateCqResponse {
            doorbell: doorbells.response,
            cqn: control.number().into(),
            reserved: 0.into(),
        })?;
        Ok(Self {
            control,
            entries: init.entries,
            ring_entries,
            vector: init.vector,
            kernel: None,
        })
    }
}

/// Passes events on to users of the queue.
pub(crate) struct Handler(pub(crate) Arc<CqNotifier>);

impl CqHandler for Handler {
    fn completion(&self) {
        self.0.completion();
    }

    fn error(&self) {
        self.0.event(Event::CqError);
    }
}
