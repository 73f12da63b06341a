// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completions as programs get them.

use nupa_proto::cqe::{Cqe, CqeOpcode, CQE_GRH, CQE_IMM, CQE_INVALIDATED, CQE_IPV4};
use nupa_proto::status::WcStatus;

use super::sys;

/// Status of a completion. The controller's values are those of verbs; any other one is an error without a name.
#[inline(always)]
pub(super) fn status(cqe: &Cqe) -> sys::ibv_wc_status {
    STATUSES
        .get(usize::from(cqe.status))
        .map_or(GENERAL, |&status| status)
}

const GENERAL: sys::ibv_wc_status = WcStatus::General.to_wire() as sys::ibv_wc_status;

/// Verbs's statuses by those of the controller.
static STATUSES: [sys::ibv_wc_status; 256] = {
    let mut table = [GENERAL; 256];
    let mut rest = WcStatus::ALL;
    while let [status, behind @ ..] = rest {
        let wire = status.to_wire();
        if let Some((_, [entry, ..])) = table.split_at_mut_checked(wire as usize) {
            *entry = wire as sys::ibv_wc_status;
        }
        rest = behind;
    }
    table
};

/// What a completion is about; undefined in the completion of a failed send request, and in one with an unknown code.
#[inline(always)]
pub(super) fn opcode(cqe: &Cqe) -> sys::ibv_wc_opcode {
    OPCODES
        .get(usize::from(cqe.opcode))
        .map_or(sys::IBV_WC_SEND, |&opcode| opcode)
}

/// Verbs's codes by those of the controller.
static OPCODES: [sys::ibv_wc_opcode; 256] = {
    let mut table = [sys::IBV_WC_SEND; 256];
    let mut rest = CqeOpcode::ALL;
    while let [code, behind @ ..] = rest {
        if let Some((_, [entry, ..])) = table.split_at_mut_checked(code.to_wire() as usize) {
            *entry = verbs_opcode(*code);
        }
        rest = behind;
    }
    table
};

const fn verbs_opcode(code: CqeOpcode) -> sys::ibv_wc_opcode {
    match code {
        CqeOpcode::Write => sys::IBV_WC_RDMA_WRITE,
        CqeOpcode::Read => sys::IBV_WC_RDMA_READ,
        CqeOpcode::CompareSwap => sys::IBV_WC_COMP_SWAP,
        CqeOpcode::FetchAdd => sys::IBV_WC_FETCH_ADD,
        CqeOpcode::LocalInv => sys::IBV_WC_LOCAL_INV,
        CqeOpcode::BindMw => sys::IBV_WC_BIND_MW,
        CqeOpcode::Flush => sys::IBV_WC_FLUSH,
        CqeOpcode::AtomicWrite => sys::IBV_WC_ATOMIC_WRITE,
        CqeOpcode::Recv => sys::IBV_WC_RECV,
        CqeOpcode::RecvWriteImm => sys::IBV_WC_RECV_RDMA_WITH_IMM,
        _ => sys::IBV_WC_SEND,
    }
}

/// Whether a completion has neither flags nor a network header, as most: one look says so.
#[inline(always)]
fn is_plain(cqe: &Cqe) -> bool {
    cqe.flags & (CQE_GRH | CQE_IMM | CQE_INVALIDATED) == 0
}

/// Flags of a completion.
#[inline(always)]
pub(super) fn flags(cqe: &Cqe) -> u32 {
    const {
        assert!(sys::IBV_WC_GRH == 1 && sys::IBV_WC_WITH_IMM == 2 && sys::IBV_WC_WITH_INV == 8);
    }
    if is_plain(cqe) {
        return 0;
    }
    let flag = |bit: u8, flag: u32| if cqe.flags & bit != 0 { flag } else { 0 };
    flag(CQE_GRH, sys::IBV_WC_GRH)
        | flag(CQE_IMM, sys::IBV_WC_WITH_IMM)
        | flag(CQE_INVALIDATED, sys::IBV_WC_WITH_INV)
}

/// Service level of a completion. Its low 3 bits say which network header a datagram has, as mlx5 and irdma have them there
/// for want of a field of their own in `struct ibv_wc`; UCX looks for the sender's address where they say.
#[inline(always)]
pub(super) fn service_level(cqe: &Cqe) -> u8 {
    if is_plain(cqe) {
        return 0;
    }
    match cqe.flags & (CQE_GRH | CQE_IPV4) {
        CQE_GRH => HEADER_IPV6,
        flags if flags & CQE_GRH != 0 => HEADER_IPV4,
        _ => 0,
    }
}

/// RoCE v2 over IPv6.
const HEADER_IPV6: u8 = 1;
/// RoCE v2 over IPv4.
const HEADER_IPV4: u8 = 2;

/// The work completion that `ibv_poll_cq()` gives.
#[inline(always)]
pub(super) fn completion(cqe: &Cqe) -> sys::ibv_wc {
    sys::ibv_wc {
        wr_id: cqe.wr_id.get(),
        status: status(cqe),
        opcode: opcode(cqe),
        vendor_err: u32::from(cqe.vendor_error),
        byte_len: cqe.byte_len.get(),
        __bindgen_anon_1: sys::ibv_wc__bindgen_ty_1 {
            imm_data: cqe.imm_or_key.get(),
        },
        qp_num: cqe.qpn.get(),
        src_qp: cqe.src_qpn.get(),
        wc_flags: flags(cqe),
        pkey_index: 0,
        slid: 0,
        sl: service_level(cqe),
        dlid_path_bits: 0,
    }
}
