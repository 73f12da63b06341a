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
            reserved
        }),
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
            reserved0,
            frame,
            reserved1,
            valid
        }),
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
            reserved,
            eqn,
            reserved1
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
        layout!(ModifyMr { key, mask, region }),
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
            region_key,
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
            reserved1
        }),
        layout!(QpState {
            state,
            reserved,
            sq_index,
            rq_index,
            reserved1
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
            tx_read_bytes
        }),
    ];
    spec::check_layouts(SPEC, &layouts);
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
