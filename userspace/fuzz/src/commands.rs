// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Good admin commands, as a starting point for bad ones.

use nupa_proto::admin::{
    AdminOpcode, AllocKey, BufferRef, ById, CreateCq, CreateEq, CreateMr, CreateQp, CreateSrq,
    GroupMember, ModifyCq, ModifyMr, ModifyQp, ModifySrq, PageList, QpType, SetGid, SetRss,
    SetRxFilter, ACCESS_ALL, GID_VALID, MR_MASK_ACCESS, MR_MASK_PAGES, QP_FLAG_PRIVILEGED,
    RX_PROMISC,
};
use zerocopy::{Immutable, IntoBytes};

use crate::verbs::{Objects, GROUP};
use nupa_testguest::guest::{direct, iova, Guest};

/// Memory for the objects that these commands make.
const MEMORY: usize = 32 * 4096;
/// Memory for parameters.
const PARAMETERS: usize = 48 * 4096;

/// The body of a command that could succeed. `changes` are made to parameters that lie in memory.
pub fn good_body(
    guest: &Guest,
    opcode: AdminOpcode,
    objects: &Objects,
    changes: &[(usize, u32)],
) -> Vec<u8> {
    match opcode {
        AdminOpcode::CreateEq => bytes(CreateEq {
            ring: direct(MEMORY),
            doorbell_slot: 30.into(),
            log_entries: 4,
            ..CreateEq::default()
        }),
        AdminOpcode::CreateCq => bytes(CreateCq {
            ring: direct(MEMORY + 4096),
            doorbell_slot: 31.into(),
            log_entries: 4,
            ..CreateCq::default()
        }),
        AdminOpcode::CreateMr => bytes(CreateMr {
            pages: direct(MEMORY),
            iova: iova(MEMORY).into(),
            len: 4096.into(),
            access: ACCESS_ALL.into(),
            ..CreateMr::default()
        }),
        AdminOpcode::CreateQp => bytes(good_qp(guest, changes)),
        AdminOpcode::ModifyCq => bytes(ModifyCq {
            usecs: 50.into(),
            max_count: 8.into(),
            ..ModifyCq::default()
        }),
        AdminOpcode::ModifyQp => bytes(ModifyQp {
            qpn: objects.qpn.into(),
            mask: 0x1f.into(),
            state: 2,
            remote_qpn: objects.qpn.into(),
            remote_epoch: 1.into(),
            ..ModifyQp::default()
        }),
        AdminOpcode::CreateSrq
        | AdminOpcode::ModifySrq
        | AdminOpcode::QuerySrq
        | AdminOpcode::DestroySrq
        | AdminOpcode::ModifyMr
        | AdminOpcode::AllocKey
        | AdminOpcode::DestroyMr
        | AdminOpcode::SetGid
        | AdminOpcode::AttachMulticast
        | AdminOpcode::DetachMulticast => good_verbs_command(opcode, objects),
        _ => good_port_command(opcode, objects.qpn),
    }
}

/// The body of a command that makes or changes no queue.
fn good_port_command(opcode: AdminOpcode, qpn: u32) -> Vec<u8> {
    match opcode {
        AdminOpcode::ListNodes | AdminOpcode::QueryCounters => bytes(buffer(MEMORY, 4096)),
        AdminOpcode::SetRxFilter => bytes(SetRxFilter {
            addresses: iova(MEMORY).into(),
            count: 2.into(),
            flags: RX_PROMISC.into(),
        }),
        AdminOpcode::SetRss => bytes(SetRss {
            table: iova(MEMORY).into(),
            count: 4.into(),
            ..SetRss::default()
        }),
        AdminOpcode::QueryQp | AdminOpcode::DestroyQp => bytes(ById {
            id: qpn.into(),
            ..ById::default()
        }),
        _ => Vec::new(),
    }
}

/// The body of a command about shared receive queues, keys or GIDs.
fn good_verbs_command(opcode: AdminOpcode, objects: &Objects) -> Vec<u8> {
    match opcode {
        AdminOpcode::CreateSrq => bytes(CreateSrq {
            ring: direct(MEMORY + 4 * 4096),
            pd: objects.pd.into(),
            doorbell_slot: 42.into(),
            log_entries: 4,
            log_stride: 6,
            flags: QP_FLAG_PRIVILEGED,
            ..CreateSrq::default()
        }),
        AdminOpcode::ModifySrq => bytes(ModifySrq {
            srqn: objects.srqn.into(),
            limit: 3.into(),
        }),
        AdminOpcode::ModifyMr => bytes(ModifyMr {
            key: objects.region.into(),
            mask: (MR_MASK_PAGES | MR_MASK_ACCESS).into(),
            mr: CreateMr {
                pages: two_levels(objects),
                iova: objects.page.into(),
                len: 4096.into(),
                access: ACCESS_ALL.into(),
                ..CreateMr::default()
            },
        }),
        AdminOpcode::AllocKey => bytes(AllocKey {
            pd: objects.pd.into(),
            max_pages: 2.into(),
            ..AllocKey::default()
        }),
        AdminOpcode::SetGid => bytes(SetGid {
            gid: [9; 16],
            index: 1.into(),
            flags: GID_VALID.into(),
            ..SetGid::default()
        }),
        AdminOpcode::AttachMulticast | AdminOpcode::DetachMulticast => bytes(GroupMember {
            gid: GROUP,
            qpn: objects.ud.into(),
            ..GroupMember::default()
        }),
        _ => bytes(ById {
            id: match opcode {
                AdminOpcode::DestroyMr => objects.window.into(),
                _ => objects.srqn.into(),
            },
            ..ById::default()
        }),
    }
}

/// A list of one page whose list lies in a page of its own.
fn two_levels(objects: &Objects) -> PageList {
    PageList {
        addr: (objects.list + 8).into(),
        pages: 1.into(),
        page_shift: 12,
        levels: 1,
        ..PageList::default()
    }
}

/// Writes the parameters of a new queue pair, changed, to memory.
fn good_qp(guest: &Guest, changes: &[(usize, u32)]) -> BufferRef {
    let mut parameters = CreateQp {
        sq: direct(MEMORY + 2 * 4096),
        rq: direct(MEMORY + 3 * 4096),
        qp_type: QpType::Raw.to_wire(),
        flags: QP_FLAG_PRIVILEGED,
        log_sq: 4,
        log_rq: 4,
        log_rq_stride: 5,
        sq_slot: 40.into(),
        rq_slot: 41.into(),
        ..CreateQp::default()
    };
    for (word, value) in changes {
        let bytes = parameters.as_mut_bytes();
        bytes[word * 4..word * 4 + 4].copy_from_slice(&value.to_le_bytes());
    }
    let written = guest.ram.write(PARAMETERS, parameters.as_bytes());
    written.unwrap();
    buffer(PARAMETERS, size_of::<CreateQp>() as u32)
}

fn buffer(at: usize, len: u32) -> BufferRef {
    BufferRef {
        addr: iova(at).into(),
        len: len.into(),
        ..BufferRef::default()
    }
}

fn bytes<T: IntoBytes + Immutable>(value: T) -> Vec<u8> {
    value.as_bytes().to_vec()
}
