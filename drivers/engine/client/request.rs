// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Send requests before they are descriptors.

use super::operation::{put, Operation};
use nupa_proto::wqe::{Control, Sge, BLOCK_SIZE, MAX_INLINE, MAX_SEND_SGE, WQE_INLINE};
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

/// A request in wire form.
pub(super) struct Encoded<'a> {
    /// The first block: all segments, then as much of the data as fits.
    pub(super) first: [u8; BLOCK_SIZE],
    /// The data behind it, which begins with the second block.
    pub(super) rest: &'a [u8],
    pub(super) blocks: u8,
}

impl<'a> SendRequest<'a> {
    /// Blocks of the ring that the request takes, if it fits a descriptor at all.
    #[inline(always)]
    pub fn blocks(&self) -> Option<u8> {
        let (fits, bytes) = match self.data {
            Data::Sges(sges) => (sges.len() <= MAX_SEND_SGE, sges.as_bytes()),
            Data::Inline(bytes) => (bytes.len() <= MAX_INLINE, bytes),
        };
        let end = match self.operation.data_offset() {
            Some(offset) => offset.wrapping_add(bytes.len()),
            None if bytes.is_empty() => BLOCK_SIZE,
            None => return None,
        };
        fits.then(|| u8::try_from(end.div_ceil(BLOCK_SIZE)).ok())?
    }

    #[inline(always)]
    pub(super) fn encode(&self) -> Option<Encoded<'a>> {
        let blocks = self.blocks()?;
        let mut first = [0; BLOCK_SIZE];
        let (opcode, imm_or_key) = self.operation.encode(&mut first);
        let room = first.get_mut(self.operation.data_offset().unwrap_or(BLOCK_SIZE)..)?;
        let (count, rest, inline) = match self.data {
            Data::Sges(sges) => (sges.len(), put_entries(room, sges), 0),
            Data::Inline(bytes) => (bytes.len(), put_bytes(room, bytes), WQE_INLINE),
        };
        let control = Control {
            opcode: opcode.to_wire(),
            flags: self.flags & !WQE_INLINE | inline,
            blocks,
            data_count: u8::try_from(count).ok()?,
            imm_or_key: U32::new(imm_or_key),
            wr_id: U64::new(self.wr_id),
        };
        put(&mut first, 0, &control);
        Some(Encoded {
            first,
            rest,
            blocks,
        })
    }
}

/// Puts as many entries into `room` as it holds, and returns the rest. One at a time, because copies of a known length
/// are two instructions.
#[inline(always)]
fn put_entries<'a>(room: &mut [u8], sges: &'a [Sge]) -> &'a [u8] {
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
    for (to, from) in room.iter_mut().zip(near) {
        *to = *from;
    }
    far
}
