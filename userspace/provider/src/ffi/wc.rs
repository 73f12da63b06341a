// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completions as programs get them.

use nupa_proto::cqe::{Cqe, CqeOpcode, CQE_GRH, CQE_IMM, CQE_INVALIDATED};
use nupa_proto::status::WcStatus;

use super::sys;

// What the controller writes has the values of verbs, so nothing is translated: each instruction here is one of every
// completion's.
const _: () = {
    // Processes have none of the others: fast registrations and frames.
    let same = [
        (CqeOpcode::Send, sys::IBV_WC_SEND),
        (CqeOpcode::Write, sys::IBV_WC_RDMA_WRITE),
        (CqeOpcode::Read, sys::IBV_WC_RDMA_READ),
        (CqeOpcode::CompareSwap, sys::IBV_WC_COMP_SWAP),
        (CqeOpcode::FetchAdd, sys::IBV_WC_FETCH_ADD),
        (CqeOpcode::BindMw, sys::IBV_WC_BIND_MW),
        (CqeOpcode::LocalInv, sys::IBV_WC_LOCAL_INV),
        (CqeOpcode::Flush, sys::IBV_WC_FLUSH),
        (CqeOpcode::AtomicWrite, sys::IBV_WC_ATOMIC_WRITE),
        (CqeOpcode::Recv, sys::IBV_WC_RECV),
        (CqeOpcode::RecvWriteImm, sys::IBV_WC_RECV_RDMA_WITH_IMM),
    ];
    let mut rest = same.as_slice();
    while let [(opcode, verbs), behind @ ..] = rest {
        assert!(opcode.to_wire() as sys::ibv_wc_opcode == *verbs);
        rest = behind;
    }
    let mut rest = WcStatus::ALL;
    while let [status, behind @ ..] = rest {
        let verbs = match status {
            WcStatus::Success => sys::IBV_WC_SUCCESS,
            WcStatus::LocalLength => sys::IBV_WC_LOC_LEN_ERR,
            WcStatus::LocalQpOperation => sys::IBV_WC_LOC_QP_OP_ERR,
            WcStatus::LocalProtection => sys::IBV_WC_LOC_PROT_ERR,
            WcStatus::WrFlush => sys::IBV_WC_WR_FLUSH_ERR,
            WcStatus::MwBind => sys::IBV_WC_MW_BIND_ERR,
            WcStatus::RemoteInvalidRequest => sys::IBV_WC_REM_INV_REQ_ERR,
            WcStatus::RemoteAccess => sys::IBV_WC_REM_ACCESS_ERR,
            WcStatus::RemoteOperation => sys::IBV_WC_REM_OP_ERR,
            WcStatus::RetryExceeded => sys::IBV_WC_RETRY_EXC_ERR,
            WcStatus::RnrRetryExceeded => sys::IBV_WC_RNR_RETRY_EXC_ERR,
            WcStatus::General => sys::IBV_WC_GENERAL_ERR,
        };
        assert!(status.to_wire() as sys::ibv_wc_status == verbs);
        rest = behind;
    }
    assert!(sys::IBV_WC_GRH == CQE_GRH as u32);
    assert!(sys::IBV_WC_WITH_IMM == CQE_IMM as u32);
    assert!(sys::IBV_WC_WITH_INV == CQE_INVALIDATED as u32);
};

/// Status of a completion.
#[inline(always)]
pub(super) fn status(cqe: &Cqe) -> sys::ibv_wc_status {
    sys::ibv_wc_status::from(cqe.status)
}

/// What a completion is about; undefined in the completion of a failed send request.
#[inline(always)]
pub(super) fn opcode(cqe: &Cqe) -> sys::ibv_wc_opcode {
    sys::ibv_wc_opcode::from(cqe.opcode)
}

/// Flags of a completion.
#[inline(always)]
pub(super) fn flags(cqe: &Cqe) -> u32 {
    u32::from(cqe.flags & (CQE_GRH | CQE_IMM | CQE_INVALIDATED))
}

/// Service level of a completion. Its low 3 bits say which network header a datagram has, as mlx5 and irdma have them there
/// for want of a field of their own in `struct ibv_wc`; UCX looks for the sender's address where they say.
#[inline(always)]
pub(super) fn service_level(cqe: &Cqe) -> u8 {
    cqe.network_header
}

/// Writes the work completion that `ibv_poll_cq()` gives. One field after the other, which needs few registers.
///
/// # Safety
///
/// There is room for it at `to`.
#[inline(always)]
pub(super) unsafe fn complete(cqe: &Cqe, to: *mut sys::ibv_wc) {
    // SAFETY: the caller's word.
    unsafe {
        (&raw mut (*to).wr_id).write(cqe.wr_id.get());
        (&raw mut (*to).status).write(status(cqe));
        (&raw mut (*to).opcode).write(opcode(cqe));
        (&raw mut (*to).vendor_err).write(u32::from(cqe.vendor_error));
        (&raw mut (*to).byte_len).write(cqe.byte_len.get());
        (&raw mut (*to).__bindgen_anon_1.imm_data).write(cqe.imm_or_key.get());
        (&raw mut (*to).qp_num).write(cqe.qpn.get());
        (&raw mut (*to).src_qp).write(cqe.src_qpn.get());
        (&raw mut (*to).wc_flags).write(flags(cqe));
        (&raw mut (*to).pkey_index).write(0);
        (&raw mut (*to).slid).write(0);
        (&raw mut (*to).sl).write(service_level(cqe));
        (&raw mut (*to).dlid_path_bits).write(0);
    }
}
