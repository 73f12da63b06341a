// SPDX-License-Identifier: GPL-2.0
//! Shared receive queues.

use crate::{context::UserContext, device::Rdma, kernel::KernelSrq, ring::UserRing};
use kernel::{prelude::*, sync::Arc};
use nk_rdma::{Device, Event, Pins, SrqAttributes, SrqInit, SrqNotifier, Udata};
use nupa_fabric::{EventHandler, ObjectEvent, Wanted};
use nupa_proto::{uabi, wqe::MAX_RECV_SGE};

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) object: nupa_fabric::Srq,
    pub(crate) attributes: SrqAttributes,
    /// One that the kernel posts to.
    pub(crate) kernel: Option<Arc<KernelSrq>>,
}

impl Srq {
    /// The queue in the controller.
    pub(crate) fn object(&self) -> &nupa_fabric::Srq {
        &self.object
    }

    /// Makes one whose ring is the process's, and says in `init` how much it holds.
    pub(crate) fn for_user(
        dev: &Device<Rdma>,
        init: &mut SrqInit<'_, Rdma>,
        notifier: &Arc<SrqNotifier>,
        pins: &Pins,
        udata: &mut Udata<'_, Rdma>,
    ) -> Result<Self> {
        let request: uabi::CreateSrqRequest = udata.request()?;
        let attributes = &mut init.attributes;
        if attributes.max_sge > MAX_RECV_SGE as u32 {
            return Err(EINVAL);
        }
        let ring = request.ring(attributes.max_wr, &dev.port().info().limits);
        let ring = UserRing::pin(dev, pins, ring)?;
        attributes.max_wr = ring.entries();
        let attributes = *attributes;
        let doorbells = UserContext::doorbells(udata.context()?, Wanted::Queue)?;
        let handler = Arc::new(Handler(notifier.clone()), GFP_KERNEL_ACCOUNT)?;
        let object =
            dev.port()
                .create_user_srq(init.pd, &ring.queue_ring(), doorbells.slot, handler)?;
        if attributes.limit != 0 {
            object.set_limit(attributes.limit)?;
        }
        udata.respond(&uabi::CreateSrqResponse {
            doorbell: doorbells.response,
            srqn: object.number().into(),
            reserved: 0.into(),
        })?;
        Ok(Self {
            object,
            attributes,
            kernel: None,
        })
    }

    /// Sets the limit below which an event comes.
    pub(crate) fn set_limit(&self, limit: u32) -> Result {
        if limit > self.attributes.max_wr {
            return Err(EINVAL);
        }
        self.object.set_limit(limit)
    }

    /// Sizes, and the limit as it is now.
    pub(crate) fn query(&self) -> Result<SrqAttributes> {
        Ok(SrqAttributes {
            limit: self.object.query()?.limit.get(),
            ..self.attributes
        })
    }
}

/// Passes events on to users of the queue.
pub(crate) struct Handler(pub(crate) Arc<SrqNotifier>);

impl EventHandler for Handler {
    fn event(&self, event: ObjectEvent) {
        match event {
            ObjectEvent::SrqLimit => self.0.event(Event::SrqLimit),
            ObjectEvent::SrqFatal => self.0.event(Event::SrqError),
            _ => {}
        }
    }
}
