// SPDX-License-Identifier: GPL-2.0
//! Completion queues.

use crate::{controller::Controller, doorbell::Slot, memory::QueueMemory, vector::Vector};
use kernel::{prelude::*, sync::Arc};
use nupa_engine::client::CompletionRing;
use nupa_proto::{
    admin::{AdminOpcode, CreateCq, Created, ModifyCq},
    cqe::{Cqe, CQE_SIZE},
};

/// Told of new completions.
pub trait CqHandler: Send + Sync {
    /// The queue was armed and has a new entry; it is not armed any more.
    ///
    /// Called in hard interrupt context with interrupts off: schedule NAPI and return. Never called again once the
    /// queue, that is [`Cq`], all its [`CqControl`]s and the queue pairs on it, is dropped. May come without a reason.
    fn completion(&self);
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

/// The queue in the controller.
pub(super) struct CqObject {
    controller: Arc<Controller>,
    generation: u32,
    number: u32,
    vector: Arc<Vector>,
    /// Held for the controller, until the queue is destroyed.
    _memory: QueueMemory,
}

impl Drop for CqObject {
    fn drop(&mut self) {
        self.controller
            .destroy(self.generation, AdminOpcode::DestroyCq, self.number);
        self.vector.remove(self.number, self.generation);
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
        if log_entries > controller.info().limits.max_log_cq {
            return Err(EINVAL);
        }
        let vector = controller.completion_vector(vector)?.clone();
        let generation = controller.running()?;
        let memory = QueueMemory::new(controller.bound(), CQE_SIZE << log_entries)?;
        let slot = Slot::new(controller.doorbells(), false)?;
        let command = CreateCq {
            ring: memory.page_list(),
            doorbell_page: slot.page().into(),
            doorbell_slot: slot.number().into(),
            log_entries,
            eqn: vector.event_queue().ok_or(EIO)?.into(),
            ..CreateCq::default()
        };
        let created: Created = controller.command(generation, AdminOpcode::CreateCq, &command)?;
        let object = CqObject {
            controller: controller.clone(),
            generation,
            number: created.id.get(),
            vector: vector.clone(),
            _memory: memory.clone(),
        };
        // From here on dropping the object destroys the queue.
        let object = Arc::new(object, GFP_KERNEL)?;
        vector.add(object.number, generation, handler)?;
        Ok(Self {
            ring: CompletionRing::new(memory, slot, log_entries),
            control: CqControl { object },
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

    /// The queue apart from the right to consume it.
    pub fn control(&self) -> &CqControl {
        &self.control
    }
}

impl CqControl {
    /// Number of the queue in the controller. Any context.
    pub fn number(&self) -> u32 {
        self.object.number
    }

    /// Delays events until `max_count` entries have come in or `usecs` microseconds after the first, whichever is
    /// earlier. Zeroes mean no waiting. Sleeps.
    pub fn set_moderation(&self, usecs: u16, max_count: u16) -> Result {
        let object = &self.object;
        let command = ModifyCq {
            cqn: object.number.into(),
            usecs: usecs.into(),
            max_count: max_count.into(),
        };
        object
            .controller
            .order(object.generation, AdminOpcode::ModifyCq, &command)
    }

    pub(super) fn generation(&self) -> u32 {
        self.object.generation
    }
}
