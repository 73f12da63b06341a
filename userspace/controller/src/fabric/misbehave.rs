// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Controllers that misbehave as a whole: that stop, are late, or ignore doorbells.

use std::collections::{BTreeMap, BTreeSet};

use nupa_control::Fault;
use nupa_function::Kick;
use nupa_proto::regs;

use super::Fabric;
use crate::error::FabricError;
use crate::fault::Misbehave;

/// Microseconds by which a controller is late that was told to be.
const DELAY_US: u64 = 200_000;

/// What controllers that misbehave have not done yet.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// When a node's admin commands are executed.
    commands: BTreeMap<u16, u64>,
    /// Node, page and slot of doorbells that were ignored.
    doorbells: BTreeSet<(u16, u32, u16)>,
}

impl Overdue {
    /// Forgets what a node's function has not done: it has lost its state.
    pub(super) fn forget(&mut self, node: u16) {
        self.commands.remove(&node);
        self.doorbells.retain(|(of, ..)| *of != node);
    }
}

impl Fabric {
    /// Makes a controller misbehave from now on, or behave again.
    pub fn set_fault(&mut self, node: u16, fault: Fault) -> Result<(), FabricError> {
        let before = self.controller(node)?.host.fault();
        if (fault == Fault::AllOnes) != (before == Fault::AllOnes) {
            // Pulled out or put back: either way the function loses its state.
            self.reset(node);
        }
        // It dies once.
        let lasting = match fault {
            Fault::Die => Fault::None,
            other => other,
        };
        let controller = self.controller(node)?;
        let (magic, version) = lasting.identity();
        controller.set_identity(magic, version);
        controller.host.memory.set_fault(lasting);
        if fault == Fault::Die {
            self.model.fail(node, regs::FAULT_EVENT_QUEUE);
            self.overdue.forget(node);
        }
        if (before == Fault::Stall) != (fault == Fault::Stall) {
            // While one is stalled all guests have to kick, because kicks are what is ignored.
            if self.set_polling(self.polling) {
                // Others' doorbells, which may have been rung just before.
                self.model.poll_doorbells();
            }
        }
        if before == Fault::Stall && fault != Fault::Stall {
            self.serve_ignored(node);
        }
        tracing::info!(node, %fault, "fault set");
        Ok(())
    }

    /// Writes a control register. `false` if that cannot be.
    ///
    /// Admin commands are executed at once, or by a later [`run`](Self::run) if the controller is told to be late.
    pub(super) fn write_control(&mut self, node: u16, offset: u64, data: &[u8]) -> bool {
        let fault = self.model.function(node).map(|f| f.host.fault());
        let written = if fault == Some(Fault::Delay) {
            if usize::try_from(offset) == Ok(regs::REG_ADMIN_DOORBELL) {
                let due = self.clock.now_us().saturating_add(DELAY_US);
                self.overdue.commands.entry(node).or_insert(due);
            }
            self.model.begin_write(node, offset, data)
        } else {
            self.model.write_control(node, offset, data)
        };
        if self.model.function(node).is_none_or(|f| !f.is_ready()) {
            // Reset, or dead.
            self.overdue.forget(node);
        }
        written
    }

    /// Executes admin commands whose time has come, and returns when that of the next ones comes.
    pub(super) fn run_late_commands(&mut self) -> Option<u64> {
        if self.overdue.commands.is_empty() {
            return None;
        }
        let now = self.clock.now_us();
        let due: Vec<u16> = self
            .overdue
            .commands
            .iter()
            .filter_map(|(node, due)| (*due <= now).then_some(*node))
            .collect();
        for node in due {
            self.overdue.commands.remove(&node);
            self.model.run_admin(node);
        }
        self.overdue.commands.values().min().copied()
    }

    /// Whether a controller ignores doorbells.
    pub(super) fn has_stalled(&self) -> bool {
        let controllers = self.model.functions.0.iter();
        controllers
            .map(|c| c.host.fault())
            .any(|f| f == Fault::Stall)
    }

    /// Serves a kick, unless the controller ignores it.
    pub(super) fn kick(&mut self, node: u16, kick: Kick) {
        let controller = self.model.function(node);
        if controller.is_none_or(|c| c.host.fault() != Fault::Stall) {
            return self.model.kick(node, kick);
        }
        let (Kick::Plain(page, slot) | Kick::Push(page, slot, _)) = kick;
        self.overdue.doorbells.insert((node, page, slot));
    }

    /// Serves the doorbells that were ignored.
    fn serve_ignored(&mut self, node: u16) {
        let all = std::mem::take(&mut self.overdue.doorbells);
        let (own, others): (BTreeSet<_>, _) = all.into_iter().partition(|(of, ..)| *of == node);
        self.overdue.doorbells = others;
        for (node, page, slot) in own {
            self.model.kick(node, Kick::Plain(page, slot));
        }
    }
}
