// SPDX-License-Identifier: GPL-2.0
//! News of the port: link, nodes, loss and return of the controller.

use crate::controller::Controller;
use kernel::{prelude::*, sync::Arc};

/// Something that happened to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// The link of this node came up.
    LinkUp,
    /// The link of this node went down. Frames sent now complete with an error.
    LinkDown,
    /// The node joined the fabric, or joined again with a new epoch.
    NodeUp(u16),
    /// The node left the fabric.
    NodeDown(u16),
    /// The controller was reset: all queue objects are dead. Drop them before returning. [`PortEvent::NodeDown`] of each node follows.
    Resetting,
    /// The controller works again, with fresh state; [`super::Port::info`] may have changed. [`PortEvent::NodeUp`] of each node that is up
    /// follows.
    Ready,
    /// The controller is gone or does not recover by itself. Drop all queue objects before returning. Only a reset of
    /// the PCI function by somebody else can bring [`PortEvent::Ready`] after this.
    Gone,
}

/// Takes events of a port.
pub trait Listener: Send + Sync {
    /// Called in process context from a work queue, one event at a time; may sleep, take the RTNL, create and destroy
    /// queues. Must not register or drop a listener.
    fn event(&self, event: PortEvent);
}

/// A registered listener. Dropping it waits for a running callback and ends the events.
pub struct ListenerRegistration {
    controller: Arc<Controller>,
    id: u64,
}

impl ListenerRegistration {
    pub(super) fn new(controller: Arc<Controller>, listener: Arc<dyn Listener>) -> Result<Self> {
        let id = controller.listeners().add(listener)?;
        Ok(Self { controller, id })
    }
}

impl Drop for ListenerRegistration {
    fn drop(&mut self) {
        self.controller.listeners().remove(self.id);
    }
}
