// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The control registers of BAR 0: values and access rules, no behaviour.
//!
//! What a write sets off is told to the caller as an [`Effect`]; all rules are those of [`nupa_proto::regs`].

use nupa_proto::regs;

use crate::{config::FunctionConfig, function::node_guid};

/// State behind the registers of one function.
#[derive(Debug, Clone)]
pub(crate) struct Registers {
    /// `REG_VERSION`.
    pub(crate) version: u32,
    /// `REG_MAGIC`.
    pub(crate) magic: u32,
    /// `REG_CAPS`.
    pub(crate) caps: u64,
    /// `REG_STATUS`.
    pub(crate) status: u32,
    /// `REG_NODE_ID`.
    pub(crate) node: u16,
    /// `REG_MAX_NODES`.
    pub(crate) max_nodes: u16,
    /// `REG_NODE_GUID`.
    pub(crate) guid: u64,
    /// `REG_FABRIC_ID`.
    pub(crate) fabric_id: u64,
    /// `REG_LINK_SPEED`.
    pub(crate) link_speed: u32,
    /// `REG_EPOCH`.
    pub(crate) epoch: u32,
    /// `REG_DOORBELL_PAGES`.
    pub(crate) doorbell_pages: u32,
    /// `REG_FAULT`.
    pub(crate) fault: u32,
    /// `CONTROL_ENABLE` as written.
    pub(crate) enable: bool,
    /// `REG_ADMIN_SQ`.
    pub(crate) admin_sq: u64,
    /// `REG_ADMIN_CQ`.
    pub(crate) admin_cq: u64,
    /// `REG_ADMIN_SIZE`.
    pub(crate) admin_size: u32,
    /// `REG_DOORBELL_MEMORY`.
    pub(crate) doorbell_memory: u64,
    /// `REG_DEVICE_MEMORY`.
    pub(crate) device_memory: u64,
    /// `REG_CLOCK`.
    pub(crate) clock: u64,
}

/// kHz of the engine's clock: it counts nanoseconds.
const CLOCK_KHZ: u32 = 1_000_000;

/// What the writer of a register asks the function to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing beyond the new value.
    None,
    /// Start.
    Enable,
    /// Reset.
    Reset,
    /// Look at the admin ring up to this producer index.
    AdminDoorbell(u32),
    /// The access is not allowed; it was ignored.
    Refused,
}

impl Registers {
    /// Registers after a reset; `epoch` is the node's.
    pub(crate) fn new(config: &FunctionConfig, epoch: u32) -> Self {
        Self {
            version: regs::VERSION,
            magic: regs::MAGIC,
            caps: config.caps,
            status: 0,
            node: config.node.id,
            max_nodes: config.max_nodes,
            guid: node_guid(config.node.id),
            fabric_id: config.fabric_id,
            link_speed: config.link_speed_mbps,
            epoch,
            doorbell_pages: config.doorbell_pages,
            fault: regs::FAULT_NONE,
            enable: false,
            admin_sq: 0,
            admin_cq: 0,
            admin_size: 0,
            doorbell_memory: 0,
            device_memory: config.device_memory,
            clock: 0,
        }
    }

