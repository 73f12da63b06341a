// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queue pairs: creation, states, attributes.

use super::PageList;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

wire_enum! {
    /// Kind of a queue pair.
    QpType: u8 {
        /// Reliable connection.
        Rc = 0,
        /// Unreliable datagram.
        Ud = 1,
        /// Ethernet frames.
        Raw = 2,
    }
}

wire_enum! {
    /// State of a queue pair; values follow `enum ib_qp_state` (include/rdma/ib_verbs.h).
    QpStateCode: u8 {
        /// Nothing is processed; everything in it is forgotten.
        Reset = 0,
        /// Receives may be posted.
        Init = 1,
        /// Receives are processed.
        Rtr = 2,
        /// Everything is processed.
        Rts = 3,
        /// Sends are drained, none is started.
        Sqd = 4,
        /// The send side failed (UD).
        Sqe = 5,
        /// Everything completes with a flush error.
        Err = 6,
    }
}

/// The queue pair may use [`crate::ident::DMA_LKEY`].
pub const QP_FLAG_PRIVILEGED: u8 = 1 << 0;
/// Every send descriptor is signaled.
pub const QP_FLAG_SIGNAL_ALL: u8 = 1 << 1;
/// The UD queue pair gets number [`crate::ident::GSI_QPN`], of which there is one.
pub const QP_FLAG_GSI: u8 = 1 << 2;
/// Receive entries come from the shared receive queue `srqn`; the queue pair has no receive ring, `recv_cqn` counts.
pub const QP_FLAG_SRQ: u8 = 1 << 3;

/// Parameters of a new queue pair.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateQp {
    /// Send ring memory.
    pub sq: PageList,
    /// Receive ring memory.
    pub rq: PageList,
    /// A [`QpType`].
    pub qp_type: u8,
    /// `QP_FLAG_*`.
    pub flags: u8,
    /// log2 of the send queue's blocks.
    pub log_sq: u8,
    /// log2 of the receive queue's entries.
    pub log_rq: u8,
    /// log2 of the bytes of a receive entry.
    pub log_rq_stride: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Protection domain.
    pub pd: U32,
    /// Completion queue of the send side.
    pub send_cqn: U32,
    /// Completion queue of the receive side.
    pub recv_cqn: U32,
    /// Doorbell page pair of both queues.
    pub doorbell_page: U32,
    /// Doorbell slot of the send queue.
    pub sq_slot: U16,
    /// Doorbell slot of the receive queue.
    pub rq_slot: U16,
    /// Shared receive queue, with [`QP_FLAG_SRQ`].
    pub srqn: U32,
}
assert_size!(CreateQp, 64);

/// [`ModifyQp::mask`]: `state` is to be set.
pub const QP_MASK_STATE: u32 = 1 << 0;
/// [`ModifyQp::mask`]: `remote_node`, `remote_qpn`, `remote_epoch` and `rq_psn` are to be set.
pub const QP_MASK_REMOTE: u32 = 1 << 1;
/// [`ModifyQp::mask`]: `access` is to be set.
pub const QP_MASK_ACCESS: u32 = 1 << 2;
/// [`ModifyQp::mask`]: `qkey` is to be set.
pub const QP_MASK_QKEY: u32 = 1 << 3;
/// [`ModifyQp::mask`]: `rnr_timeout_us` is to be set.
pub const QP_MASK_RNR: u32 = 1 << 4;
/// [`ModifyQp::mask`]: `max_rd_atomic` and `max_dest_rd_atomic` are to be set.
pub const QP_MASK_RD_ATOMIC: u32 = 1 << 5;
/// [`ModifyQp::mask`]: `sq_psn` is to be set.
pub const QP_MASK_SQ_PSN: u32 = 1 << 6;
/// [`ModifyQp::mask`]: `rnr_retry` and `min_rnr_timer` are to be set.
pub const QP_MASK_RNR_RETRY: u32 = 1 << 7;
/// [`ModifyQp::mask`]: the queue pair has [process rings](crate::process_ring) until it is reset (RC). Its requests may say how many messages went past the engine,
/// and what the arm word of its receive queue says counts.
pub const QP_MASK_PROCESS_RINGS: u32 = 1 << 8;
/// [`ModifyQp::mask`], with [`QP_MASK_PROCESS_RINGS`]: `ring` is to be set. Without that it may be set to 0 only.
pub const QP_MASK_RING: u32 = 1 << 9;
/// [`ModifyQp::mask`], as [`QP_MASK_RING`] and not together with it: `ring` is the process ring that the queue pair sends to. The engine counts what its process
/// puts there.
pub const QP_MASK_PEER_RING: u32 = 1 << 10;
/// [`ModifyQp::rnr_timeout_us`]: no timeout.
pub const RNR_FOREVER: u32 = u32::MAX;
/// [`ModifyQp::rnr_retry`]: no limit. The largest value.
pub const RNR_RETRY_FOREVER: u8 = 7;
/// Largest code of [`ModifyQp::min_rnr_timer`].
pub const MAX_RNR_TIMER: u8 = 31;

