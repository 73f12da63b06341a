// SPDX-License-Identifier: GPL-2.0
//! Completion queues.

use super::{object::Object, verbs::QueueRing};
use crate::{
    controller::Controller,
    doorbell::{DoorbellSlot, Slot},
    memory::QueueMemory,
    vector::Vector,
};
use kernel::{prelude::*, sync::Arc};
use nk::trace;
use nupa_engine::rings::CompletionRing;
use nupa_proto::{
    admin::{AdminOpcode, CreateCq, ModifyCq, ResizeCq, CQ_FLAG_IGNORE_OVERRUN, CQ_FLAG_TIMESTAMP},
    cqe::{Cqe, CQE_SIZE},
};

/// Told of new completions.
pub trait CqHandler: Send + Sync {
    /// The queue was armed and has a new entry; it is not armed any more.
    ///
    /// Called in hard interrupt context with interrupts off: schedule NAPI and return. Never called again once the
    /// queue, that is [`Cq`], all its [`CqControl`]s and the queue pairs on it, is dropped. May come without a reason.
    fn completion(&self);

    /// The queue overflowed and takes no more entries. Same context.
    fn error(&self) {}

    /// Whether the controller is to be reset when the queue overflows. Same context.
    fn is_vital(&self) -> bool {
        false
    }
}

/// What a new completion queue is to be.
#[derive(Clone, Copy, Debug)]
pub struct CqConfig {
    /// Completion vector.
    pub vector: u32,
    /// Overwrite entries that its owner has not taken, if the controller can (`CAP_CQ_OVERRUN` of [`nupa_proto::regs`]).
    pub ignore_overrun: bool,
    /// Have entries say when they were written, if the controller can (`CAP_TIMESTAMP`).
    pub timestamps: bool,
}

impl CqConfig {
    /// As the controller is told.
    fn flags(self) -> u8 {
        let flag = |wanted, flag| if wanted { flag } else { 0 };
        flag(self.ignore_overrun, CQ_FLAG_IGNORE_OVERRUN) | flag(self.timestamps, CQ_FLAG_TIMESTAMP)
    }
}

/// A completion queue and the right to consume it.
pub struct Cq {
    ring: CompletionRing<QueueMemory, Slot>,
    control: CqControl,
}

/// A completion queue apart from the right to consume it. Clones keep the queue alive.
#[derive(Clone)]
pub struct CqControl {
    object: Arc<CqObject>,
}

/// The queue in the controller. Fields are dropped in order.
pub(super) struct CqObject {
    object: Object,
    vector: Arc<Vector>,
    _keep: Keep,
}

/// What the controller uses until the queue is destroyed.
struct Keep {
    /// The ring, if it is the port's.
    _memory: Option<QueueMemory>,
    slot: Arc<DoorbellSlot>,
}

impl Drop for CqObject {
    fn drop(&mut self) {
        self.vector
            .remove(self.object.number, self.object.generation);
    }
}

impl Cq {
    /// Entries that a queue needs beyond the completions that can be outstanding, because the controller hears of
    /// polled entries in batches.
    pub const SLACK: u32 = CompletionRing::<QueueMemory, Slot>::SLACK;

    pub(super) fn new(
        controller: &Arc<Controller>,
        log_entries: u8,
        vector: u32,
        handler: Arc<dyn CqHandler>,
    ) -> Result<Self> {
        let memory = QueueMemory::new(controller.bound(), CQE_SIZE << log_entries.min(31))?;
        let slot = Slot::new(controller.doorbells())?;
        let ring = QueueRing {
            list: memory.page_list(),
            log_entries,
            log_stride: 0,
        };
        let keep = Keep {
            _memory: Some(memory.clone()),
            slot: slot.hold(),
        };
        let config = CqConfig {
            vector,
            ignore_overrun: false,
            timestamps: false,
        };
        Ok(Self {
            control: CqControl::create(controller, &ring, keep, config, handler)?,
            ring: CompletionRing::new(memory, slot, log_entries),
        })
    }

