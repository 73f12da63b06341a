// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs, memory regions and queues: who has them, and how large they are.
//!
//! Keys of regions are not shown, though the kernel tells them to root: who knows one may write to the memory.

mod interface;
mod tables;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::Verb;
use crate::facts::{Controller, Host};
use crate::rdma::{attribute, Core, Entry, Kind, COMPLETION_QUEUES, QUEUE_PAIRS, REGIONS};
use crate::view;

pub(crate) use interface::Interface;

/// States of queue pairs, `enum ib_qp_state`.
const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
/// Types of queue pairs, `enum ib_qp_type`.
const TYPES: [&str; 5] = ["SMI", "GSI", "RC", "UC", "UD"];

/// Who made an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub(crate) struct Owner {
    /// Id of the process, unless it is the kernel, or in a container whose processes are not seen here.
    pub(crate) pid: Option<u32>,
    /// Name of the process, or of the module of the kernel.
    pub(crate) name: Option<String>,
}

/// A queue pair.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct QueuePair {
    /// Name of its RDMA device.
    pub(crate) device: String,
    /// Its number.
    pub(crate) number: u32,
    /// Its type, such as RC.
    pub(crate) kind: String,
    /// Its state, such as RTS.
    pub(crate) state: String,
    /// Id of the node that it is connected to; of RC.
    pub(crate) remote_node: Option<u16>,
    /// Name of that node in /etc/nupa/nodes.conf.
    pub(crate) remote_name: Option<String>,
    /// Number of the queue pair that it is connected to; of RC.
    pub(crate) remote_number: Option<u32>,
    /// Requests that the send queue has room for.
    pub(crate) send_requests: Option<u32>,
    /// Entries that the receive queue has room for; 0 with a shared receive queue.
    pub(crate) receive_requests: Option<u32>,
    /// Index up to which the controller has taken the send queue, in blocks of 64 bytes; it wraps.
    pub(crate) send_index: Option<u32>,
    /// Index up to which the controller has taken the receive queue; it wraps.
    pub(crate) receive_index: Option<u32>,
    /// What went through it, if the controller says so.
    pub(crate) traffic: Option<Traffic>,
    /// Who made it.
    pub(crate) owner: Owner,
}

impl QueuePair {
    /// What tells it from all others that there are at the same time: its device, and its number there.
    pub(crate) fn key(&self) -> (&str, u32) {
        (&self.device, self.number)
    }
}

/// Queue pairs by their keys.
pub(crate) fn by_number(pairs: &[QueuePair]) -> BTreeMap<(&str, u32), &QueuePair> {
    pairs.iter().map(|qp| (qp.key(), qp)).collect()
}

/// What went through a queue pair since it was made; the data of a READ is received by who asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Traffic {
    /// Requests of its process that succeeded.
    pub(crate) requests: u64,
    /// Requests of its peer that were served here, and datagrams that arrived.
    pub(crate) served: u64,
    /// Bytes that left this node.
    pub(crate) sent_bytes: u64,
    /// Bytes that came to this node.
    pub(crate) received_bytes: u64,
}

/// A memory region.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Region {
    /// Name of its RDMA device.
    pub(crate) device: String,
    /// Its number, which is not its key.
    pub(crate) number: u32,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// Pages in the list that the controller has of it; 0 if it needs none.
    pub(crate) pages: Option<u32>,
    /// Bytes of such a page.
    pub(crate) page_size: Option<u64>,
    /// Who made it.
    pub(crate) owner: Owner,
}

/// A completion queue.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CompletionQueue {
    /// Name of its RDMA device.
    pub(crate) device: String,
    /// Its number.
    pub(crate) number: u32,
    /// Entries that its owner was given.
    pub(crate) entries: Option<u32>,
    /// Entries of the ring.
    pub(crate) ring_entries: Option<u32>,
    /// Interrupt vector that its events go to.
    pub(crate) vector: Option<u32>,
    /// Queues that use it.
    pub(crate) users: Option<u64>,
    /// Who made it.
    pub(crate) owner: Owner,
}

/// Queues of a host's controllers.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Queues {
    /// Completion queues of RDMA devices.
    pub(crate) completion_queues: Vec<CompletionQueue>,
    /// Queues of network interfaces.
    pub(crate) interfaces: Vec<Interface>,
}

/// Objects that controllers have.
pub(crate) struct Resources<'a> {
    host: &'a Host,
    controllers: &'a [Controller],
    core: Option<Core>,
}

/// Prints what a verb is about.
pub(crate) fn show(
    verb: &Verb,
    host: &Host,
    controllers: &[Controller],
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let resources = Resources::open(host, controllers)?;
    let text = match verb {
        Verb::Qp if json => view::json(&resources.queue_pairs()?)?,
        Verb::Qp => resources.or_nothing(tables::queue_pairs(&resources.queue_pairs()?)),
        Verb::Mr if json => view::json(&resources.regions()?)?,
        Verb::Mr => resources.or_nothing(tables::regions(&resources.regions()?)),
        _ if json => view::json(&resources.queues()?)?,
        _ => resources.or_nothing(tables::queues(&resources.queues()?)),
    };
    writeln!(out, "{text}")?;
    Ok(())
}

impl<'a> Resources<'a> {
    /// Connects to the RDMA core, if any of the controllers has an RDMA device.
    pub(crate) fn open(host: &'a Host, controllers: &'a [Controller]) -> anyhow::Result<Self> {
        let any = controllers
            .iter()
            .any(|controller| !controller.rdma.is_empty());
        Ok(Self {
            host,
            controllers,
            core: any.then(Core::open).transpose()?,
        })
    }

