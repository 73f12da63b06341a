// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The specification (Documentation/controller.md) and the layouts in drivers/proto say the same.

#![allow(clippy::expect_used, reason = "tests fail by panicking")]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "as above"
)]

#[macro_use]
#[path = "../../proto/tests/spec/mod.rs"]
mod spec;

use std::collections::BTreeSet;

use nupa_proto::{admin::*, cqe::*, doorbell::Slot, eqe::*, frame::*, regs, status::*, wqe::*};

const SPEC: &str = include_str!("../../../Documentation/controller.md");

#[test]
fn layouts_are_those_of_the_specification() {
    let layouts = [
        layout!(FrameMeta {
            gso_type,
            flags,
            gso_size,
            header_len,
            csum_start,
            csum_offset,
            vlan_tci,
            hash
        }),
        layout!(Control {
            opcode,
            flags,
            blocks,
            data_count,
            imm_or_key,
            wr_id
        }),
        layout!(RemoteSegment {
            addr,
            rkey,
            bypassed
        }),
        layout!(SendSegment { bypassed, reserved }),
        layout!(DatagramSegment {
            qpn,
            qkey,
            node,
            reserved
        }),
        layout!(AtomicSegment { operand, compare }),
        layout!(Sge { addr, len, lkey }),
        layout!(FrameDescriptor { control, meta }),
        layout!(RecvHeader {
            wr_id,
            sge_count,
            reserved
        }),
        layout!(Cqe {
            wr_id,
            qpn,
            byte_len,
            opcode,
            status,
            flags,
            vendor_error,
            imm_or_key,
            queue_index,
            src_qpn,
            src_node,
            buffers,
            vlan_id,
            network_header,
            reserved0,
            frame,
            reserved1,
            valid
        }),
        layout!(Timestamp { clock, reserved }),
        layout!(Eqe {
            event_type,
            reserved0,
            node,
            object,
            reserved1,
            valid
        }),
        layout!(Slot {
            index,
            arm,
            event,
            driver
        }),
        layout!(Command {
            opcode,
            command_id,
            reserved,
            body
        }),
        layout!(Completion {
            command_id,
            status,
            valid,
            body
        }),
        layout!(ById { id, reserved }),
        layout!(BufferRef {
            addr,
            len,
            reserved
        }),
        layout!(Created { id, reserved }),
        layout!(PageList {
            addr,
            pages,
            page_shift,
            levels,
            reserved
        }),
        layout!(DeviceLimits {
            max_qp,
            max_cq,
            max_eq,
            max_mr,
            max_pd,
            max_mr_size,
            max_log_sq,
            max_log_rq,
            max_log_cq,
            max_log_eq,
            max_rx_addresses,
            rss_entries,
            max_rd_atomic,
            max_gids,
            firmware,
            max_log_srq,
            max_super_frame,
            max_srq,
            max_fast_reg_pages
        }),
        layout!(NodeInfo { guid, epoch, up }),
        layout!(CreateEq {
            ring,
            doorbell_page,
            doorbell_slot,
            vector,
            log_entries,
            reserved
        }),
        layout!(CreateCq {
            ring,
            doorbell_page,
            doorbell_slot,
            log_entries,
            flags,
            eqn,
            reserved
        }),
        layout!(ModifyCq {
            cqn,
            usecs,
            max_count
        }),
        layout!(ResizeCq {
            ring,
            cqn,
            log_entries,
            reserved
        }),
        layout!(CreateMr {
            pages,
            iova,
            len,
            pd,
            access
        }),
        layout!(ModifyMr { key, mask, mr }),
        layout!(AllocKey {
            pd,
            max_pages,
            kind,
            reserved
        }),
        layout!(CreateSrq {
            ring,
            pd,
            doorbell_page,
            doorbell_slot,
            log_entries,
            log_stride,
            flags,
            reserved
        }),
        layout!(ModifySrq { srqn, limit }),
        layout!(SrqState { limit, index }),
        layout!(SetGid {
            gid,
            index,
            flags,
            vlan_id
        }),
        layout!(GroupMember { gid, qpn, reserved }),
        layout!(GrhSegment {
            dgid,
            flow_label,
            sgid_index,
            hop_limit,
            traffic_class,
            reserved
        }),
        layout!(FastRegSegment {
            iova,
            len,
            list,
            pages,
            access,
            page_shift,
            reserved
        }),
        layout!(BindSegment {
            addr,
            len,
            mr_key,
            access
        }),
        layout!(FlushSegment {
            addr,
            rkey,
            len,
            kind,
            level,
            reserved
        }),
        layout!(CreateQp {
            sq,
            rq,
            qp_type,
            flags,
            log_sq,
            log_rq,
            log_rq_stride,
            reserved,
            pd,
            send_cqn,
            recv_cqn,
            doorbell_page,
            sq_slot,
            rq_slot,
            srqn
        }),
        layout!(ModifyQp {
            qpn,
            mask,
            state,
            reserved,
            remote_node,
            remote_qpn,
            remote_epoch,
            access,
            qkey,
            rnr_timeout_us,
            max_rd_atomic,
            max_dest_rd_atomic,
            rnr_retry,
            min_rnr_timer,
            reserved1,
            rq_psn,
            sq_psn,
            ring
        }),
        layout!(QpState {
            state,
            reserved,
            sq_index,
            rq_index,
            reserved1,
            traffic
        }),
        layout!(QpTraffic {
            requests,
            served,
            sent_bytes,
            received_bytes
        }),
        layout!(SetRxFilter {
            addresses,
            count,
            flags
        }),
        layout!(SetRss {
            table,
            count,
            reserved
        }),
        layout!(PortCounters {
            tx_frames,
            tx_bytes,
            rx_frames,
            rx_bytes,
            rx_no_buffer,
            rx_filtered,
            tx_rnr_waits,
            tx_errors,
            tx_messages,
            tx_message_bytes,
            rx_messages,
            rx_message_bytes,
            remote_access_errors,
            bad_descriptors,
            kicks,
            interrupts,
            rx_reads,
            rx_read_bytes,
            rx_atomics,
            rx_rnr_naks,
            rx_datagram_drops,
            tx_retry_exceeded,
            flushed,
            cq_overflows,
            tx_direct_writes,
            tx_read_bytes,
            tx_latency
        }),
    ];
    spec::check_layouts(SPEC, &layouts);
}

