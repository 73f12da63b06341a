// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The descriptions for syzkaller say what the driver's interfaces are: structures, field by field, and numbers.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "test code: a panic is a failed test"
)]

use std::collections::BTreeMap;

use nupa_proto::netlink::{command, controller, memory, FAMILY};
use nupa_proto::pool::sharing::DmHandle;
use nupa_proto::uabi::*;

const RDMA: &str = include_str!("../syzkaller/nupa_rdma.txt");
const NETLINK: &str = include_str!("../syzkaller/nupa_netlink.txt");

/// Name, offset and bytes of a field.
type Field = (String, usize, usize);

/// The fields of a structure of `nupa_proto`.
macro_rules! layout {
    ($name:ident { $($field:ident),+ }) => {{
        let $name { $($field: _),+ } = <$name as zerocopy::FromZeros>::new_zeroed();
        let starts = [$((stringify!($field), std::mem::offset_of!($name, $field))),+];
        let ends = starts.iter().skip(1).map(|(_, at)| *at).chain([size_of::<$name>()]);
        let fields = starts.iter().zip(ends).map(|((name, at), end)| ((*name).to_owned(), *at, end - at));
        fields.collect::<Vec<Field>>()
    }};
}

/// All structures of a description that are no templates: their fields' names and types.
fn structures(text: &str) -> BTreeMap<&str, Vec<(&str, &str)>> {
    let mut found = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_suffix(" {").filter(|line| !line.contains(' ')) else {
            continue;
        };
        let fields = lines.by_ref().take_while(|line| *line != "}");
        let fields = fields.map(|field| field.trim().split_once(char::is_whitespace).unwrap());
        found.insert(
            name,
            fields.map(|(name, kind)| (name, kind.trim())).collect(),
        );
    }
    found
}

/// Bytes of a type, where it has always as many.
fn size(structures: &BTreeMap<&str, Vec<(&str, &str)>>, kind: &str) -> usize {
    let base = kind.split(['[', ':']).next().unwrap();
    match base {
        "int8" => 1,
        "int16" => 2,
        "int32" | "nupa_pd" | "nupa_cq" | "nupa_qp" | "nupa_srq" => 4,
        "int64" | "vma64" | "nupa_offset" => 8,
        "array" => {
            let (item, count) = kind["array[".len()..kind.len() - 1]
                .rsplit_once(", ")
                .unwrap();
            size(structures, item) * count.parse::<usize>().unwrap()
        }
        "const" => size(
            structures,
            kind[..kind.len() - 1].rsplit_once(", ").unwrap().1,
        ),
        name => structures[name]
            .iter()
            .map(|(_, kind)| size(structures, kind))
            .sum(),
    }
}

#[test]
fn structures_are_those_of_the_driver() {
    let layouts = [
        (
            "nupa_ib_alloc_ucontext_resp",
            layout!(ContextResponse {
                caps,
                node,
                max_log_sq,
                max_log_rq,
                max_log_cq,
                flags,
                reserved,
                clock_khz,
                reserved1
            }),
        ),
        (
            "nupa_ib_doorbell",
            layout!(Doorbell {
                shared_offset,
                trapped_offset,
                slot,
                recv_slot,
                reserved
            }),
        ),
        (
            "nupa_ib_create_cq",
            layout!(CreateCqRequest {
                ring,
                log_entries,
                reserved
            }),
        ),
        (
            "nupa_ib_create_cq_resp",
            layout!(CreateCqResponse {
                doorbell,
                cqn,
                reserved
            }),
        ),
        (
            "nupa_ib_resize_cq",
            layout!(ResizeCqRequest {
                ring,
                log_entries,
                reserved
            }),
        ),
        (
            "nupa_ib_create_qp",
            layout!(CreateQpRequest {
                send_ring,
                recv_ring,
                log_send_blocks,
                log_recv_entries,
                log_recv_stride,
                reserved
            }),
        ),
        (
            "nupa_ib_create_qp_resp",
            layout!(CreateQpResponse { doorbell }),
        ),
        (
            "nupa_ib_create_srq",
            layout!(CreateSrqRequest {
                ring,
                log_entries,
                log_stride,
                reserved
            }),
        ),
        (
            "nupa_ib_create_srq_resp",
            layout!(CreateSrqResponse {
                doorbell,
                srqn,
                reserved
            }),
        ),
        (
            "nupa_ib_create_ah_resp",
            layout!(CreateAhResponse {
                node,
                sgid_index,
                reserved
            }),
        ),
        (
            "nupa_dm_handle",
            layout!(DmHandle {
                secret,
                fabric_id,
                len,
                epoch,
                node,
                index
            }),
        ),
    ];
    let structures = structures(RDMA);
    for (name, wanted) in &layouts {
        let mut at = 0;
        let fields = structures[name].iter().map(|(field, kind)| {
            let len = size(&structures, kind);
            at += len;
            ((*field).to_owned(), at - len, len)
        });
        assert_eq!(&fields.collect::<Vec<Field>>(), wanted, "{name}");
    }
    let own = structures
        .keys()
        .filter(|name| name.starts_with("nupa_ib_"))
        .count();
    assert_eq!(
        own + 1,
        layouts.len(),
        "structures that nothing is compared with"
    );
    assert_eq!(
        RDMA.matches(&format!(", {}, ptr64[", size_of::<DmHandle>()))
            .count(),
        2
    );
}

