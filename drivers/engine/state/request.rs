// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A work request on its way: what the requester's half hands to the responder's.

use crate::{
    link::Arrival,
    state::{
        check::{Check, WcError},
        copy::{Span, Spans},
        qp::Remote,
        wqe::Wqe,
    },
};
use nupa_proto::{
    frame::{FrameMeta, MIN_FRAME},
    pool::Class,
    status::WcStatus,
    wqe::{Opcode, MAX_DATAGRAM, MAX_MESSAGE},
};

/// Bytes that an atomic operation is about.
pub(crate) const ATOMIC_SIZE: u32 = 8;

/// A request that the requester has decoded and checked. One lives in the engine and is filled anew for each operation.
#[derive(Debug)]
pub(crate) struct Request {
    /// Node, queue pair and epoch that it comes from.
    pub(crate) source: Remote,
    /// Where it goes; of a frame only the node counts, a datagram has no epoch.
    pub(crate) destination: Remote,
    /// Node of this host whose memory `local` is: the source, unless that is another host's.
    pub(crate) home: u16,
    pub(crate) opcode: Opcode,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    /// What was handed back to earlier ones must be there first.
    pub(crate) fenced: bool,
    pub(crate) inline: bool,
    /// Where in the descriptor inline data begins.
    pub(crate) data_offset: u8,
    /// It comes from a UD queue pair.
    pub(crate) datagram: bool,
    /// Bytes to move.
    pub(crate) len: u32,
    pub(crate) imm: u32,
    /// Messages before it that took receive entries of the same queue and went past the engines, see
    /// [`nupa_proto::wqe::SendSegment::bypassed`]; of a WRITE without immediate data see [`nupa_proto::wqe::RemoteSegment::bypassed`].
    pub(crate) bypassed: u32,
    pub(crate) remote_addr: u64,
    /// Key of the remote memory; queue key of a datagram.
    pub(crate) remote_key: u32,
    pub(crate) meta: FrameMeta,
    pub(crate) wr_id: u64,
    /// Index of the send queue behind the descriptor.
    pub(crate) behind: u32,
    /// Local memory.
    pub(crate) local: Spans,
}

impl Request {
    pub(crate) const fn new() -> Self {
        let nobody = Remote {
            node: 0,
            qpn: 0,
            epoch: 0,
            psn: 0,
        };
        Self {
            source: nobody,
            destination: nobody,
            home: 0,
            opcode: Opcode::Nop,
            signaled: false,
            solicited: false,
            fenced: false,
            inline: false,
            data_offset: 0,
            datagram: false,
            len: 0,
            imm: 0,
            bypassed: 0,
            remote_addr: 0,
            remote_key: 0,
            meta: FrameMeta {
                gso_type: 0,
                flags: 0,
                gso_size: zerocopy::little_endian::U16::ZERO,
                header_len: zerocopy::little_endian::U16::ZERO,
                csum_start: zerocopy::little_endian::U16::ZERO,
                csum_offset: zerocopy::little_endian::U16::ZERO,
                vlan_tci: zerocopy::little_endian::U16::ZERO,
                hash: zerocopy::little_endian::U32::ZERO,
            },
            wr_id: 0,
            behind: 0,
            local: Spans::new(),
        }
    }
}

impl Request {
    /// Bytes that go with it to its destination.
    pub(crate) fn payload(&self) -> u32 {
        match self.opcode {
            Opcode::Send
            | Opcode::SendImm
            | Opcode::SendInv
            | Opcode::Write
            | Opcode::WriteImm
            | Opcode::Frame => self.len,
            _ => 0,
        }
    }

