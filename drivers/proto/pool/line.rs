// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Entries of lines: how two nodes that both know them ([`CAP_POOL_LINES`](super::CAP_POOL_LINES)) use the rings between them.
//!
//! An entry is one line, or two. Each begins with a stamp, a [`LinkWord`](super::LinkWord) with the index of the line, which is written last: so
//! the line is there once its stamp is, and no word of the producer's has to be read. What a line says is what the [`Header`] and
//! the body of an entry of 256 bytes do, which is described in [`message`].
//!
//! [`Header`]: super::message::Header
//! [`message`]: super::message

use super::Class;
use crate::frame::FrameMeta;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Lines in the room of an entry of 256 bytes.
pub const LINES_PER_ENTRY: u32 = 4;
/// Most lines of an entry.
pub const MAX_LINES: u32 = 2;
/// Bytes of a line's stamp.
pub const LINE_STAMP: u64 = size_of::<u64>() as u64;
/// Bytes of a line behind its stamp.
pub const LINE_BODY: usize = 56;
const _: () = assert!(LINE_STAMP + LINE_BODY as u64 == super::LINE);
/// Longest payload at the end of an entry's first line, in rings of short messages.
pub const LINE_INLINE: u32 = 16;

/// Longest payload in the first line of an entry in a ring of that class.
#[inline]
pub const fn line_inline(class: Class) -> u32 {
    match class {
        Class::ShortRequest | Class::ShortResponse => LINE_INLINE,
        Class::Request | Class::Response | Class::Frame => 0,
    }
}

/// What the first line of every entry begins with.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LineHead {
    /// A [`Kind`](super::message::Kind).
    pub kind: u8,
    /// Lines of the entry: 1 or 2, as its kind and what it says require.
    pub lines: u8,
}

/// First line of a request, or of a part of it. An [`OperandLine`] follows with an atomic operation, a flush and a datagram.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct RequestLine {
    /// A request.
    pub head: LineHead,
    /// As in [`RequestBody`](super::message::RequestBody), and so are the others.
    pub opcode: u8,
    /// `REQUEST_*`.
    pub flags: u8,
    /// One more with each request of a queue pair but for datagrams.
    pub sequence: U32,
    /// Queue pair that it comes from.
    pub source_qpn: U32,
    /// Queue pair that it is for.
    pub target_qpn: U32,
    /// Packet sequence number that the sender's connection begins with.
    pub psn: U32,
    /// Bytes that the operation is about.
    pub len: U32,
    /// Address in the target's region.
    pub remote_addr: U64,
    /// Key of the target's region; queue key of a datagram.
    pub remote_key: U32,
    /// Immediate data, or the key to invalidate.
    pub imm_or_key: U32,
    /// In a ring of long requests a [`LongPart`]; in one of short ones it ends with the payload, if that fits here.
    pub room: [u8; LINE_INLINE as usize],
}
assert_size!(RequestLine, LINE_BODY);

/// Which part of a long request an entry is.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LongPart {
    /// Bytes of the message that come before those that this entry brings or asks for.
    pub offset: U32,
    /// Bytes of payload of this entry.
    pub payload_len: U32,
    /// Index in the ring of short messages behind the entries that are to be taken before this one.
    pub behind: U32,
    /// Zero.
    pub reserved: [u8; 4],
}
assert_size!(LongPart, LINE_INLINE as usize);

/// Second line of a request.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct OperandLine {
    /// As [`RequestBody::operand`](super::message::RequestBody::operand).
    pub operand: [u8; super::message::OPERAND_SIZE],
    /// VLAN that a datagram is sent in, if it is.
    pub vlan_id: U16,
    /// Zero.
    pub reserved: [u8; 6],
}
assert_size!(OperandLine, LINE_BODY);

/// First line of a response. A [`GrantLine`] follows if it brings a grant.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ResponseLine {
    /// A response.
    pub head: LineHead,
    /// As in [`ResponseBody`](super::message::ResponseBody), and so are the others.
    pub reply: u8,
    /// A [`WcStatus`](crate::status::WcStatus).
    pub status: u8,
    /// That of the request.
    pub sequence: U32,
    /// Queue pair that the request came from.
    pub source_qpn: U32,
    /// Queue pair that the request was for.
    pub target_qpn: U32,
    /// Index in the ring of short responses behind the entries that are to be taken before this one.
    pub behind: U32,
    /// Bytes of what a READ asked for that come before those that this entry brings.
    pub offset: U32,
    /// Bytes of payload of this entry.
    pub payload_len: U32,
    /// `min_rnr_timer` of the target's queue pair.
    pub rnr_timer: u8,
    /// Which check failed.
    pub check: u8,
    /// Receive entries of the target's queue pair that are posted and not used.
    pub credits: U16,
    /// What an atomic operation found.
    pub found: U64,
    /// In the ring of short responses it ends with the payload, if that fits here.
    pub room: [u8; LINE_INLINE as usize],
}
assert_size!(ResponseLine, LINE_BODY);

/// Second line of a response: the grant that it brings, as in [`ResponseBody`](super::message::ResponseBody).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct GrantLine {
    /// Serial of the grant; not 0.
    pub serial: U64,
    /// Offset in the pool of what is granted.
    pub offset: U64,
    /// Address of its first byte in the region.
    pub addr: U64,
    /// Bytes of it.
    pub len: U64,
    /// Key of the region.
    pub key: U32,
    /// Number of the grant among those for this peer.
    pub slot: U16,
    /// [`GRANT_READS`](super::GRANT_READS).
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 17],
}
assert_size!(GrantLine, LINE_BODY);

/// Line of a frame.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct FrameLine {
    /// A frame.
    pub head: LineHead,
    /// `FRAME_FLOOD`.
    pub flags: u8,
    /// Zero.
    pub reserved0: u8,
    /// Bytes of the frame.
    pub payload_len: U32,
    /// Queue pair that it comes from.
    pub source_qpn: U32,
    /// Zero.
    pub reserved1: [u8; 4],
    /// Offload state.
    pub meta: FrameMeta,
    /// Zero.
    pub reserved2: [u8; 24],
}
assert_size!(FrameLine, LINE_BODY);

/// Line of a notice.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct NotifyLine {
    /// A notice.
    pub head: LineHead,
    /// Zero.
    pub reserved0: [u8; 6],
    /// The receiver's queue pair, as in [`NotifyBody`](super::message::NotifyBody).
    pub source_qpn: U32,
    /// The sender's queue pair.
    pub qpn: U32,
    /// Index in the ring of short responses behind the entries that are to be taken before this one.
    pub behind: U32,
    /// As in [`NotifyBody`](super::message::NotifyBody).
    pub flags: u8,
    /// Zero.
    pub reserved1: [u8; 35],
}
assert_size!(NotifyLine, LINE_BODY);
