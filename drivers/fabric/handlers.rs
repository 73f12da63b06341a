// SPDX-License-Identifier: GPL-2.0
//! Who is told what happens to the controller's objects.

use crate::port::{EventHandler, ObjectEvent};
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::Arc,
};
use nk::irqlock::{new_spinlock_irq, SpinLockIrq};

/// Handlers of objects of one kind by the objects' numbers.
///
/// While a controller is being reset, numbers may be given to objects of the new generation before those of the old one
/// are dropped; the old ones hear nothing any more then.
pub(crate) struct HandlerTable<H: ?Sized>(RBTree<u32, Entry<H>>);

struct Entry<H: ?Sized> {
    generation: u32,
    handler: Arc<H>,
}

/// A handler that is not in a table: one to be added, or one that was taken out. Not to be dropped in a context without
/// interrupts.
pub(crate) struct Detached<H: ?Sized>(RBTreeNode<u32, Entry<H>>);

impl<H: ?Sized> Detached<H> {
    /// A handler of object `number` of `generation`. May sleep.
    pub(crate) fn new(number: u32, generation: u32, handler: Arc<H>) -> Result<Self> {
        let entry = Entry {
            generation,
            handler,
        };
        RBTreeNode::new(number, entry, GFP_KERNEL_ACCOUNT).map(Self)
    }
}

impl<H: ?Sized> HandlerTable<H> {
    pub(crate) fn new() -> Self {
        Self(RBTree::new())
    }

    /// Adds a handler; returns the one that it replaces.
    pub(crate) fn insert(&mut self, handler: Detached<H>) -> Option<Detached<H>> {
        self.0.insert(handler.0).map(Detached)
    }

    /// Takes a handler out, if it is there and not replaced.
    pub(crate) fn remove(&mut self, number: u32, generation: u32) -> Option<Detached<H>> {
        if self.0.get(&number)?.generation != generation {
            return None;
        }
        self.0.remove_node(&number).map(Detached)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&H> {
        self.0.get(&number).map(|entry| &*entry.handler)
    }
}

impl HandlerTable<dyn EventHandler> {
    /// Number of the first object from `number` on that is of `generation` and not vital.
    fn ordinary_from(&mut self, number: u32, generation: u32) -> Option<u32> {
        let mut cursor = self.0.cursor_lower_bound_mut(&number)?;
        loop {
            let (number, entry) = cursor.current();
            if entry.generation == generation && !entry.handler.is_vital() {
                return Some(*number);
            }
            cursor = cursor.move_next()?;
        }
    }
}

/// Kinds of objects, apart from completion queues, whose vectors know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Queue pairs.
    Qp,
    /// Shared receive queues.
    Srq,
}

/// Handlers of queue pairs and shared receive queues. Their callbacks run under its locks.
#[pin_data]
pub(crate) struct ObjectHandlers {
    #[pin]
    pairs: SpinLockIrq<HandlerTable<dyn EventHandler>>,
    #[pin]
    shared: SpinLockIrq<HandlerTable<dyn EventHandler>>,
}

impl ObjectHandlers {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            pairs <- new_spinlock_irq!(HandlerTable::new()),
            shared <- new_spinlock_irq!(HandlerTable::new()),
        })
    }

    fn table(&self, kind: Kind) -> &SpinLockIrq<HandlerTable<dyn EventHandler>> {
        match kind {
            Kind::Qp => &self.pairs,
            Kind::Srq => &self.shared,
        }
    }

    /// Sends the events of an object to `handler` from now on. May sleep.
    pub(crate) fn add(
        &self,
        kind: Kind,
        number: u32,
        generation: u32,
        handler: Arc<dyn EventHandler>,
    ) -> Result {
        let new = Detached::new(number, generation, handler)?;
        let old = self.table(kind).lock().insert(new);
        // Only now, without the lock.
        drop(old);
        Ok(())
    }

    /// Ends that; when this returns the handler is not running and never will again.
    pub(crate) fn remove(&self, kind: Kind, number: u32, generation: u32) {
        let old = self.table(kind).lock().remove(number, generation);
        // Only now, without the lock.
        drop(old);
    }

    /// The first queue pair from `number` on that is of `generation` and whose failure is no reason for a reset: those of
    /// verbs. Any context.
    pub(crate) fn next_pair(&self, number: u32, generation: u32) -> Option<u32> {
        self.pairs.lock().ordinary_from(number, generation)
    }

    /// Tells an object's handler, if it has one; returns whether the object is vital. Any context.
    pub(crate) fn tell(&self, kind: Kind, number: u32, event: ObjectEvent) -> bool {
        let table = self.table(kind).lock();
        table.get(number).is_some_and(|handler| {
            handler.event(event);
            handler.is_vital()
        })
    }
}
