// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages in the rings of a pool.
//!
//! A ring's entry is a [`Header`], a body that its kind says, and room for a short payload. A longer payload lies in the ring's
//! payload area, whose allocations follow from the lengths alone ([`bulk_start`]): producer and consumer count them alike. Where both nodes
//! know it, the same is said in fewer [lines](mod@super::line).
//! A message longer than [`MAX_FRAGMENT`] takes several entries, each with the whole body; those of other queue pairs may lie between.

use super::Class;
use crate::{
    frame::{FrameMeta, MAX_FRAME, MAX_SUPER_FRAME},
    wqe::{Opcode, MAX_DATAGRAM},
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a ring's entry.
pub const ENTRY_SIZE: u64 = 256;
/// Offset in an entry of a payload that fits there.
pub const ENTRY_PAYLOAD: u64 = 128;
/// Longest payload that lies in its entry.
pub const MAX_INLINE: u32 = 128;
/// Alignment of payloads in the payload area.
pub const BULK_ALIGN: u32 = 64;
/// Longest payload of one entry that is no frame: 64 KiB and a bit.
pub const MAX_FRAGMENT: u32 = 65536 + BULK_ALIGN;
const _: () = assert!(2 * MAX_FRAGMENT <= 1 << super::MIN_LOG_BULK);
const _: () = assert!(MAX_FRAME <= max_frame(super::MIN_LOG_BULK));

/// Longest payload of a [short](is_short) request, and of its response.
pub const MAX_SHORT: u32 = 256;
/// Most bytes of a READ that one of its entries asks for, and that one of its response's hands back; the last may be shorter.
pub const READ_PIECE: u32 = 65536;

/// Bytes of a READ that one of its entries asks for, in rings whose entries have at most so much payload.
#[inline]
pub const fn read_piece(max_payload: u32) -> u32 {
    if max_payload < READ_PIECE {
        max_payload
    } else {
        READ_PIECE
    }
}
const _: () = assert!(READ_PIECE <= MAX_FRAGMENT);
const _: () = assert!(2 * MAX_DATAGRAM <= 1 << super::SHORT_LOG_BULK);

/// Whether a request of so many bytes is short: it goes past those that take long, unless one of its own queue pair is under way.
#[inline]
pub const fn is_short(opcode: Opcode, len: u32) -> bool {
    // How much a flush has to write back, its length does not always say.
    len <= MAX_SHORT && !matches!(opcode, Opcode::Flush)
}

/// Whether a request of that operation brings payload.
#[inline]
pub const fn has_payload(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Send | Opcode::SendImm | Opcode::SendInv | Opcode::Write | Opcode::WriteImm
    )
}

/// Whether a request of that operation, if it is no datagram, takes a receive entry, and so may have [`REQUEST_BYPASSED`].
#[inline]
pub const fn takes_entry(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Send | Opcode::SendImm | Opcode::SendInv | Opcode::WriteImm
    )
}

/// Whether a request of that operation, if it is no datagram, has something in [`RequestBody::operand`].
#[inline]
pub const fn has_operand(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite | Opcode::Flush
    )
}

/// Longest frame in a payload area of that size: it is in one piece, which fits wherever the one before ends.
#[inline]
pub const fn max_frame(log_bulk: u8) -> u32 {
    let half = (1u32 << log_bulk) / 2;
    if half < MAX_SUPER_FRAME {
        half
    } else {
        MAX_SUPER_FRAME
    }
}

/// Longest payload of an entry of a class in a payload area of that size.
#[inline]
pub const fn max_payload(class: Class, log_bulk: u8) -> u32 {
    let half = (1u32 << log_bulk) / 2;
    match class {
        Class::Request | Class::Response if half < MAX_FRAGMENT => half,
        Class::Request | Class::Response => MAX_FRAGMENT,
        Class::Frame => max_frame(log_bulk),
        Class::ShortRequest => MAX_DATAGRAM,
        Class::ShortResponse => MAX_SHORT,
    }
}

/// Bytes that a payload takes of the payload area. One of up to `most_inline` bytes lies in its entry.
#[inline]
pub const fn bulk_size(len: u32, most_inline: u32) -> u32 {
    if len <= most_inline {
        0
    } else {
        len.saturating_add(BULK_ALIGN - 1) & !(BULK_ALIGN - 1)
    }
}

/// Free-running position at which a payload that takes `size` bytes begins if those before it end at `position`: there, or at the area's
/// start where it would reach over its end.
#[inline]
pub const fn bulk_start(position: u32, size: u32, log_bulk: u8) -> u32 {
    let area = 1u32 << log_bulk;
    let left = area - (position & (area - 1));
    if size <= left {
        position
    } else {
        position.wrapping_add(left)
    }
}

