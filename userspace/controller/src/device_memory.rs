// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The function's own memory: a window behind the doorbell pages of BAR 2, and a range of addresses for the DMA engine.

use guestmem::{MapError, MapRequest, MmapRegion, Rights};
use nupa_proto::regs::DEVICE_MEMORY_BASE;

use crate::memory::NodeMemory;

/// Memory of one function, all zero at first.
///
/// The window is trapped: no guest maps it, for the same reason that makes mapped doorbell pages dear (see
/// `Documentation/development.md`).
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    region: MmapRegion,
}

impl DeviceMemory {
    /// Makes `len` bytes for a node.
    pub(crate) fn new(node: u16, len: u64) -> Result<Self, MapError> {
        let len = usize::try_from(len).map_err(|_| MapError::InvalidRange)?;
        let region = MmapRegion::new(&format!("nupa-memory-{node}"), len)?;
        Ok(Self { region })
    }

    /// Bytes.
    pub(crate) fn len(&self) -> u64 {
        u64::try_from(self.region.len()).unwrap_or(u64::MAX)
    }

    /// Shows it to the node's DMA engine.
    pub(crate) fn map(&self, memory: &mut NodeMemory) -> Result<(), MapError> {
        let request = MapRequest {
            iova: DEVICE_MEMORY_BASE,
            len: self.len(),
            file: Some(self.region.file()),
            offset: 0,
            rights: Rights::ReadWrite,
        };
        memory.guest_mut().map(&request).map(|_| ())
    }

    /// Reads on behalf of the host. `false` if that is not all inside.
    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) -> bool {
        self.region.read(offset, data).is_ok()
    }

    /// Writes on behalf of the host. `false` if that is not all inside.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) -> bool {
        // A word that the host stores as one must not be seen in parts.
        let stored = match (<[u8; 8]>::try_from(data), <[u8; 4]>::try_from(data)) {
            (Ok(word), _) if offset % 8 == 0 => {
                self.region.store_u64(offset, u64::from_ne_bytes(word))
            }
            (_, Ok(word)) if offset % 4 == 0 => {
                self.region.store_u32(offset, u32::from_ne_bytes(word))
            }
            _ => self.region.write(offset, data),
        };
        stored.is_ok()
    }
}
