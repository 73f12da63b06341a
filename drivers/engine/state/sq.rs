// SPDX-License-Identifier: GPL-2.0 OR MIT
//! From a descriptor to a request: what is asked for, of whom, with which local memory.

use crate::{
    hal::{Memory, Platform, SlotWord, Storage},
    state::{
        access::{local, Purpose},
        check::{Check, WcError},
        inflight::{counts_as_read, Inflight, WINDOW},
        mr::Mrs,
        qp::{QueuePair, Remote},
        request::Request,
        wqe::{malformed, Header, Wqe},
    },
};
use nupa_proto::{
    admin::{QpType, QP_FLAG_SIGNAL_ALL},
    doorbell::event_quiet,
    status::WcStatus,
    wqe::{Opcode, WQE_FENCE, WQE_SIGNALED, WQE_SOLICITED},
};

/// Bit of a queue key that descriptors cannot give.
const CONTROLLED_QKEY: u32 = 1 << 31;

impl<P: AsRef<[u64]> + AsMut<[u64]>> QueuePair<P> {
    /// Whether there is a descriptor to take; `None` if the producer index is out of bounds.
    #[inline(always)]
    pub(crate) fn has_work(&mut self, platform: &impl Platform) -> Option<bool> {
        if self.send.index == self.send.posted {
            let entries = self.send.ring.as_ref().map_or(0, |ring| ring.entries());
            let posted = platform.load(self.page, self.send.slot, SlotWord::Index);
            if posted.wrapping_sub(self.send.index) > entries {
                return None;
            }
            self.send.posted = posted;
        }
        Some(self.send.index != self.send.posted)
    }

    /// Publishes the index from which on kicks are wanted, and looks once more: true if there is work after all.
    #[inline(always)]
    pub(crate) fn publish(&self, platform: &impl Platform, polled: bool) -> bool {
        let seen = self.send.posted;
        let event = if polled { event_quiet(seen) } else { seen };
        platform.store(self.page, self.send.slot, SlotWord::Event, event);
        platform.fence();
        platform.load(self.page, self.send.slot, SlotWord::Index) != seen
    }

    /// Copies block `n` of the descriptor that begins at block `first` out of the ring.
    #[inline(always)]
    fn read_block(
        &self,
        memory: &impl Memory,
        wqe: &mut Wqe,
        first: u32,
        n: u8,
    ) -> Result<(), WcError> {
        let failed = WcError::new(WcStatus::LocalQpOperation, Check::DescriptorMemory);
        let index = first.wrapping_add(u32::from(n));
        let addr = self
            .send
            .ring
            .as_ref()
            .and_then(|ring| ring.addr(index))
            .ok_or(failed)?;
        let block = wqe.block_mut(n).ok_or(failed)?;
        memory.read(addr, block).map_err(|_| failed)
    }

