// SPDX-License-Identifier: GPL-2.0
//! Completions for kernel users.

use crate::{bindings, QpHandle};
use core::marker::PhantomData;

/// What a completion is about (`enum ib_wc_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcOpcode {
    /// A SEND.
    Send,
    /// A WRITE.
    Write,
    /// A READ.
    Read,
    /// A compare and swap.
    CompareSwap,
    /// A fetch and add.
    FetchAdd,
    /// A local invalidation.
    LocalInvalidate,
    /// A fast registration.
    Register,
    /// A message that arrived.
    Recv,
    /// A WRITE with immediate data that arrived.
    RecvWriteImm,
}

impl WcOpcode {
    fn to_raw(self) -> bindings::ib_wc_opcode {
        match self {
            Self::Send => bindings::ib_wc_opcode_IB_WC_SEND,
            Self::Write => bindings::ib_wc_opcode_IB_WC_RDMA_WRITE,
            Self::Read => bindings::ib_wc_opcode_IB_WC_RDMA_READ,
            Self::CompareSwap => bindings::ib_wc_opcode_IB_WC_COMP_SWAP,
            Self::FetchAdd => bindings::ib_wc_opcode_IB_WC_FETCH_ADD,
            Self::LocalInvalidate => bindings::ib_wc_opcode_IB_WC_LOCAL_INV,
            Self::Register => bindings::ib_wc_opcode_IB_WC_REG_MR,
            Self::Recv => bindings::ib_wc_opcode_IB_WC_RECV,
            Self::RecvWriteImm => bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
        }
    }
}

/// What a datagram begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkHeader {
    /// An IPv4 header in the last 20 of 40 bytes.
    Ipv4,
    /// An IPv6 header, which a global route header is.
    Ipv6,
}

/// A completion (`struct ib_wc`).
#[derive(Clone, Copy, Debug)]
pub struct WorkCompletion {
    /// From the request.
    pub id: u64,
    /// `enum ib_wc_status`, whose numbers are those of the InfiniBand verbs: 0 is success.
    pub status: u8,
    /// What it is about; has no meaning with an error.
    pub opcode: WcOpcode,
    /// Vendor's error code.
    pub vendor_error: u8,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data, in network order as sent.
    pub imm: Option<u32>,
    /// Key that the peer has invalidated.
    pub invalidated: Option<u32>,
    /// Sending queue pair of a datagram.
    pub src_qpn: u32,
    /// What a datagram begins with.
    pub header: Option<NetworkHeader>,
    /// VLAN that a datagram was sent in.
    pub vlan_id: Option<u16>,
}

impl WorkCompletion {
    fn to_raw(self, qp: QpHandle, wc: &mut bindings::ib_wc) {
        wc.__bindgen_anon_1.wr_id = self.id;
        wc.status = self.status.into();
        wc.opcode = self.opcode.to_raw();
        wc.vendor_err = self.vendor_error.into();
        wc.byte_len = self.byte_len;
        wc.qp = qp.as_raw();
        wc.src_qp = self.src_qpn;
        wc.port_num = crate::device::PORT;
        let mut flags = 0;
        if let Some(imm) = self.imm {
            wc.ex.imm_data = imm;
            flags |= bindings::ib_wc_flags_IB_WC_WITH_IMM;
        }
        if let Some(key) = self.invalidated {
            wc.ex.invalidate_rkey = key;
            flags |= bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE;
        }
        if let Some(header) = self.header {
            let kind = match header {
                NetworkHeader::Ipv4 => bindings::rdma_network_type_RDMA_NETWORK_IPV4,
                NetworkHeader::Ipv6 => bindings::rdma_network_type_RDMA_NETWORK_IPV6,
            };
            wc.network_hdr_type = kind as u8;
            flags |=
                bindings::ib_wc_flags_IB_WC_GRH | bindings::ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE;
        }
        if let Some(vlan_id) = self.vlan_id {
            wc.vlan_id = vlan_id;
            flags |= bindings::ib_wc_flags_IB_WC_WITH_VLAN;
        }
        wc.wc_flags = flags as i32;
    }
}

/// Room for completions.
pub struct Completions<'a> {
    next: *mut bindings::ib_wc,
    room: usize,
    count: i32,
    _array: PhantomData<&'a mut ()>,
}

impl Completions<'_> {
    /// # Safety
    ///
    /// `array` has `room` entries that are ours for the lifetime.
    pub(crate) unsafe fn from_raw(array: *mut bindings::ib_wc, room: i32) -> Self {
        Self {
            next: array,
            room: usize::try_from(room).unwrap_or(0),
            count: 0,
            _array: PhantomData,
        }
    }

    /// Whether there is no room left.
    pub fn is_full(&self) -> bool {
        self.room == 0
    }

    /// Adds a completion of `qp`; ignored if there is no room.
    pub fn push(&mut self, qp: QpHandle, completion: &WorkCompletion) {
        if self.is_full() {
            return;
        }
        let mut wc: bindings::ib_wc = pin_init::zeroed();
        completion.to_raw(qp, &mut wc);
        // SAFETY: There is room for one more, as just checked; behind it comes the next or the end of the array.
        unsafe {
            self.next.write(wc);
            self.next = self.next.add(1);
        }
        self.room = self.room.wrapping_sub(1);
        self.count = self.count.wrapping_add(1);
    }

    pub(crate) fn count(&self) -> i32 {
        self.count
    }
}
