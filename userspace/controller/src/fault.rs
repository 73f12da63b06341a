// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How a controller shows a fault that it was told to show.

use nupa_control::Fault;
use nupa_proto::admin::{AdminOpcode, Completion};
use nupa_proto::regs;
use nupa_proto::status::AdminStatus;

use crate::random;

/// A status that no specification defines.
const BAD_STATUS: u16 = 0xdead;

/// What of a fault shows in registers and admin completions.
pub(crate) trait Misbehave {
    /// Values of `REG_MAGIC` and `REG_VERSION`.
    fn identity(self) -> (u32, u32);

    /// Spoils an admin completion, if the fault is of that kind.
    fn spoil(self, opcode: u16, completion: &mut Completion);
}

impl Misbehave for Fault {
    fn identity(self) -> (u32, u32) {
        match self {
            Self::Magic => (!regs::MAGIC, regs::VERSION),
            Self::Version => (regs::MAGIC, regs::VERSION.wrapping_add(1 << 16)),
            _ => (regs::MAGIC, regs::VERSION),
        }
    }

    fn spoil(self, opcode: u16, completion: &mut Completion) {
        match self {
            Self::Filter if opcode == AdminOpcode::SetRxFilter.to_wire() => {
                completion.status.set(AdminStatus::NoResources.to_wire());
            }
            Self::BadStatus => completion.status.set(BAD_STATUS),
            Self::Garbage => {
                let mut word = [0; 2];
                random::fill(&mut word);
                completion.command_id.set(u16::from_le_bytes(word));
                random::fill(&mut word);
                completion.status.set(u16::from_le_bytes(word));
                random::fill(&mut completion.body);
            }
            _ => {}
        }
    }
}
