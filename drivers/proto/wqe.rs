// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Work queue entries.
//!
//! A send queue is a ring of 64-byte blocks. A send descriptor takes one to [`MAX_BLOCKS`] consecutive blocks, wrapping
//! at the ring's end: a 16-byte [`Control`], a 16-byte operation segment, then scatter/gather entries or inline bytes
//! (atomics put an [`AtomicSegment`] before those, UD sends a [`GrhSegment`]). A receive queue is a ring of entries of one stride, each a
//! [`RecvHeader`] and its scatter/gather entries. Indices are free-running 32-bit counters of blocks or entries.

use crate::frame::FrameMeta;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a send queue block.
pub const BLOCK_SIZE: usize = 64;
/// Most blocks of one send descriptor.
pub const MAX_BLOCKS: usize = 6;
/// Offset of the operation segment in a send descriptor.
pub const OP_OFFSET: usize = 16;
/// Offset of scatter/gather entries or inline bytes in a send descriptor (atomics: behind the [`AtomicSegment`] here).
pub const DATA_OFFSET: usize = 32;
/// Most scatter/gather entries of a send descriptor: 17 page fragments and the linear part of an skb.
pub const MAX_SEND_SGE: usize = 18;
/// Most scatter/gather entries of a receive descriptor.
pub const MAX_RECV_SGE: usize = 16;
/// Most inline bytes of a send descriptor.
pub const MAX_INLINE: usize = 224;
/// Longest RC message.
pub const MAX_MESSAGE: u32 = 1 << 30;
/// Longest datagram (UD): the largest MTU of InfiniBand.
pub const MAX_DATAGRAM: u32 = 4096;

wire_enum! {
    /// Operation of a send descriptor.
    Opcode: u8 {
        /// Consumes a receive descriptor at the target.
        Send = 0,
        /// As `Send`, with immediate data.
        SendImm = 1,
        /// As `Send`, invalidating a key of the target.
        SendInv = 2,
        /// Writes to a remote region.
        Write = 3,
        /// As `Write`, and consumes a receive descriptor for the immediate data.
        WriteImm = 4,
        /// Reads from a remote region.
        Read = 5,
        /// 64-bit compare and swap in a remote region.
        CompareSwap = 6,
        /// 64-bit fetch and add in a remote region.
        FetchAdd = 7,
        /// Binds pages to a key (fast registration).
        FastReg = 8,
        /// Invalidates a local key.
        LocalInv = 9,
        /// Binds a memory window.
        BindMw = 10,
        /// Makes earlier writes to a remote region visible or persistent.
        Flush = 11,
        /// 64-bit atomic store in a remote region.
        AtomicWrite = 12,
        /// Sends an Ethernet frame (raw queue pairs only).
        Frame = 16,
        /// Does nothing but complete.
        Nop = 17,
    }
}

/// Ask for a completion also when the operation succeeds.
pub const WQE_SIGNALED: u8 = 1 << 0;
/// The target's completion counts as solicited.
pub const WQE_SOLICITED: u8 = 1 << 1;
/// Wait until earlier READs and atomics of this queue are done.
pub const WQE_FENCE: u8 = 1 << 2;
/// `data_count` bytes follow instead of scatter/gather entries.
pub const WQE_INLINE: u8 = 1 << 3;

/// First segment of a send descriptor.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Control {
    /// An [`Opcode`].
    pub opcode: u8,
    /// `WQE_*`.
    pub flags: u8,
    /// Blocks of this descriptor, 1 to [`MAX_BLOCKS`].
    pub blocks: u8,
    /// Scatter/gather entries, or bytes with [`WQE_INLINE`].
    pub data_count: u8,
    /// Immediate data in network order as given, or the key to invalidate.
    pub imm_or_key: U32,
    /// Handed back in the completion.
    pub wr_id: U64,
}
assert_size!(Control, 16);

/// Operation segment of SENDs of connected queue pairs.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SendSegment {
    /// Messages of the connection before this one that took a receive entry and went past the engines, in a
    /// [process ring](crate::process_ring): so many entries, as counted since the queue pair was reset, are skipped.
    pub bypassed: U32,
    /// Zero.
    pub reserved: [u8; 12],
}
assert_size!(SendSegment, 16);

