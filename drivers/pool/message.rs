// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages: what a sender says, and what a receiver believes.

use crate::{line::is_acknowledged, Poisoned};
use core::ops::Range;
use nupa_proto::{
    admin::{MAX_RNR_TIMER, MAX_VLAN_ID},
    frame::MIN_FRAME,
    pool::{
        message::{
            is_short, read_piece, takes_entry, FrameBody, Header, Kind, NotifyBody, Reply,
            RequestBody, ResponseBody, BODY_SIZE, FRAME_FLOOD, NOTIFY_EVENT, REQUEST_BYPASSED,
            REQUEST_DATAGRAM, REQUEST_IPV4, REQUEST_SOLICITED, REQUEST_START, REQUEST_VLAN,
        },
        Class,
    },
    status::WcStatus,
    wqe::{Opcode, MAX_DATAGRAM, MAX_MESSAGE},
};
use zerocopy::{transmute, IntoBytes};

/// What a peer put into the pool that no sound peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An index that is ahead of its counterpart by more than the ring holds, or goes back.
    Index {
        /// The index.
        found: u32,
        /// The last one.
        expected: u32,
    },
    /// A word of credits that gives more than was sent.
    Credit {
        /// The word's index.
        found: u32,
        /// The last one.
        expected: u32,
    },
    /// An entry that is another one's, or of other epochs than its ring.
    Entry {
        /// Index that it gives itself.
        found: u32,
        /// Index that it has.
        expected: u32,
    },
    /// A kind of entry that is not known, or not in rings of this class.
    Kind(u8),
    /// A length that is out of bounds, or does not fit what the entry says.
    Length {
        /// Bytes of payload.
        payload: u32,
        /// Bytes of the message before them.
        offset: u32,
    },
    /// An operation, status or flag that is not known.
    Value(u8),
    /// Leave to write to what is not the peer's to give.
    Grant {
        /// Offset in the pool.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// What the peer wrote cannot be read. That is not its doing, but its memory is of no use.
    Poisoned {
        /// Offset in the pool.
        offset: u64,
    },
}

impl From<Poisoned> for Violation {
    fn from(Poisoned { offset }: Poisoned) -> Self {
        Self::Poisoned { offset }
    }
}

/// What an entry is about. Enumerations are checked; numbers of queue pairs, keys and addresses are as the peer gave them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A request, or a part of it.
    Request(Opcode, RequestBody),
    /// A response, or a part of it.
    Response(Reply, WcStatus, ResponseBody),
    /// A frame.
    Frame(FrameBody),
    /// Somebody may try again.
    Notify(NotifyBody),
    /// No entry: the peer has taken a request out and said nothing against it, so it is done.
    Done(Acknowledged),
}

/// A request that the peer has taken out, as this end has written it. Other hosts may have written there since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Its number.
    pub sequence: u32,
    /// Queue pair that it came from.
    pub source_qpn: u32,
    /// Queue pair that it was for.
    pub target_qpn: u32,
}

impl Acknowledged {
    /// Whether another one is of the same two queue pairs.
    #[inline]
    pub fn same_queue_pairs(&self, other: &Self) -> bool {
        (self.source_qpn, self.target_qpn) == (other.source_qpn, other.target_qpn)
    }
}

/// An entry that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is about.
    pub body: Body,
    /// Where its payload lies in the pool. The peer may change it at any time.
    pub payload: Range<u64>,
    /// Bytes of the message that come before those that this entry brings or asks for.
    pub offset: u32,
    /// Of a READ, the bytes that each entry but the last asks for.
    pub piece: u32,
    /// Index in the ring of short messages behind the entries that are to be taken before this one.
    pub behind: u32,
}

impl Message {
    /// Bytes of payload of this entry.
    #[inline]
    pub fn payload_len(&self) -> u32 {
        // No entry has more than fits.
        self.payload.end.wrapping_sub(self.payload.start) as u32
    }

    /// Whether its being taken out of a ring with lines tells its source that a request is done.
    #[inline]
    pub(crate) fn acknowledges(&self) -> bool {
        match &self.body {
            Body::Request(opcode, body) => is_acknowledged(*opcode, body.flags) && self.is_last(),
            _ => false,
        }
    }

    /// Whether no more of the request follows. Of a response only who asked knows.
    #[inline]
    pub fn is_last(&self) -> bool {
        match &self.body {
            Body::Request(Opcode::Read, body) => {
                self.offset
                    .saturating_add(body.piece_len(self.offset, self.piece))
                    >= body.len.get()
            }
            Body::Request(_, body) => {
                self.offset.saturating_add(self.payload_len()) >= body.payload_len()
            }
            Body::Response(..) | Body::Frame(_) | Body::Notify(_) | Body::Done(_) => true,
        }
    }
}

