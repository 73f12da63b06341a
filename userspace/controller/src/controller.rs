// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One node's controller: identity, registers, admin queue, engine state and hardware, kept together.

use std::rc::Rc;

use nupa_engine::limits::Limits;
use nupa_engine::node::{Node, NodeConfig};
use nupa_proto::ident::node_mac;
use nupa_proto::regs;

use crate::admin_queue::AdminQueue;
use crate::clock::Clock;
use crate::config::{DoorbellPlace, FabricConfig};
use crate::fault::Fault;
use crate::log_limit::LogLimit;
use crate::platform::NodePlatform;
use crate::registers::Registers;
use crate::storage::Heap;

/// One controller.
pub(crate) struct Controller {
    /// Objects and state of the engine.
    pub(crate) node: Node<Heap>,
    /// What the engine works with.
    pub(crate) platform: NodePlatform,
    /// BAR 0.
    pub(crate) registers: Registers,
    /// Admin rings while the function is enabled and works.
    pub(crate) admin: Option<AdminQueue>,
    /// How it misbehaves.
    pub(crate) fault: Fault,
    /// Rate limit of messages about this guest.
    pub(crate) log: LogLimit,
}

/// Capabilities of this model: what the engine implements.
const CAPS: u64 = regs::CAP_RC
    | regs::CAP_UD
    | regs::CAP_RAW
    | regs::CAP_PUSH
    | regs::CAP_SRQ
    | regs::CAP_ATOMIC
    | regs::CAP_MEM_MGT
    | regs::CAP_MW
    | regs::CAP_FLUSH;

impl Controller {
    /// A controller that no guest has yet.
    pub(crate) fn new(id: u16, config: &FabricConfig, clock: Rc<dyn Clock>) -> Self {
        let node = Node::new(NodeConfig {
            id,
            limits: Limits::default(),
        });
        let registers = Registers {
            version: regs::VERSION,
            magic: regs::MAGIC,
            caps: match config.doorbells {
                DoorbellPlace::Guest => CAPS | regs::CAP_HOST_DOORBELLS,
                DoorbellPlace::Bar => CAPS,
            },
            status: 0,
            node: id,
            max_nodes: config.max_nodes,
            guid: node_guid(id),
            fabric_id: config.fabric_id,
            link_speed: config.link_speed_mbps,
            epoch: node.epoch(),
            doorbell_pages: config.doorbell_pages,
            fault: regs::FAULT_NONE,
            enable: false,
            admin_sq: 0,
            admin_cq: 0,
            admin_size: 0,
            doorbell_memory: 0,
            device_memory: config.device_memory,
        };
        Self {
            node,
            platform: NodePlatform::new(clock),
            registers,
            admin: None,
            fault: Fault::None,
            log: LogLimit::default(),
        }
    }

    /// Whether a guest is there and the function has not been "pulled out".
    pub(crate) fn is_present(&self) -> bool {
        self.platform.attachment.is_some() && self.fault != Fault::AllOnes
    }

    /// Whether a fault has stopped the function.
    pub(crate) fn has_stopped(&self) -> bool {
        self.node.fault() != regs::FAULT_NONE
    }

    /// Malformed descriptors so far.
    pub(crate) fn malformed(&self) -> u64 {
        self.node.counters().bad_descriptors.get()
    }

    /// Brings the registers that follow the engine's state up to date.
    pub(crate) fn refresh(&mut self) {
        let stopped = self.has_stopped();
        let ready = self.admin.is_some() && !stopped;
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        self.registers.status = flag(ready, regs::STATUS_READY)
            | flag(stopped, regs::STATUS_FATAL)
            | flag(self.node.link(), regs::STATUS_LINK_UP);
        self.registers.fault = self.node.fault();
        self.registers.epoch = self.node.epoch();
    }

    /// Sets registers back to what they are after a reset.
    pub(crate) fn clear(&mut self) {
        self.admin = None;
        self.registers.enable = false;
        self.registers.admin_sq = 0;
        self.registers.admin_cq = 0;
        self.registers.admin_size = 0;
        self.registers.doorbell_memory = 0;
        self.platform.doorbell_memory = None;
    }

    /// Misbehaves from now on. What depends on the engine is the fabric's to do.
    pub(crate) fn set_fault(&mut self, fault: Fault) {
        self.fault = fault;
        self.platform.memory.set_fault(fault);
        self.registers.magic = match fault {
            Fault::Magic => !regs::MAGIC,
            _ => regs::MAGIC,
        };
        self.registers.version = match fault {
            Fault::Version => regs::VERSION.wrapping_add(1 << 16),
            _ => regs::VERSION,
        };
    }

    /// Logs what a guest did wrong, within the rate limit.
    pub(crate) fn complain(&mut self, what: std::fmt::Arguments<'_>) {
        let now = nupa_engine::hal::Clock::now_us(&self.platform);
        if let Some(suppressed) = self.log.allow(now) {
            let node = self.registers.node;
            tracing::warn!(node, suppressed, "{what}");
        }
    }
}

/// EUI-64 of a node: its MAC address with ff:fe in the middle.
pub(crate) fn node_guid(id: u16) -> u64 {
    let [a, b, c, d, e, f] = node_mac(id);
    u64::from_be_bytes([a, b, c, 0xff, 0xfe, d, e, f])
}