/// Operation segment of WRITE, READ and the atomics.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct RemoteSegment {
    /// Address within the remote region (its I/O virtual address).
    pub addr: U64,
    /// Key of the remote region.
    pub rkey: U32,
    /// Of a WRITE with immediate data as [`SendSegment::bypassed`]. Of a WRITE without, index of the line of the peer's
    /// [process ring](crate::process_ring) up to which entries are to be taken before it, or 0: none. Else zero.
    pub bypassed: U32,
}
assert_size!(RemoteSegment, 16);

/// Operation segment of a UD send.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DatagramSegment {
    /// Queue pair at the target.
    pub qpn: U32,
    /// Queue key that must match the target's.
    pub qkey: U32,
    /// Target node.
    pub node: U16,
    /// Zero.
    pub reserved: [u8; 6],
}
assert_size!(DatagramSegment, 16);

/// Second operation segment of a UD send, behind the [`DatagramSegment`]: what the receiver's global route header is
/// made of. Source address is the entry of the function's GID table (`SetGid`) that `sgid_index` names.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct GrhSegment {
    /// Destination GID, in network order.
    pub dgid: [u8; 16],
    /// Flow label.
    pub flow_label: U32,
    /// Index into the sender's GID table.
    pub sgid_index: U16,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Zero.
    pub reserved: [u8; 8],
}
assert_size!(GrhSegment, 32);

/// Offset of scatter/gather entries or inline bytes in a UD send descriptor: its second block.
pub const UD_DATA_OFFSET: usize = OP_OFFSET + 16 + 32;
const _: () = assert!(UD_DATA_OFFSET == BLOCK_SIZE);

/// log2 of the smallest page of a list.
pub const MIN_PAGE_SHIFT: u8 = 12;
/// log2 of the largest page of a list.
pub const MAX_PAGE_SHIFT: u8 = 30;

/// Operation segment of FAST_REG: gives pages and rights to the key that `control.imm_or_key` holds, which may differ
/// in its variant from the key that `AllocKey` returned ([`crate::ident::same_key_slot`]). No data follows.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct FastRegSegment {
    /// Address that descriptors use for the first byte; it is `iova % page size` into the first page.
    pub iova: U64,
    /// Bytes.
    pub len: U64,
    /// DMA address of the array of page addresses; it is read while the request is executed.
    pub list: U64,
    /// Entries of the array.
    pub pages: U32,
    /// `ACCESS_*` of [`crate::admin`].
    pub access: U32,
    /// log2 of the page size, 12 to 30.
    pub page_shift: u8,
    /// Zero.
    pub reserved: [u8; 7],
}
assert_size!(FastRegSegment, 40);

/// log2 of a page size that page lists may have; `None` for any other number of bytes.
pub const fn page_shift(bytes: u32) -> Option<u8> {
    if !bytes.is_power_of_two() {
        return None;
    }
    let shift = bytes.trailing_zeros() as u8;
    if shift < MIN_PAGE_SHIFT || shift > MAX_PAGE_SHIFT {
        return None;
    }
    Some(shift)
}

/// Operation segment of BIND_MW (type 2B): gives a range of a region to the window's key in `control.imm_or_key`,
/// which may differ in its variant from the key that `AllocKey` returned. Length 0 unbinds. No data follows.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct BindSegment {
    /// First byte, an address within the region.
    pub addr: U64,
    /// Bytes.
    pub len: U64,
    /// Key of the region; it needs `ACCESS_MW_BIND`.
    pub mr_key: U32,
    /// Remote `ACCESS_*` of [`crate::admin`], and `ACCESS_ZERO_BASED`.
    pub access: U32,
}
assert_size!(BindSegment, 24);

/// [`FlushSegment::kind`]: earlier writes are visible to every reader of the memory (`IB_FLUSH_GLOBAL`).
pub const FLUSH_GLOBAL: u8 = 1 << 0;
/// [`FlushSegment::kind`]: earlier writes outlive a loss of power (`IB_FLUSH_PERSISTENT`).
pub const FLUSH_PERSISTENT: u8 = 1 << 1;
/// [`FlushSegment::level`]: the range given.
pub const FLUSH_RANGE: u8 = 0;
/// [`FlushSegment::level`]: the whole region; address and length are not looked at.
pub const FLUSH_MR: u8 = 1;

