// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Send requests before they are descriptors.

use super::operation::{put, put_address, Operation};
use core::mem::offset_of;
use nupa_proto::wqe::{
    Control, DatagramSegment, GrhSegment, Opcode, RemoteSegment, SendSegment, Sge, BLOCK_SIZE,
    DATA_OFFSET, MAX_INLINE, MAX_SEND_SGE, OP_OFFSET, UD_DATA_OFFSET, WQE_INLINE,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::IntoBytes;

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

/// A request in wire form, all but its data.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Control and operation segments.
    block: [u8; BLOCK_SIZE],
    /// Where the data begins, if there may be any.
    data_offset: Option<usize>,
}

/// A request in wire form.
pub(super) struct Encoded<'a> {
    /// The first block: all segments, then as much of the data as fits.
    pub(super) first: &'a [u8; BLOCK_SIZE],
    /// The data behind it, which begins with the second block.
    pub(super) rest: &'a [u8],
    pub(super) blocks: u8,
}

impl SendRequest<'_> {
    /// The request without its data.
    #[inline(always)]
    pub fn head(&self) -> Head {
        Head::new(self.wr_id, self.flags, &self.operation)
    }
}

impl Head {
    /// Segments of a request; see [`SendRequest`].
    #[inline(always)]
    pub fn new(wr_id: u64, flags: u8, operation: &Operation) -> Self {
        let mut block = [0; BLOCK_SIZE];
        let (opcode, imm_or_key) = operation.encode(&mut block);
        let control = Control {
            opcode: opcode.to_wire(),
            flags: flags & !WQE_INLINE,
            blocks: 0,
            data_count: 0,
            imm_or_key: U32::new(imm_or_key),
            wr_id: U64::new(wr_id),
        };
        put(&mut block, 0, &control);
        Self {
            block,
            data_offset: operation.data_offset(),
        }
    }

    /// Makes a SEND one of a datagram; false if it is no SEND.
    pub fn address(&mut self, to: &DatagramSegment, grh: &GrhSegment) -> bool {
        let [opcode, ..] = self.block;
        if ![Opcode::Send, Opcode::SendImm]
            .map(Opcode::to_wire)
            .contains(&opcode)
        {
            return false;
        }
        put_address(&mut self.block, to, grh);
        self.data_offset = Some(UD_DATA_OFFSET);
        true
    }

    /// Says how many messages of the connection went past the engines before this one, see [`SendSegment::bypassed`]; of a WRITE without
    /// immediate data up to which line of the peer's process ring, see [`RemoteSegment::bypassed`]. Of another request that takes no receive entry, and of a
    /// datagram, it says nothing.
    #[inline]
    pub fn set_bypassed(&mut self, count: u32) {
        const {
            assert!(offset_of!(Control, opcode) == 0);
        }
        let [opcode, ..] = self.block;
        let sends = [Opcode::Send, Opcode::SendImm, Opcode::SendInv].map(|opcode| opcode.to_wire());
        let writes = [Opcode::Write, Opcode::WriteImm].map(|opcode| opcode.to_wire());
        let offset = if writes.contains(&opcode) {
            const { OP_OFFSET + offset_of!(RemoteSegment, bypassed) }
        } else if sends.contains(&opcode) && self.data_offset == Some(DATA_OFFSET) {
            const { OP_OFFSET + offset_of!(SendSegment, bypassed) }
        } else {
            return;
        };
        put(&mut self.block, offset, &U32::new(count));
    }

    /// Adds the data, or puts it in place of the last one; none if that does not fit a descriptor. In place, because a copy
    /// would have to wait for what was just stored.
    #[inline(always)]
    pub(super) fn with<'a>(&'a mut self, data: Data<'a>) -> Option<Encoded<'a>> {
        const {
            assert!(offset_of!(Control, flags) == 1 && offset_of!(Control, blocks) == 2);
            assert!(offset_of!(Control, data_count) == 3);
        }
        let bytes = match data {
            Data::Sges(sges) if sges.len() <= MAX_SEND_SGE => sges.as_bytes(),
            Data::Inline(bytes) if bytes.len() <= MAX_INLINE => bytes,
            _ => return None,
        };
        let offset = match self.data_offset {
            Some(offset) => offset,
            None if bytes.is_empty() => BLOCK_SIZE,
            None => return None,
        };
        let first = &mut self.block;
        let needed = offset.wrapping_add(bytes.len()).div_ceil(BLOCK_SIZE);
        let needed = u8::try_from(needed).ok()?;
        let room = first.get_mut(offset..)?;
        let (data_count, rest) = match data {
            Data::Sges(sges) => (sges.len(), put_entries(room, sges)),
            Data::Inline(bytes) => (bytes.len(), put_bytes(room, bytes)),
        };
        let [_, flags, blocks, count, ..] = first;
        *flags &= !WQE_INLINE;
        if matches!(data, Data::Inline(_)) {
            *flags |= WQE_INLINE;
        }
        *blocks = needed;
        *count = u8::try_from(data_count).ok()?;
        Some(Encoded {
            first,
            rest,
            blocks: needed,
        })
    }
}

/// Puts as many entries into `room` as it holds, and returns the rest. One at a time, because copies of a known length
/// are two instructions.
#[inline(always)]
fn put_entries<'a>(room: &mut [u8], sges: &'a [Sge]) -> &'a [u8] {
    if let ([sge], Some(to)) = (sges, room.first_chunk_mut::<{ size_of::<Sge>() }>()) {
        // What most requests have.
        to.copy_from_slice(sge.as_bytes());
        return &[];
    }
    let mut rest = sges;
    for to in room.chunks_exact_mut(size_of::<Sge>()) {
        let Some((sge, behind)) = rest.split_first() else {
            break;
        };
        to.copy_from_slice(sge.as_bytes());
        rest = behind;
    }
    rest.as_bytes()
}

/// Puts as many bytes into `room` as it holds, and returns the rest.
#[inline]
fn put_bytes<'a>(room: &mut [u8], bytes: &'a [u8]) -> &'a [u8] {
    let (near, far) = bytes.split_at(bytes.len().min(room.len()));
    if let Some(place) = room.get_mut(..near.len()) {
        place.copy_from_slice(near);
    }
    far
}
