// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Atomic operations, atomic writes and flushes of connected queue pairs, both halves.
//!
//! Each is carried out at the target while it is fetched, so it comes after everything that was posted before it.

use crate::{
    hal::{Atomic, Memory, Platform, Storage},
    node::Node,
    nodes::Fabric,
    path::engine::Engine,
    state::{
        access::{remote_region, remote_span},
        check::{Check, Refusal},
        copy::scatter,
        mr::{Backing, Region},
        request::{Declined, Outcome, Request, ATOMIC_SIZE},
        wqe::{check_flush, malformed},
    },
};
use nupa_proto::{
    admin::{
        ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_WRITE,
    },
    status::WcStatus,
    wqe::{AtomicSegment, FlushSegment, Opcode, FLUSH_GLOBAL, FLUSH_PERSISTENT, FLUSH_REGION},
};
use zerocopy::FromBytes;

/// What an atomic operation, an atomic write or a flush does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    Word(Atomic),
    Flush(FlushSegment),
}

impl Operand {
    /// Bytes that it may write back. A region's length is not known here: one takes a turn.
    pub(crate) fn written_back(&self) -> u32 {
        match self {
            Self::Word(_) => 0,
            Self::Flush(segment) if segment.level == FLUSH_REGION => u32::MAX,
            Self::Flush(segment) => segment.len.get(),
        }
    }

    /// Checks the segment that says so.
    pub(crate) fn read(opcode: Opcode, bytes: &[u8]) -> Result<Self, Refusal> {
        let short = malformed(Check::Blocks);
        if opcode == Opcode::Flush {
            let (segment, _) = FlushSegment::read_from_prefix(bytes).map_err(|_| short)?;
            check_flush(&segment)?;
            return Ok(Self::Flush(segment));
        }
        let (segment, _) = AtomicSegment::ref_from_prefix(bytes).map_err(|_| short)?;
        let (operand, compare) = (segment.operand.get(), segment.compare.get());
        Ok(Self::Word(match opcode {
            Opcode::CompareSwap => Atomic::CompareSwap {
                compare,
                swap: operand,
            },
            Opcode::FetchAdd => Atomic::FetchAdd(operand),
            Opcode::AtomicWrite => Atomic::Store(operand),
            _ => return Err(malformed(Check::Opcode)),
        }))
    }
}

impl Engine {
    /// Carries out the request at hand: an atomic operation, an atomic write or a flush.
    #[inline(never)]
    pub(crate) fn execute_atomic<F: Fabric>(&mut self, fabric: &mut F) -> Outcome {
        let target = self.request.target.node;
        let Some((node, platform)) = fabric.node_mut(target) else {
            return self.send_request(fabric, target);
        };
        let request = &self.request;
        let operand = Operand::read(request.opcode, self.descriptor.operand(request.opcode));
        let operand = match operand {
            Ok(operand) => operand,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        let served = node.serve_atomic(platform, request, &operand);
        self.request.written_back = operand.written_back();
        match served {
            Ok(Some(old)) => match self.put_word(fabric, old) {
                Ok(()) => Outcome::Done,
                Err(refusal) => Outcome::Refused(refusal),
            },
            Ok(None) => Outcome::Done,
            Err(declined) => declined.outcome(target),
        }
    }

    /// Puts what an atomic operation found into the initiator's memory.
    pub(crate) fn put_word<F: Fabric>(&self, fabric: &F, old: u64) -> Result<(), Refusal> {
        let here = self.sender(fabric);
        match here.map(|here| scatter(&old.to_le_bytes(), &here)) {
            Some(Ok(())) => Ok(()),
            _ => Err(Refusal::new(WcStatus::LocalProtection, Check::LocalMemory)),
        }
    }
}

impl<S: Storage> Node<S> {
    /// Carries an operation out here. Returns what an atomic one found.
    pub(crate) fn serve_atomic(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        operand: &Operand,
    ) -> Result<Option<u64>, Declined> {
        self.check_peer(platform, request)?;
        let qpn = request.target.qpn;
        let served = match operand {
            Operand::Flush(segment) => self
                .flush_memory(platform.memory(), request, segment)
                .map(|()| None),
            Operand::Word(operation) => self.change_word(platform, request, *operation),
        };
        match served {
            Ok(found) => {
                platform.fence();
                self.counters.rx_messages.add(1);
                self.counters.rx_message_bytes.add(request.len);
                let atomic = u32::from(request.opcode != Opcode::Flush);
                self.counters.rx_atomics.add(atomic);
                Ok(found)
            }
            Err(refusal) => Err(self.deny(platform, qpn, refusal)),
        }
    }