/// Names and values of the numbers that a description defines.
fn numbers(text: &str) -> Vec<(&str, u32)> {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("define NUPA_"));
    let value = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap(),
    };
    lines
        .map(|line| line.split_once('\t').unwrap())
        .map(|(name, number)| (name, value(number)))
        .collect()
}

#[test]
fn numbers_are_those_of_the_driver() {
    macro_rules! named {
        ($($name:ident),+ $(,)?) => { [$((stringify!($name), u32::from($name))),+] };
    }
    let methods = named![
        METHOD_QP_KICK,
        QP_KICK_HANDLE,
        QP_KICK_QUEUES,
        METHOD_SRQ_KICK,
        SRQ_KICK_HANDLE,
        METHOD_CQ_POLL,
        CQ_POLL_HANDLE,
        METHOD_QUERY_CLOCK,
        QUERY_CLOCK,
        METHOD_DM_EXPORT,
        EXPORT_DM,
        EXPORT_DM_HANDLE,
        EXPORT_DM_RING,
        ALLOC_DM_MMAP_OFFSET,
        ALLOC_DM_IMPORT,
        ALLOC_DM_RING,
        ALLOC_DM_KEY,
        ALLOC_DM_REGION,
        KICK_SEND,
        KICK_RECV,
        KICK_PEER,
        KICK_EVENT,
    ];
    assert_eq!(numbers(RDMA), methods);
    let family = [
        ("CMD_CONTROLLER_GET", command::CONTROLLER_GET.into()),
        ("CMD_PEER_GET", command::PEER_GET.into()),
        ("CMD_COUNTERS_GET", command::COUNTERS_GET.into()),
        ("CMD_CONTROLLER_DRAIN", command::CONTROLLER_DRAIN.into()),
        ("CMD_MEMORY_CREATE", command::MEMORY_CREATE.into()),
        ("CMD_MEMORY_ATTACH", command::MEMORY_ATTACH.into()),
        ("CMD_MEMORY_REMOVE", command::MEMORY_REMOVE.into()),
        ("CMD_MEMORY_GET", command::MEMORY_GET.into()),
        ("CMD_CONTROLLER_POLL", command::CONTROLLER_POLL.into()),
        ("A_CONTROLLER_INDEX", controller::INDEX.into()),
        ("A_CONTROLLER_DRAINING", controller::DRAINING.into()),
        ("A_CONTROLLER_POLL_CPU", controller::POLL_CPU.into()),
        ("A_MEMORY_CONTROLLER", memory::CONTROLLER.into()),
        ("A_MEMORY_NAME", memory::NAME.into()),
        ("A_MEMORY_SIZE", memory::SIZE.into()),
        ("A_MEMORY_HANDLE", memory::HANDLE.into()),
        ("A_MEMORY_FORCE", memory::FORCE.into()),
    ];
    assert_eq!(numbers(NETLINK), family);
    assert!(NETLINK.contains(&format!("string[\"{}\"]", FAMILY.to_str().unwrap())));
}

/// Each number that is defined is used, and each structure as well.
#[test]
fn nothing_is_described_in_vain() {
    for text in [RDMA, NETLINK] {
        for (name, _) in numbers(text) {
            assert!(
                text.matches(&format!("NUPA_{name}")).count() > 1,
                "NUPA_{name}"
            );
        }
        for name in structures(text).keys() {
            assert!(text.matches(name).count() > 1, "{name}");
        }
    }
}