wire_enum! {
    /// Kind of an entry.
    Kind: u8 {
        /// A request, or a part of it ([`RequestBody`]).
        Request = 1,
        /// A response, or a part of it ([`ResponseBody`]).
        Response = 2,
        /// An Ethernet frame ([`FrameBody`]).
        Frame = 3,
        /// A requester that was refused may try again; or a long FLUSH is under way ([`NotifyBody`]).
        Notify = 4,
    }
}

/// First part of every entry.
#[derive(
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
)]
#[repr(C)]
pub struct Header {
    /// A [`Kind`].
    pub kind: u8,
    /// Zero.
    pub reserved0: [u8; 3],
    /// Bytes of payload of this entry.
    pub payload_len: U32,
    /// Bytes of the message that come before those that this entry brings or asks for.
    pub offset: U32,
    /// The entry's index.
    pub index: U32,
    /// Tag of the source's epoch.
    pub source: U16,
    /// Tag of the target's epoch.
    pub target: U16,
    /// In a ring of long messages: index in that of short ones behind the entries that are to be taken before this one.
    pub behind: U32,
    /// Zero.
    pub reserved1: [u8; 8],
}
assert_size!(Header, 32);

/// Bytes of a body.
pub const BODY_SIZE: usize = 96;

/// An entry, but for the payload that may follow.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Entry {
    /// What it is.
    pub header: Header,
    /// What it says; of which kind, the header says.
    pub body: [u8; BODY_SIZE],
}
assert_size!(Entry, ENTRY_PAYLOAD as usize);

/// The receiver's completion counts as solicited.
pub const REQUEST_SOLICITED: u8 = 1 << 0;
/// It comes from a UD queue pair; [`RequestBody::operand`] begins with the network header.
pub const REQUEST_DATAGRAM: u8 = 1 << 1;
/// The network header of a datagram is that of IPv4.
pub const REQUEST_IPV4: u8 = 1 << 2;
/// Of a connected queue pair: whatever came from it before, its requests are in order again from this one on.
pub const REQUEST_START: u8 = 1 << 3;
/// The datagram is sent in the VLAN of [`RequestBody::vlan_id`].
pub const REQUEST_VLAN: u8 = 1 << 4;

/// Of a connected queue pair: [`RequestBody::operand`] begins with what [`crate::wqe::SendSegment::bypassed`] says, or of a WRITE without
/// immediate data [`crate::wqe::RemoteSegment::bypassed`], which is not 0.
pub const REQUEST_BYPASSED: u8 = 1 << 5;

/// Bytes of [`RequestBody::operand`].
pub const OPERAND_SIZE: usize = 48;

/// A request, or a part of it: of a SEND or WRITE the payload that lies in the entry, of a READ the next [`READ_PIECE`] bytes. All
/// parts of a request have the same body.
#[derive(
    FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct RequestBody {
    /// A [`crate::wqe::Opcode`].
    pub opcode: u8,
    /// `REQUEST_*`.
    pub flags: u8,
    /// With [`REQUEST_VLAN`] at most [`crate::admin::MAX_VLAN_ID`]; else zero.
    pub vlan_id: U16,
    /// Given back in the response. Goes up by one with each request of a queue pair but for datagrams.
    pub sequence: U32,
    /// Queue pair that it comes from.
    pub source_qpn: U32,
    /// Queue pair that it is for.
    pub target_qpn: U32,
    /// Epoch that the target must have; of a datagram 0.
    pub target_epoch: U32,
    /// Bytes that the operation is about.
    pub len: U32,
    /// Address in the target's region.
    pub remote_addr: U64,
    /// Key of the target's region; queue key of a datagram.
    pub remote_key: U32,
    /// Immediate data, or the key to invalidate.
    pub imm_or_key: U32,
    /// [`crate::wqe::AtomicSegment`] of an atomic operation, `FlushSegment` of a flush, network header of a datagram (40 bytes).
    pub operand: [u8; OPERAND_SIZE],
    /// Packet sequence number that the sender's connection begins with; of a datagram 0.
    pub psn: U32,
    /// Zero.
    pub reserved1: [u8; 4],
}
assert_size!(RequestBody, BODY_SIZE);

impl RequestBody {
    /// Bytes of a READ that the entry at this offset asks for, where each but the last asks for `piece`.
    #[inline]
    pub fn piece_len(&self, offset: u32, piece: u32) -> u32 {
        let left = self.len.get().saturating_sub(offset);
        if left < piece {
            left
        } else {
            piece
        }
    }

    /// What [`crate::wqe::SendSegment::bypassed`] or [`crate::wqe::RemoteSegment::bypassed`] says.
    #[inline]
    pub fn bypassed(&self) -> u32 {
        let [a, b, c, d, ..] = self.operand;
        match self.flags & REQUEST_BYPASSED {
            0 => 0,
            _ => u32::from_le_bytes([a, b, c, d]),
        }
    }

