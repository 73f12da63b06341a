// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the emulator answers.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fault;

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Whether it was done.
    pub ok: bool,
    /// Why it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// All nodes that have a socket, for those who asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeStats>>,
}

impl Answer {
    /// It was done.
    pub fn done() -> Self {
        Self {
            ok: true,
            ..Self::default()
        }
    }

    /// It was not done; the text is for the user.
    pub fn refused(error: String) -> Self {
        Self {
            error: Some(error),
            ..Self::default()
        }
    }
}

/// State and counters of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeStats {
    /// Node id.
    pub node: u16,
    /// A guest is there.
    pub connected: bool,
    /// Its driver has enabled the function, and it works.
    pub enabled: bool,
    /// The link is plugged in.
    pub link: bool,
    /// The node's epoch: resets so far.
    pub epoch: u32,
    /// `REG_FAULT`.
    pub fault_code: u32,
    /// The fault that it was told to show.
    pub fault: Fault,
    /// Bytes of guest memory within reach.
    pub dma_bytes_mapped: u64,
    /// Bytes of guest memory that the VMM did not share in a usable way.
    pub dma_bytes_unreachable: u64,
    /// Objects that exist.
    pub objects: Objects,
    /// Port counters, by name.
    #[serde(flatten)]
    pub counters: BTreeMap<String, u64>,
}

/// Numbers of objects of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Objects {
    /// Queue pairs.
    pub qp: usize,
    /// Completion queues.
    pub cq: usize,
    /// Event queues.
    pub eq: usize,
    /// Shared receive queues.
    pub srq: usize,
    /// Memory keys: regions, keys for fast registration, windows.
    pub mr: usize,
    /// Protection domains.
    pub pd: usize,
}