#[test]
fn timers_are_those_of_the_specification() {
    let cells = spec::table(SPEC, "\n| Codes | +0 |").into_iter();
    let found: Vec<Option<u32>> = cells
        .flat_map(|row| row.into_iter().skip(1))
        .map(|cell| cell.parse().ok())
        .collect();
    let codes = 0..=MAX_RNR_TIMER;
    assert_eq!(found, codes.map(rnr_timer_us).collect::<Vec<_>>());
    assert_eq!(rnr_timer_us(MAX_RNR_TIMER + 1), None);
}

#[test]
fn enumerations_are_those_of_the_specification() {
    enumeration!(SPEC, "\n## Admin commands", AdminOpcode);
    enumeration!(SPEC, "\n| Value | Status |", AdminStatus);
    enumeration!(SPEC, "\n| Value | `QpType` |", QpType);
    enumeration!(SPEC, "\n| Value | `KeyKind` |", KeyKind);
    enumeration!(SPEC, "\n## Queue pair states", QpStateCode);
    enumeration!(SPEC, "\n`status` of a completion", WcStatus);
    enumeration!(SPEC, "\n| Value | `EventType` |", EventType);
    enumeration!(SPEC, "\n| Value | `CqeOpcode` |", CqeOpcode);
    enumeration!(SPEC, "\n| Value | `NetworkHeader` |", NetworkHeader);
    enumeration!(SPEC, "\n| Value | `Opcode` |", Opcode);
    enumeration!(SPEC, "\n| Value | `GsoType` |", GsoType);
}

