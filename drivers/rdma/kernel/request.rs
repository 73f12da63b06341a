// SPDX-License-Identifier: GPL-2.0
//! Work requests of the RDMA core as the controller's.

use crate::{access::region_rights, address::nodes_of, device::Rdma};
use kernel::prelude::*;
use nk_rdma::{Ah, FastRegistration, Piece, RecvWrs, SendOperation, SendWr};
use nupa_engine::rings::{Data, Operation, SendRequest};
use nupa_fabric::{RecvPoster, SendPoster};
use nupa_proto::wqe::{
    DatagramSegment, FastRegSegment, GrhSegment, Sge, MAX_INLINE, MAX_RECV_SGE, WQE_FENCE,
    WQE_SIGNALED, WQE_SOLICITED,
};

/// Entries of a request.
#[derive(Default)]
struct Entries {
    sges: [Sge; MAX_RECV_SGE],
    count: usize,
}

impl Entries {
    /// `EINVAL` if there are too many.
    fn collect(pieces: impl ExactSizeIterator<Item = Piece>) -> Result<Self> {
        let mut entries = Self {
            count: pieces.len(),
            ..Self::default()
        };
        if entries.count > entries.sges.len() {
            return Err(EINVAL);
        }
        for (sge, piece) in entries.sges.iter_mut().zip(pieces) {
            *sge = Sge {
                addr: piece.addr.into(),
                len: piece.len.into(),
                lkey: piece.lkey.into(),
            };
        }
        Ok(entries)
    }

    fn as_slice(&self) -> &[Sge] {
        self.sges.get(..self.count).unwrap_or_default()
    }
}

/// Writes one send request. `ENOMEM` if there is no room.
pub(super) fn post_send(ring: &mut SendPoster, wr: &SendWr<'_, Rdma>, signal_all: bool) -> Result {
    let operation = translate(wr.operation()?)?;
    if wr.inline() {
        let mut bytes = [0; MAX_INLINE];
        let len = wr.copy_inline(&mut bytes)?;
        let data = Data::Inline(bytes.get(..len).ok_or(EINVAL)?);
        return post(ring, wr, signal_all, operation, data);
    }
    let entries = match takes_data(&operation) {
        true => Entries::collect(wr.pieces())?,
        false => Entries::default(),
    };
    post(
        ring,
        wr,
        signal_all,
        operation,
        Data::Sges(entries.as_slice()),
    )
}

fn post(
    ring: &mut SendPoster,
    wr: &SendWr<'_, Rdma>,
    signal_all: bool,
    operation: Operation,
    data: Data<'_>,
) -> Result {
    let flags = [
        (wr.signaled() || signal_all, WQE_SIGNALED),
        (wr.solicited(), WQE_SOLICITED),
        (wr.fenced(), WQE_FENCE),
    ];
    let request = SendRequest {
        wr_id: wr.id(),
        flags: flags
            .iter()
            .filter(|(set, _)| *set)
            .fold(0, |all, (_, flag)| all | flag),
        operation,
        data,
    };
    ring.post(&request).map_err(no_room)?;
    Ok(())
}

/// The verbs' error for a full queue.
fn no_room(error: Error) -> Error {
    if error == ENOSPC {
        ENOMEM
    } else {
        error
    }
}

/// Requests about keys have none, whatever their users leave in the list.
fn takes_data(operation: &Operation) -> bool {
    !matches!(
        operation,
        Operation::FastReg { .. } | Operation::LocalInv { .. }
    )
}

fn translate(operation: SendOperation<'_, Rdma>) -> Result<Operation> {
    Ok(match operation {
        SendOperation::Send { imm } => Operation::Send { imm },
        SendOperation::SendInvalidate { key } => Operation::SendInv { key },
        SendOperation::Datagram { ah, qpn, qkey, imm } => datagram(ah, qpn, qkey, imm)?,
        SendOperation::Write { addr, rkey, imm } => Operation::Write { addr, rkey, imm },
        SendOperation::Read { addr, rkey } => Operation::Read { addr, rkey },
        SendOperation::CompareSwap {
            addr,
            rkey,
            compare,
            swap,
        } => Operation::CompareSwap {
            addr,
            rkey,
            compare,
            swap,
        },
        SendOperation::FetchAdd { addr, rkey, add } => Operation::FetchAdd { addr, rkey, add },
        SendOperation::LocalInvalidate { key } => Operation::LocalInv { key },
        SendOperation::Register(registration) => register(&registration)?,
    })
}

fn datagram(ah: &Ah<Rdma>, qpn: u32, qkey: u32, imm: Option<u32>) -> Result<Operation> {
    let address = &ah.attributes;
    Ok(Operation::Datagram {
        to: DatagramSegment {
            qpn: qpn.into(),
            qkey: qkey.into(),
            node: nodes_of(&address.dmac)?.into(),
            ..DatagramSegment::default()
        },
        grh: GrhSegment {
            dgid: address.dgid,
            flow_label: address.flow_label.into(),
            sgid_index: address.sgid_index.into(),
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
            ..GrhSegment::default()
        },
        imm,
    })
}

fn register(registration: &FastRegistration<'_, Rdma>) -> Result<Operation> {
    let (list, pages, page_shift) = registration.mr.fast().ok_or(EINVAL)?.pages();
    Ok(Operation::FastReg {
        key: registration.key,
        pages: FastRegSegment {
            iova: registration.iova.into(),
            len: registration.len.into(),
            list: list.into(),
            pages: pages.into(),
            access: region_rights(registration.access)?.into(),
            page_shift,
            ..FastRegSegment::default()
        },
    })
}

/// Writes receive requests, which the caller hands over, also if this fails. `ENOMEM` if there is no room for one; those
/// before it are posted.
pub(super) fn post_receives(ring: &mut RecvPoster, requests: &mut RecvWrs<'_>) -> Result {
    requests.try_for_each(|wr| {
        let entries = Entries::collect(wr.pieces())?;
        ring.post(wr.id(), entries.as_slice()).map_err(no_room)
    })
}
