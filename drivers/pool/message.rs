// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages: what a sender says, and what a receiver believes.

use crate::Poisoned;
use core::ops::Range;
use nupa_proto::{
    admin::{MAX_RNR_TIMER, MAX_VLAN_ID},
    frame::MIN_FRAME,
    pool::{
        message::{
            FrameBody, Header, Kind, NotifyBody, Reply, RequestBody, ResponseBody, BODY_SIZE,
            FRAME_FLOOD, REQUEST_DATAGRAM, REQUEST_IPV4, REQUEST_SOLICITED, REQUEST_START,
            REQUEST_VLAN,
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
    /// A length that is out of bounds, or does not fit the message that it is part of.
    Length {
        /// Bytes of payload.
        payload: u32,
        /// Bytes of the message.
        total: u32,
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
    /// A request begins.
    Request(Opcode, RequestBody),
    /// A response begins.
    Response(Reply, WcStatus, ResponseBody),
    /// A frame.
    Frame(FrameBody),
    /// More of the message in the entry before.
    Data,
    /// Somebody may try again.
    Notify(NotifyBody),
    /// The message in the entry before ends here, unfinished.
    Abort,
}

/// An entry that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is about.
    pub body: Body,
    /// Where its payload lies in the pool. The peer may change it at any time.
    pub payload: Range<u64>,
    /// Bytes of the message's payload in the entries before.
    pub offset: u32,
    /// Bytes of payload of the whole message.
    pub total_len: u32,
}

impl Message {
    /// Bytes of payload of this entry.
    #[inline]
    pub fn payload_len(&self) -> u32 {
        // No entry has more than fits.
        self.payload.end.wrapping_sub(self.payload.start) as u32
    }

    /// Whether no more of the message follows.
    #[inline]
    pub fn is_last(&self) -> bool {
        self.offset.wrapping_add(self.payload_len()) == self.total_len
    }
}

/// What an entry is to say.
#[derive(Clone, Copy, Debug)]
pub enum Outgoing<'a> {
    /// A request begins.
    Request(&'a RequestBody),
    /// A response begins.
    Response(&'a ResponseBody),
    /// A frame.
    Frame(&'a FrameBody),
    /// More of the message in the entry before.
    Data,
    /// Somebody may try again.
    Notify(&'a NotifyBody),
    /// The message in the entry before ends here, unfinished.
    Abort,
}

impl<'a> Outgoing<'a> {
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Request(_) => Kind::Request,
            Self::Response(_) => Kind::Response,
            Self::Frame(_) => Kind::Frame,
            Self::Data => Kind::Data,
            Self::Notify(_) => Kind::Notify,
            Self::Abort => Kind::Abort,
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Request(body) => body.as_bytes(),
            Self::Response(body) => body.as_bytes(),
            Self::Frame(body) => body.as_bytes(),
            Self::Data | Self::Abort => &[],
            Self::Notify(body) => body.as_bytes(),
        }
    }
}

/// Checks what an entry says. `left` are the bytes that are still to come of the message before, `most` those that it may have of
/// payload.
#[inline]
pub(crate) fn check(
    class: Class,
    header: &Header,
    bytes: &[u8; BODY_SIZE],
    left: u32,
    most: u32,
) -> Result<Body, Violation> {
    let unknown = Violation::Kind(header.kind);
    let kind = Kind::try_from(header.kind).map_err(|_| unknown)?;
    let (payload, total) = (header.payload_len.get(), header.total_len.get());
    let length = Violation::Length { payload, total };
    // A message goes on until all of it is there, and each of its entries takes it further.
    let more = matches!(kind, Kind::Data | Kind::Abort);
    let bounds = match kind {
        Kind::Data => left,
        Kind::Abort => 0,
        _ => total,
    };
    let empty = payload == 0 && total != 0 && kind != Kind::Abort;
    if payload > bounds || payload > most || empty || more != (left != 0) {
        return Err(length);
    }
    let body = match (class, kind) {
        (Class::Request | Class::Response, Kind::Data) => return Ok(Body::Data),
        (Class::Request | Class::Response, Kind::Abort) => return Ok(Body::Abort),
        (Class::Request, Kind::Request) => request(transmute!(*bytes))?,
        (Class::Response, Kind::Response) => response(transmute!(*bytes))?,
        (Class::Response, Kind::Notify) => Body::Notify(transmute!(*bytes)),
        (Class::Frame, Kind::Frame) => frame(transmute!(*bytes))?,
        _ => return Err(unknown),
    };
    let fits = match &body {
        Body::Request(_, request) => total == request.payload_len(),
        Body::Response(..) => total <= MAX_MESSAGE,
        Body::Frame(_) => payload == total && total >= MIN_FRAME,
        Body::Data | Body::Notify(_) | Body::Abort => total == 0,
    };
    if fits {
        Ok(body)
    } else {
        Err(length)
    }
}

#[inline]
fn request(body: RequestBody) -> Result<Body, Violation> {
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
        false => REQUEST_SOLICITED | REQUEST_START,
    };
    let in_vlan = body.flags & REQUEST_VLAN != 0;
    if body.flags & !flags != 0 || in_vlan && body.vlan_id.get() > MAX_VLAN_ID {
        return Err(Violation::Value(body.flags));
    }
    let (len, longest) = (
        body.len.get(),
        if datagram { MAX_DATAGRAM } else { MAX_MESSAGE },
    );
    if len > longest {
        let (payload, total) = (len, len);
        return Err(Violation::Length { payload, total });
    }
    Ok(Body::Request(opcode, body))
}

#[inline]
fn response(body: ResponseBody) -> Result<Body, Violation> {
    let reply = Reply::try_from(body.reply).map_err(|_| Violation::Value(body.reply))?;
    let status = WcStatus::try_from(body.status).map_err(|_| Violation::Value(body.status))?;
    if body.rnr_timer > MAX_RNR_TIMER {
        return Err(Violation::Value(body.rnr_timer));
    }
    Ok(Body::Response(reply, status, body))
}

#[inline]
fn frame(body: FrameBody) -> Result<Body, Violation> {
    match body.flags & !FRAME_FLOOD {
        0 => Ok(Body::Frame(body)),
        _ => Err(Violation::Value(body.flags)),
    }
}
