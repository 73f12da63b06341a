// SPDX-License-Identifier: GPL-2.0
//! Shared receive queues.

use super::{
    posting::{Made, RecvPoster},
    Pd, QueueRing,
};
use crate::{
    doorbell::{DoorbellSlot, Slot},
    handlers::Kind,
    memory::QueueMemory,
    port::{object::Object, EventHandler},
};
use kernel::{prelude::*, sync::Arc};
use nk::trace;
use nupa_proto::admin::{
    AdminOpcode::{self, CreateSrq, DestroySrq},
    ById, CreateSrq as Parameters, ModifySrq, SrqState, QP_FLAG_PRIVILEGED,
};

/// A shared receive queue. Clones keep it alive.
#[derive(Clone)]
pub struct Srq {
    inner: Arc<Inner>,
}

/// Fields are dropped in order.
struct Inner {
    object: Object,
    pd: Arc<Pd>,
    slot: Arc<DoorbellSlot>,
    /// The ring if it is the port's.
    _memory: Option<QueueMemory>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.object.remove_handler(Kind::Srq);
    }
}

impl Srq {
    pub(super) fn for_user(
        pd: &Arc<Pd>,
        ring: &QueueRing,
        slot: DoorbellSlot,
        handler: Arc<dyn EventHandler>,
    ) -> Result<Self> {
        Self::new(
            pd,
            ring,
            0,
            Arc::new(slot, GFP_KERNEL_ACCOUNT)?,
            None,
            handler,
        )
    }

    /// A queue whose ring is the port's, and that ring.
    pub(super) fn for_kernel(
        pd: &Arc<Pd>,
        log_entries: u8,
        log_stride: u8,
        handler: Arc<dyn EventHandler>,
    ) -> Result<(Self, RecvPoster)> {
        let controller = pd.controller();
        let made = Made::new(controller.bound(), log_entries, log_stride)?;
        let slot = Slot::new(controller.doorbells())?;
        let memory = Some(made.memory.clone());
        let flags = QP_FLAG_PRIVILEGED;
        let srq = Self::new(pd, &made.ring, flags, slot.hold(), memory, handler)?;
        Ok((srq, made.into_recv(slot)))
    }

    fn new(
        pd: &Arc<Pd>,
        ring: &QueueRing,
        flags: u8,
        slot: Arc<DoorbellSlot>,
        memory: Option<QueueMemory>,
        handler: Arc<dyn EventHandler>,
    ) -> Result<Self> {
        let command = Parameters {
            ring: ring.list,
            pd: pd.number().into(),
            doorbell_page: slot.page_number().into(),
            doorbell_slot: slot.number().into(),
            log_entries: ring.log_entries,
            log_stride: ring.log_stride,
            flags,
            ..Parameters::default()
        };
        let (controller, generation) = (pd.controller(), pd.generation());
        let object = Object::create(controller, generation, [CreateSrq, DestroySrq], &command)?;
        let entries = 1 << ring.log_entries.min(31);
        trace::srq_create(controller.device(), object.number, pd.number(), entries);
        let inner = Inner {
            object,
            pd: pd.clone(),
            slot,
            _memory: memory,
        };
        let inner = Arc::new(inner, GFP_KERNEL_ACCOUNT)?;
        inner.object.add_handler(Kind::Srq, handler)?;
        Ok(Self { inner })
    }

    /// Number of the queue in the controller. Any context.
    pub fn number(&self) -> u32 {
        self.inner.object.number
    }

    /// Kicks the queue for its owner, who has rung it and cannot kick. May sleep.
    pub fn kick(&self) {
        self.inner.slot.kick();
    }

    /// Arms the limit: once fewer entries than this are left, [`super::super::ObjectEvent::SrqLimit`] comes. 0 disarms it.
    pub fn set_limit(&self, limit: u32) -> Result {
        let command = ModifySrq {
            srqn: self.number().into(),
            limit: limit.into(),
        };
        self.inner.object.order(AdminOpcode::ModifySrq, &command)
    }

    /// Reads limit and index.
    pub fn query(&self) -> Result<SrqState> {
        let command = ById {
            id: self.number().into(),
            reserved: 0.into(),
        };
        let object = &self.inner.object;
        object
            .controller
            .command(object.generation, AdminOpcode::QuerySrq, &command)
    }

    pub(super) fn generation(&self) -> u32 {
        self.inner.pd.generation()
    }
}