    /// Copies the whole descriptor at block `first` out and checks its control segment. The first block may come from the
    /// push slot.
    #[inline(always)]
    pub(crate) fn read_wqe(
        &self,
        platform: &impl Platform,
        first: u32,
        wqe: &mut Wqe,
        pushed: Option<u32>,
    ) -> Result<Header, WcError> {
        let memory = platform.memory();
        let next = first.wrapping_add(1);
        let in_slot = pushed == Some(next)
            && wqe
                .block_mut(0)
                .is_some_and(|block| platform.push_block(self.page, self.send.slot, block));
        if !in_slot {
            self.read_block(memory, wqe, first, 0)?;
        }
        let header = wqe.header(self.kind)?;
        if u32::from(header.blocks) > self.send.posted.wrapping_sub(first) {
            return Err(malformed(Check::Blocks));
        }
        for n in 1..header.blocks {
            self.read_block(memory, wqe, first, n)?;
        }
        Ok(header)
    }
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> QueuePair<P> {
    /// Turns the descriptor at block `at` into a request.
    #[inline(always)]
    pub(crate) fn decode<S: Storage<Pages = P>>(
        &self,
        platform: &impl Platform,
        mrs: &Mrs<S>,
        at: u32,
        pushed: Option<u32>,
        wqe: &mut Wqe,
        request: &mut Request,
    ) -> Result<(), WcError> {
        request.local.clear();
        let header = match self.read_wqe(platform, at, wqe, pushed) {
            Ok(header) => header,
            Err(error) => {
                // Where the next descriptor begins is unknown, so this one stands for all that are posted.
                request.wr_id = wqe.wr_id();
                (request.opcode, request.behind) = (Opcode::Nop, self.send.posted);
                return Err(error);
            }
        };
        request.opcode = header.opcode;
        request.wr_id = header.wr_id;
        request.imm = header.imm_or_key;
        request.bypassed = 0;
        request.behind = at.wrapping_add(u32::from(header.blocks));
        request.signaled = header.has(WQE_SIGNALED) || self.flags & QP_FLAG_SIGNAL_ALL != 0;
        request.solicited = header.has(WQE_SOLICITED);
        request.fenced = header.has(WQE_FENCE);
        request.inline = header.is_inline();
        request.data_offset = header.data_offset;
        request.datagram = self.kind == QpType::Ud;
        self.address(wqe, &header, request)?;
        let purpose = match header.opcode {
            Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd => Purpose::Destination,
            _ => Purpose::Source,
        };
        let holder = self.holder();
        for sge in wqe.sges(&header) {
            let span = local::<S>(mrs, holder, sge, purpose)?;
            let pushed = request.local.push(span);
            pushed.map_err(|_| WcError::new(WcStatus::LocalLength, Check::Length))?;
        }
        request.len = match request.inline {
            true => header.inline_len(),
            false => request.local.total(),
        };
        Ok(())
    }

    /// Fills in what goes to whom.
    #[inline(always)]
    fn address(&self, wqe: &Wqe, header: &Header, request: &mut Request) -> Result<(), WcError> {
        match (self.kind, header.opcode) {
            (QpType::Rc, _) => self.address_peer(wqe, header, request),
            (_, Opcode::Nop) => Ok(()),
            (QpType::Raw, Opcode::Frame) => {
                let node = u16::try_from(header.imm_or_key);
                let node = node.map_err(|_| malformed(Check::Reserved))?;
                request.destination = unconnected(node, 0);
                request.meta = *wqe.meta()?;
                Ok(())
            }
            (QpType::Ud, Opcode::Send | Opcode::SendImm) => {
                let segment = wqe.datagram()?;
                request.destination = unconnected(segment.node.get(), segment.qpn.get());
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
        wqe: &Wqe,
        header: &Header,
        request: &mut Request,
    ) -> Result<(), WcError> {
        match header.opcode {
            Opcode::Write | Opcode::WriteImm => request.reach_behind(wqe, self.has_rings)?,
            Opcode::Send | Opcode::SendImm | Opcode::SendInv => {
                request.bypassed = wqe.send(self.has_rings)?.bypassed.get();
            }
            Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd => {
                self.check_result(header)?;
                request.reach(wqe)?;
            }
            Opcode::AtomicWrite | Opcode::Flush => {
                self.check_result(header)?;
                check_no_data(header)?;
                (request.remote_addr, request.remote_key) = wqe.place(header.opcode)?;
            }
            Opcode::FastReg | Opcode::LocalInv | Opcode::BindMw => return check_no_data(header),
            Opcode::Nop => return Ok(()),
            Opcode::Frame => return Err(malformed(Check::Opcode)),
        }
        request.destination = self.remote.ok_or(malformed(Check::Peer))?;
        Ok(())
    }

    /// Checks a request that something is handed back for, so that it counts as a READ.
    #[inline(always)]
    fn check_result(&self, header: &Header) -> Result<(), WcError> {
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
fn check_no_data(header: &Header) -> Result<(), WcError> {
    match header.has_no_data() {
        true => Ok(()),
        false => Err(malformed(Check::DataCount)),
    }
}

/// A responder that is not connected to its sender.
#[inline(always)]
const fn unconnected(node: u16, qpn: u32) -> Remote {
    Remote {
        node,
        qpn,
        epoch: 0,
        psn: 0,
    }
}

impl<P> QueuePair<P> {
    /// Returns requests in flight to the send queue. Responses to them are ignored from now on.
    pub(crate) fn rewind(&mut self) {
        self.send.done = 0;
        let inflight = &mut self.send.inflight;
        if inflight.count != 0 {
            self.send.index = inflight.head;
        }
        // The number of one that was taken back may still lie in a ring.
        *inflight = Inflight::new(inflight.sequence.wrapping_add(1));
    }

    /// The response to the oldest request, which is the current one, has come.
    pub(crate) fn acknowledged(&mut self, request: &Request) {
        let inflight = &mut self.send.inflight;
        inflight.end(request.opcode);
        (inflight.head, inflight.received) = (request.behind, 0);
        // What is refused need not be sent to its end: it is over as it is, and not again at the head of the queue.
        if inflight.count == 0 && inflight.sent.take().is_some() {
            self.send.index = request.behind;
        }
    }

    /// Checks that the current request, if parts of it are under way, is still what they said.
    #[cold]
    pub(crate) fn check_same(&self, request: &Request) -> Result<(), WcError> {
        let part = (request.opcode, request.len, request.bypassed);
        match self.send.inflight.goes_on_with(part) {
            true => Ok(()),
            false => Err(malformed(Check::Length)),
        }
    }

    /// Whether the current request has to wait until requests before it were answered.
    #[cold]
    pub(crate) fn waits_for_responses(
        &self,
        request: &Request,
        checked: Result<(), WcError>,
    ) -> bool {
        let inflight = &self.send.inflight;
        if inflight.sent.is_some() {
            return false;
        }
        let here = request.destination.node == request.source.node;
        let most = counts_as_read(request.opcode) && inflight.reads >= self.max_rd_atomic;
        checked.is_err()
            || request.is_local()
            || request.fenced
            || here
            || most
            || inflight.wants_credits(request.opcode)
            || inflight.count >= WINDOW
            // The peer did not receive: one at a time until it takes one.
            || self.send.peer_deadline.is_some()
    }
}
