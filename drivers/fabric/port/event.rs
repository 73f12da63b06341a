// SPDX-License-Identifier: GPL-2.0
//! What happens to queue pairs and shared receive queues.

pub use crate::event::ObjectEvent;

/// Told what happens to one queue pair or shared receive queue.
pub trait EventHandler: Send + Sync {
    /// Something happened to the object.
    ///
    /// Called in hard interrupt context with interrupts off, under a lock of the port's: no sleeping, no creating and
    /// dropping of the port's objects. Never called again once the object is dropped.
    fn event(&self, event: ObjectEvent);

    /// Whether the controller is to be reset when the object fails. Same context.
    fn is_vital(&self) -> bool {
        false
    }
}
