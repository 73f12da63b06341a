// SPDX-License-Identifier: GPL-2.0
//! Parameters and attributes of queues.

use crate::{bindings, error::unsupported, Access, AhAttributes, Cq, Driver, Pd, QpMask, Srq};
use kernel::prelude::*;

/// Parameters of a new completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CqInit {
    /// Entries that it holds at least; not 0.
    pub entries: u32,
    /// Completion vector.
    pub vector: u32,
    /// Whether entries may be overwritten that were not taken.
    pub ignore_overrun: bool,
    /// Whether entries are to say when they were written.
    pub timestamps: bool,
}

/// Kind of a queue pair (`enum ib_qp_type`), as far as drivers here know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable datagram.
    Ud,
    /// General services interface, which is an unreliable datagram queue pair.
    Gsi,
}

impl QpType {
    /// `EOPNOTSUPP` for others.
    pub(crate) fn from_raw(raw: bindings::ib_qp_type) -> Result<Self> {
        match raw {
            bindings::ib_qp_type_IB_QPT_RC => Ok(Self::Rc),
            bindings::ib_qp_type_IB_QPT_UD => Ok(Self::Ud),
            bindings::ib_qp_type_IB_QPT_GSI => Ok(Self::Gsi),
            _ => Err(unsupported()),
        }
    }

    fn to_raw(self) -> bindings::ib_qp_type {
        match self {
            Self::Rc => bindings::ib_qp_type_IB_QPT_RC,
            Self::Ud => bindings::ib_qp_type_IB_QPT_UD,
            Self::Gsi => bindings::ib_qp_type_IB_QPT_GSI,
        }
    }
}

/// Sizes of a queue pair (`struct ib_qp_cap`).
#[derive(Clone, Copy, Debug, Default)]
pub struct QpCapabilities {
    /// Requests in the send queue.
    pub max_send_wr: u32,
    /// Requests in the receive queue.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive request.
    pub max_recv_sge: u32,
    /// Inline bytes of a send request.
    pub max_inline_data: u32,
}

impl QpCapabilities {
    pub(crate) fn from_raw(cap: &bindings::ib_qp_cap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }
    }

    pub(crate) fn to_raw(self, cap: &mut bindings::ib_qp_cap) {
        cap.max_send_wr = self.max_send_wr;
        cap.max_recv_wr = self.max_recv_wr;
        cap.max_send_sge = self.max_send_sge;
        cap.max_recv_sge = self.max_recv_sge;
        cap.max_inline_data = self.max_inline_data;
    }
}

/// Parameters of a new queue pair (`struct ib_qp_init_attr`).
pub struct QpInit<'a, D: Driver> {
    /// Protection domain.
    pub pd: &'a Pd<D>,
    /// Completion queue of the send side.
    pub send_cq: &'a Cq<D>,
    /// Completion queue of the receive side.
    pub recv_cq: &'a Cq<D>,
    /// Shared receive queue instead of one of its own.
    pub srq: Option<&'a Srq<D>>,
    /// Kind.
    pub qp_type: QpType,
    /// Whether all send requests are signaled.
    pub signal_all: bool,
    /// Sizes: what was asked for; the driver may enlarge them.
    pub capabilities: QpCapabilities,
    /// `IB_QP_CREATE_*`.
    pub flags: u32,
}

impl<'a, D: Driver> QpInit<'a, D> {
    /// `EINVAL` if something is missing, `EOPNOTSUPP` for kinds that are not supported.
    ///
    /// # Safety
    ///
    /// `attr` is for a queue pair of a device of `D` in `pd`; all objects that it names stay for `'a`.
    pub(crate) unsafe fn from_raw(
        pd: *mut bindings::ib_pd,
        attr: &bindings::ib_qp_init_attr,
    ) -> Result<Self> {
        let qp_type = QpType::from_raw(attr.qp_type)?;
        if pd.is_null() || attr.send_cq.is_null() || attr.recv_cq.is_null() {
            return Err(EINVAL);
        }
        if !attr.rwq_ind_tbl.is_null() || !attr.xrcd.is_null() {
            return Err(unsupported());
        }
        // SAFETY: By this function's contract.
        unsafe {
            Ok(Self {
                pd: Pd::from_raw(pd),
                send_cq: Cq::from_raw(attr.send_cq),
                recv_cq: Cq::from_raw(attr.recv_cq),
                srq: (!attr.srq.is_null()).then(|| Srq::from_raw(attr.srq)),
                qp_type,
                signal_all: attr.sq_sig_type == bindings::ib_sig_type_IB_SIGNAL_ALL_WR,
                capabilities: QpCapabilities::from_raw(&attr.cap),
                flags: attr.create_flags,
            })
        }
    }
}

/// State of a queue pair (`enum ib_qp_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum QpState {
    /// Nothing happens.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Receives are processed.
    Rtr = 2,
    /// Everything is processed.
    Rts = 3,
    /// Sends are drained.
    Sqd = 4,
    /// The send side failed.
    Sqe = 5,
    /// Everything completes with an error.
    Err = 6,
}

impl TryFrom<u32> for QpState {
    type Error = Error;

    fn try_from(raw: u32) -> Result<Self> {
        Ok(match raw {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Err,
            _ => return Err(EINVAL),
        })
    }
}

