// SPDX-License-Identifier: GPL-2.0
//! Page addresses that FAST_REG reads.

use crate::memory::QueueMemory;
use kernel::prelude::*;
use nk::bound::BoundDevice;
use nupa_engine::rings::QueueMemory as _;

/// Bytes of an entry.
const ENTRY: usize = size_of::<u64>();

/// Room for page addresses in memory that the controller reads while it executes a FAST_REG. Any context.
pub struct PageTable {
    memory: QueueMemory,
    room: u32,
}

impl PageTable {
    pub(super) fn new(device: &BoundDevice, room: u32) -> Result<Self> {
        let bytes = usize::try_from(room)?.checked_mul(ENTRY).ok_or(EINVAL)?;
        Ok(Self {
            memory: QueueMemory::new(device, bytes)?,
            room,
        })
    }

    /// Addresses that it has room for.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// Where it is, for the descriptor.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Sets an entry; ignored where there is no room.
    pub fn set(&self, index: u32, page: u64) {
        if index < self.room {
            self.memory
                .write((index as usize).wrapping_mul(ENTRY), &page.to_le_bytes());
        }
    }
}
