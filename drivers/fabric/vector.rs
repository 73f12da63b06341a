// SPDX-License-Identifier: GPL-2.0
//! Interrupt vectors: each has one event queue, whose events it hands out.

use crate::{
    controller::{attention, Controller},
    doorbell::Slot,
    event::{Backlog, Event, News, LOG_ENTRIES},
    memory::QueueMemory,
    port::CqHandler,
};
use kernel::{prelude::*, sync::Arc};
use nk::{
    irqlock::{new_spinlock_irq, SpinLockIrq},
    pci::irq::Handler,
};
use nupa_engine::client::EventRing;
use nupa_proto::{
    admin::{AdminOpcode, CreateEq, Created},
    eqe::EQE_SIZE,
};

/// Events that one run takes at most; more at a time are not written by a working controller.
const BUDGET: u32 = 2 << LOG_ENTRIES;

/// One interrupt vector.
#[pin_data]
pub(crate) struct Vector {
    index: u16,
    #[pin]
    inner: SpinLockIrq<Inner>,
}

struct Inner {
    queue: Option<EventQueue>,
    /// Handlers of the completion queues that report here.
    handlers: KVec<Entry>,
    backlog: Backlog,
    /// The queue held what no working controller writes.
    garbage: bool,
}

/// Who is told of the completions of a queue.
struct Entry {
    cqn: u32,
    generation: u32,
    handler: Arc<dyn CqHandler>,
}

/// An event queue of the controller.
pub(crate) struct EventQueue {
    number: u32,
    ring: EventRing<QueueMemory, Slot>,
}

impl Vector {
    /// The vector of this index, with no event queue yet.
    pub(crate) fn new(index: u16) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                index,
                inner <- new_spinlock_irq!(Inner {
                    queue: None,
                    handlers: KVec::new(),
                    backlog: Backlog::new(),
                    garbage: false,
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Creates the event queue in a function that was just started, and arms it. Sleeps.
    pub(crate) fn open(&self, controller: &Arc<Controller>, generation: u32) -> Result {
        let memory = QueueMemory::new(controller.bound(), EQE_SIZE << LOG_ENTRIES)?;
        let slot = Slot::new(controller.doorbells(), false)?;
        let command = CreateEq {
            ring: memory.page_list(),
            doorbell_page: slot.page().into(),
            doorbell_slot: slot.number().into(),
            vector: self.index.into(),
            log_entries: LOG_ENTRIES,
            ..CreateEq::default()
        };
        let created: Created = controller.command(generation, AdminOpcode::CreateEq, &command)?;
        let ring = EventRing::new(memory, slot, LOG_ENTRIES);
        self.inner.lock().queue = Some(EventQueue {
            number: created.id.get(),
            ring,
        });
        self.run();
        Ok(())
    }

    /// Takes the event queue out. It is to be dropped when the function does not use it any more.
    pub(crate) fn close(&self) -> Option<EventQueue> {
        let mut inner = self.inner.lock();
        inner.backlog = Backlog::new();
        inner.garbage = false;
        inner.queue.take()
    }

    /// Number of the event queue, if there is one.
    pub(crate) fn event_queue(&self) -> Option<u32> {
        self.inner.lock().queue.as_ref().map(|queue| queue.number)
    }

    /// Sends the events of a completion queue to `handler` from now on.
    pub(crate) fn add(&self, cqn: u32, generation: u32, handler: Arc<dyn CqHandler>) -> Result {
        self.inner.lock().handlers.push(
            Entry {
                cqn,
                generation,
                handler,
            },
            GFP_ATOMIC,
        )?;
        Ok(())
    }

    /// Ends that; when this returns the handler is not running and never will again.
    pub(crate) fn remove(&self, cqn: u32, generation: u32) {
        let mut inner = self.inner.lock();
        let position = inner
            .handlers
            .iter()
            .position(|entry| entry.cqn == cqn && entry.generation == generation);
        let handler = position.and_then(|position| inner.handlers.remove(position).ok());
        drop(inner);
        // Only now, since dropping it may not be fit for a context without interrupts.
        drop(handler);
    }

    /// Hands out the events that are there and asks for an interrupt when there are more. Returns whether there is
    /// something for process context. Any context.
    pub(crate) fn run(&self) -> bool {
        let mut inner = self.inner.lock();
        let Inner {
            queue: Some(queue),
            handlers,
            backlog,
            garbage,
        } = &mut *inner
        else {
            return false;
        };
        let mut news = false;
        for _ in 0..BUDGET {
            let Some(eqe) = queue.ring.poll() else {
                if queue.ring.arm() {
                    continue;
                }
                return news;
            };
            match Event::try_from(&eqe) {
                Ok(Event::Completion(cqn)) => complete(handlers, cqn),
                Ok(Event::News(event)) => {
                    backlog.push(event);
                    news = true;
                }
                Ok(Event::Nothing) => {}
                Err(_) => {
                    *garbage = true;
                    news = true;
                }
            }
        }
        *garbage = true;
        true
    }

    /// Whether the event queue held what no working controller writes.
    pub(crate) fn is_broken(&self) -> bool {
        self.inner.lock().garbage
    }

    /// Next of the news.
    pub(crate) fn next_news(&self) -> Option<News> {
        self.inner.lock().backlog.pop()
    }

    /// Whether news were lost since the last time this was asked.
    pub(crate) fn take_lost(&self) -> bool {
        self.inner.lock().backlog.take_lost()
    }
}

/// Calls the handler of a completion queue, if it still has one. While a controller is being reset, queues of the old
/// generation may share the number; being called without a reason does their handlers no harm.
fn complete(handlers: &[Entry], cqn: u32) {
    for entry in handlers.iter().filter(|entry| entry.cqn == cqn) {
        entry.handler.completion();
    }
}

/// Hard interrupt handler of a vector.
pub(crate) struct VectorInterrupt {
    pub(crate) vector: Arc<Vector>,
    pub(crate) controller: Arc<Controller>,
}

impl Handler for VectorInterrupt {
    fn handle(&self) {
        if self.vector.run() {
            self.controller.wake(attention::NEWS);
        }
    }
}
