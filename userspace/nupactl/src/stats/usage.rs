// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What went through queue pairs, by process or by node at their other end.

use std::collections::BTreeMap;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;

use super::Counted;
use crate::events::named;
use crate::facts::Host;
use crate::resources::{by_number, Owner, QueuePair, Resources, Traffic};
use crate::view;

/// What is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Queue pairs that are connected to the same node
    Peer,
    /// Queue pairs of the same process
    Process,
}

/// What went through the queue pairs that a device has now, of one process or to one node.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Usage {
    /// Name of the RDMA device.
    device: String,
    /// With --by peer: id of the node that they are connected to; none of datagrams, and of those that are not connected.
    node: Option<u16>,
    /// With --by peer: name of that node in /etc/nupa/nodes.conf.
    node_name: Option<String>,
    /// With --by process: who made them.
    owner: Option<Owner>,
    /// How many they are.
    queue_pairs: u32,
    #[serde(flatten)]
    traffic: Traffic,
}

/// Queue pairs of this host.
pub(super) struct QueuePairs<'a> {
    pub(super) host: &'a Host,
    pub(super) by: By,
}

impl Counted for QueuePairs<'_> {
    type Counts = QueuePair;
    type Shown = Usage;

    fn read(&self) -> anyhow::Result<Vec<QueuePair>> {
        let controllers = self.host.controllers()?;
        Resources::open(self.host, &controllers)?.queue_pairs()
    }

    fn since(now: &[QueuePair], before: &[QueuePair]) -> Vec<QueuePair> {
        let before = by_number(before);
        let mut changed = now.to_vec();
        for qp in &mut changed {
            // One of another process has only the number in common.
            let old = before
                .get(&qp.key())
                .filter(|old| old.owner.pid == qp.owner.pid)
                .and_then(|old| old.traffic);
            qp.traffic = qp.traffic.map(|now| match old {
                Some(old) => difference(now, old),
                None => now,
            });
        }
        changed
    }

    fn shown(&self, counts: &[QueuePair]) -> Vec<Usage> {
        sums(self.by, counts)
    }

    fn table(&self, shown: &[Usage]) -> String {
        table(self.by, shown)
    }
}

/// By how much it has changed. One that has less than before is another queue pair of the same number.
fn difference(now: Traffic, old: Traffic) -> Traffic {
    let changed = || {
        Some(Traffic {
            requests: now.requests.checked_sub(old.requests)?,
            served: now.served.checked_sub(old.served)?,
            sent_bytes: now.sent_bytes.checked_sub(old.sent_bytes)?,
            received_bytes: now.received_bytes.checked_sub(old.received_bytes)?,
        })
    };
    changed().unwrap_or(now)
}

fn sums(by: By, pairs: &[QueuePair]) -> Vec<Usage> {
    let mut found = BTreeMap::new();
    for qp in pairs {
        let Some(traffic) = qp.traffic else { continue };
        let (node, owner) = match by {
            By::Peer => (qp.remote_node, None),
            By::Process => (None, Some(qp.owner.clone())),
        };
        let usage = found
            .entry((qp.device.clone(), node, owner.clone()))
            .or_insert_with(|| Usage {
                device: qp.device.clone(),
                node,
                node_name: qp.remote_name.clone().filter(|_| node.is_some()),
                owner,
                queue_pairs: 0,
                traffic: Traffic::default(),
            });
        usage.queue_pairs = usage.queue_pairs.saturating_add(1);
        let sum = &mut usage.traffic;
        sum.requests = sum.requests.wrapping_add(traffic.requests);
        sum.served = sum.served.wrapping_add(traffic.served);
        sum.sent_bytes = sum.sent_bytes.wrapping_add(traffic.sent_bytes);
        sum.received_bytes = sum.received_bytes.wrapping_add(traffic.received_bytes);
    }
    found.into_values().collect()
}

fn table(by: By, shown: &[Usage]) -> String {
    let what = match by {
        By::Peer => "NODE",
        By::Process => "PROCESS",
    };
    let mut table = view::table(&[
        "DEVICE",
        what,
        "QUEUE PAIRS",
        "REQUESTS",
        "SERVED",
        "SENT",
        "RECEIVED",
    ]);
    for usage in shown {
        table.add_row([
            usage.device.clone(),
            usage.who(),
            usage.queue_pairs.to_string(),
            usage.traffic.requests.to_string(),
            usage.traffic.served.to_string(),
            view::bytes(usage.traffic.sent_bytes),
            view::bytes(usage.traffic.received_bytes),
        ]);
    }
    view::trimmed(&table)
}

impl Usage {
    fn who(&self) -> String {
        match (self.node, &self.owner) {
            (Some(node), _) => named(node, self.node_name.as_deref()),
            (None, None) => "none, or several".to_owned(),
            (None, Some(owner)) => match (owner.pid, owner.name.as_deref()) {
                (Some(pid), name) => format!("{pid} {}", name.unwrap_or("-")),
                // What the kernel made for itself has brackets, as in `ps`.
                (None, Some(name)) => format!("[{name}]"),
                (None, None) => "not seen here".to_owned(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(number: u32, node: Option<u16>, pid: u32, bytes: u64) -> QueuePair {
        QueuePair {
            device: "nupa_rdma0".to_owned(),
            number,
            kind: "RC".to_owned(),
            state: "RTS".to_owned(),
            remote_node: node,
            remote_name: None,
            remote_number: None,
            send_requests: None,
            receive_requests: None,
            send_index: None,
            receive_index: None,
            traffic: Some(Traffic {
                requests: 1,
                sent_bytes: bytes,
                ..Traffic::default()
            }),
            owner: Owner {
                pid: Some(pid),
                name: Some("perf".to_owned()),
            },
        }
    }

    #[test]
    fn sums_are_by_what_is_wanted() {
        let pairs = [
            pair(16, Some(2), 70, 100),
            pair(17, Some(3), 70, 20),
            pair(18, Some(2), 80, 3),
            pair(19, None, 80, 4000),
        ];
        let sent = |by| -> Vec<_> {
            let sums = sums(by, &pairs);
            let each = sums.iter();
            each.map(|sum| (sum.who(), sum.queue_pairs, sum.traffic.sent_bytes))
                .collect()
        };
        assert_eq!(
            sent(By::Peer),
            [
                ("none, or several".to_owned(), 1, 4000),
                ("2".to_owned(), 2, 103),
                ("3".to_owned(), 1, 20)
            ]
        );
        assert_eq!(
            sent(By::Process),
            [
                ("70 perf".to_owned(), 2, 120),
                ("80 perf".to_owned(), 2, 4003)
            ]
        );
    }

    #[test]
    fn a_number_that_is_used_again_begins_anew() {
        let before = [16, 17, 19].map(|number| pair(number, None, 1, 100));
        let now = [
            pair(16, None, 1, 150),
            pair(17, None, 1, 40),
            pair(18, None, 1, 7),
            pair(19, None, 2, 300),
        ];
        let changed = QueuePairs::since(&now, &before);
        let sent = changed.iter().filter_map(|qp| qp.traffic);
        assert_eq!(
            sent.map(|traffic| traffic.sent_bytes).collect::<Vec<_>>(),
            [50, 40, 7, 300]
        );
    }
}
