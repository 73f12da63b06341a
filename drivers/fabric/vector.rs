// SPDX-License-Identifier: GPL-2.0
//! Interrupt vectors: each has one event queue, whose events it hands out.

use crate::{
    controller::{attention, Controller},
    doorbell::Slot,
    event::{hand_out, Backlog, Event, News, ObjectEvent, Source, LOG_ENTRIES},
    handlers::{Detached, HandlerTable, Kind, ObjectHandlers},
    memory::QueueMemory,
    port::CqHandler,
};
use kernel::{
    device::Device,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, Relaxed},
        Arc,
    },
};
use nk::{
    irqlock::{new_spinlock_irq, SpinLockIrq},
    trace,
};
use nupa_engine::rings::EventRing;
use nupa_proto::{
    admin::{AdminOpcode, CreateEq, Created},
    eqe::{Eqe, EQE_SIZE},
};

/// One interrupt vector.
#[pin_data]
pub(crate) struct Vector {
    index: u16,
    device: ARef<Device>,
    objects: Arc<ObjectHandlers>,
    /// Number of the interrupt that runs this; 0 where none does.
    interrupt: Atomic<u32>,
    #[pin]
    inner: SpinLockIrq<Inner>,
}

struct Inner {
    queue: Option<EventQueue>,
    /// Handlers of the completion queues that report here.
    handlers: HandlerTable<dyn CqHandler>,
    backlog: Backlog,
    /// The queue held what no working controller writes.
    garbage: bool,
    /// A run ended before the queue was empty, and asked for no interrupt.
    unfinished: bool,
}

/// An event queue of the controller.
pub(crate) struct EventQueue {
    number: u32,
    ring: EventRing<QueueMemory, Slot>,
}

impl Source for EventQueue {
    fn poll(&mut self) -> Option<Eqe> {
        self.ring.poll()
    }

    fn arm(&mut self) -> bool {
        self.ring.arm()
    }
}