/// Operation segment of FLUSH (InfiniBand volume 1, A19). No data follows.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct FlushSegment {
    /// Address within the remote region.
    pub addr: U64,
    /// Key of the remote region.
    pub rkey: U32,
    /// Bytes.
    pub len: U32,
    /// `FLUSH_GLOBAL` and `FLUSH_PERSISTENT`: at least one.
    pub kind: u8,
    /// `FLUSH_RANGE` or `FLUSH_MR`.
    pub level: u8,
    /// Zero.
    pub reserved: [u8; 6],
}
assert_size!(FlushSegment, 24);

/// Second segment of an atomic operation.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AtomicSegment {
    /// Value to add, swap in or store.
    pub operand: U64,
    /// Value to compare with.
    pub compare: U64,
}
assert_size!(AtomicSegment, 16);

/// Offset of the segment behind a [`RemoteSegment`] or [`DatagramSegment`].
pub const SECOND_OFFSET: usize = OP_OFFSET + size_of::<RemoteSegment>();
/// Offset of the scatter/gather entries of an atomic operation.
pub const ATOMIC_DATA_OFFSET: usize = SECOND_OFFSET + size_of::<AtomicSegment>();

/// One scatter/gather entry.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Address within the region that `lkey` names.
    pub addr: U64,
    /// Bytes.
    pub len: U32,
    /// Local key.
    pub lkey: U32,
}
assert_size!(Sge, 16);

/// First two segments of a raw frame descriptor; scatter/gather entries of the whole frame follow.
///
/// `control.imm_or_key` holds the target node ([`crate::ident::NODE_FLOOD`] for all).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct FrameDescriptor {
    /// Control segment.
    pub control: Control,
    /// Offload state.
    pub meta: FrameMeta,
}
assert_size!(FrameDescriptor, DATA_OFFSET);

/// First 16 bytes of a receive descriptor.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct RecvHeader {
    /// Handed back in the completion.
    pub wr_id: U64,
    /// Scatter/gather entries that follow.
    pub sge_count: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(RecvHeader, 16);

/// Smallest stride of a receive queue: header and one entry.
pub const MIN_RECV_STRIDE: usize = 32;
/// Largest stride of a receive queue; strides are powers of two (the last one holds [`MAX_RECV_SGE`] entries).
pub const MAX_RECV_STRIDE: usize = 512;

/// Blocks that a descriptor takes whose data (entries or inline bytes) is `data_bytes` long.
#[inline]
pub const fn blocks_for(data_bytes: usize) -> usize {
    (DATA_OFFSET + data_bytes).div_ceil(BLOCK_SIZE)
}

const _: () = assert!(blocks_for(MAX_SEND_SGE * core::mem::size_of::<Sge>()) <= MAX_BLOCKS);
const _: () = assert!(blocks_for(MAX_INLINE) <= MAX_BLOCKS);

/// Blocks that a UD send descriptor takes whose data (entries or inline bytes) is `data_bytes` long.
#[inline]
pub const fn ud_blocks_for(data_bytes: usize) -> usize {
    (UD_DATA_OFFSET + data_bytes).div_ceil(BLOCK_SIZE)
}

const _: () = assert!(ud_blocks_for(MAX_RECV_SGE * core::mem::size_of::<Sge>()) <= MAX_BLOCKS);
const _: () = assert!(ud_blocks_for(MAX_INLINE) <= MAX_BLOCKS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_round_trip_and_reject_the_rest() {
        for value in 0..=u8::MAX {
            match Opcode::try_from(value) {
                Ok(op) => assert_eq!(op.to_wire(), value),
                Err(e) => assert_eq!(e.0, u32::from(value)),
            }
        }
        assert_eq!(Opcode::ALL.len(), 15);
    }

    #[test]
    fn small_inline_fits_one_block() {
        assert_eq!(blocks_for(32), 1);
        assert_eq!(blocks_for(33), 2);
    }
}
