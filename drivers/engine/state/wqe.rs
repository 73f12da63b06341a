// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Send descriptors: from bytes to checked values.

use crate::state::check::{Check, WcError};
use nupa_proto::{
    admin::QpType,
    frame::FrameMeta,
    status::WcStatus,
    wqe::{
        BindSegment, Control, DatagramSegment, FastRegSegment, FlushSegment, GrhSegment, Opcode,
        RemoteSegment, SendSegment, Sge, ATOMIC_DATA_OFFSET, BLOCK_SIZE, DATA_OFFSET, FLUSH_GLOBAL,
        FLUSH_MR, FLUSH_PERSISTENT, FLUSH_RANGE, MAX_BLOCKS, MAX_INLINE, MAX_SEND_SGE, OP_OFFSET,
        SECOND_OFFSET, UD_DATA_OFFSET, WQE_FENCE, WQE_INLINE, WQE_SIGNALED, WQE_SOLICITED,
    },
};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// All flags that a descriptor may have.
const FLAGS: u8 = WQE_SIGNALED | WQE_SOLICITED | WQE_FENCE | WQE_INLINE;

/// Room for the longest descriptor, and the copy of one that is being worked on.
#[derive(Debug)]
pub(crate) struct Wqe {
    bytes: [u8; MAX_BLOCKS * BLOCK_SIZE],
}

/// The control segment, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) opcode: Opcode,
    pub(crate) flags: u8,
    pub(crate) blocks: u8,
    pub(crate) imm_or_key: u32,
    pub(crate) wr_id: u64,
    data_count: u8,
    /// Where entries or inline bytes begin.
    pub(crate) data_offset: u8,
}

impl Header {
    #[inline(always)]
    pub(crate) fn is_inline(&self) -> bool {
        self.flags & WQE_INLINE != 0
    }

    /// Inline bytes of the descriptor.
    #[inline(always)]
    pub(crate) fn inline_len(&self) -> u32 {
        u32::from(self.data_count)
    }

    /// Neither entries nor inline bytes follow.
    #[inline(always)]
    pub(crate) fn has_no_data(&self) -> bool {
        self.data_count == 0
    }

