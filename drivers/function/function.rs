// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One node's function: registers, admin queue, engine state and host, kept together.

use core::fmt::Arguments;

use nupa_engine::{
    hal::Storage,
    node::{Node, FIRST_EPOCH},
};
use nupa_proto::{ident::node_mac, regs};

use crate::{
    admin_queue::AdminQueue,
    config::FunctionConfig,
    host::{Host, Note},
    log_limit::LogLimit,
    registers::Registers,
};

/// One function.
pub struct Function<S: Storage, H> {
    /// Objects and state of the engine.
    pub node: Node<S>,
    /// What the engine works with.
    pub host: H,
    /// BAR 0.
    pub(crate) registers: Registers,
    /// Admin rings while the function is enabled and works.
    pub(crate) admin: Option<AdminQueue>,
    /// Version of this model: major, minor, patch.
    pub(crate) firmware: [u16; 3],
    /// Rate limit of complaints about the driver.
    log: LogLimit,
}

impl<S: Storage, H: Host> Function<S, H> {
    /// A function in its reset state.
    ///
    /// By itself: whoever boxes it has it on the stack, and needs no space there for what makes it.
    #[inline(never)]
    pub fn new(config: &FunctionConfig, host: H) -> Self {
        Self {
            registers: Registers::new(config, FIRST_EPOCH),
            // In its place at once: it takes some space.
            node: Node::new(config.node),
            host,
            admin: None,
            firmware: config.firmware,
            log: LogLimit::default(),
        }
    }

    /// Whether it takes admin commands: its driver has enabled it, and it works.
    pub fn is_ready(&self) -> bool {
        self.admin.is_some() && !self.has_stopped()
    }

    /// Whether a fault has stopped it.
    pub fn has_stopped(&self) -> bool {
        self.node.fault() != regs::FAULT_NONE
    }

    /// Shows other values in `REG_MAGIC` and `REG_VERSION`: another kind of hardware.
    pub fn set_identity(&mut self, magic: u32, version: u32) {
        self.registers.magic = magic;
        self.registers.version = version;
    }

    /// Reads a control register. A bad access reads as zero; `false` reports it.
    pub fn read_control(&mut self, offset: u64, data: &mut [u8]) -> bool {
        self.refresh();
        self.registers.read(offset, data)
    }

    /// Logs what the driver did wrong, within the rate limit.
    pub fn complain(&mut self, what: Arguments<'_>) {
        if let Some(suppressed) = self.log.allow(self.host.now_us()) {
            let note = Note::Complaint { what, suppressed };
            self.host.note(self.node.id(), note);
        }
    }

    /// Malformed descriptors so far.
    pub(crate) fn malformed(&self) -> u64 {
        self.node.counters().bad_descriptors.get()
    }

    /// Brings the registers that follow the engine's state up to date.
    fn refresh(&mut self) {
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        self.registers.status = flag(self.is_ready(), regs::STATUS_READY)
            | flag(self.has_stopped(), regs::STATUS_FATAL)
            | flag(self.node.link(), regs::STATUS_LINK_UP);
        self.registers.fault = self.node.fault();
        self.registers.epoch = self.node.epoch();
        self.registers.clock = self.host.now_ns();
    }

    /// Sets registers back to what they are after a reset.
    pub(crate) fn clear(&mut self) {
        self.admin = None;
        self.registers.enable = false;
        self.registers.admin_sq = 0;
        self.registers.admin_cq = 0;
        self.registers.admin_size = 0;
        self.registers.doorbell_memory = 0;
        self.host.set_doorbell_memory(None);
    }
}

/// EUI-64 of a node: its MAC address with ff:fe in the middle.
pub(crate) fn node_guid(id: u16) -> u64 {
    let [a, b, c, d, e, f] = node_mac(id);
    u64::from_be_bytes([a, b, c, 0xff, 0xfe, d, e, f])
}
