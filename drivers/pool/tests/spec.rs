// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The specification (Documentation/pool.md) and the layouts in drivers/proto say the same.

#![allow(clippy::expect_used, reason = "tests fail by panicking")]
#![allow(clippy::arithmetic_side_effects, reason = "as above")]

#[macro_use]
#[path = "../../proto/tests/spec/mod.rs"]
mod spec;

use nupa_proto::pool::{inbox::*, line::*, message::*, sharing::*, *};

const SPEC: &str = include_str!("../../../Documentation/pool.md");

#[test]
fn layouts_are_those_of_the_specification() {
    let layouts = [
        layout!(Superblock {
            magic,
            version,
            check,
            size,
            fabric_id,
            flags,
            max_nodes,
            log_entries,
            log_bulk,
            slots,
            rings,
            ring_stride,
            device_memory,
            device_memory_stride,
            reserved
        }),
        layout!(InboxSuperblock {
            magic,
            version,
            check,
            size,
            fabric_id,
            flags,
            max_nodes,
            log_entries,
            log_bulk,
            slots,
            pairs,
            pair_stride,
            regions,
            region_stride,
            inboxes,
            reserved
        }),
        layout!(Pair { offer, answer }),
        layout!(Slot {
            claim,
            reserved0,
            token,
            heartbeat,
            presence,
            identity,
            capabilities,
            bell,
            changes,
            reserved1
        }),
        layout!(Header {
            kind,
            reserved0,
            payload_len,
            offset,
            index,
            source,
            target,
            behind,
            reserved1
        }),
        layout!(RequestBody {
            opcode,
            flags,
            vlan_id,
            sequence,
            source_qpn,
            target_qpn,
            target_epoch,
            len,
            remote_addr,
            remote_key,
            imm_or_key,
            operand,
            psn,
            reserved1
        }),
        layout!(ResponseBody {
            reply,
            status,
            check,
            rnr_timer,
            sequence,
            source_qpn,
            target_qpn,
            found,
            grant_serial,
            grant_offset,
            grant_addr,
            grant_len,
            grant_key,
            grant_slot,
            credits,
            grant_flags,
            reserved1
        }),
        layout!(FrameBody {
            meta,
            source_qpn,
            flags,
            reserved
        }),
        layout!(NotifyBody {
            qpn,
            source_qpn,
            flags,
            reserved
        }),
        layout!(LineHead { kind, lines }),
        layout!(RequestLine {
            head,
            opcode,
            flags,
            sequence,
            source_qpn,
            target_qpn,
            psn,
            len,
            remote_addr,
            remote_key,
            imm_or_key,
            room
        }),
        layout!(LongPart {
            offset,
            payload_len,
            behind,
            reserved
        }),
        layout!(OperandLine {
            operand,
            vlan_id,
            reserved
        }),
        layout!(ResponseLine {
            head,
            reply,
            status,
            sequence,
            source_qpn,
            target_qpn,
            behind,
            offset,
            payload_len,
            rnr_timer,
            check,
            credits,
            found,
            room
        }),
        layout!(GrantLine {
            serial,
            offset,
            addr,
            len,
            key,
            slot,
            flags,
            reserved
        }),
        layout!(FrameLine {
            head,
            flags,
            reserved0,
            payload_len,
            source_qpn,
            reserved1,
            meta,
            reserved2
        }),
        layout!(NotifyLine {
            head,
            reserved0,
            source_qpn,
            qpn,
            behind,
            flags,
            reserved1
        }),
        layout!(Export {
            secret,
            offset,
            len,
            epoch,
            ring,
            reserved
        }),
        layout!(RingOwner {
            qpn,
            peer_qpn,
            psn,
            peer,
            is_ring
        }),
        layout!(Hold {
            len,
            offset,
            reserved
        }),
        layout!(DmHandle {
            secret,
            fabric_id,
            len,
            epoch,
            node,
            index
        }),
    ];
    spec::check_layouts(SPEC, &layouts);
}

#[test]
fn enumerations_are_those_of_the_specification() {
    enumeration!(SPEC, "\n| Value | `PoolState` |", PoolState);
    enumeration!(SPEC, "\n| Value | `ClaimState` |", ClaimState);
    enumeration!(SPEC, "\n| Value | `Class` |", Class);
    enumeration!(SPEC, "\n| Value | `Kind` |", Kind);
    enumeration!(SPEC, "\n| Value | `Reply` |", Reply);
    enumeration!(SPEC, "\n| Value | `OfferState` |", OfferState);
    enumeration!(SPEC, "\n| Value | `AnswerState` |", AnswerState);
}