#[test]
fn registers_are_those_of_the_specification() {
    let rows = spec::table(SPEC, "\n## Registers");
    let registers = [
        (regs::REG_MAGIC, "REG_MAGIC"),
        (regs::REG_VERSION, "REG_VERSION"),
        (regs::REG_CAPS, "REG_CAPS"),
        (regs::REG_STATUS, "REG_STATUS"),
        (regs::REG_CONTROL, "REG_CONTROL"),
        (regs::REG_NODE_ID, "REG_NODE_ID"),
        (regs::REG_MAX_NODES, "REG_MAX_NODES"),
        (regs::REG_NODE_GUID, "REG_NODE_GUID"),
        (regs::REG_FABRIC_ID, "REG_FABRIC_ID"),
        (regs::REG_LINK_SPEED, "REG_LINK_SPEED"),
        (regs::REG_EPOCH, "REG_EPOCH"),
        (regs::REG_DOORBELL_PAGES, "REG_DOORBELL_PAGES"),
        (regs::REG_FAULT, "REG_FAULT"),
        (regs::REG_ADMIN_SQ, "REG_ADMIN_SQ"),
        (regs::REG_ADMIN_CQ, "REG_ADMIN_CQ"),
        (regs::REG_ADMIN_SIZE, "REG_ADMIN_SIZE"),
        (regs::REG_ADMIN_DOORBELL, "REG_ADMIN_DOORBELL"),
        (regs::REG_DOORBELL_MEMORY, "REG_DOORBELL_MEMORY"),
        (regs::REG_DEVICE_MEMORY, "REG_DEVICE_MEMORY"),
        (regs::REG_CLOCK, "REG_CLOCK"),
        (regs::REG_CLOCK_KHZ, "REG_CLOCK_KHZ"),
    ];
    let expected: Vec<_> = registers
        .iter()
        .map(|(at, name)| (format!("0x{at:02x}"), format!("`{name}`")))
        .collect();
    let found: Vec<_> = rows
        .iter()
        .map(|row| (row[0].to_string(), row[2].to_string()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn pages_have_the_version_of_the_interface() {
    let version = format!("{}.{}", regs::VERSION_MAJOR, regs::VERSION_MINOR);
    let said = format!("`REG_VERSION` is {version} (0x{:08x})", regs::VERSION);
    assert!(SPEC.contains(&said), "{said}");
    let said = format!("| interface of the controller | {version} (");
    assert!(include_str!("../../../README.md").contains(&said), "{said}");
}

/// Sources of the layouts, for constants that would have to be listed here otherwise.
const SOURCES: [&str; 8] = [
    include_str!("../../proto/regs.rs"),
    include_str!("../../proto/wqe.rs"),
    include_str!("../../proto/cqe.rs"),
    include_str!("../../proto/frame.rs"),
    include_str!("../../proto/admin/qp.rs"),
    include_str!("../../proto/admin/queue.rs"),
    include_str!("../../proto/admin/region.rs"),
    include_str!("../../proto/admin/port.rs"),
];

/// Names and values of the constants that are written as `1 << N` or as a number.
fn constants() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = SOURCES.iter().flat_map(|source| source.lines());
    lines.filter_map(|line| {
        let (name, value) = line.strip_prefix("pub const ")?.split_once(": ")?;
        Some((name, value.split_once(" = ")?.1.strip_suffix(';')?))
    })
}

/// First and second cells of all tables whose head starts like this.
fn rows(head: &str) -> BTreeSet<(&'static str, &'static str)> {
    let mut found = BTreeSet::new();
    let mut inside = false;
    for line in SPEC.lines() {
        inside = line.starts_with(head) || inside && line.starts_with('|');
        let mut cells = line.split('|').map(str::trim).skip(1);
        if let (true, Some(value), Some(name)) = (inside, cells.next(), cells.next()) {
            found.insert((name.trim_matches('`'), value));
        }
    }
    found.retain(|(name, _)| !name.starts_with("Name") && !name.starts_with('-'));
    found
}

#[test]
fn bits_are_those_of_the_specification() {
    let found = rows("| Bit | Name |");
    let kind = |name: &'static str| name.split('_').next();
    let kinds: BTreeSet<_> = found.iter().map(|(name, _)| kind(name)).collect();
    for prefix in ["STATUS", "CONTROL", "CAP"] {
        assert!(kinds.contains(&Some(prefix)), "no table of {prefix} bits");
    }
    let bits = constants().filter_map(|(name, value)| Some((name, value.strip_prefix("1 << ")?)));
    let expected: BTreeSet<_> = bits
        .filter(|(name, _)| kinds.contains(&kind(name)))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn faults_are_those_of_the_specification() {
    let all = rows("| Value | Name |");
    let is_fault = |(name, _): &(&str, &str)| name.starts_with("FAULT_");
    let found: BTreeSet<_> = all.into_iter().filter(is_fault).collect();
    assert_eq!(found, constants().filter(is_fault).collect());
    assert!(!found.is_empty());
}
