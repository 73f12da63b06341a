// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Configuration space at run time.

/// Bytes of an extended configuration space.
pub const CONFIG_SIZE: usize = 4096;

/// Initiate Function Level Reset, bit 15 of Device Control; here in its upper byte.
const FLR_BIT: u8 = 0x80;
/// Bus Master Enable, bit 2 of Command.
const BUS_MASTER: u8 = 1 << 2;
/// Offset of Command.
pub(super) const COMMAND: usize = 0x04;

/// What a write asked for, beyond the bits that it changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub struct Effects {
    /// The guest started a function-level reset.
    pub function_reset: bool,
}

/// A function's configuration space.
#[derive(Debug, Clone)]
pub struct ConfigSpace {
    /// Current bytes.
    pub(super) bytes: Box<[u8; CONFIG_SIZE]>,
    /// Bytes after reset.
    pub(super) initial: Box<[u8; CONFIG_SIZE]>,
    /// Bits that a write can change.
    pub(super) writable: Box<[u8; CONFIG_SIZE]>,
    /// Offset of the byte of Device Control that holds the FLR bit.
    pub(super) flr: Option<usize>,
}

impl ConfigSpace {
    /// Reads; bytes beyond the end read as all ones.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        let start = usize::try_from(offset).unwrap_or(CONFIG_SIZE);
        let source = self.bytes.get(start..).unwrap_or_default();
        for (to, from) in data.iter_mut().zip(source) {
            *to = *from;
        }
    }

    /// Writes the bits that are writable; bytes beyond the end are ignored.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Effects {
        let start = usize::try_from(offset).unwrap_or(CONFIG_SIZE);
        let flr = self
            .flr
            .and_then(|at| at.checked_sub(start))
            .and_then(|at| data.get(at));
        let bytes = self.bytes.iter_mut().skip(start);
        let writable = self.writable.iter().skip(start);
        for ((byte, mask), new) in bytes.zip(writable).zip(data) {
            *byte = (*byte & !mask) | (new & mask);
        }
        Effects {
            function_reset: flr.is_some_and(|byte| byte & FLR_BIT != 0),
        }
    }

    /// Whether the guest allows the function to access memory and so to interrupt.
    pub fn bus_master(&self) -> bool {
        let command = self.bytes.get(COMMAND);
        command.is_some_and(|command| command & BUS_MASTER != 0)
    }

    /// Back to the state after reset.
    pub fn reset(&mut self) {
        self.bytes.copy_from_slice(self.initial.as_slice());
    }
}
