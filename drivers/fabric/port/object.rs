// SPDX-License-Identifier: GPL-2.0
//! What all objects of the controller have in common.

use super::EventHandler;
use crate::{controller::Controller, handlers::Kind};
use kernel::{prelude::*, sync::Arc};
use nupa_proto::admin::{AdminOpcode, Created};
use zerocopy::{Immutable, IntoBytes};

/// An object of the controller's, which has a number; destroyed when dropped, which sleeps.
pub(super) struct Object {
    pub(super) controller: Arc<Controller>,
    pub(super) generation: u32,
    pub(super) number: u32,
    destroy: AdminOpcode,
}

impl Object {
    /// Creates an object by a command whose result is the object's number, to be destroyed by another. Sleeps.
    pub(super) fn create<B: IntoBytes + Immutable>(
        controller: &Arc<Controller>,
        generation: u32,
        [create, destroy]: [AdminOpcode; 2],
        body: &B,
    ) -> Result<Self> {
        let created: Created = controller.command(generation, create, body)?;
        Ok(Self {
            controller: controller.clone(),
            generation,
            number: created.id.get(),
            destroy,
        })
    }

    /// Executes a command about the object that has no result. Sleeps.
    pub(super) fn order<B: IntoBytes + Immutable>(&self, opcode: AdminOpcode, body: &B) -> Result {
        self.controller.order(self.generation, opcode, body)
    }

    /// Sends the object's events to `handler` from now on. May sleep.
    pub(super) fn add_handler(&self, kind: Kind, handler: Arc<dyn EventHandler>) -> Result {
        let objects = self.controller.objects();
        objects.add(kind, self.number, self.generation, handler)
    }

    /// Ends that, before the object goes; when this returns the handler is not running and never will again.
    pub(super) fn remove_handler(&self, kind: Kind) {
        let objects = self.controller.objects();
        objects.remove(kind, self.number, self.generation);
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.controller
            .destroy(self.generation, self.destroy, self.number);
    }
}
