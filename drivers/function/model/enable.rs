// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How a function starts, and how a fault stops it.

use crate::{
    admin_queue::AdminQueue,
    doorbell_memory::DoorbellMemory,
    host::{Functions, Host, Note},
    model::Model,
};
use nupa_engine::hal::Platform;
use nupa_proto::regs;

impl<F: Functions> Model<F> {
    /// Starts a function whose driver has set `CONTROL_ENABLE`.
    pub(super) fn enable(&mut self, id: u16) {
        let Some(function) = self.function_mut(id) else {
            return;
        };
        if !function.host.starts() {
            return;
        }
        let (registers, memory) = (&function.registers, function.host.memory());
        let queue = AdminQueue::new(
            memory,
            registers.admin_sq,
            registers.admin_cq,
            registers.admin_size,
        );
        let doorbells = match registers.doorbell_memory {
            0 => Ok(None),
            base => DoorbellMemory::new(memory, base, registers.doorbell_pages).map(Some),
        };
        let Ok(doorbells) = doorbells else {
            return self.fail(id, regs::FAULT_DOORBELL_MEMORY);
        };
        match queue {
            Ok(queue) => {
                function.host.set_doorbell_memory(doorbells);
                function.admin = Some(queue);
                let epoch = function.node.epoch();
                function.host.note(id, Note::Enabled { epoch });
                self.engine.enable(&mut self.functions, id);
            }
            Err(_) => self.fail(id, regs::FAULT_ADMIN_RING),
        }
    }

    /// Stops a function for a fault (`FAULT_*` of [`nupa_proto::regs`]) that only a reset clears.
    pub fn fail(&mut self, id: u16, fault: u32) {
        self.engine.fail(&mut self.functions, id, fault);
        if let Some(function) = self.function_mut(id) {
            function.admin = None;
            function.complain(format_args!("function stopped, fault {fault}"));
        }
    }
}
