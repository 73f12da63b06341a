// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a function needs of its host beyond what the engine does.
//!
//! As in [`nupa_engine::hal`], nothing here may sleep or allocate.

use core::fmt::Arguments;

use nupa_engine::{
    hal::{AccessError, Memory, Platform},
    NodeTable,
};
use nupa_proto::admin::Completion;

use crate::{doorbell_memory::DoorbellMemory, function::Function};

/// Memory in which a driver can keep doorbell pages.
pub trait WordMemory: Memory {
    /// Loads a naturally aligned 32-bit little-endian word with acquire order.
    fn load_acquire(&self, addr: u64) -> Result<u32, AccessError>;

    /// Stores `value` in a naturally aligned 32-bit little-endian word if `expected` is there, and returns whether it was. Atomic also
    /// against the node's own processors; ordered as a full fence.
    fn compare_exchange(&self, addr: u64, expected: u32, value: u32) -> Result<bool, AccessError>;

    /// Checks that a range can be read and written now.
    fn check(&self, addr: u64, len: usize) -> Result<(), AccessError>;
}

/// Something worth a line in the log.
#[derive(Clone, Copy, Debug)]
pub enum Note<'a> {
    /// The driver has enabled the function.
    Enabled {
        /// The node's epoch.
        epoch: u32,
    },
    /// The function was reset.
    Reset {
        /// The node's new epoch.
        epoch: u32,
    },
    /// The driver did something wrong. These are rate-limited.
    Complaint {
        /// What it did.
        what: Arguments<'a>,
        /// Complaints that were left out before this one.
        suppressed: u64,
    },
}

/// The machine below one function.
///
/// The last three methods let a host show a driver broken hardware; a function that works takes them as they are.
pub trait Host: Platform<Memory: WordMemory> {
    /// The driver's doorbell pages lie in its memory from now on; `None`: where they are after a reset.
    fn set_doorbell_memory(&mut self, memory: Option<DoorbellMemory>);

    /// Writes a line to the log.
    fn note(&self, node: u16, note: Note<'_>);

    /// Whether the function starts when it is enabled.
    fn starts(&self) -> bool {
        true
    }

    /// Whether admin commands are executed; else they are taken and nothing follows.
    fn executes(&self) -> bool {
        true
    }

    /// Changes the completion of an admin command of some opcode before it is written.
    fn spoil(&self, _opcode: u16, _completion: &mut Completion) {}
}

/// What the rest of the fabric knows of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its epoch.
    pub epoch: u32,
    /// It is enabled and its link is up.
    pub up: bool,
}

/// The nodes of a fabric, and the functions among them that this host runs.
pub trait Functions: NodeTable<Platform: Host> {
    /// The function of a node, if it runs here.
    fn function(&self, id: u16) -> Option<&Function<Self::Storage, Self::Platform>>;

    /// As [`Functions::function`], to change it.
    fn function_mut(&mut self, id: u16) -> Option<&mut Function<Self::Storage, Self::Platform>>;

    /// State of a node of the fabric, wherever it runs; `None` if the fabric has no such node.
    fn node_status(&self, id: u16) -> Option<NodeStatus> {
        let (node, _) = self.node(id)?;
        Some(NodeStatus {
            epoch: node.epoch(),
            up: node.is_up(),
        })
    }
}
