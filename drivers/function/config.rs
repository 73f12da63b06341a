// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the host of a function chooses.

use nupa_engine::node::NodeConfig;
use nupa_proto::regs;

/// `REG_CAPS` of what the engine implements. What depends on the host (`CAP_HOST_DOORBELLS`) comes on top.
pub const CAPS: u64 = regs::CAP_RC
    | regs::CAP_UD
    | regs::CAP_RAW
    | regs::CAP_PUSH
    | regs::CAP_SRQ
    | regs::CAP_ATOMIC
    | regs::CAP_MEM_MGT
    | regs::CAP_MW
    | regs::CAP_FLUSH
    | regs::CAP_CQ_OVERRUN
    | regs::CAP_MULTICAST
    | regs::CAP_TIMESTAMP;

/// What a function shows in its registers and lets its driver use.
#[derive(Clone, Copy, Debug)]
pub struct FunctionConfig {
    /// Id and limits of the node.
    pub node: NodeConfig,
    /// Node ids of the fabric are below this.
    pub max_nodes: u16,
    /// Identity of the fabric.
    pub fabric_id: u64,
    /// Link speed in Mb/s.
    pub link_speed_mbps: u32,
    /// Capabilities: [`CAPS`] or a part of them, and those of the host.
    pub caps: u64,
    /// Doorbell page pairs.
    pub doorbell_pages: u32,
    /// Bytes of device memory, a multiple of 4 KiB; 0: none.
    pub device_memory: u64,
    /// Version that `QueryDevice` reports: major, minor, patch.
    pub firmware: [u16; 3],
}
