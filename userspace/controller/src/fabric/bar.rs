// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Accesses to the BARs: which register, page or kick they mean.

use nupa_proto::regs;

use super::Fabric;
use crate::doorbells::{self, Kick};
use crate::registers::Effect;

impl Fabric {
    /// Reads a BAR. What cannot be read is zero; a function that is not there reads as all ones.
    pub fn bar_read(&mut self, node: u16, bar: u8, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        let Some(controller) = self.nodes.get_mut(node).filter(|c| c.is_present()) else {
            return;
        };
        data.fill(0);
        let readable = match bar {
            regs::BAR_CONTROL => {
                controller.refresh();
                controller.registers.read(offset, data)
            }
            regs::BAR_DOORBELL => {
                let guest = controller.platform.attachment.as_ref();
                guest.is_none_or(|guest| guest.read(offset, data))
            }
            // The VMM keeps the vector table.
            _ => true,
        };
        if !readable {
            let len = data.len();
            controller.complain(format_args!(
                "read of {len} bytes at {offset:#x} of BAR {bar}"
            ));
        }
    }

    /// Writes a BAR, and does what that sets off. What cannot be written is ignored.
    pub fn bar_write(&mut self, node: u16, bar: u8, offset: u64, data: &[u8]) {
        let Some(controller) = self.nodes.get_mut(node).filter(|c| c.is_present()) else {
            return;
        };
        let accepted = match bar {
            regs::BAR_CONTROL => match controller.registers.write(offset, data) {
                Effect::Refused => false,
                effect => {
                    self.take_effect(node, effect);
                    true
                }
            },
            regs::BAR_DOORBELL => self.write_doorbell(node, offset, data),
            // The VMM keeps the vector table.
            _ => true,
        };
        if accepted {
            return;
        }
        if let Some(controller) = self.nodes.get_mut(node) {
            let len = data.len();
            controller.complain(format_args!(
                "write of {len} bytes at {offset:#x} of BAR {bar}"
            ));
        }
    }

    /// Does what a register write asks for.
    fn take_effect(&mut self, node: u16, effect: Effect) {
        match effect {
            Effect::None | Effect::Refused => {}
            Effect::Enable => self.enable(node),
            Effect::Reset => self.reset(node),
            Effect::AdminDoorbell(producer) => self.run_admin(node, producer),
        }
    }

    /// Serves a kick, or a store by a guest that does not map the shared pages. `false` if it is neither.
    fn write_doorbell(&mut self, node: u16, offset: u64, data: &[u8]) -> bool {
        let Ok(offset) = usize::try_from(offset) else {
            return false;
        };
        let controller = self.nodes.get(node);
        let guest = controller.and_then(|c| c.platform.attachment.as_ref());
        if let Some(stored) = guest.and_then(|guest| guest.store(offset, data)) {
            return stored;
        }
        let Some(kick) = doorbells::decode_kick(self.doorbell_pages, offset, data) else {
            return false;
        };
        self.kick(node, kick);
        true
    }

    /// Serves a kick.
    fn kick(&mut self, node: u16, kick: Kick) {
        let Some(controller) = self.nodes.get(node).filter(|c| !c.has_stopped()) else {
            return;
        };
        let malformed = controller.malformed();
        let (page, slot) = match kick {
            Kick::Plain(page, slot) => {
                self.engine.kick(&mut self.nodes, node, page, slot);
                (page, slot)
            }
            Kick::Push(page, slot, index) => {
                self.engine
                    .push_kick(&mut self.nodes, node, page, slot, index);
                (page, slot)
            }
        };
        let controller = self.nodes.get_mut(node);
        if let Some(controller) = controller.filter(|c| c.malformed() != malformed) {
            controller.complain(format_args!(
                "malformed descriptor in the queue of doorbell page {page} slot {slot}"
            ));
        }
    }
}