    /// Bytes of payload that all parts of the request have together.
    #[inline]
    pub fn payload_len(&self) -> u32 {
        match Opcode::try_from(self.opcode) {
            Ok(opcode) if has_payload(opcode) => self.len.get(),
            _ => 0,
        }
    }
}

wire_enum! {
    /// What became of a request.
    Reply: u8 {
        /// It is done, or was refused: `status` says which.
        Complete = 0,
        /// The target's queue pair has no receive buffer. A [`Kind::Notify`] follows when it has; the request is sent anew then.
        NoBuffer = 1,
        /// The target's queue pair does not receive: it is not connected yet, in the error state, or gone. A [`Kind::Notify`] follows if that
        /// changes.
        NotReady = 2,
        /// One before it was refused, or the target was reset since: it is sent anew, with [`REQUEST_START`].
        OutOfSequence = 3,
        /// Of a WRITE that comes behind entries of a [process ring](crate::process_ring): the target's process takes entries of it just now, or stands
        /// still while it does. A [`Kind::Notify`] may follow when it does not any more.
        RingHeld = 4,
    }
}

/// A response. What one entry of a READ asked for is its payload.
#[derive(
    FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct ResponseBody {
    /// A [`Reply`].
    pub reply: u8,
    /// A [`crate::status::WcStatus`].
    pub status: u8,
    /// Which check failed; for people.
    pub check: u8,
    /// With [`Reply::NoBuffer`]: `min_rnr_timer` of the target's queue pair, at most [`crate::admin::MAX_RNR_TIMER`].
    pub rnr_timer: u8,
    /// That of the request.
    pub sequence: U32,
    /// Queue pair that the request came from.
    pub source_qpn: U32,
    /// Queue pair that the request was for.
    pub target_qpn: U32,
    /// What an atomic operation found.
    pub found: U64,
    /// Of a WRITE or READ: serial of a grant, with which WRITEs to its region may be carried out directly. 0: there is none, and what follows is 0.
    pub grant_serial: U64,
    /// Offset in the pool of the memory that is granted: all of the region that the request was about.
    pub grant_offset: U64,
    /// Address of its first byte in the region.
    pub grant_addr: U64,
    /// Bytes of it.
    pub grant_len: U64,
    /// Key of the region.
    pub grant_key: U32,
    /// Number of the grant among those for this peer.
    pub grant_slot: U16,
    /// Receive entries of the target's queue pair that are posted and not used, behind this request. More requests that take one are
    /// not sent before they are answered.
    pub credits: U16,
    /// `GRANT_*`.
    pub grant_flags: u8,
    /// Zero.
    pub reserved1: [u8; 31],
}
assert_size!(ResponseBody, BODY_SIZE);

/// The frame is for whoever wants it; without this flag it is for this node.
pub const FRAME_FLOOD: u8 = 1 << 0;

/// A frame; its bytes are the payload.
#[derive(
    FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct FrameBody {
    /// Offload state.
    pub meta: FrameMeta,
    /// Queue pair that it comes from.
    pub source_qpn: U32,
    /// `FRAME_FLOOD`.
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 75],
}
assert_size!(FrameBody, BODY_SIZE);

/// Value of [`NotifyBody::qpn`] that stands for all queue pairs of the sender.
pub const NOTIFY_ALL: u32 = u32::MAX;

/// The receiver's queue pair has a message in its [process ring](crate::process_ring): the event of its receive completion queue is to be
/// made, if that is armed. With [`NOTIFY_ALL`] this holds for all queue pairs that are connected to the sender's.
pub const NOTIFY_EVENT: u8 = 1 << 0;

/// A queue pair of the sender has receive buffers again, has changed its state, or is in the middle of a long FLUSH.
#[derive(
    FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct NotifyBody {
    /// The sender's queue pair, as `target_qpn` of the response that refused.
    pub qpn: U32,
    /// The receiver's queue pair, `source_qpn` of that response; 0 with [`NOTIFY_ALL`].
    pub source_qpn: U32,
    /// [`NOTIFY_EVENT`], or 0.
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 87],
}
assert_size!(NotifyBody, BODY_SIZE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_never_reach_over_the_end() {
        let area = 1 << 18;
        let size = |len| bulk_size(len, MAX_INLINE);
        assert_eq!(size(MAX_INLINE), 0);
        assert_eq!(size(MAX_INLINE + 1), 192);
        assert_eq!(size(MAX_FRAGMENT), MAX_FRAGMENT);
        assert_eq!(bulk_size(1, 0), 64);
        assert_eq!(bulk_start(area - 192, 192, 18), area - 192);
        assert_eq!(bulk_start(area - 128, 192, 18), area);
        assert_eq!(bulk_start(u32::MAX - 127, 192, 18), 0);
        assert_eq!(bulk_start(area - 64, size(MAX_INLINE), 18), area - 64);
    }
}