    #[inline(always)]
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

const _: () = assert!(UD_DATA_OFFSET <= u8::MAX as usize);

/// Where entries or inline bytes begin.
#[inline(always)]
const fn data_offset(kind: QpType, opcode: Opcode) -> usize {
    match (kind, opcode) {
        (QpType::Ud, _) => UD_DATA_OFFSET,
        (_, Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite) => ATOMIC_DATA_OFFSET,
        _ => DATA_OFFSET,
    }
}

pub(crate) const fn malformed(check: Check) -> WcError {
    WcError::new(WcStatus::LocalQpOperation, check)
}

/// Checks the operation segment of a flush.
pub(crate) fn check_flush(segment: &FlushSegment) -> Result<(), WcError> {
    let kinds = FLUSH_GLOBAL | FLUSH_PERSISTENT;
    let valid = segment.reserved == [0; 6]
        && segment.kind & !kinds == 0
        && segment.kind != 0
        && matches!(segment.level, FLUSH_RANGE | FLUSH_MR);
    match valid {
        true => Ok(()),
        false => Err(malformed(Check::Reserved)),
    }
}

impl Wqe {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; MAX_BLOCKS * BLOCK_SIZE],
        }
    }

    /// Where block `n` is copied to.
    #[inline(always)]
    pub(crate) fn block_mut(&mut self, n: u8) -> Option<&mut [u8; BLOCK_SIZE]> {
        let start = usize::from(n).wrapping_mul(BLOCK_SIZE);
        self.bytes.get_mut(start..)?.first_chunk_mut()
    }

    /// What the completion hands back, of a descriptor that need not be valid.
    pub(crate) fn wr_id(&self) -> u64 {
        self.at(0)
            .map_or(0, |control: &Control| control.wr_id.get())
    }

    /// Checks the control segment; only the first block need be there.
    #[inline(always)]
    pub(crate) fn header(&self, kind: QpType) -> Result<Header, WcError> {
        let control: &Control = self.at(0)?;
        let opcode = Opcode::try_from(control.opcode).map_err(|_| malformed(Check::Opcode))?;
        if control.flags & !FLAGS != 0 {
            return Err(malformed(Check::Flags));
        }
        let count = usize::from(control.data_count);
        let (most, bytes) = if control.flags & WQE_INLINE != 0 {
            (MAX_INLINE, count)
        } else {
            (MAX_SEND_SGE, count.wrapping_mul(size_of::<Sge>()))
        };
        if count > most {
            return Err(malformed(Check::DataCount));
        }
        let blocks = usize::from(control.blocks);
        let data_offset = data_offset(kind, opcode);
        let needed = data_offset.wrapping_add(bytes).div_ceil(BLOCK_SIZE);
        if blocks > MAX_BLOCKS || blocks < needed {
            return Err(malformed(Check::Blocks));
        }
        Ok(Header {
            opcode,
            flags: control.flags,
            blocks: control.blocks,
            imm_or_key: control.imm_or_key.get(),
            wr_id: control.wr_id.get(),
            data_count: control.data_count,
            data_offset: data_offset as u8,
        })
    }

    /// The operation segment of a SEND of a connected queue pair that has process rings or not.
    #[inline(always)]
    pub(crate) fn send(&self, has_rings: bool) -> Result<&SendSegment, WcError> {
        let segment: &SendSegment = self.at(OP_OFFSET)?;
        if segment.reserved != [0; 12] || segment.bypassed.get() != 0 && !has_rings {
            return Err(malformed(Check::Reserved));
        }
        Ok(segment)
    }

    /// The operation segment of a remote access that is no WRITE.
    #[inline(always)]
    pub(crate) fn remote(&self) -> Result<&RemoteSegment, WcError> {
        self.remote_behind(false)
    }

    /// The operation segment of a WRITE of a queue pair that has process rings or not.
    #[inline(always)]
    pub(crate) fn remote_behind(&self, has_rings: bool) -> Result<&RemoteSegment, WcError> {
        let segment: &RemoteSegment = self.at(OP_OFFSET)?;
        if segment.bypassed.get() != 0 && !has_rings {
            return Err(malformed(Check::Reserved));
        }
        Ok(segment)
    }

    /// The operation segment of a fast registration.
    pub(crate) fn fast_reg(&self) -> Result<&FastRegSegment, WcError> {
        let segment: &FastRegSegment = self.at(OP_OFFSET)?;
        if segment.reserved != [0; 7] {
            return Err(malformed(Check::Reserved));
        }
        Ok(segment)
    }

    /// The operation segment of a window's binding.
    pub(crate) fn bind(&self) -> Result<&BindSegment, WcError> {
        self.at(OP_OFFSET)
    }

    /// The operation segment of a datagram.
    pub(crate) fn datagram(&self) -> Result<&DatagramSegment, WcError> {
        let segment: &DatagramSegment = self.at(OP_OFFSET)?;
        if segment.reserved != [0; 6] {
            return Err(malformed(Check::Reserved));
        }
        Ok(segment)
    }

    /// The second segment of a datagram.
    pub(crate) fn grh(&self) -> Result<&GrhSegment, WcError> {
        let segment: &GrhSegment = self.at(SECOND_OFFSET)?;
        if segment.reserved != [0; 8] {
            return Err(malformed(Check::Reserved));
        }
        Ok(segment)
    }

    /// Remote address and key of an atomic write or a flush.
    pub(crate) fn place(&self, opcode: Opcode) -> Result<(u64, u32), WcError> {
        if opcode == Opcode::Flush {
            let segment = self.flush()?;
            return Ok((segment.addr.get(), segment.rkey.get()));
        }
        let segment = self.remote()?;
        Ok((segment.addr.get(), segment.rkey.get()))
    }

    /// The operation segment of a flush.
    pub(crate) fn flush(&self) -> Result<&FlushSegment, WcError> {
        let segment: &FlushSegment = self.at(OP_OFFSET)?;
        check_flush(segment)?;
        Ok(segment)
    }

    /// From the segment on that says what an atomic operation, an atomic write or a flush does.
    pub(crate) fn operand(&self, opcode: Opcode) -> &[u8] {
        let start = match opcode {
            Opcode::Flush => OP_OFFSET,
            _ => SECOND_OFFSET,
        };
        self.bytes.get(start..).unwrap_or_default()
    }

    /// The offload state of a frame.
    #[inline(always)]
    pub(crate) fn meta(&self) -> Result<&FrameMeta, WcError> {
        self.at(OP_OFFSET)
    }

    /// Scatter/gather entries; none with inline data.
    #[inline(always)]
    pub(crate) fn sges(&self, header: &Header) -> impl Iterator<Item = &Sge> {
        let count = if header.is_inline() {
            0
        } else {
            usize::from(header.data_count)
        };
        let start = usize::from(header.data_offset);
        let bytes = self.bytes.get(start..).unwrap_or_default();
        let entries = bytes.chunks_exact(size_of::<Sge>()).take(count);
        entries.filter_map(|entry| Sge::ref_from_bytes(entry).ok())
    }

    /// `len` bytes from `start`: inline data.
    #[inline(always)]
    pub(crate) fn inline(&self, start: u8, len: u32) -> &[u8] {
        let bytes = self.bytes.get(usize::from(start)..).unwrap_or_default();
        bytes.get(..len as usize).unwrap_or_default()
    }

    /// A segment, where it lies: copying structures of bytes about costs more than reading their fields once.
    #[inline(always)]
    fn at<T: FromBytes + KnownLayout + Immutable>(&self, offset: usize) -> Result<&T, WcError> {
        let bytes = self.bytes.get(offset..).unwrap_or_default();
        let segment = T::ref_from_prefix(bytes);
        segment
            .map(|(value, _)| value)
            .map_err(|_| malformed(Check::Blocks))
    }
}