/// Microseconds that the codes of `min_rnr_timer` stand for (InfiniBand volume 1, table 45).
const RNR_TIMER_US: [u32; MAX_RNR_TIMER as usize + 1] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840,
    5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840,
    245_760, 327_680, 491_520,
];

/// How long to wait before each retry for want of a receive buffer, in microseconds. `None`: there is no such code.
pub fn rnr_timer_us(min_rnr_timer: u8) -> Option<u32> {
    RNR_TIMER_US.get(usize::from(min_rnr_timer)).copied()
}

/// Changes a queue pair. Transitions follow the InfiniBand specification's state diagram (volume 1, 10.3.1).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ModifyQp {
    /// Queue pair.
    pub qpn: U32,
    /// `QP_MASK_*`: which fields count.
    pub mask: U32,
    /// A [`QpStateCode`].
    pub state: u8,
    /// Zero.
    pub reserved: u8,
    /// Node of the peer (RC).
    pub remote_node: U16,
    /// Queue pair of the peer (RC).
    pub remote_qpn: U32,
    /// Epoch of the peer's node (RC).
    pub remote_epoch: U32,
    /// `ACCESS_*` that remote requests may use at most (RC).
    pub access: U32,
    /// Queue key (UD).
    pub qkey: U32,
    /// Longest wait for a receive buffer at the target, in microseconds. Does not count any more once `rnr_retry` was set.
    pub rnr_timeout_us: U32,
    /// READs and atomics in flight as requester; 0: none may be posted (RC).
    pub max_rd_atomic: u8,
    /// READs and atomics in flight as responder; 0: they are refused (RC).
    pub max_dest_rd_atomic: u8,
    /// Retries of a request that finds no receive buffer at the target, 0 to 7; [`RNR_RETRY_FOREVER`]: any number (RC).
    pub rnr_retry: u8,
    /// How long the peer waits before each retry of a request that found no receive buffer here, see [`rnr_timer_us`] (RC).
    pub min_rnr_timer: u8,
    /// Zero.
    pub reserved1: [u8; 4],
    /// Packet sequence number that the peer begins with: its `sq_psn`. Requests of a connection that began with another one are
    /// refused (RC).
    pub rq_psn: U32,
    /// Packet sequence number that this end begins with (RC).
    pub sq_psn: U32,
    /// DMA address of the process ring that it receives from, or sends to, page-aligned. The engine takes WRITEs that the process leaves in the former. 0:
    /// none. A reset sets both to 0 (RC).
    pub ring: U64,
}
assert_size!(ModifyQp, 56);

/// Result of `QueryQp`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct QpState {
    /// A [`QpStateCode`].
    pub state: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Index up to which the device has taken the send queue.
    pub sq_index: U32,
    /// Index up to which the device has taken the receive queue.
    pub rq_index: U32,
    /// Zero.
    pub reserved1: U32,
    /// What went through it.
    pub traffic: QpTraffic,
}
assert_size!(QpState, 48);

/// What went through a queue pair of messages (RC and UD) since it was created, wrapping around.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct QpTraffic {
    /// Requests of its owner that succeeded, but for those that concern no peer (FAST_REG, LOCAL_INV, BIND_MW), and those that were put into a process ring.
    pub requests: U64,
    /// Requests of its peer that succeeded, and datagrams that arrived.
    pub served: U64,
    /// Bytes of those that left this node.
    pub sent_bytes: U64,
    /// Bytes of those that came to this node.
    pub received_bytes: U64,
}
assert_size!(QpTraffic, 32);
