// SPDX-License-Identifier: GPL-2.0 OR MIT
//! From a descriptor to a request: what is asked for, of whom, with which local memory.

use crate::{
    hal::Platform,
    node::Regions,
    path::{atomic::ATOMIC_SIZE, requester::malformed},
    state::{
        access::{local, Purpose},
        check::{Check, Refusal},
        qp::{QueuePair, Remote},
        request::Request,
        wqe::{Descriptor, Header},
    },
    storage::Storage,
};
use nupa_proto::{
    admin::{QpType, QP_FLAG_SIGNAL_ALL},
    frame::MIN_FRAME,
    status::WcStatus,
    wqe::{Opcode, MAX_DATAGRAM, MAX_MESSAGE, WQE_FENCE, WQE_SIGNALED, WQE_SOLICITED},
};

/// Bit of a queue key that descriptors cannot give.
const CONTROLLED_QKEY: u32 = 1 << 31;

impl<P: AsRef<[u64]> + AsMut<[u64]>> QueuePair<P> {
    /// Turns the descriptor at block `at` into a request.
    #[inline(always)]
    pub(crate) fn compose<S: Storage<Pages = P>>(
        &self,
        platform: &impl Platform,
        regions: &Regions<S>,
        at: u32,
        pushed: Option<u32>,
        descriptor: &mut Descriptor,
        request: &mut Request,
    ) -> Result<(), Refusal> {
        request.local.clear();
        let header = match self.read_descriptor(platform, at, descriptor, pushed) {
            Ok(header) => header,
            Err(refusal) => {
                // Where the next descriptor begins is unknown, so this one stands for all that are posted.
                request.wr_id = descriptor.wr_id();
                (request.opcode, request.behind) = (Opcode::Nop, self.send.posted);
                return Err(refusal);
            }
        };
        request.opcode = header.opcode;
        request.wr_id = header.wr_id;
        request.imm = header.imm_or_key;
        request.behind = at.wrapping_add(u32::from(header.blocks));
        request.signaled = header.has(WQE_SIGNALED) || self.flags & QP_FLAG_SIGNAL_ALL != 0;
        request.solicited = header.has(WQE_SOLICITED);
        request.fenced = header.has(WQE_FENCE);
        request.inline = header.is_inline();
        request.data_offset = header.data_offset;
        request.datagram = self.kind == QpType::Ud;
        self.address(descriptor, &header, request)?;
        let purpose = match header.opcode {
            Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd => Purpose::Destination,
            _ => Purpose::Source,
        };
        let holder = self.holder();
        for sge in descriptor.sges(&header) {
            let span = local::<S>(regions, holder, sge, purpose)?;
            let pushed = request.local.push(span);
            pushed.map_err(|_| Refusal::new(WcStatus::LocalLength, Check::Length))?;
        }
        request.len = match request.inline {
            true => header.inline_len(),
            false => request.local.total(),
        };
        Ok(())
    }

    /// Fills in what goes to whom.
    #[inline(always)]
    fn address(
        &self,
        descriptor: &Descriptor,
        header: &Header,
        request: &mut Request,
    ) -> Result<(), Refusal> {
        match (self.kind, header.opcode) {
            (QpType::Rc, _) => self.address_peer(descriptor, header, request),
            (_, Opcode::Nop) => Ok(()),
            (QpType::Raw, Opcode::Frame) => {
                let node = u16::try_from(header.imm_or_key);
                let node = node.map_err(|_| malformed(Check::Reserved))?;
                request.target = unconnected(node, 0);
                request.meta = *descriptor.meta()?;
                Ok(())
            }
            (QpType::Ud, Opcode::Send | Opcode::SendImm) => {
                let segment = descriptor.datagram()?;
                request.target = unconnected(segment.node.get(), segment.qpn.get());
                request.remote_key = match segment.qkey.get() {
                    // Privileged ones are not for the descriptor to give (InfiniBand volume 1, 10.2.5).
                    qkey if qkey & CONTROLLED_QKEY != 0 => self.qkey,
                    qkey => qkey,
                };
                Ok(())
            }
            _ => Err(malformed(Check::Opcode)),
        }
    }

    /// Fills in what goes to the peer of a connected queue pair.
    #[inline(always)]
    fn address_peer(
        &self,
        descriptor: &Descriptor,
        header: &Header,
        request: &mut Request,
    ) -> Result<(), Refusal> {
        match header.opcode {
            Opcode::Write | Opcode::WriteImm => request.reach(descriptor)?,
            Opcode::Send | Opcode::SendImm | Opcode::SendInv => {}
            Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd => {
                self.check_result(header)?;
                request.reach(descriptor)?;
            }
            Opcode::AtomicWrite | Opcode::Flush => {
                self.check_result(header)?;
                check_no_data(header)?;
                (request.remote_addr, request.remote_key) = descriptor.place(header.opcode)?;
            }
            Opcode::FastReg | Opcode::LocalInv | Opcode::BindMw => return check_no_data(header),
            Opcode::Nop => return Ok(()),
            Opcode::Frame => return Err(malformed(Check::Opcode)),
        }
        request.target = self.remote.ok_or(malformed(Check::Peer))?;
        Ok(())
    }

    /// Checks a request that something is handed back for, so that it counts as a READ.
    #[inline(always)]
    fn check_result(&self, header: &Header) -> Result<(), Refusal> {
        if header.is_inline() {
            return Err(malformed(Check::Flags));
        }
        match self.max_rd_atomic {
            0 => Err(malformed(Check::ReadLimit)),
            _ => Ok(()),
        }
    }
}

/// Checks a request that has neither entries nor inline data.
fn check_no_data(header: &Header) -> Result<(), Refusal> {
    match header.has_no_data() {
        true => Ok(()),
        false => Err(malformed(Check::DataCount)),
    }
}

/// A target that is not connected to its sender.
#[inline(always)]
const fn unconnected(node: u16, qpn: u32) -> Remote {
    Remote {
        node,
        qpn,
        epoch: 0,
        psn: 0,
    }
}

impl Request {
    /// Whether the length is one that the operation may have, and the node, whose frames have so many bytes at most, takes part in
    /// the fabric.
    #[inline(always)]
    pub(crate) fn check(&self, up: bool, max_frame: u32) -> Result<(), Refusal> {
        if self.is_local() {
            return Ok(());
        }
        if !up && !self.datagram {
            return Err(Refusal::new(WcStatus::RetryExceeded, Check::Node));
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
            Err(Refusal::new(WcStatus::LocalLength, Check::Length))
        }
    }

    /// Whether it concerns nobody but the initiator.
    #[inline(always)]
    pub(crate) fn is_local(&self) -> bool {
        matches!(
            self.opcode,
            Opcode::Nop | Opcode::FastReg | Opcode::LocalInv | Opcode::BindMw
        )
    }

    /// Fills in address and key of remote memory.
    #[inline(always)]
    fn reach(&mut self, descriptor: &Descriptor) -> Result<(), Refusal> {
        let segment = descriptor.remote()?;
        (self.remote_addr, self.remote_key) = (segment.addr.get(), segment.rkey.get());
        Ok(())
    }
}
