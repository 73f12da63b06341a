// SPDX-License-Identifier: GPL-2.0
//! Completion queues.

use crate::{context::UserContext, device::Rdma, kernel::KernelCq, ring::UserRing};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};
use nk_rdma::{
    error::unsupported, CompletionQueue, CqInit, CqNotifier, Device, Event, Pins, Udata,
};
use nupa_fabric::{CqConfig, CqControl, CqHandler, Wanted};
use nupa_proto::{regs::CAP_CQ_OVERRUN, uabi};

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) control: CqControl,
    pub(crate) entries: u32,
    /// Entries of the ring; for people.
    pub(crate) ring_entries: Atomic<u32>,
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

    /// Goes on in another ring of the process, which holds `entries` at least; returns how many it was asked for.
    pub(crate) fn resize(
        &self,
        dev: &Device<Rdma>,
        entries: u32,
        pins: &Pins,
        udata: &mut Udata<'_, Rdma>,
    ) -> Result<u32> {
        let request: uabi::ResizeCqRequest = udata.request()?;
        if entries == 0 {
            return Err(EINVAL);
        }
        let ring = request.ring(entries, &dev.port().info().limits);
        let ring = UserRing::pin(dev, pins, ring)?;
        udata.no_response()?;
        self.control.resize(&ring.queue_ring())?;
        self.ring_entries.store(ring.entries(), Relaxed);
        Ok(entries)
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
        if init.ignore_overrun && port.info().caps & CAP_CQ_OVERRUN == 0 {
            return Err(unsupported());
        }
        if init.timestamps && port.info().clock_khz == 0 {
            return Err(unsupported());
        }
        let ring = request.ring(init.entries, &port.info().limits);
        let ring = UserRing::pin(dev, pins, ring)?;
        let doorbells = UserContext::doorbells(udata.context()?, Wanted::Queue)?;
        let handler = Arc::new(Handler(notifier.clone()), GFP_KERNEL_ACCOUNT)?;
        let config = CqConfig {
            vector: init.vector,
            ignore_overrun: init.ignore_overrun,
            timestamps: init.timestamps,
        };
        let control = port.create_user_cq(&ring.queue_ring(), doorbells.slot, config, handler)?;
        udata.respond(&uabi::CreateCqResponse {
            doorbell: doorbells.response,
            cqn: control.number().into(),
            reserved: 0.into(),
        })?;
        Ok(Self {
            control,
            entries: init.entries,
            ring_entries: Atomic::new(ring.entries()),
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