/// What an entry is to say.
#[derive(Clone, Copy, Debug)]
pub enum Outgoing<'a> {
    /// A request, or a part of it.
    Request(&'a RequestBody),
    /// A response, or a part of it.
    Response(&'a ResponseBody),
    /// A frame.
    Frame(&'a FrameBody),
    /// Somebody may try again.
    Notify(&'a NotifyBody),
}

impl<'a> Outgoing<'a> {
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Request(_) => Kind::Request,
            Self::Response(_) => Kind::Response,
            Self::Frame(_) => Kind::Frame,
            Self::Notify(_) => Kind::Notify,
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Request(body) => body.as_bytes(),
            Self::Response(body) => body.as_bytes(),
            Self::Frame(body) => body.as_bytes(),
            Self::Notify(body) => body.as_bytes(),
        }
    }
}

/// Checks what an entry of 256 bytes says. `most`: bytes of payload that it may have.
#[inline]
pub(crate) fn check(
    class: Class,
    header: &Header,
    bytes: &[u8; BODY_SIZE],
    most: u32,
) -> Result<Body, Violation> {
    let body = match kind_of(class, header.kind)? {
        Kind::Request => request(transmute!(*bytes))?,
        Kind::Response => response(transmute!(*bytes))?,
        Kind::Notify => notify(transmute!(*bytes))?,
        Kind::Frame => frame(transmute!(*bytes))?,
    };
    let (payload, offset) = (header.payload_len.get(), header.offset.get());
    check_lengths(class, &body, payload, offset, most)?;
    Ok(body)
}

/// Checks that there are entries of a kind in rings of a class.
#[inline]
pub(crate) fn kind_of(class: Class, found: u8) -> Result<Kind, Violation> {
    let unknown = Violation::Kind(found);
    let kind = Kind::try_from(found).map_err(|_| unknown)?;
    match (class, kind) {
        (Class::Request | Class::ShortRequest, Kind::Request)
        | (Class::Response | Class::ShortResponse, Kind::Response)
        | (Class::Response, Kind::Notify)
        | (Class::Frame, Kind::Frame) => Ok(kind),
        _ => Err(unknown),
    }
}

/// Checks how much payload an entry has, at which offset of its message. `most`: bytes of payload that it may have.
#[inline]
pub(crate) fn check_lengths(
    class: Class,
    body: &Body,
    payload: u32,
    offset: u32,
    most: u32,
) -> Result<(), Violation> {
    let end = offset.saturating_add(payload);
    let fits = match body {
        Body::Request(Opcode::Read, body) => {
            let begins = offset == 0 || offset < body.len.get();
            payload == 0 && begins && offset.checked_rem(read_piece(most)) == Some(0)
        }
        // A datagram is in one piece.
        Body::Request(_, body) if body.flags & REQUEST_DATAGRAM != 0 => {
            offset == 0 && payload == body.payload_len()
        }
        Body::Request(_, body) => {
            let total = body.payload_len();
            end <= total && (payload != 0 || total == 0)
        }
        Body::Response(..) => end <= MAX_MESSAGE,
        Body::Frame(_) => offset == 0 && payload >= MIN_FRAME,
        Body::Notify(_) | Body::Done(_) => end == 0,
    };
    match payload <= most && fits && belongs(class, body) {
        true => Ok(()),
        false => Err(Violation::Length { payload, offset }),
    }
}

/// Whether a request is in the kind of ring that it may be in.
#[inline]
fn belongs(class: Class, body: &Body) -> bool {
    let Body::Request(opcode, body) = body else {
        return true;
    };
    let datagram = body.flags & REQUEST_DATAGRAM != 0;
    match class {
        Class::ShortRequest => datagram || is_short(*opcode, body.len.get()),
        _ => !datagram,
    }
}

/// Whether a request may say what went past the engines before it.
#[inline]
fn may_follow_others(opcode: Opcode) -> bool {
    takes_entry(opcode) || opcode == Opcode::Write
}

#[inline]
pub(crate) fn request(body: RequestBody) -> Result<Body, Violation> {
    let unknown = Violation::Value(body.opcode);
    let opcode = Opcode::try_from(body.opcode).map_err(|_| unknown)?;
    let datagram = match opcode {
        Opcode::Send | Opcode::SendImm => body.flags & REQUEST_DATAGRAM != 0,
        Opcode::SendInv
        | Opcode::Write
        | Opcode::WriteImm
        | Opcode::Read
        | Opcode::CompareSwap
        | Opcode::FetchAdd
        | Opcode::Flush
        | Opcode::AtomicWrite => false,
        Opcode::FastReg | Opcode::LocalInv | Opcode::BindMw | Opcode::Frame | Opcode::Nop => {
            return Err(unknown);
        }
    };
    let flags = match datagram {
        true => REQUEST_SOLICITED | REQUEST_DATAGRAM | REQUEST_IPV4 | REQUEST_VLAN,
        false if may_follow_others(opcode) => REQUEST_SOLICITED | REQUEST_START | REQUEST_BYPASSED,
        false => REQUEST_SOLICITED | REQUEST_START,
    };
    let in_vlan = body.flags & REQUEST_VLAN != 0;
    let none_bypassed = body.flags & REQUEST_BYPASSED != 0 && body.bypassed() == 0;
    if body.flags & !flags != 0 || none_bypassed || in_vlan && body.vlan_id.get() > MAX_VLAN_ID {
        return Err(Violation::Value(body.flags));
    }
    let (len, longest) = (
        body.len.get(),
        if datagram { MAX_DATAGRAM } else { MAX_MESSAGE },
    );
    if len > longest {
        let (payload, offset) = (len, 0);
        return Err(Violation::Length { payload, offset });
    }
    Ok(Body::Request(opcode, body))
}

#[inline]
pub(crate) fn response(body: ResponseBody) -> Result<Body, Violation> {
    let reply = Reply::try_from(body.reply).map_err(|_| Violation::Value(body.reply))?;
    let status = WcStatus::try_from(body.status).map_err(|_| Violation::Value(body.status))?;
    if body.rnr_timer > MAX_RNR_TIMER {
        return Err(Violation::Value(body.rnr_timer));
    }
    Ok(Body::Response(reply, status, body))
}

#[inline]
pub(crate) fn notify(body: NotifyBody) -> Result<Body, Violation> {
    match body.flags & !NOTIFY_EVENT {
        0 => Ok(Body::Notify(body)),
        _ => Err(Violation::Value(body.flags)),
    }
}

#[inline]
pub(crate) fn frame(body: FrameBody) -> Result<Body, Violation> {
    match body.flags & !FRAME_FLOOD {
        0 => Ok(Body::Frame(body)),
        _ => Err(Violation::Value(body.flags)),
    }
}