    /// A table, and what there is to say where there is no RDMA device.
    fn or_nothing(&self, text: String) -> String {
        match self.core {
            Some(_) => text,
            None => format!(
                "{text}\nThe controllers here have no RDMA device: `modprobe nupa_rdma` makes one."
            ),
        }
    }

    /// Objects of a kind of all devices of ours, each with its device.
    fn objects(&self, kind: Kind) -> anyhow::Result<Vec<(String, Entry)>> {
        let Some(core) = &self.core else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for device in self.controllers.iter().flat_map(|of| &of.rdma) {
            let entries = core.objects(device, kind)?.into_iter();
            found.extend(entries.map(|entry| (device.clone(), entry)));
        }
        Ok(found)
    }

    /// All queue pairs.
    pub(crate) fn queue_pairs(&self) -> anyhow::Result<Vec<QueuePair>> {
        let objects = self.objects(QUEUE_PAIRS)?.into_iter();
        Ok(objects
            .filter_map(|(of, qp)| self.queue_pair(of, &qp))
            .collect())
    }

    fn queue_pair(&self, device: String, entry: &Entry) -> Option<QueuePair> {
        let kind = entry.small(attribute::TYPE);
        let remote_node = entry.small_of_driver("remote_node");
        let remote_node = remote_node.and_then(|node| u16::try_from(node).ok());
        let connected = remote_node.is_some();
        Some(QueuePair {
            device,
            number: entry.small(attribute::LQPN)?,
            kind: named(&TYPES, kind),
            state: named(&STATES, entry.small(attribute::STATE)),
            remote_node,
            remote_name: remote_node.and_then(|node| self.host.name(node)),
            // The kernel says 0 of one that is not connected yet.
            remote_number: entry.small(attribute::RQPN).filter(|_| connected),
            send_requests: entry.small_of_driver("sq_requests"),
            receive_requests: entry.small_of_driver("rq_requests"),
            send_index: entry.small_of_driver("sq_index"),
            receive_index: entry.small_of_driver("rq_index"),
            traffic: traffic(entry),
            owner: owner(entry),
        })
    }

    /// All memory regions.
    pub(crate) fn regions(&self) -> anyhow::Result<Vec<Region>> {
        let objects = self.objects(REGIONS)?.into_iter();
        let region = |(device, entry): (String, Entry)| {
            let shift = entry.small_of_driver("page_shift");
            Some(Region {
                device,
                number: entry.small(attribute::MRN)?,
                bytes: entry.number(attribute::MRLEN)?,
                pages: entry.small_of_driver("pages"),
                page_size: shift.and_then(|shift| 1u64.checked_shl(shift)),
                owner: owner(&entry),
            })
        };
        Ok(objects.filter_map(region).collect())
    }

    /// All queues but queue pairs of RDMA devices.
    pub(crate) fn queues(&self) -> anyhow::Result<Queues> {
        let objects = self.objects(COMPLETION_QUEUES)?.into_iter();
        let completion_queue = |(device, entry): (String, Entry)| {
            Some(CompletionQueue {
                device,
                number: entry.small(attribute::CQN)?,
                entries: entry.small(attribute::CQE),
                ring_entries: entry.small_of_driver("ring_entries"),
                vector: entry.small_of_driver("vector"),
                users: entry.number(attribute::USECNT),
                owner: owner(&entry),
            })
        };
        Ok(Queues {
            completion_queues: objects.filter_map(completion_queue).collect(),
            interfaces: interface::all(self.controllers)?,
        })
    }
}

/// The name of a number.
fn named(names: &[&str], number: Option<u32>) -> String {
    let Some(number) = number else {
        return "unknown".to_owned();
    };
    let name = usize::try_from(number).ok().and_then(|at| names.get(at));
    name.map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

fn traffic(entry: &Entry) -> Option<Traffic> {
    Some(Traffic {
        requests: entry.of_driver("requests")?,
        served: entry.of_driver("served")?,
        sent_bytes: entry.of_driver("sent_bytes")?,
        received_bytes: entry.of_driver("received_bytes")?,
    })
}

fn owner(entry: &Entry) -> Owner {
    let pid = entry.small(attribute::PID);
    let process = || fs::read(format!("/proc/{}/comm", pid?)).ok();
    let name = entry.kernel.clone().or_else(|| process().map(named_by));
    Owner { pid, name }
}

/// The name that a process gives itself: any bytes, so what is not for the terminals of others is not in it.
fn named_by(process: Vec<u8>) -> String {
    let name = process.strip_suffix(b"\n").unwrap_or(&process);
    view::printable(&String::from_utf8_lossy(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_names_as_far_as_they_are_known() {
        assert_eq!(named(&STATES, Some(3)), "RTS");
        assert_eq!(named(&TYPES, Some(255)), "255");
        assert_eq!(named(&TYPES, None), "unknown");
    }

    #[test]
    fn a_process_cannot_send_what_terminals_obey_by_its_name() {
        let name = |bytes: &[u8]| named_by(bytes.to_vec());
        assert_eq!(name(b"fio worker\n"), "fio worker");
        assert_eq!(name(b"\x1b]0;title\x07\n"), "?]0;title?");
        assert_eq!(name(b"a\nb\n"), "a?b");
        assert_eq!(name("\u{202e}\u{9b}2J\n".as_bytes()), "??2J");
        assert_eq!(name(b"\xff\n"), "\u{fffd}");
    }
}
