// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a send request is to a ring.

use nupa_engine::rings::Operation;
use nupa_proto::wqe::WQE_SIGNALED;

/// What a request that may go into the ring is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) wr_id: u64,
    /// `WQE_*`.
    pub(crate) flags: u8,
    pub(crate) body: Body,
}

/// Which of those it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// A SEND.
    Send { imm: Option<u32> },
    /// A WRITE without immediate data.
    Write { addr: u64, rkey: u32 },
    /// A READ, which goes into no ring.
    Read { addr: u64, rkey: u32 },
}

impl Message {
    #[inline(always)]
    pub(super) fn is_signaled(&self) -> bool {
        self.flags & WQE_SIGNALED != 0
    }

    #[inline(always)]
    pub(super) fn is_write(&self) -> bool {
        matches!(self.body, Body::Write { .. })
    }

    #[inline(always)]
    pub(super) fn is_read(&self) -> bool {
        matches!(self.body, Body::Read { .. })
    }

    /// Key and address of the peer's memory that it is about.
    #[inline(always)]
    pub(super) fn target(&self) -> Option<(u32, u64)> {
        match self.body {
            Body::Send { .. } => None,
            Body::Write { addr, rkey } | Body::Read { addr, rkey } => Some((rkey, addr)),
        }
    }
}

/// What a request is to a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// All of a SEND, WRITE or READ but its data: it may go past the engine.
    message: Option<Message>,
    /// It takes a receive entry of its peer.
    takes_entry: bool,
    signaled: bool,
}

impl Kind {
    /// That of a request with these flags (`WQE_*`).
    #[inline(always)]
    pub(crate) fn of(wr_id: u64, flags: u8, operation: &Operation) -> Self {
        let body = match *operation {
            Operation::Send { imm } => Some(Body::Send { imm }),
            Operation::Write {
                addr,
                rkey,
                imm: None,
            } => Some(Body::Write { addr, rkey }),
            Operation::Read { addr, rkey } => Some(Body::Read { addr, rkey }),
            _ => None,
        };
        let takes_entry = matches!(
            operation,
            Operation::Send { .. }
                | Operation::SendInv { .. }
                | Operation::Write { imm: Some(_), .. }
        );
        Self {
            message: body.map(|body| Message { wr_id, flags, body }),
            takes_entry,
            signaled: flags & WQE_SIGNALED != 0,
        }
    }

    /// Whether it takes a receive entry of its peer.
    #[inline(always)]
    pub(crate) fn takes_entry(&self) -> bool {
        self.takes_entry
    }

    /// Whether its completion is asked for.
    #[inline(always)]
    pub(super) fn is_signaled(&self) -> bool {
        self.signaled
    }

    /// Key of the peer's memory that it is about, if it is a WRITE or READ.
    #[inline(always)]
    pub(super) fn key(&self) -> Option<u32> {
        let (key, _) = self.message?.target()?;
        Some(key)
    }

    /// The SEND, WRITE or READ, if it is one.
    #[inline(always)]
    pub(crate) fn message(&self) -> Option<Message> {
        self.message
    }
}
