// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a person or a test wants to know of each node.

use nupa_proto::admin::{PortCounters, PORT_COUNTER_NAMES};
use serde::ser::{Serialize, SerializeMap, Serializer};
use zerocopy::little_endian::U64;
use zerocopy::IntoBytes;

use crate::device_memory::DeviceMemory;
use crate::nodes::Controller;

/// State and counters of one node.
#[derive(Debug, Clone, serde::Serialize)]
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
    pub fault: String,
    /// Bytes of guest memory within reach.
    pub dma_bytes_mapped: u64,
    /// Bytes of guest memory that the VMM did not share in a usable way.
    pub dma_bytes_unreachable: u64,
    /// Objects that exist.
    pub objects: Objects,
    /// Port counters, by name.
    #[serde(flatten)]
    pub counters: Counters,
}

/// Numbers of objects of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
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

/// Port counters; serialized as a map with the names that every tool uses.
#[derive(Debug, Clone, Copy)]
pub struct Counters(pub PortCounters);

impl Counters {
    /// Values in the order of [`PORT_COUNTER_NAMES`].
    fn values(&self) -> impl Iterator<Item = u64> + '_ {
        let words = self.0.as_bytes().chunks_exact(size_of::<U64>());
        words.map(|word| <[u8; 8]>::try_from(word).map_or(0, u64::from_le_bytes))
    }
}

impl Serialize for Counters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(PORT_COUNTER_NAMES.len()))?;
        for (name, value) in PORT_COUNTER_NAMES.iter().zip(self.values()) {
            map.serialize_entry(name, &value)?;
        }
        map.end()
    }
}

impl NodeStats {
    /// Looks at a controller.
    pub(crate) fn of(controller: &Controller) -> Self {
        let memory = controller.host.memory.guest().stats();
        let guest = controller.host.attachment.as_ref();
        let own = guest.and_then(|guest| guest.device_memory.as_ref());
        let node = &controller.node;
        let [eq, cq, qp, srq, mr, pd] = node.object_counts();
        Self {
            node: node.id(),
            connected: guest.is_some(),
            enabled: controller.is_ready(),
            link: node.link(),
            epoch: node.epoch(),
            fault_code: node.fault(),
            fault: controller.host.fault().to_string(),
            dma_bytes_mapped: memory
                .mapped
                .saturating_sub(own.map_or(0, DeviceMemory::len)),
            dma_bytes_unreachable: memory.unreachable,
            objects: Objects {
                qp,
                cq,
                eq,
                srq,
                mr,
                pd,
            },
            counters: Counters(node.counters()),
        }
    }
}
