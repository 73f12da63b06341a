// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Admin commands that only look.

use nupa_engine::hal::Memory;
use nupa_engine::node::Node;
use nupa_proto::admin::{BufferRef, NodeInfo, PortCounters};
use nupa_proto::status::AdminStatus;
use zerocopy::IntoBytes;

use crate::admin::Outcome;
use crate::body::{compose, Body, EMPTY};
use crate::config::MAX_NODES;
use crate::controller::{node_guid, Controller};
use crate::nodes::Nodes;
use crate::storage::Heap;

/// Version of this model: major, minor, patch.
const FIRMWARE: [&str; 3] = [
    env!("CARGO_PKG_VERSION_MAJOR"),
    env!("CARGO_PKG_VERSION_MINOR"),
    env!("CARGO_PKG_VERSION_PATCH"),
];

/// `QueryDevice`.
pub(crate) fn device(node: &Node<Heap>) -> Body {
    let mut limits = node.limits().to_wire();
    limits.firmware = FIRMWARE.map(|part| part.parse::<u16>().unwrap_or(0).into());
    compose(&limits)
}

/// `QueryNode`.
pub(crate) fn node(nodes: &Nodes, id: u32) -> Outcome {
    let id = u16::try_from(id).map_err(|_| AdminStatus::NoSuchObject)?;
    let controller = nodes.get(id).ok_or(AdminStatus::NoSuchObject)?;
    Ok(compose(&NodeInfo {
        guid: node_guid(id).into(),
        epoch: controller.node.epoch().into(),
        up: u32::from(controller.node.is_up()).into(),
    }))
}

/// `ListNodes`.
pub(crate) fn list_nodes(nodes: &Nodes, id: u16, buffer: &BufferRef) -> Outcome {
    let mut map = [0u8; (MAX_NODES as usize).div_ceil(8)];
    for (byte, group) in map.iter_mut().zip(nodes.0.chunks(8)) {
        for (bit, controller) in group.iter().enumerate() {
            *byte |= u8::from(controller.node.is_up()) << bit;
        }
    }
    let used = map.get(..nodes.0.len().div_ceil(8)).unwrap_or(&map);
    let asking = nodes.get(id).ok_or(AdminStatus::Internal)?;
    answer(asking, buffer, used)
}

/// `QueryCounters`.
pub(crate) fn counters(controller: &Controller, buffer: &BufferRef) -> Outcome {
    let counters: PortCounters = controller.node.counters();
    answer(controller, buffer, counters.as_bytes())
}

/// Writes an answer to the buffer that the command named.
fn answer(controller: &Controller, buffer: &BufferRef, bytes: &[u8]) -> Outcome {
    if usize::try_from(buffer.len.get()).is_ok_and(|len| len < bytes.len()) {
        return Err(AdminStatus::InvalidField);
    }
    let memory = &controller.platform.memory;
    let written = memory.write(buffer.addr.get(), bytes);
    written.map_err(|_| AdminStatus::BadAddress)?;
    Ok(EMPTY)
}
