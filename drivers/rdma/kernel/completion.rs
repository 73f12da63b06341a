// SPDX-License-Identifier: GPL-2.0
//! Completions as the RDMA core has them.

use nk_rdma::{NetworkHeader, WcOpcode, WorkCompletion};
use nupa_proto::cqe::{Cqe, CqeOpcode, CQE_GRH, CQE_IMM, CQE_INVALIDATED, CQE_VLAN};

/// Bit of the receive side's opcodes.
const RECV: u8 = CqeOpcode::Recv.to_wire();

/// A datagram's network header, as the controller says it.
const IPV4: u8 = nupa_proto::cqe::NetworkHeader::Ipv4.to_wire();

/// Whether a completion is of a receive request.
pub(super) fn is_recv(cqe: &Cqe) -> bool {
    cqe.opcode & RECV != 0
}

/// What the user is told. With an error the opcode has no meaning but for the side that it is of.
pub(super) fn translate(cqe: &Cqe) -> WorkCompletion {
    let has = |flag| cqe.flags & flag != 0;
    let value = cqe.imm_or_key.get();
    let header = if cqe.network_header == IPV4 {
        NetworkHeader::Ipv4
    } else {
        NetworkHeader::Ipv6
    };
    WorkCompletion {
        id: cqe.wr_id.get(),
        status: cqe.status,
        opcode: opcode(cqe.opcode),
        vendor_error: cqe.vendor_error,
        byte_len: cqe.byte_len.get(),
        imm: has(CQE_IMM).then_some(value),
        invalidated: has(CQE_INVALIDATED).then_some(value),
        src_qpn: cqe.src_qpn.get(),
        header: has(CQE_GRH).then_some(header),
        vlan_id: has(CQE_VLAN).then_some(cqe.vlan_id.get()),
    }
}

fn opcode(wire: u8) -> WcOpcode {
    match CqeOpcode::try_from(wire) {
        Ok(CqeOpcode::Write) => WcOpcode::Write,
        Ok(CqeOpcode::Read) => WcOpcode::Read,
        Ok(CqeOpcode::CompareSwap) => WcOpcode::CompareSwap,
        Ok(CqeOpcode::FetchAdd) => WcOpcode::FetchAdd,
        Ok(CqeOpcode::FastReg) => WcOpcode::Register,
        Ok(CqeOpcode::LocalInv) => WcOpcode::LocalInvalidate,
        Ok(CqeOpcode::RecvWriteImm) => WcOpcode::RecvWriteImm,
        _ if wire & RECV != 0 => WcOpcode::Recv,
        // Kernel users post nothing else.
        _ => WcOpcode::Send,
    }
}