#[test]
fn constants_are_those_of_the_specification() {
    let constants = [
        ("STATE_OFFSET", STATE_OFFSET),
        ("LINK_PRODUCER", LINK_PRODUCER),
        ("LINK_WANT", LINK_WANT),
        ("LINK_CONSUMER", LINK_CONSUMER),
        ("LINK_BULK", LINK_BULK),
        ("LINK_RINGS", LINK_RINGS),
        ("INBOX_BUSY", INBOX_BUSY),
        ("INBOX_GRANTS", INBOX_GRANTS),
        ("INBOX_MIN_LOG_BULK", u64::from(INBOX_MIN_LOG_BULK)),
        ("INBOX_TAIL", u64::from(INBOX_TAIL)),
        ("PAIR_SIZE", PAIR_SIZE),
        ("SHORT_LOG_BULK", u64::from(SHORT_LOG_BULK)),
        ("ENTRY_SIZE", ENTRY_SIZE),
        ("ENTRY_PAYLOAD", ENTRY_PAYLOAD),
        ("MAX_INLINE", u64::from(MAX_INLINE)),
        ("LINES_PER_ENTRY", u64::from(LINES_PER_ENTRY)),
        ("LINE_INLINE", u64::from(LINE_INLINE)),
        ("CAP_POOL_LINES", CAP_POOL_LINES),
        ("DIRECTORY_SIZE", DIRECTORY_SIZE),
        ("GRANT_BUSY", GRANT_BUSY),
        ("GRANT_MAPPED", GRANT_MAPPED),
        ("GRANT_TABLE", GRANT_TABLE),
        ("GRANT_SLOTS", u64::from(GRANT_SLOTS)),
        ("GRANT_READS", u64::from(GRANT_READS)),
        ("GRANT_STEP", u64::from(GRANT_STEP)),
        ("GRANT_TIMEOUT_US", GRANT_TIMEOUT_US),
        ("EXPORT_TABLE", EXPORT_TABLE),
        ("EXPORTS", u64::from(EXPORTS)),
        ("HOLD_TABLE", HOLD_TABLE),
        ("HOLDS", u64::from(HOLDS)),
        ("MAX_RINGS", u64::from(MAX_RINGS)),
        ("MAX_FRAGMENT", u64::from(MAX_FRAGMENT)),
        ("MAX_SHORT", u64::from(MAX_SHORT)),
        ("READ_PIECE", u64::from(READ_PIECE)),
        ("BULK_ALIGN", u64::from(BULK_ALIGN)),
        ("HEARTBEAT_US", HEARTBEAT_US),
        ("DEAD_AFTER_US", DEAD_AFTER_US),
        ("POOL_NON_COHERENT", u64::from(POOL_NON_COHERENT)),
        ("PRESENCE_UP", u64::from(PRESENCE_UP)),
        ("PRESENCE_POLLING", u64::from(PRESENCE_POLLING)),
        ("BELL_IVSHMEM", BELL_IVSHMEM),
        ("BELL_KIND_SHIFT", u64::from(BELL_KIND_SHIFT)),
        ("REQUEST_SOLICITED", u64::from(REQUEST_SOLICITED)),
        ("REQUEST_DATAGRAM", u64::from(REQUEST_DATAGRAM)),
        ("REQUEST_IPV4", u64::from(REQUEST_IPV4)),
        ("REQUEST_START", u64::from(REQUEST_START)),
        ("REQUEST_VLAN", u64::from(REQUEST_VLAN)),
        ("REQUEST_BYPASSED", u64::from(REQUEST_BYPASSED)),
        ("FRAME_FLOOD", u64::from(FRAME_FLOOD)),
        ("NOTIFY_ALL", u64::from(NOTIFY_ALL)),
        ("NOTIFY_EVENT", u64::from(NOTIFY_EVENT)),
    ];
    let expected: Vec<_> = constants
        .iter()
        .map(|(name, value)| (value.to_string(), String::from(*name)))
        .collect();
    let found = spec::values(SPEC, "\n## Constants");
    assert_eq!(found, expected);
}