    /// Whether the owner of this queue pair lets the other side have requests of this kind outstanding at all.
    pub(crate) fn check_rd_atomic(&self, qpn: u32) -> Result<(), Refusal> {
        match self.pairs.get(qpn).map(|pair| pair.max_dest_rd_atomic) {
            Some(0) | None => Err(Refusal::new(
                WcStatus::RemoteInvalidRequest,
                Check::ReadLimit,
            )),
            Some(_) => Ok(()),
        }
    }

    fn change_word(
        &self,
        platform: &impl Platform,
        request: &Request,
        operation: Atomic,
    ) -> Result<Option<u64>, Refusal> {
        let qpn = request.target.qpn;
        self.check_rd_atomic(qpn)?;
        let misaligned = Refusal::new(WcStatus::RemoteInvalidRequest, Check::Alignment);
        if !is_aligned(request.remote_addr) {
            return Err(misaligned);
        }
        let right = match request.opcode {
            Opcode::AtomicWrite => ACCESS_REMOTE_WRITE,
            _ => ACCESS_REMOTE_ATOMIC,
        };
        let missing = Refusal::new(WcStatus::RetryExceeded, Check::Peer);
        let pair = self.pairs.get(qpn).ok_or(missing)?;
        let (key, addr) = (request.remote_key, request.remote_addr);
        let span = remote_span::<S>(&self.regions, qpn, pair, key, addr, ATOMIC_SIZE, right)?;
        let unreachable = Refusal::new(WcStatus::RemoteOperation, Check::RemoteMemory);
        let addr = span.locate::<S>(&self.regions).ok_or(unreachable)?;
        if !is_aligned(addr) {
            return Err(misaligned);
        }
        let done = platform.memory().atomic(addr, operation);
        let old = done.map_err(|_| unreachable)?;
        Ok((!matches!(operation, Atomic::Store(_))).then_some(old))
    }

    /// Checks a flush, and writes back what it is about. Device memory is registered in one piece; what is in pages is the host's
    /// own memory, for which the fence behind this is enough.
    fn flush_memory(
        &self,
        memory: &impl Memory,
        request: &Request,
        segment: &FlushSegment,
    ) -> Result<(), Refusal> {
        let qpn = request.target.qpn;
        self.check_rd_atomic(qpn)?;
        let missing = Refusal::new(WcStatus::RetryExceeded, Check::Peer);
        let pair = self.pairs.get(qpn).ok_or(missing)?;
        let (key, right) = (request.remote_key, flush_rights(segment));
        let unreachable = Refusal::new(WcStatus::RemoteOperation, Check::RemoteMemory);
        let (piece, len) = if segment.level == FLUSH_REGION {
            let region = remote_region::<S>(&self.regions, qpn, pair, key, right)?;
            (self.start_of(region), region.len)
        } else {
            let (addr, len) = (request.remote_addr, segment.len.get());
            let span = remote_span::<S>(&self.regions, qpn, pair, key, addr, len, right)?;
            (span.contiguous::<S>(&self.regions), u64::from(len))
        };
        let (addr, contiguous) = piece.ok_or(unreachable)?;
        if contiguous < len {
            return Ok(());
        }
        let len = usize::try_from(len).map_err(|_| unreachable)?;
        memory.write_back(addr, len).map_err(|_| unreachable)
    }

    /// DMA address of a region's or window's first byte, and how many bytes are contiguous from there.
    fn start_of(&self, region: &Region<S::Pages>) -> Option<(u64, u64)> {
        match &region.backing {
            Backing::Region { number, offset, .. } => self.regions.get(*number)?.locate(*offset),
            Backing::Own(_) | Backing::None => region.locate(0),
        }
    }
}

fn is_aligned(addr: u64) -> bool {
    addr & u64::from(ATOMIC_SIZE).wrapping_sub(1) == 0
}

/// Rights that a flush needs.
fn flush_rights(segment: &FlushSegment) -> u32 {
    let right = |kind, right| if segment.kind & kind != 0 { right } else { 0 };
    right(FLUSH_GLOBAL, ACCESS_FLUSH_GLOBAL) | right(FLUSH_PERSISTENT, ACCESS_FLUSH_PERSISTENT)
}