impl Vector {
    /// The vector of this index of a device, with no event queue yet. `objects` are told what happens to queue pairs and shared
    /// receive queues.
    pub(crate) fn new(
        device: &Device,
        index: u16,
        objects: Arc<ObjectHandlers>,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                index,
                device: device.into(),
                objects,
                interrupt: Atomic::new(0),
                inner <- new_spinlock_irq!(Inner {
                    queue: None,
                    handlers: HandlerTable::new(),
                    backlog: Backlog::new(),
                    garbage: false,
                    unfinished: false,
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Notes which interrupt runs this, for others to see.
    pub(crate) fn set_interrupt(&self, number: u32) {
        self.interrupt.store(number, Relaxed);
    }

    /// Number of the interrupt that runs this, if one does.
    pub(crate) fn interrupt(&self) -> Option<u32> {
        Some(self.interrupt.load(Relaxed)).filter(|number| *number != 0)
    }

    /// Creates the event queue in a function that was just started, and arms it. Sleeps.
    pub(crate) fn open(&self, controller: &Arc<Controller>, generation: u32) -> Result {
        let log_entries = LOG_ENTRIES.min(controller.info().limits.max_log_eq);
        let memory = QueueMemory::new(controller.bound(), EQE_SIZE << log_entries)?;
        let slot = Slot::new(controller.doorbells())?;
        let command = CreateEq {
            ring: memory.page_list(),
            doorbell_page: slot.page().into(),
            doorbell_slot: slot.number().into(),
            vector: self.index.into(),
            log_entries,
            ..CreateEq::default()
        };
        let created: Created = controller.command(generation, AdminOpcode::CreateEq, &command)?;
        let ring = EventRing::new(memory, slot, log_entries);
        self.inner.lock().queue = Some(EventQueue {
            number: created.id.get(),
            ring,
        });
        if self.run() {
            controller.wake(attention::NEWS);
        }
        Ok(())
    }

    /// Takes the event queue out. It is to be dropped when the function does not use it any more.
    pub(crate) fn close(&self) -> Option<EventQueue> {
        let mut inner = self.inner.lock();
        inner.backlog = Backlog::new();
        (inner.garbage, inner.unfinished) = (false, false);
        inner.queue.take()
    }

    /// Number of the event queue, if there is one.
    pub(crate) fn event_queue(&self) -> Option<u32> {
        self.inner.lock().queue.as_ref().map(|queue| queue.number)
    }

    /// Sends the events of a completion queue to `handler` from now on. May sleep.
    pub(crate) fn add(&self, cqn: u32, generation: u32, handler: Arc<dyn CqHandler>) -> Result {
        let new = Detached::new(cqn, generation, handler)?;
        let old = self.inner.lock().handlers.insert(new);
        // Only now, without the lock.
        drop(old);
        Ok(())
    }

    /// Ends that; when this returns the handler is not running and never will again.
    pub(crate) fn remove(&self, cqn: u32, generation: u32) {
        let old = self.inner.lock().handlers.remove(cqn, generation);
        // Only now, without the lock.
        drop(old);
    }

    /// Hands out events that are there and asks for an interrupt when there are more. Returns whether there is something for
    /// process context, such as to go on where there are more than an interrupt has time for. Any context.
    pub(crate) fn run(&self) -> bool {
        let mut inner = self.inner.lock();
        let Inner {
            queue: Some(queue),
            handlers,
            backlog,
            garbage,
            unfinished,
        } = &mut *inner
        else {
            return false;
        };
        let mut news = false;
        let done = hand_out(queue, |eqe| match Event::try_from(eqe) {
            Ok(Event::Lost) => {
                backlog.lose();
                news = true;
            }
            Ok(event) => {
                if let Some(event) = self.tell(handlers, event, eqe) {
                    backlog.push(event);
                    news = true;
                }
            }
            Err(_) => {
                *garbage = true;
                news = true;
            }
        });
        *unfinished = !done;
        news || !done
    }

    /// Tells whom an event is for; returns what is for process context. Objects that nobody answers for were destroyed
    /// meanwhile.
    fn tell(
        &self,
        handlers: &HandlerTable<dyn CqHandler>,
        event: Event,
        eqe: &Eqe,
    ) -> Option<News> {
        let traced = || trace::async_event(&self.device, eqe.event_type, eqe.object.get());
        match event {
            Event::Completion(cqn) => {
                handlers.get(cqn)?.completion();
                None
            }
            Event::CqError(cqn) => {
                traced();
                let handler = handlers.get(cqn)?;
                handler.error();
                handler.is_vital().then_some(News::CqError(cqn))
            }
            Event::Qp(qpn, event) => {
                traced();
                let vital = self.objects.tell(Kind::Qp, qpn, event);
                (vital && event == ObjectEvent::QpFatal).then_some(News::QpFatal(qpn))
            }
            Event::Srq(srqn, event) => {
                traced();
                self.objects.tell(Kind::Srq, srqn, event);
                None
            }
            Event::News(news) => Some(news),
            Event::Lost | Event::Nothing => None,
        }
    }

    /// Whether the event queue held what no working controller writes.
    pub(crate) fn is_broken(&self) -> bool {
        self.inner.lock().garbage
    }

    /// Whether a run ended before the queue was empty since the last time this was asked: then another one is due.
    pub(crate) fn take_unfinished(&self) -> bool {
        core::mem::take(&mut self.inner.lock().unfinished)
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

/// What runs when the function raises a vector.
pub(crate) struct VectorInterrupt {
    pub(crate) vector: Arc<Vector>,
    pub(crate) controller: Arc<Controller>,
}

impl VectorInterrupt {
    /// Any context, not more than once at a time.
    pub(crate) fn run(&self) {
        if self.vector.run() {
            self.controller.wake(attention::NEWS);
        }
    }
}
