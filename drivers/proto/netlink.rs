// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Numbers of the generic netlink family that tells programs about this host's controllers. `Documentation/netlink/specs/nupa.yaml`
//! describes it in the form of the kernel's specifications.

use core::ffi::CStr;

/// Name of the family.
pub const FAMILY: &CStr = c"nupa";
/// Version of the family.
pub const VERSION: u8 = 1;
/// Multicast group that notifications are sent to.
pub const MONITOR: &CStr = c"monitor";

/// Commands.
pub mod command {
    /// All controllers.
    pub const CONTROLLER_GET: u8 = 1;
    /// The nodes that are up.
    pub const PEER_GET: u8 = 2;
    /// Counters of all controllers that run.
    pub const COUNTERS_GET: u8 = 3;
    /// Notification: a controller came, or its state or link changed.
    pub const CONTROLLER_NTF: u8 = 4;
    /// Notification: a controller's driver is unbound.
    pub const CONTROLLER_DEL_NTF: u8 = 5;
    /// Notification: a node came up, or came up again.
    pub const PEER_UP_NTF: u8 = 6;
    /// Notification: a node went down.
    pub const PEER_DOWN_NTF: u8 = 7;
    /// Takes a controller out of service for processes, or back into it.
    pub const CONTROLLER_DRAIN: u8 = 8;
    /// Allocates memory of a pool, which other nodes may attach, and makes a memory device of it.
    pub const MEMORY_CREATE: u8 = 9;
    /// Makes a memory device of memory that a node has created.
    pub const MEMORY_ATTACH: u8 = 10;
    /// Removes a memory device.
    pub const MEMORY_REMOVE: u8 = 11;
    /// All memory devices, for those with `CAP_NET_ADMIN`: their handles are secret.
    pub const MEMORY_GET: u8 = 12;
    /// Has a thread poll a pool on a processor, or none.
    pub const CONTROLLER_POLL: u8 = 13;
}

/// Attributes of a controller.
pub mod controller {
    /// `u32`
    pub const INDEX: u16 = 1;
    /// String
    pub const DEVICE: u16 = 2;
    /// `u32`, a [`super::ControllerState`]
    pub const STATE: u16 = 3;
    /// `u16`
    pub const NODE: u16 = 4;
    /// `u16`
    pub const MAX_NODES: u16 = 5;
    /// `u64`
    pub const GUID: u16 = 6;
    /// `u64`
    pub const FABRIC: u16 = 7;
    /// `u32`
    pub const EPOCH: u16 = 8;
    /// `u32`, a `FAULT_*` of [`crate::regs`]
    pub const FAULT: u16 = 9;
    /// `u8`, 0 or 1
    pub const LINK_UP: u16 = 10;
    /// `u32`, Mb/s
    pub const LINK_SPEED: u16 = 11;
    /// String
    pub const FIRMWARE: u16 = 12;
    /// `u64`, `CAP_*` of [`crate::regs`]
    pub const CAPABILITIES: u16 = 13;
    /// `u32`
    pub const VECTORS: u16 = 14;
    /// `u64`, ms
    pub const LINK_AGE: u16 = 15;
    /// `u32`, 0 or 1
    pub const DRAINING: u16 = 16;
    /// `u32`
    pub const USER_QPS: u16 = 17;
    /// `u32`, the processor of the thread that does nothing but poll a pool; it is left out if there is no such thread
    pub const POLL_CPU: u16 = 18;
}

/// Attributes of a node.
pub mod peer {
    /// `u32`
    pub const CONTROLLER: u16 = 1;
    /// `u16`
    pub const NODE: u16 = 2;
    /// `u64`
    pub const GUID: u16 = 3;
    /// `u32`
    pub const EPOCH: u16 = 4;
}

/// Attributes of a controller's counters.
pub mod counters {
    /// `u32`
    pub const CONTROLLER: u16 = 1;
    /// `u64`; this and those behind it are the fields of [`crate::admin::PortCounters`], in order.
    pub const FIRST: u16 = 2;
}

/// Attributes of a memory device.
pub mod memory {
    /// `u32`
    pub const CONTROLLER: u16 = 1;
    /// String of at most [`MAX_NAME`] letters, digits, `.`, `_` and `-`, the first of them a letter or a digit
    pub const NAME: u16 = 2;
    /// `u64`, bytes
    pub const SIZE: u16 = 3;
    /// A [`crate::pool::sharing::DmHandle`]
    pub const HANDLE: u16 = 4;
    /// `u16`, the node whose memory it was when the device was made
    pub const NODE: u16 = 5;
    /// `u8`, 0 or 1: whether it was attached, not created
    pub const ATTACHED: u16 = 6;
    /// `u32`, how many times it is open
    pub const OPENS: u16 = 7;
    /// `u32`, 0 or 1: whether to remove it while it is open
    pub const FORCE: u16 = 8;

    /// Bytes of a name.
    pub const MAX_NAME: usize = 32;
}

wire_enum! {
    /// What a controller is fit for.
    ControllerState: u32 {
        /// It has not been started, or is being reset.
        Down = 0,
        /// Objects can be created.
        Running = 1,
        /// Somebody else resets the function, and says when that is over.
        Paused = 2,
        /// It does not come back by itself.
        Lost = 3,
        /// The driver is being unbound.
        Removed = 4,
    }
}
