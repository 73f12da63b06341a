// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a send request asks for, and its segments in a descriptor.

use nupa_proto::{
    frame::FrameMeta,
    wqe::{
        AtomicSegment, BindSegment, DatagramSegment, FastRegSegment, FlushSegment, GrhSegment,
        Opcode, RemoteSegment, ATOMIC_DATA_OFFSET, BLOCK_SIZE, DATA_OFFSET, OP_OFFSET,
        SECOND_OFFSET, UD_DATA_OFFSET,
    },
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{Immutable, IntoBytes};

/// What a send request asks for. Immediate data is in network order as given.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Consumes a receive buffer at the peer.
    Send {
        /// Immediate data.
        imm: Option<u32>,
    },
    /// As `Send`, and invalidates a key of the peer.
    SendInv {
        /// The key.
        key: u32,
    },
    /// Sends a datagram.
    Datagram {
        /// Where to.
        to: DatagramSegment,
        /// What the receiver's global route header is made of.
        grh: GrhSegment,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// Writes to the peer's memory; with immediate data it also consumes a receive buffer there.
    Write {
        /// Address within the peer's region.
        addr: u64,
        /// Key of the region.
        rkey: u32,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// Reads from the peer's memory.
    Read {
        /// Address within the peer's region.
        addr: u64,
        /// Key of the region.
        rkey: u32,
    },
    /// Swaps 8 bytes of the peer's memory if they are as expected, and reads what was there.
    CompareSwap {
        /// Address within the peer's region.
        addr: u64,
        /// Key of the region.
        rkey: u32,
        /// What is expected.
        compare: u64,
        /// What to put there.
        swap: u64,
    },
    /// Adds to 8 bytes of the peer's memory, and reads what was there.
    FetchAdd {
        /// Address within the peer's region.
        addr: u64,
        /// Key of the region.
        rkey: u32,
        /// What to add.
        add: u64,
    },
    /// Stores 8 bytes to the peer's memory at once. Takes no data.
    AtomicWrite {
        /// Address within the peer's region.
        addr: u64,
        /// Key of the region.
        rkey: u32,
        /// The bytes.
        value: u64,
    },
    /// Makes earlier writes visible or persistent. Takes no data.
    Flush(FlushSegment),
    /// Gives pages and rights to a key. Takes no data.
    FastReg {
        /// The key.
        key: u32,
        /// Pages and rights.
        pages: FastRegSegment,
    },
    /// Invalidates an own key. Takes no data.
    LocalInv {
        /// The key.
        key: u32,
    },
    /// Binds a memory window. Takes no data.
    BindMw {
        /// Key of the window.
        key: u32,
        /// What to bind it to.
        bind: BindSegment,
    },
    /// Sends an Ethernet frame.
    Frame {
        /// Target node, or [`nupa_proto::ident::NODE_FLOOD`].
        node: u16,
        /// Offload state.
        meta: FrameMeta,
    },
    /// Does nothing but complete.
    Nop,
}

impl Operation {
    /// Where a descriptor's data begins, if it may have any.
    #[inline(always)]
    pub(super) const fn data_offset(&self) -> Option<usize> {
        match self {
            Self::Send { .. }
            | Self::SendInv { .. }
            | Self::Write { .. }
            | Self::Read { .. }
            | Self::Frame { .. }
            | Self::Nop => Some(DATA_OFFSET),
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Some(ATOMIC_DATA_OFFSET),
            Self::Datagram { .. } => Some(UD_DATA_OFFSET),
            Self::AtomicWrite { .. }
            | Self::Flush(_)
            | Self::FastReg { .. }
            | Self::LocalInv { .. }
            | Self::BindMw { .. } => None,
        }
    }

    /// Writes the operation segments; returns opcode and `imm_or_key`.
    #[inline(always)]
    pub(super) fn encode(&self, block: &mut [u8; BLOCK_SIZE]) -> (Opcode, u32) {
        match *self {
            Self::Send { imm } => with_imm(imm, Opcode::Send, Opcode::SendImm),
            Self::SendInv { key } => (Opcode::SendInv, key),
            Self::Datagram {
                ref to,
                ref grh,
                imm,
            } => {
                put_address(block, to, grh);
                with_imm(imm, Opcode::Send, Opcode::SendImm)
            }
            Self::Write { addr, rkey, imm } => {
                put(block, OP_OFFSET, &remote(addr, rkey));
                with_imm(imm, Opcode::Write, Opcode::WriteImm)
            }
            Self::Read { addr, rkey } => {
                put(block, OP_OFFSET, &remote(addr, rkey));
                (Opcode::Read, 0)
            }
            Self::CompareSwap {
                addr,
                rkey,
                compare,
                swap,
            } => {
                put(block, OP_OFFSET, &remote(addr, rkey));
                put(block, SECOND_OFFSET, &operands(swap, compare));
                (Opcode::CompareSwap, 0)
            }
            Self::FetchAdd { addr, rkey, add } => {
                put(block, OP_OFFSET, &remote(addr, rkey));
                put(block, SECOND_OFFSET, &operands(add, 0));
                (Opcode::FetchAdd, 0)
            }
            Self::AtomicWrite { addr, rkey, value } => {
                put(block, OP_OFFSET, &remote(addr, rkey));
                put(block, SECOND_OFFSET, &operands(value, 0));
                (Opcode::AtomicWrite, 0)
            }
            Self::Flush(ref segment) => {
                put(block, OP_OFFSET, segment);
                (Opcode::Flush, 0)
            }
            Self::FastReg { key, ref pages } => {
                put(block, OP_OFFSET, pages);
                (Opcode::FastReg, key)
            }
            Self::LocalInv { key } => (Opcode::LocalInv, key),
            Self::BindMw { key, ref bind } => {
                put(block, OP_OFFSET, bind);
                (Opcode::BindMw, key)
            }
            Self::Frame { node, ref meta } => {
                put(block, OP_OFFSET, meta);
                (Opcode::Frame, u32::from(node))
            }
            Self::Nop => (Opcode::Nop, 0),
        }
    }
}

#[inline(always)]
fn with_imm(imm: Option<u32>, without: Opcode, with: Opcode) -> (Opcode, u32) {
    match imm {
        None => (without, 0),
        Some(imm) => (with, imm),
    }
}

/// Puts the segments of a datagram where they belong.
#[inline(always)]
pub(super) fn put_address(block: &mut [u8; BLOCK_SIZE], to: &DatagramSegment, grh: &GrhSegment) {
    put(block, OP_OFFSET, to);
    put(block, SECOND_OFFSET, grh);
}

/// Puts a segment where it belongs. Offsets and sizes are constants, and all segments lie in the first block.
#[inline(always)]
pub(super) fn put<T: IntoBytes + Immutable>(
    block: &mut [u8; BLOCK_SIZE],
    offset: usize,
    segment: &T,
) {
    let place = block.get_mut(offset..offset.wrapping_add(size_of::<T>()));
    if let Some(place) = place {
        place.copy_from_slice(segment.as_bytes());
    }
}

#[inline(always)]
fn remote(addr: u64, rkey: u32) -> RemoteSegment {
    RemoteSegment {
        addr: U64::new(addr),
        rkey: U32::new(rkey),
        bypassed: U32::new(0),
    }
}

#[inline(always)]
fn operands(operand: u64, compare: u64) -> AtomicSegment {
    AtomicSegment {
        operand: U64::new(operand),
        compare: U64::new(compare),
    }
}