    /// Reads `data.len()` bytes at `offset`. A bad access reads as zero; `false` reports it.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) -> bool {
        data.fill(0);
        let value = match (data.len(), offset & 7) {
            (8, 0) => self.wide(offset),
            (4, 0 | 4) => self.narrow(offset),
            _ => None,
        };
        let Some(value) = value else {
            return false;
        };
        for (to, from) in data.iter_mut().zip(value.to_le_bytes()) {
            *to = from;
        }
        true
    }

    /// Writes `data` at `offset`.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        let Ok(register) = usize::try_from(offset) else {
            return Effect::Refused;
        };
        if let Ok(bytes) = <[u8; 8]>::try_from(data) {
            return self.write_wide(register, u64::from_le_bytes(bytes));
        }
        match <[u8; 4]>::try_from(data) {
            Ok(bytes) => self.write_narrow(register, u32::from_le_bytes(bytes)),
            Err(_) => Effect::Refused,
        }
    }

    /// Value of a 64-bit register.
    fn wide(&self, offset: u64) -> Option<u64> {
        match usize::try_from(offset).ok()? {
            regs::REG_CAPS => Some(self.caps),
            regs::REG_NODE_GUID => Some(self.guid),
            regs::REG_FABRIC_ID => Some(self.fabric_id),
            regs::REG_ADMIN_SQ => Some(self.admin_sq),
            regs::REG_ADMIN_CQ => Some(self.admin_cq),
            regs::REG_DOORBELL_MEMORY => Some(self.doorbell_memory),
            regs::REG_DEVICE_MEMORY => Some(self.device_memory),
            regs::REG_CLOCK => Some(self.clock),
            _ => None,
        }
    }

    /// Value of a 32-bit register, or of one half of a 64-bit register.
    fn narrow(&self, offset: u64) -> Option<u64> {
        let value = match usize::try_from(offset).ok()? {
            regs::REG_MAGIC => self.magic,
            regs::REG_VERSION => self.version,
            regs::REG_STATUS => self.status,
            regs::REG_CONTROL if self.enable => regs::CONTROL_ENABLE,
            regs::REG_CONTROL | regs::REG_ADMIN_DOORBELL => 0,
            regs::REG_NODE_ID => u32::from(self.node),
            regs::REG_MAX_NODES => u32::from(self.max_nodes),
            regs::REG_LINK_SPEED => self.link_speed,
            regs::REG_EPOCH => self.epoch,
            regs::REG_DOORBELL_PAGES => self.doorbell_pages,
            regs::REG_FAULT => self.fault,
            regs::REG_ADMIN_SIZE => self.admin_size,
            regs::REG_CLOCK_KHZ => CLOCK_KHZ,
            _ => {
                let wide = self.wide(offset & !7)?;
                return Some(if offset & 4 == 0 {
                    wide & LOW
                } else {
                    wide >> 32
                });
            }
        };
        Some(u64::from(value))
    }

    fn write_wide(&mut self, register: usize, value: u64) -> Effect {
        match register {
            regs::REG_ADMIN_SQ => self.admin_sq = value,
            regs::REG_ADMIN_CQ => self.admin_cq = value,
            regs::REG_DOORBELL_MEMORY => self.doorbell_memory = value,
            _ => return Effect::Refused,
        }
        Effect::None
    }

    fn write_narrow(&mut self, register: usize, value: u32) -> Effect {
        const SQ_HIGH: usize = regs::REG_ADMIN_SQ + 4;
        const CQ_HIGH: usize = regs::REG_ADMIN_CQ + 4;
        const DOORBELL_HIGH: usize = regs::REG_DOORBELL_MEMORY + 4;
        match register {
            regs::REG_CONTROL => return self.write_control(value),
            regs::REG_ADMIN_DOORBELL => return Effect::AdminDoorbell(value),
            regs::REG_ADMIN_SIZE => self.admin_size = value,
            regs::REG_ADMIN_SQ => self.admin_sq = with_low(self.admin_sq, value),
            regs::REG_ADMIN_CQ => self.admin_cq = with_low(self.admin_cq, value),
            SQ_HIGH => self.admin_sq = with_high(self.admin_sq, value),
            CQ_HIGH => self.admin_cq = with_high(self.admin_cq, value),
            regs::REG_DOORBELL_MEMORY => {
                self.doorbell_memory = with_low(self.doorbell_memory, value);
            }
            DOORBELL_HIGH => self.doorbell_memory = with_high(self.doorbell_memory, value),
            _ => return Effect::Refused,
        }
        Effect::None
    }

    fn write_control(&mut self, value: u32) -> Effect {
        let enable = value & regs::CONTROL_ENABLE != 0;
        if value & regs::CONTROL_RESET != 0 || (self.enable && !enable) {
            return Effect::Reset;
        }
        if enable && !self.enable {
            self.enable = true;
            return Effect::Enable;
        }
        Effect::None
    }
}

/// Lower half of a 64-bit register.
const LOW: u64 = 0xffff_ffff;

fn with_low(register: u64, half: u32) -> u64 {
    (register & !LOW) | u64::from(half)
}

fn with_high(register: u64, half: u32) -> u64 {
    (register & LOW) | (u64::from(half) << 32)
}
