// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Accesses to the BARs: which register, page or kick they mean.

use nupa_proto::regs;

use super::Fabric;
use crate::doorbells;
use crate::nodes::Controller;

impl Fabric {
    /// Reads a BAR. What cannot be read is zero; a function that is not there reads as all ones.
    pub fn bar_read(&mut self, node: u16, bar: u8, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        let Some(controller) = self.present(node) else {
            return;
        };
        data.fill(0);
        let readable = match bar {
            regs::BAR_CONTROL => controller.read_control(offset, data),
            regs::BAR_DOORBELL => {
                let guest = controller.host.attachment.as_ref();
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
        if self.present(node).is_none() {
            return;
        }
        let accepted = match bar {
            regs::BAR_CONTROL => self.write_control(node, offset, data),
            regs::BAR_DOORBELL => self.write_doorbell(node, offset, data),
            // The VMM keeps the vector table.
            _ => true,
        };
        if accepted {
            return;
        }
        if let Some(controller) = self.model.function_mut(node) {
            let len = data.len();
            controller.complain(format_args!(
                "write of {len} bytes at {offset:#x} of BAR {bar}"
            ));
        }
    }

    /// Serves a kick, or a store by a guest that does not map the shared pages. `false` if it is neither.
    fn write_doorbell(&mut self, node: u16, offset: u64, data: &[u8]) -> bool {
        let Ok(offset) = usize::try_from(offset) else {
            return false;
        };
        let controller = self.model.function(node);
        let guest = controller.and_then(|c| c.host.attachment.as_ref());
        if let Some(stored) = guest.and_then(|guest| guest.store(offset, data)) {
            return stored;
        }
        let Some(kick) = doorbells::decode_kick(self.doorbell_pages, offset, data) else {
            return false;
        };
        self.kick(node, kick);
        true
    }

    /// The controller of a node whose guest is there and which has not been "pulled out".
    fn present(&mut self, node: u16) -> Option<&mut Controller> {
        let controller = self.model.function_mut(node);
        controller.filter(|controller| controller.host.is_present())
    }
}
