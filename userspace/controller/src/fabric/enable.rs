// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Starting a function, and running its admin queue.

use nupa_engine::hal::AccessError;
use nupa_proto::admin::{Command, Completion};
use nupa_proto::regs;
use nupa_proto::status::AdminStatus;

use super::Fabric;
use crate::admin;
use crate::admin_queue::AdminQueue;
use crate::body::{Body, EMPTY};
use crate::doorbells::DoorbellMemory;
use crate::fault::Fault;
use crate::random;

/// A status that no specification defines.
const BAD_STATUS: u16 = 0xdead;

impl Fabric {
    /// Starts a function whose driver has set `CONTROL_ENABLE`.
    pub(super) fn enable(&mut self, node: u16) {
        let Some(controller) = self.nodes.get_mut(node) else {
            return;
        };
        if controller.fault == Fault::Hang {
            return;
        }
        let registers = &controller.registers;
        let queue = AdminQueue::new(
            &controller.platform.memory,
            registers.admin_sq,
            registers.admin_cq,
            registers.admin_size,
        );
        let doorbells = match registers.doorbell_memory {
            0 => Ok(None),
            base => {
                let pages = registers.doorbell_pages;
                DoorbellMemory::new(&controller.platform.memory, base, pages).map(Some)
            }
        };
        let Ok(doorbells) = doorbells else {
            return self.fail(node, regs::FAULT_DOORBELL_MEMORY);
        };
        match queue {
            Ok(queue) => {
                controller.platform.doorbell_memory = doorbells;
                controller.admin = Some(queue);
                tracing::info!(node, epoch = controller.node.epoch(), "function enabled");
                self.engine.enable(&mut self.nodes, node);
            }
            Err(_) => self.fail(node, regs::FAULT_ADMIN_RING),
        }
    }

    /// Stops a function for a fault that only a reset clears.
    pub(super) fn fail(&mut self, node: u16, fault: u32) {
        self.engine.fail(&mut self.nodes, node, fault);
        if let Some(controller) = self.nodes.get_mut(node) {
            controller.admin = None;
            controller.complain(format_args!("function stopped, fault {fault}"));
        }
    }

    /// Executes admin commands up to a producer index.
    pub(super) fn run_admin(&mut self, node: u16, producer: u32) {
        let Some(controller) = self.nodes.get_mut(node) else {
            return;
        };
        let Some(queue) = &controller.admin else {
            controller.complain(format_args!("admin doorbell while not enabled"));
            return;
        };
        let Some(pending) = queue.pending(producer) else {
            return self.fail(node, regs::FAULT_ADMIN_INDEX);
        };
        for _ in 0..pending {
            if self.run_command(node).is_err() {
                return self.fail(node, regs::FAULT_ADMIN_RING);
            }
            if self.has_stopped(node) {
                return;
            }
        }
        if let Some(controller) = self.nodes.get_mut(node) {
            if pending > 0 && controller.fault != Fault::Mute {
                controller.node.admin_event(&controller.platform);
            }
        }
    }

    /// Whether the engine has stopped the function.
    fn has_stopped(&self, node: u16) -> bool {
        let controller = self.nodes.get(node);
        controller.is_none_or(|c| c.has_stopped())
    }

    /// Executes one admin command. An error means that a ring cannot be reached any more.
    fn run_command(&mut self, node: u16) -> Result<(), AccessError> {
        let controller = self.nodes.get_mut(node).ok_or(AccessError)?;
        let queue = controller.admin.as_mut().ok_or(AccessError)?;
        let command = queue.take(&controller.platform.memory)?;
        let fault = controller.fault;
        if fault == Fault::Mute {
            return Ok(());
        }
        let result = admin::execute(&mut self.engine, &mut self.nodes, node, &command);
        let controller = self.nodes.get_mut(node).ok_or(AccessError)?;
        if let Err(status) = result {
            let opcode = command.opcode.get();
            controller.complain(format_args!("admin command {opcode} refused: {status:?}"));
        }
        let queue = controller.admin.as_mut().ok_or(AccessError)?;
        queue.complete(
            &controller.platform.memory,
            completion(&command, result, fault),
        )
    }
}

/// The completion of a command, spoiled if the fault asks for it.
fn completion(command: &Command, result: Result<Body, AdminStatus>, fault: Fault) -> Completion {
    let (status, body) = match result {
        Ok(body) => (AdminStatus::Success, body),
        Err(status) => (status, EMPTY),
    };
    let mut completion = Completion {
        command_id: command.command_id,
        status: status.to_wire().into(),
        valid: 0.into(),
        body,
    };
    match fault {
        Fault::BadStatus => completion.status.set(BAD_STATUS),
        Fault::Garbage => {
            let mut word = [0; 2];
            random::fill(&mut word);
            completion.command_id.set(u16::from_le_bytes(word));
            random::fill(&mut word);
            completion.status.set(u16::from_le_bytes(word));
            random::fill(&mut completion.body);
        }
        _ => {}
    }
    completion
}
