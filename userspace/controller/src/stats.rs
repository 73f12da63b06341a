// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a person or a test wants to know of each node.

use std::collections::BTreeMap;

use nupa_control::{NodeStats, Objects};
use nupa_proto::admin::{PortCounters, PORT_COUNTER_NAMES};
use zerocopy::little_endian::U64;
use zerocopy::IntoBytes;

use crate::device_memory::DeviceMemory;
use crate::nodes::Controller;

/// Looks at a controller.
pub(crate) fn of(controller: &Controller) -> NodeStats {
    let memory = controller.host.memory.guest().stats();
    let guest = controller.host.attachment.as_ref();
    let own = guest.and_then(|guest| guest.device_memory.as_ref());
    let node = &controller.node;
    let [eq, cq, qp, srq, mr, pd] = node.object_counts();
    NodeStats {
        node: node.id(),
        connected: guest.is_some(),
        enabled: controller.is_ready(),
        link: node.link(),
        epoch: node.epoch(),
        fault_code: node.fault(),
        fault: controller.host.fault(),
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
        counters: named(&node.counters()),
    }
}

/// Port counters by the names that every tool uses.
fn named(counters: &PortCounters) -> BTreeMap<String, u64> {
    let words = counters.as_bytes().chunks_exact(size_of::<U64>());
    let values = words.map(|word| <[u8; 8]>::try_from(word).map_or(0, u64::from_le_bytes));
    let names = PORT_COUNTER_NAMES.iter().map(|name| (*name).to_owned());
    names.zip(values).collect()
}
