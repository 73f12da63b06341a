// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `include/uapi/rdma/nupa-abi.h`, as bindgen reads it, and `nupa_proto` say the same.

use std::mem::offset_of;

use nupa_proto::pool::sharing::DmHandle;
use nupa_proto::uabi::{self, *};

use crate::ffi::sys;

/// Names and offsets of all fields of a structure; names that are missing do not compile.
macro_rules! fields {
    ($name:ident { $($field:ident),+ }) => {{
        let _ = |$name { $($field: _),+ }: $name| ();
        [$((stringify!($field), offset_of!($name, $field))),+]
    }};
}

/// Compares a structure of the header with one of `nupa_proto`.
macro_rules! same {
    ($c:ident, $rust:ident { $($field:ident),+ $(,)? }) => {{
        use sys::$c;
        assert_eq!(fields!($c { $($field),+ }), fields!($rust { $($field),+ }), "{}", stringify!($c));
        assert_eq!(size_of::<$c>(), size_of::<$rust>(), "{}", stringify!($c));
    }};
}

#[test]
fn structures_are_those_of_the_header() {
    same!(
        nupa_ib_alloc_ucontext_resp,
        ContextResponse {
            caps,
            node,
            max_log_sq,
            max_log_rq,
            max_log_cq,
            flags,
            reserved,
            clock_khz,
            reserved1
        }
    );
    same!(
        nupa_ib_doorbell,
        Doorbell {
            shared_offset,
            trapped_offset,
            slot,
            recv_slot,
            reserved
        }
    );
    same!(
        nupa_ib_create_cq,
        CreateCqRequest {
            ring,
            log_entries,
            reserved
        }
    );
    same!(
        nupa_ib_create_cq_resp,
        CreateCqResponse {
            doorbell,
            cqn,
            reserved
        }
    );
    same!(
        nupa_ib_resize_cq,
        ResizeCqRequest {
            ring,
            log_entries,
            reserved
        }
    );
    same!(
        nupa_ib_create_qp,
        CreateQpRequest {
            send_ring,
            recv_ring,
            log_send_blocks,
            log_recv_entries,
            log_recv_stride,
            reserved
        }
    );
    same!(nupa_ib_create_qp_resp, CreateQpResponse { doorbell });
    same!(
        nupa_ib_create_srq,
        CreateSrqRequest {
            ring,
            log_entries,
            log_stride,
            reserved
        }
    );
    same!(
        nupa_ib_create_srq_resp,
        CreateSrqResponse {
            doorbell,
            srqn,
            reserved
        }
    );
    same!(
        nupa_ib_create_ah_resp,
        CreateAhResponse {
            node,
            sgid_index,
            reserved
        }
    );
    same!(
        nupa_ib_dm_handle,
        DmHandle {
            secret,
            fabric_id,
            len,
            epoch,
            node,
            index
        }
    );
    same!(nupa_ib_dm_region, RegionPlace { addr, len });
}

#[test]
fn constants_are_those_of_the_header() {
    let pairs = [
        (sys::NUPA_IB_UVERBS_ABI_VERSION, uabi::ABI_VERSION),
        (sys::NUPA_IB_SLOT_LIVE, SLOT_LIVE),
        (sys::NUPA_IB_SLOT_MAPPINGS, SLOT_MAPPINGS),
        (sys::NUPA_IB_SLOT_FORCED, SLOT_FORCED),
        (sys::NUPA_IB_SLOT_COPIES, SLOT_COPIES),
        (
            sys::NUPA_IB_CONTEXT_KICK_BY_COMMAND,
            CONTEXT_KICK_BY_COMMAND.into(),
        ),
        (
            sys::NUPA_IB_CONTEXT_PROCESS_RINGS,
            CONTEXT_PROCESS_RINGS.into(),
        ),
        (sys::NUPA_IB_CONTEXT_RING_WRITES, CONTEXT_RING_WRITES.into()),
        (
            sys::NUPA_IB_ATTR_ALLOC_DM_MMAP_OFFSET,
            ALLOC_DM_MMAP_OFFSET.into(),
        ),
        (sys::NUPA_IB_ATTR_ALLOC_DM_IMPORT, ALLOC_DM_IMPORT.into()),
        (sys::NUPA_IB_ATTR_ALLOC_DM_RING, ALLOC_DM_RING.into()),
        (sys::NUPA_IB_ATTR_ALLOC_DM_KEY, ALLOC_DM_KEY.into()),
        (sys::NUPA_IB_ATTR_ALLOC_DM_REGION, ALLOC_DM_REGION.into()),
        (sys::NUPA_IB_METHOD_DM_EXPORT, METHOD_DM_EXPORT.into()),
        (sys::NUPA_IB_ATTR_DM_EXPORT_HANDLE, EXPORT_DM.into()),
        (sys::NUPA_IB_ATTR_DM_EXPORT_RESP, EXPORT_DM_HANDLE.into()),
        (sys::NUPA_IB_ATTR_DM_EXPORT_RING, EXPORT_DM_RING.into()),
        (sys::NUPA_IB_METHOD_QP_KICK, METHOD_QP_KICK.into()),
        (sys::NUPA_IB_ATTR_QP_KICK_HANDLE, QP_KICK_HANDLE.into()),
        (sys::NUPA_IB_ATTR_QP_KICK_QUEUES, QP_KICK_QUEUES.into()),
        (sys::NUPA_IB_KICK_SEND, KICK_SEND),
        (sys::NUPA_IB_KICK_RECV, KICK_RECV),
        (sys::NUPA_IB_KICK_PEER, KICK_PEER),
        (sys::NUPA_IB_METHOD_SRQ_KICK, METHOD_SRQ_KICK.into()),
        (sys::NUPA_IB_ATTR_SRQ_KICK_HANDLE, SRQ_KICK_HANDLE.into()),
        (sys::NUPA_IB_METHOD_CQ_POLL, METHOD_CQ_POLL.into()),
        (sys::NUPA_IB_ATTR_CQ_POLL_HANDLE, CQ_POLL_HANDLE.into()),
        (sys::NUPA_IB_METHOD_QUERY_CLOCK, METHOD_QUERY_CLOCK.into()),
        (sys::NUPA_IB_ATTR_QUERY_CLOCK_RESP, QUERY_CLOCK.into()),
    ];
    for (at, (header, proto)) in pairs.iter().enumerate() {
        assert_eq!(header, proto, "pair {at}");
    }
}
