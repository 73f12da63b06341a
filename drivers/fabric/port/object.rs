// SPDX-License-Identifier: GPL-2.0
//! What all objects of the controller have in common.

use super::EventHandler;
use crate::{controller::Controller, handlers::Kind, memory::QueueMemory};
use kernel::{prelude::*, sync::Arc};
use nk::trace;
use nupa_proto::admin::{AdminOpcode, CreateQp, Created, ModifyQp};
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

    /// Creates a queue pair. Sleeps.
    pub(super) fn create_pair(
        controller: &Arc<Controller>,
        generation: u32,
        parameters: &CreateQp,
    ) -> Result<Self> {
        let memory = QueueMemory::copy_of(controller.bound(), parameters.as_bytes())?;
        let buffer = memory.buffer(u32::try_from(size_of::<CreateQp>())?);
        let opcodes = [AdminOpcode::CreateQp, AdminOpcode::DestroyQp];
        let object = Self::create(controller, generation, opcodes, &buffer)?;
        trace::qp_create(
            controller.device(),
            object.number,
            parameters.qp_type,
            parameters.pd.get(),
            parameters.send_cqn.get(),
            parameters.recv_cqn.get(),
        );
        Ok(object)
    }

    /// Changes a queue pair; the field `qpn` is filled in here. Sleeps.
    pub(super) fn modify_pair(&self, attributes: &ModifyQp) -> Result {
        let command = ModifyQp {
            qpn: self.number.into(),
            ..*attributes
        };
        self.controller.modify_pair(self.generation, &command)
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
        // Before another object may get the number.
        let device = self.controller.device();
        match self.destroy {
            AdminOpcode::DestroyQp => trace::qp_destroy(device, self.number),
            AdminOpcode::DestroyCq => trace::cq_destroy(device, self.number),
            AdminOpcode::DestroySrq => trace::srq_destroy(device, self.number),
            _ => {}
        }
        self.controller
            .destroy(self.generation, self.destroy, self.number);
    }
}