    /// Becomes what has arrived from another host for node `home` of this one; what its body says is to be filled in.
    pub(crate) fn load_arrival(
        &mut self,
        opcode: Opcode,
        source: Remote,
        home: u16,
        arrival: &Arrival,
    ) {
        (self.opcode, self.source, self.home) = (opcode, source, home);
        self.destination = Remote {
            node: home,
            qpn: 0,
            epoch: 0,
            psn: 0,
        };
        (self.solicited, self.inline, self.datagram) = (false, false, false);
        (self.len, self.imm, self.bypassed) = (arrival.len, 0, 0);
        self.local.set(Span::direct(arrival.payload, arrival.len));
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is done.
    Done,
    /// It was refused, by either side.
    Failed(WcError),
    /// The responder's queue pair has no receive buffer; it tells when there are new ones.
    Rnr { node: u16, qpn: u32 },
    /// The responder's queue pair does not receive; a change of its state gives it another turn, or that it has entries again.
    NotReady { node: u16, qpn: u32 },
    /// The ring of a class to this node of another host has no room for so many bytes, or others wait for it.
    RingFull { node: u16, class: Class, need: u32 },
    /// It is on its way to another host; its responder's answer completes it.
    Sent,
    /// Requests before it, which are under way, come first.
    Later,
    /// Others have their turn before more of it is done.
    Turn,
}

/// A part of a request's data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Bytes before it.
    pub(crate) offset: u32,
    /// None come behind it.
    pub(crate) last: bool,
}

impl Part {
    /// All of it.
    pub(crate) const WHOLE: Self = Self {
        offset: 0,
        last: true,
    };
}

/// What the responder's half has prepared for a request before any byte moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted {
    /// Queue pair that it arrived at.
    pub(crate) qpn: u32,
    /// Receive entries that it fills, if it takes any.
    pub(crate) received: Option<Received>,
}

/// Receive entries that a message fills.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// From the first of them.
    pub(crate) wr_id: u64,
    /// Index of that one; of a shared receive queue it says nothing.
    pub(crate) first: u32,
    /// How many.
    pub(crate) entries: u16,
}

impl Received {
    /// One entry.
    pub(crate) const fn one(wr_id: u64, first: u32) -> Self {
        Self {
            wr_id,
            first,
            entries: 1,
        }
    }
}

impl Request {
    /// Whether the length is one that the operation may have, and the node, whose frames have so many bytes at most, takes part in
    /// the fabric.
    #[inline(always)]
    pub(crate) fn check(&self, up: bool, max_frame: u32) -> Result<(), WcError> {
        if self.is_local() {
            return Ok(());
        }
        if !up && !self.datagram {
            return Err(WcError::new(WcStatus::RetryExceeded, Check::Node));
        }
        let fits = match self.opcode {
            Opcode::Frame => (MIN_FRAME..=max_frame).contains(&self.len),
            Opcode::CompareSwap | Opcode::FetchAdd => self.len == ATOMIC_SIZE,
            _ if self.datagram => self.len <= MAX_DATAGRAM,
            _ => self.len <= MAX_MESSAGE,
        };
        if fits {
            Ok(())
        } else {
            Err(WcError::new(WcStatus::LocalLength, Check::Length))
        }
    }

    /// Bytes that all parts of it bring or ask for together, in rings to nodes of other hosts.
    pub(crate) fn asked(&self) -> u32 {
        match self.opcode {
            Opcode::Read => self.len,
            _ => self.payload(),
        }
    }

    /// Whether it concerns nobody but the requester.
    #[inline(always)]
    pub(crate) fn is_local(&self) -> bool {
        matches!(
            self.opcode,
            Opcode::Nop | Opcode::FastReg | Opcode::LocalInv | Opcode::BindMw
        )
    }

    /// As [`Request::reach`], for a WRITE of a queue pair that has process rings or not.
    #[inline(always)]
    pub(crate) fn reach_behind(&mut self, wqe: &Wqe, has_rings: bool) -> Result<(), WcError> {
        let segment = wqe.remote_behind(has_rings)?;
        (self.remote_addr, self.remote_key) = (segment.addr.get(), segment.rkey.get());
        self.bypassed = segment.bypassed.get();
        Ok(())
    }

    /// Fills in address and key of remote memory.
    #[inline(always)]
    pub(crate) fn reach(&mut self, wqe: &Wqe) -> Result<(), WcError> {
        let segment = wqe.remote()?;
        (self.remote_addr, self.remote_key) = (segment.addr.get(), segment.rkey.get());
        Ok(())
    }
}
