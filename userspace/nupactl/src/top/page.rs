// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The page that is shown: lines of text, without what the screen adds.

use super::sample::Sample;
use super::Sort;
use crate::events::named;
use crate::facts::{Controller, Peer};
use crate::resources::{by_number, QueuePair};
use crate::view::{bytes, link, table, trimmed, NO_CONTROLLER};

/// A page.
pub(super) struct Page<'a> {
    /// How it was a moment ago, which rates are from.
    pub(super) before: Option<&'a Sample>,
    /// How it is; `None` while the module is not loaded.
    pub(super) now: Option<&'a Sample>,
    /// Order of the queue pairs.
    pub(super) sort: Sort,
}

/// A line of it.
pub(super) struct Line {
    pub(super) text: String,
    /// It says what is below it.
    pub(super) heads: bool,
}

impl Page<'_> {
    /// All lines.
    pub(super) fn lines(&self) -> Vec<Line> {
        let Some(now) = self.now else {
            return plain(
                "The driver is not loaded: `modprobe nupa_fabric` loads it. Waiting for it.",
            );
        };
        if now.controllers.is_empty() {
            return plain(NO_CONTROLLER);
        }
        let parts = [
            self.links(now),
            nodes(now),
            queues(now),
            self.queue_pairs(now),
        ];
        let mut lines = Vec::new();
        for part in parts {
            if !lines.is_empty() {
                lines.extend(plain(""));
            }
            for (text, number) in part.lines().zip(0u32..) {
                lines.push(Line {
                    text: text.to_owned(),
                    heads: number == 0,
                });
            }
        }
        lines
    }

    /// Controllers with their links, and what goes through them.
    fn links(&self, now: &Sample) -> String {
        let mut table = table(&[
            "DEVICE", "NODE", "LINK", "SENT/S", "RECV/S", "SENDS/S", "RECVS/S",
        ]);
        for controller in &now.controllers {
            let rate = |names: &[&str], shown: fn(u64) -> String| {
                let rate = self
                    .before
                    .and_then(|before| now.rate(before, controller.index, names));
                rate.map_or_else(|| "-".to_owned(), shown)
            };
            let count = |rate: u64| rate.to_string();
            table.add_row([
                controller.device.clone(),
                named(controller.node, controller.name.as_deref()),
                state(controller),
                rate(&["tx_bytes", "tx_message_bytes"], bytes),
                rate(&["rx_bytes", "rx_message_bytes"], bytes),
                rate(&["tx_frames", "tx_messages"], count),
                rate(&["rx_frames", "rx_messages"], count),
            ]);
        }
        trimmed(&table)
    }

    /// Queue pairs in the order that is wanted.
    fn queue_pairs(&self, now: &Sample) -> String {
        let before = self.before.map(|before| by_number(&before.queue_pairs));
        let before = before.unwrap_or_default();
        let mut sorted: Vec<_> = now
            .queue_pairs
            .iter()
            .map(|qp| (qp, is_active(qp, before.get(&qp.key()).copied())))
            .collect();
        // Those that are equal stay in the order of device and number.
        sorted.sort_by(|(a, active), (b, other)| match self.sort {
            Sort::Node => (a.remote_node.is_none(), a.remote_node)
                .cmp(&(b.remote_node.is_none(), b.remote_node)),
            Sort::State => a.state.cmp(&b.state),
            Sort::Process => process(a).cmp(&process(b)),
            Sort::Activity => other.cmp(active),
        });
        let mut table = table(&[
            "QP", "DEVICE", "TYPE", "STATE", "TO NODE", "ACTIVE", "PROCESS",
        ]);
        for (qp, active) in sorted {
            table.add_row([
                qp.number.to_string(),
                qp.device.clone(),
                qp.kind.clone(),
                qp.state.clone(),
                qp.remote_node.map_or_else(
                    || "-".to_owned(),
                    |node| named(node, qp.remote_name.as_deref()),
                ),
                if active { "yes" } else { "-" }.to_owned(),
                process(qp),
            ]);
        }
        trimmed(&table)
    }
}

/// Whether the controller took something from the queues of a queue pair since the last look, when it was like this.
fn is_active(qp: &QueuePair, old: Option<&QueuePair>) -> bool {
    old.is_some_and(|old| (old.send_index, old.receive_index) != (qp.send_index, qp.receive_index))
}

fn plain(text: &str) -> Vec<Line> {
    vec![Line {
        text: text.to_owned(),
        heads: false,
    }]
}

fn state(controller: &Controller) -> String {
    match controller.state {
        "running" => link(controller),
        other => other.to_owned(),
    }
}

/// Nodes that are up, and the queue pairs that are connected to each.
fn nodes(now: &Sample) -> String {
    let mut table = table(&["NODE UP", "THROUGH", "EPOCH", "QPS", "READY", "FAILED"]);
    for peer in &now.peers {
        let mut all = now.controllers.iter();
        let controller = all.find(|controller| controller.index == peer.controller);
        let qps: Vec<_> = now
            .queue_pairs
            .iter()
            .filter(|qp| is_to(qp, peer, controller))
            .collect();
        let count = |state| {
            qps.iter()
                .filter(|qp| qp.state == state)
                .count()
                .to_string()
        };
        table.add_row([
            named(peer.node, peer.name.as_deref()),
            controller.map_or_else(String::new, |controller| controller.device.clone()),
            peer.epoch.to_string(),
            qps.len().to_string(),
            count("RTS"),
            count("ERR"),
        ]);
    }
    trimmed(&table)
}

/// Whether a queue pair is connected to a node.
fn is_to(qp: &QueuePair, peer: &Peer, controller: Option<&Controller>) -> bool {
    qp.remote_node == Some(peer.node)
        && controller.is_some_and(|controller| controller.rdma.contains(&qp.device))
}

/// How many queues and regions devices and interfaces have.
fn queues(now: &Sample) -> String {
    let mut table = table(&["QUEUES OF", "QPS", "CQS", "REGIONS", "REGISTERED"]);
    for device in now.controllers.iter().flat_map(|of| &of.rdma) {
        let qps = now.queue_pairs.iter().filter(|of| of.device == *device);
        let cqs = now.queues.completion_queues.iter();
        let cqs = cqs.filter(|of| of.device == *device);
        let regions = now.regions.iter().filter(|of| of.device == *device);
        let registered = regions.clone().map(|region| region.bytes);
        let registered = registered.fold(0, u64::saturating_add);
        table.add_row([
            device.clone(),
            qps.count().to_string(),
            cqs.count().to_string(),
            regions.count().to_string(),
            bytes(registered),
        ]);
    }
    for interface in &now.queues.interfaces {
        let pairs = interface.queue_pairs.map(|pairs| pairs.to_string());
        let pairs = pairs.unwrap_or_else(|| "-".to_owned());
        table.add_row([&interface.netdev, &pairs, "-", "-", "-"]);
    }
    trimmed(&table)
}

fn process(qp: &QueuePair) -> String {
    match (qp.owner.pid, &qp.owner.name) {
        (Some(pid), Some(name)) => format!("{name} ({pid})"),
        (Some(pid), None) => pid.to_string(),
        (None, Some(name)) => format!("[{name}]"),
        (None, None) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests;