/// Attributes of a queue pair that can be modified and queried (`struct ib_qp_attr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct QpAttributes {
    /// State.
    pub state: QpState,
    /// State that the caller believes it to be in.
    pub cur_state: QpState,
    /// Path MTU (`enum ib_mtu`).
    pub path_mtu: u32,
    /// Queue key.
    pub qkey: u32,
    /// Packet sequence number expected.
    pub rq_psn: u32,
    /// First packet sequence number.
    pub sq_psn: u32,
    /// Queue pair of the peer.
    pub dest_qpn: u32,
    /// Rights of remote requests.
    pub access: Access,
    /// Address of the peer; `None` if it is not a RoCE address.
    pub address: Option<AhAttributes>,
    /// Partition key index.
    pub pkey_index: u16,
    /// Whether an event is wanted when the send queue has drained.
    pub sqd_notify: bool,
    /// READs and atomics in flight as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics in flight as responder.
    pub max_dest_rd_atomic: u8,
    /// Time that peers without a receive entry are told to wait: a code of the InfiniBand specification.
    pub min_rnr_timer: u8,
    /// Port.
    pub port: u32,
    /// Acknowledgement timeout: a code of the InfiniBand specification.
    pub timeout: u8,
    /// Retries.
    pub retry_count: u8,
    /// Retries without a receive entry; 7 stands for no limit.
    pub rnr_retry: u8,
}

impl QpAttributes {
    /// `EINVAL` for states that do not exist.
    pub(crate) fn from_raw(attr: &bindings::ib_qp_attr, mask: QpMask) -> Result<Self> {
        let state = |wanted, raw| match mask.has(wanted) {
            true => QpState::try_from(raw),
            false => Ok(QpState::Reset),
        };
        Ok(Self {
            state: state(QpMask::STATE, attr.qp_state)?,
            cur_state: state(QpMask::CUR_STATE, attr.cur_qp_state)?,
            path_mtu: attr.path_mtu,
            qkey: attr.qkey,
            rq_psn: attr.rq_psn,
            sq_psn: attr.sq_psn,
            dest_qpn: attr.dest_qp_num,
            access: Access::from_raw(attr.qp_access_flags),
            address: AhAttributes::from_raw(&attr.ah_attr).filter(|_| mask.has(QpMask::AV)),
            pkey_index: attr.pkey_index,
            sqd_notify: attr.en_sqd_async_notify != 0,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            port: attr.port_num,
            timeout: attr.timeout,
            retry_count: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
        })
    }

    pub(crate) fn to_raw(self, attr: &mut bindings::ib_qp_attr) {
        attr.qp_state = self.state as u32;
        attr.cur_qp_state = self.cur_state as u32;
        attr.path_mtu = self.path_mtu;
        attr.path_mig_state = bindings::ib_mig_state_IB_MIG_MIGRATED;
        attr.qkey = self.qkey;
        attr.rq_psn = self.rq_psn;
        attr.sq_psn = self.sq_psn;
        attr.dest_qp_num = self.dest_qpn;
        attr.qp_access_flags = self.access.to_raw();
        if let Some(address) = self.address {
            address.to_raw(&mut attr.ah_attr);
        }
        attr.pkey_index = self.pkey_index;
        attr.en_sqd_async_notify = self.sqd_notify.into();
        attr.max_rd_atomic = self.max_rd_atomic;
        attr.max_dest_rd_atomic = self.max_dest_rd_atomic;
        attr.min_rnr_timer = self.min_rnr_timer;
        attr.port_num = self.port;
        attr.timeout = self.timeout;
        attr.retry_cnt = self.retry_count;
        attr.rnr_retry = self.rnr_retry;
    }

    /// Takes over those attributes of `other` that `mask` names. The state is not among them.
    pub fn take(&mut self, other: &Self, mask: QpMask) {
        macro_rules! take {
            ($($flag:ident => $field:ident),+ $(,)?) => {
                $(if mask.has(QpMask::$flag) { self.$field = other.$field; })+
            };
        }
        take! {
            PATH_MTU => path_mtu,
            QKEY => qkey,
            RQ_PSN => rq_psn,
            SQ_PSN => sq_psn,
            DEST_QPN => dest_qpn,
            ACCESS_FLAGS => access,
            AV => address,
            PKEY_INDEX => pkey_index,
            EN_SQD_ASYNC_NOTIFY => sqd_notify,
            MAX_RD_ATOMIC => max_rd_atomic,
            MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
            MIN_RNR_TIMER => min_rnr_timer,
            PORT => port,
            TIMEOUT => timeout,
            RETRY_CNT => retry_count,
            RNR_RETRY => rnr_retry,
        }
    }

    /// Whether a queue pair of `qp_type` may go from `from` to `to` with the attributes of `mask`
    /// (`ib_modify_qp_is_ok()`).
    pub fn transition_ok(from: QpState, to: QpState, qp_type: QpType, mask: QpMask) -> bool {
        // SAFETY: The function only looks at its arguments.
        unsafe {
            bindings::ib_modify_qp_is_ok(from as u32, to as u32, qp_type.to_raw(), mask.to_raw())
        }
    }
}

/// Sizes and limit of a shared receive queue (`struct ib_srq_attr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct SrqAttributes {
    /// Requests.
    pub max_wr: u32,
    /// Scatter/gather entries of a request.
    pub max_sge: u32,
    /// Requests below which an event is raised; 0 for none.
    pub limit: u32,
}

impl SrqAttributes {
    pub(crate) fn from_raw(attr: &bindings::ib_srq_attr) -> Self {
        Self {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            limit: attr.srq_limit,
        }
    }

    pub(crate) fn to_raw(self, attr: &mut bindings::ib_srq_attr) {
        attr.max_wr = self.max_wr;
        attr.max_sge = self.max_sge;
        attr.srq_limit = self.limit;
    }
}

/// Parameters of a new shared receive queue.
pub struct SrqInit<'a, D: Driver> {
    /// Protection domain.
    pub pd: &'a Pd<D>,
    /// Sizes: what was asked for; the driver may enlarge them.
    pub attributes: SrqAttributes,
}
