// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Starting a function, and running its admin queue.

use nupa_engine::hal::{AccessError, Platform};
use nupa_proto::{
    admin::{Command, Completion},
    regs,
    status::AdminStatus,
};

use crate::{
    admin::{self, Outcome},
    admin_queue::AdminQueue,
    body::EMPTY,
    doorbell_memory::DoorbellMemory,
    host::{Functions, Host, Note},
    model::Model,
};

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

    /// Executes admin commands up to a producer index.
    pub(super) fn run_admin(&mut self, id: u16, producer: u32) {
        let Some(function) = self.function_mut(id) else {
            return;
        };
        let Some(queue) = &function.admin else {
            function.complain(format_args!("admin doorbell while not enabled"));
            return;
        };
        let Some(pending) = queue.pending(producer) else {
            return self.fail(id, regs::FAULT_ADMIN_INDEX);
        };
        for _ in 0..pending {
            if self.run_command(id).is_err() {
                return self.fail(id, regs::FAULT_ADMIN_RING);
            }
            if self.function(id).is_none_or(|f| f.has_stopped()) {
                return;
            }
        }
        if let Some(function) = self.function_mut(id) {
            if pending > 0 && function.host.executes() {
                function.node.admin_event(&function.host);
            }
        }
    }

    /// Executes one admin command. An error means that a ring cannot be reached any more.
    fn run_command(&mut self, id: u16) -> Result<(), AccessError> {
        let function = self.function_mut(id).ok_or(AccessError)?;
        let queue = function.admin.as_mut().ok_or(AccessError)?;
        let command = queue.take(function.host.memory())?;
        if !function.host.executes() {
            return Ok(());
        }
        let outcome = admin::execute(&mut self.engine, &mut self.functions, id, &command);
        let function = self.function_mut(id).ok_or(AccessError)?;
        if let Err(status) = outcome {
            let opcode = command.opcode.get();
            function.complain(format_args!("admin command {opcode} refused: {status:?}"));
        }
        let mut completion = completion(&command, outcome);
        function.host.spoil(command.opcode.get(), &mut completion);
        let queue = function.admin.as_mut().ok_or(AccessError)?;
        queue.complete(function.host.memory(), completion)
    }
}

/// The completion of a command.
fn completion(command: &Command, outcome: Outcome) -> Completion {
    let (status, body) = match outcome {
        Ok(body) => (AdminStatus::Success, body),
        Err(status) => (status, EMPTY),
    };
    Completion {
        command_id: command.command_id,
        status: status.to_wire().into(),
        valid: 0.into(),
        body,
    }
}
