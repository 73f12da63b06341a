// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the owner of a fabric chooses.

use nupa_engine::node::NodeConfig;

use nupa_function::{FunctionConfig, CAPS};
use nupa_proto::doorbell::PAGE_SIZE;
use nupa_proto::regs;

use crate::error::FabricError;

/// Most node ids that one process serves: 64 nodes, also for a host that counts them from 1.
pub const MAX_NODES: u16 = 65;
/// Most doorbell page pairs of a controller.
pub const MAX_DOORBELL_PAGES: u32 = 1024;

/// Most bytes of a controller's own memory.
pub const MAX_DEVICE_MEMORY: u64 = 1 << 30;

/// Parameters of a fabric.
#[derive(Debug, Clone)]
pub struct FabricConfig {
    /// Node ids are below this; 2 to [`MAX_NODES`].
    pub max_nodes: u16,
    /// Identity of the fabric that nodes see; to be drawn at random by the caller.
    pub fabric_id: u64,
    /// Link speed that nodes see, in Mb/s.
    pub link_speed_mbps: u32,
    /// Doorbell page pairs of each controller; 1 to [`MAX_DOORBELL_PAGES`].
    pub doorbell_pages: u32,
    /// Where the shared doorbell pages are.
    pub doorbells: DoorbellPlace,
    /// Bytes of each controller's own memory, a multiple of 4 KiB up to [`MAX_DEVICE_MEMORY`]; 0: none.
    pub device_memory: u64,
}

/// Where the shared doorbell pages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DoorbellPlace {
    /// In the guest's memory, if its driver knows how to; no BAR is to be mapped then, so that a VMM need not wait
    /// for the answer to a kick.
    #[default]
    Guest,
    /// In the BAR, which guests map.
    Bar,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            max_nodes: MAX_NODES,
            fabric_id: 1,
            link_speed_mbps: 256_000,
            doorbell_pages: 512,
            doorbells: DoorbellPlace::default(),
            device_memory: 1 << 20,
        }
    }
}

/// Version of this model: major, minor, patch.
const FIRMWARE: [&str; 3] = [
    env!("CARGO_PKG_VERSION_MAJOR"),
    env!("CARGO_PKG_VERSION_MINOR"),
    env!("CARGO_PKG_VERSION_PATCH"),
];

impl FabricConfig {
    /// What one controller is made with.
    pub(crate) fn of_node(&self, id: u16) -> FunctionConfig {
        FunctionConfig {
            node: NodeConfig {
                id,
                ..NodeConfig::default()
            },
            max_nodes: self.max_nodes,
            fabric_id: self.fabric_id,
            link_speed_mbps: self.link_speed_mbps,
            caps: match self.doorbells {
                DoorbellPlace::Guest => CAPS | regs::CAP_HOST_DOORBELLS,
                DoorbellPlace::Bar => CAPS,
            },
            doorbell_pages: self.doorbell_pages,
            device_memory: self.device_memory,
            firmware: FIRMWARE.map(|part| part.parse().unwrap_or(0)),
        }
    }

    /// Checks all ranges.
    pub(crate) fn check(&self) -> Result<(), FabricError> {
        if !(2..=MAX_NODES).contains(&self.max_nodes) {
            return Err(FabricError::NodeCount(self.max_nodes));
        }
        if !(1..=MAX_DOORBELL_PAGES).contains(&self.doorbell_pages) {
            return Err(FabricError::DoorbellPages(self.doorbell_pages));
        }
        let whole = self.device_memory.checked_rem(PAGE_SIZE as u64) == Some(0);
        if !whole || self.device_memory > MAX_DEVICE_MEMORY {
            return Err(FabricError::DeviceMemory(self.device_memory));
        }
        Ok(())
    }
}
