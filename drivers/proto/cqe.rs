// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Completion queue entries.
//!
//! A completion queue is a ring of 64-byte entries, their number a power of two. The device writes bytes 0 to 59, then
//! stores the last word with release order; an entry belongs to the consumer once its phase bit is that of the pass:
//! 1 on the first pass over the zeroed ring, 0 on the second, and so on.

use crate::frame::FrameMeta;
use zerocopy::{
    little_endian::{U16, U32, U64},
    transmute,
};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an entry.
pub const CQE_SIZE: usize = 64;
/// Offset of the word that hands an entry over.
pub const CQE_VALID_OFFSET: usize = 60;
/// Phase bit in that word.
pub const CQE_PHASE: u32 = 1;

wire_enum! {
    /// What a completion is about; receive codes have the top bit set. What `enum ibv_wc_opcode` has too has its values, so
    /// that a provider needs no table.
    CqeOpcode: u8 {
        /// A SEND was done.
        Send = 0,
        /// A WRITE was done.
        Write = 1,
        /// A READ was done, its data is in place.
        Read = 2,
        /// A compare and swap was done.
        CompareSwap = 3,
        /// A fetch and add was done.
        FetchAdd = 4,
        /// A memory window was bound.
        BindMw = 5,
        /// A key was invalidated.
        LocalInv = 6,
        /// A flush was done.
        Flush = 8,
        /// An atomic write was done.
        AtomicWrite = 9,
        /// A fast registration was done.
        FastReg = 10,
        /// A frame or NOP was done.
        Frame = 0x40,
        /// A message arrived.
        Recv = 0x80,
        /// A WRITE with immediate data arrived.
        RecvWriteImm = 0x81,
        /// A frame arrived.
        RecvFrame = 0x82,
    }
}

wire_enum! {
    /// The network header before a datagram's payload, with [`CQE_GRH`]; 0 without. `ibv_poll_cq()` gives these values in the
    /// low bits of the service level, so they are those of mlx5 and irdma.
    NetworkHeader: u8 {
        /// That of RoCE v2 over IPv6: all 40 bytes.
        Ipv6 = 1,
        /// That of RoCE v2 over IPv4: the last 20 bytes.
        Ipv4 = 2,
    }
}

// The flags that `enum ibv_wc_flags` has too have its values, so that a provider needs no table.

/// The first 40 bytes of the receive buffer are a GRH.
pub const CQE_GRH: u8 = 1 << 0;
/// The completion carries immediate data.
pub const CQE_IMM: u8 = 1 << 1;
/// The sender asked for a solicited event.
pub const CQE_SOLICITED: u8 = 1 << 2;
/// The completion carries an invalidated key.
pub const CQE_INVALIDATED: u8 = 1 << 3;
/// The datagram was sent in the VLAN of `vlan_id`.
pub const CQE_VLAN: u8 = 1 << 4;

/// One completion.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Cqe {
    /// From the descriptor. A frame receive completion: `wr_id` of the first buffer used.
    pub wr_id: U64,
    /// Own queue pair.
    pub qpn: U32,
    /// Bytes received or read.
    pub byte_len: U32,
    /// A [`CqeOpcode`]; undefined with an error status on the send side.
    pub opcode: u8,
    /// A [`crate::status::WcStatus`].
    pub status: u8,
    /// `CQE_*`.
    pub flags: u8,
    /// Which check failed; for people, no program may depend on it.
    pub vendor_error: u8,
    /// Immediate data as sent, or the invalidated key.
    pub imm_or_key: U32,
    /// Send side: index behind the descriptor's last block, so everything before it is free again.
    /// Receive side: index behind the last receive entry used.
    pub queue_index: U32,
    /// Sending queue pair (UD).
    pub src_qpn: U32,
    /// Sending node.
    pub src_node: U16,
    /// Receive entries that the message fills, in ring order (frames: one or more; else one).
    pub buffers: U16,
    /// VLAN id that the datagram was sent with, with `CQE_VLAN`; else 0.
    pub vlan_id: U16,
    /// A [`NetworkHeader`], with `CQE_GRH`; else 0.
    pub network_header: u8,
    /// Zero.
    pub reserved0: u8,
    /// Offload state of a frame that was received; of anything else a [`Timestamp`], with `CQ_FLAG_TIMESTAMP`.
    pub frame: FrameMeta,
    /// Zero.
    pub reserved1: U32,
    /// [`CQE_PHASE`]; the rest is zero.
    pub valid: U32,
}
assert_size!(Cqe, CQE_SIZE);
const _: () = assert!(core::mem::offset_of!(Cqe, valid) == CQE_VALID_OFFSET);

/// When a completion was written: what is in the place of `frame` in queues with
/// [`CQ_FLAG_TIMESTAMP`](crate::admin::CQ_FLAG_TIMESTAMP), but for frames that were received.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Timestamp {
    /// The function's clock ([`REG_CLOCK`](crate::regs::REG_CLOCK)).
    pub clock: U64,
    /// Zero.
    pub reserved: U64,
}
assert_size!(Timestamp, 16);

impl Cqe {
    /// The same with a timestamp.
    #[inline]
    #[must_use]
    pub fn stamped(&self, clock: u64) -> Self {
        let timestamp = Timestamp {
            clock: U64::new(clock),
            reserved: U64::ZERO,
        };
        Self {
            frame: transmute!(timestamp),
            ..*self
        }
    }

    /// The function's clock when this was written, if its queue has timestamps; 0 otherwise.
    #[inline]
    pub fn timestamp(&self) -> u64 {
        let timestamp: Timestamp = transmute!(self.frame);
        timestamp.clock.get()
    }
}

/// Phase bit of the entries that are written in the pass which the free-running `index` lies in.
#[inline]
pub const fn phase(index: u32, log_entries: u32) -> u32 {
    !(index >> log_entries) & CQE_PHASE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_alternates_by_pass() {
        assert_eq!(phase(0, 4), 1);
        assert_eq!(phase(15, 4), 1);
        assert_eq!(phase(16, 4), 0);
        assert_eq!(phase(32, 4), 1);
        assert_eq!(phase(u32::MAX, 4), 0);
    }
}
