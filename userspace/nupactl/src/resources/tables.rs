// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects as people read them.

use std::fmt::Display;

use super::{Owner, QueuePair, Queues, Region};
use crate::events::named;
use crate::view::{bytes, table, trimmed};

/// Queue pairs as a table.
pub(super) fn queue_pairs(found: &[QueuePair]) -> String {
    let mut table = table(&[
        "DEVICE",
        "QP",
        "TYPE",
        "STATE",
        "REMOTE NODE",
        "REMOTE QP",
        "SENDS",
        "RECEIVES",
        "PID",
        "PROCESS",
    ]);
    for qp in found {
        let node = qp.remote_node;
        let [pid, process] = owner(&qp.owner);
        table.add_row([
            qp.device.clone(),
            qp.number.to_string(),
            qp.kind.clone(),
            qp.state.clone(),
            or_dash(node.map(|node| named(node, qp.remote_name.as_deref()))),
            or_dash(qp.remote_number),
            or_dash(qp.send_requests),
            or_dash(qp.receive_requests),
            pid,
            process,
        ]);
    }
    trimmed(&table)
}

/// Memory regions as a table.
pub(super) fn regions(found: &[Region]) -> String {
    let mut table = table(&[
        "DEVICE",
        "MR",
        "SIZE",
        "PAGES",
        "PAGE SIZE",
        "PID",
        "PROCESS",
    ]);
    for region in found {
        let [pid, process] = owner(&region.owner);
        table.add_row([
            region.device.clone(),
            region.number.to_string(),
            bytes(region.bytes),
            or_dash(region.pages),
            or_dash(region.page_size),
            pid,
            process,
        ]);
    }
    trimmed(&table)
}

/// Completion queues as a table, and interfaces' queues as another.
pub(super) fn queues(found: &Queues) -> String {
    let mut cqs = table(&[
        "DEVICE", "CQ", "ENTRIES", "VECTOR", "USERS", "PID", "PROCESS",
    ]);
    for cq in &found.completion_queues {
        let [pid, process] = owner(&cq.owner);
        cqs.add_row([
            cq.device.clone(),
            cq.number.to_string(),
            or_dash(cq.entries),
            or_dash(cq.vector),
            or_dash(cq.users),
            pid,
            process,
        ]);
    }
    let mut interfaces = table(&["NETDEV", "QUEUE PAIRS", "RECEIVES EACH", "SENDS EACH"]);
    for interface in &found.interfaces {
        interfaces.add_row([
            interface.netdev.clone(),
            or_dash(interface.queue_pairs),
            or_dash(interface.receive_buffers),
            or_dash(interface.send_frames),
        ]);
    }
    format!("{}\n\n{}", trimmed(&cqs), trimmed(&interfaces))
}

/// Process id and name. What the kernel made for itself has brackets, as in `ps`.
fn owner(owner: &Owner) -> [String; 2] {
    let name = match (&owner.name, owner.pid) {
        (Some(name), None) => Some(format!("[{name}]")),
        (name, _) => name.clone(),
    };
    [or_dash(owner.pid), or_dash(name)]
}

fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
