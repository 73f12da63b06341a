// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Send requests before they are descriptors.

use nupa_proto::{
    frame::FrameMeta,
    wqe::{
        blocks_for, Control, Opcode, RemoteSegment, Sge, DATA_OFFSET, MAX_INLINE, MAX_SEND_SGE,
        WQE_INLINE,
    },
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::IntoBytes;

/// What a send request asks for. Immediate data is in network order as given.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Consumes a receive buffer at the peer.
    Send {
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

/// The bytes that a request is about.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// They lie in registered memory.
    Sges(&'a [Sge]),
    /// They are copied into the descriptor.
    Inline(&'a [u8]),
}

/// A send request.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Handed back in the completion.
    pub wr_id: u64,
    /// `WQE_SIGNALED`, `WQE_SOLICITED`, `WQE_FENCE`.
    pub flags: u8,
    /// What to do.
    pub operation: Operation,
    /// With what.
    pub data: Data<'a>,
}

/// A request in wire form, but for the ring.
pub(super) struct Encoded<'a> {
    pub(super) head: [u8; DATA_OFFSET],
    pub(super) data: &'a [u8],
    pub(super) blocks: u8,
}

impl<'a> SendRequest<'a> {
    /// Blocks of the ring that the request takes, if it fits a descriptor at all.
    #[inline]
    pub fn blocks(&self) -> Option<u8> {
        let (fits, bytes) = match self.data {
            Data::Sges(sges) => (sges.len() <= MAX_SEND_SGE, sges.as_bytes()),
            Data::Inline(bytes) => (bytes.len() <= MAX_INLINE, bytes),
        };
        fits.then(|| u8::try_from(blocks_for(bytes.len())).ok())?
    }

    #[inline]
    pub(super) fn encode(&self) -> Option<Encoded<'a>> {
        let blocks = self.blocks()?;
        let (count, data, inline) = match self.data {
            Data::Sges(sges) => (sges.len(), sges.as_bytes(), 0),
            Data::Inline(bytes) => (bytes.len(), bytes, WQE_INLINE),
        };
        let (opcode, imm_or_key, segment) = self.operation.encode();
        let control = Control {
            opcode: opcode.to_wire(),
            flags: self.flags & !WQE_INLINE | inline,
            blocks,
            data_count: u8::try_from(count).ok()?,
            imm_or_key: U32::new(imm_or_key),
            wr_id: U64::new(self.wr_id),
        };
        let mut head = [0; DATA_OFFSET];
        let (first, second) = head.split_at_mut(size_of::<Control>());
        first.copy_from_slice(control.as_bytes());
        second.copy_from_slice(&segment);
        Some(Encoded { head, data, blocks })
    }
}

impl Operation {
    /// Opcode, `imm_or_key` and operation segment.
    #[inline]
    fn encode(&self) -> (Opcode, u32, [u8; 16]) {
        match *self {
            Self::Send { imm: None } => (Opcode::Send, 0, [0; 16]),
            Self::Send { imm: Some(imm) } => (Opcode::SendImm, imm, [0; 16]),
            Self::Write {
                addr,
                rkey,
                imm: None,
            } => (Opcode::Write, 0, remote(addr, rkey)),
            Self::Write {
                addr,
                rkey,
                imm: Some(imm),
            } => (Opcode::WriteImm, imm, remote(addr, rkey)),
            Self::Read { addr, rkey } => (Opcode::Read, 0, remote(addr, rkey)),
            Self::Frame { node, meta } => {
                (Opcode::Frame, u32::from(node), zerocopy::transmute!(meta))
            }
            Self::Nop => (Opcode::Nop, 0, [0; 16]),
        }
    }
}

#[inline]
fn remote(addr: u64, rkey: u32) -> [u8; 16] {
    let segment = RemoteSegment {
        addr: U64::new(addr),
        rkey: U32::new(rkey),
        reserved: U32::new(0),
    };
    zerocopy::transmute!(segment)
}