    /// Takes the next completion. Any context.
    ///
    /// What it says comes from the controller: indices are checked by [`super::SendReclaim::completed`] and
    /// [`super::RecvQueue::completed`], the rest is the caller's to check.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        self.ring.poll()
    }

    /// Tells the controller at once what was polled; otherwise it hears of that in batches, and when the queue is
    /// found empty. Any context.
    #[inline]
    pub fn publish(&mut self) {
        self.ring.publish();
    }

    /// Asks for one call of the handler at the next completion (`solicited_only`: of a solicited message or an error).
    ///
    /// Returns whether completions are there already: then poll again; the call may or may not come. Any context.
    #[inline]
    pub fn arm(&mut self, solicited_only: bool) -> bool {
        self.ring.arm(solicited_only)
    }

    /// Forgets completions of a queue pair that was reset and is about to be destroyed: its number may be given to
    /// another one. `seen` is shown each of them.
    pub fn disown(&mut self, qpn: u32, seen: impl FnMut(&Cqe)) {
        self.ring.disown(qpn, seen);
    }

    /// The queue apart from the right to consume it.
    pub fn control(&self) -> &CqControl {
        &self.control
    }
}

impl CqControl {
    pub(super) fn for_user(
        controller: &Arc<Controller>,
        ring: &QueueRing,
        slot: DoorbellSlot,
        config: CqConfig,
        handler: Arc<dyn CqHandler>,
    ) -> Result<Self> {
        let keep = Keep {
            _memory: None,
            slot: Arc::new(slot, GFP_KERNEL_ACCOUNT)?,
        };
        Self::create(controller, ring, keep, config, handler)
    }

    fn create(
        controller: &Arc<Controller>,
        ring: &QueueRing,
        keep: Keep,
        config: CqConfig,
        handler: Arc<dyn CqHandler>,
    ) -> Result<Self> {
        if ring.log_entries > controller.info().limits.max_log_cq {
            return Err(EINVAL);
        }
        let vector = controller.completion_vector(config.vector)?;
        let generation = controller.running()?;
        let command = CreateCq {
            ring: ring.list,
            doorbell_page: keep.slot.page_number().into(),
            doorbell_slot: keep.slot.number().into(),
            log_entries: ring.log_entries,
            flags: config.flags(),
            eqn: vector.event_queue().ok_or(EIO)?.into(),
            ..CreateCq::default()
        };
        let opcodes = [AdminOpcode::CreateCq, AdminOpcode::DestroyCq];
        let object = Object::create(controller, generation, opcodes, &command)?;
        let entries = 1 << ring.log_entries.min(31);
        trace::cq_create(
            controller.device(),
            object.number,
            entries,
            command.eqn.get(),
        );
        let object = CqObject {
            object,
            vector: vector.clone(),
            _keep: keep,
        };
        let object = Arc::new(object, GFP_KERNEL_ACCOUNT)?;
        let number = object.object.number;
        object.vector.add(number, generation, handler)?;
        Ok(Self { object })
    }

    /// Number of the queue in the controller. Any context.
    pub fn number(&self) -> u32 {
        self.object.object.number
    }

    /// Delays events until `max_count` entries have come in or `usecs` microseconds after the first, whichever is
    /// earlier. Zeroes mean no waiting. Sleeps.
    pub fn set_moderation(&self, usecs: u16, max_count: u16) -> Result {
        let command = ModifyCq {
            cqn: self.number().into(),
            usecs: usecs.into(),
            max_count: max_count.into(),
        };
        self.object.object.order(AdminOpcode::ModifyCq, &command)
    }

    /// Has the controller go on in another ring, for a queue whose ring is not the port's: it moves what was not taken
    /// there. `EINVAL` if the ring is too small for that, or larger than the controller can do. Sleeps.
    ///
    /// From its return on the controller does not use the old ring.
    pub fn resize(&self, ring: &QueueRing) -> Result {
        let command = ResizeCq {
            ring: ring.list,
            cqn: self.number().into(),
            log_entries: ring.log_entries,
            ..ResizeCq::default()
        };
        self.object.object.order(AdminOpcode::ResizeCq, &command)
    }

    pub(super) fn generation(&self) -> u32 {
        self.object.object.generation
    }
}
