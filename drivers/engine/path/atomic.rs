// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Atomic operations, atomic writes and flushes of connected queue pairs, both halves.
//!
//! Each is carried out at the responder while it is fetched, so it comes after everything that was posted before it.

use crate::{
    hal::{Atomic, Memory, Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        access::{remote_mr, remote_span},
        check::{Check, WcError},
        copy::scatter,
        mr::{Backing, Mr},
        nak::Nak,
        request::{Outcome, Request, ATOMIC_SIZE},
        slice::SLICE,
        wqe::{check_flush, malformed},
    },
};
use nupa_proto::{
    admin::{
        ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_WRITE,
    },
    status::WcStatus,
    wqe::{AtomicSegment, FlushSegment, Opcode, FLUSH_GLOBAL, FLUSH_MR, FLUSH_PERSISTENT},
};
use zerocopy::FromBytes;

/// What an atomic operation, an atomic write or a flush does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    Word(Atomic),
    Flush(FlushSegment),
}

/// What became of one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Served {
    /// An atomic operation is done, and found this.
    Found(u64),
    /// It is done; so many bytes were written back for that.
    Done(u32),
    /// A slice of it is.
    InPart,
}

impl Operand {
    /// Checks the segment that says so.
    pub(crate) fn read(opcode: Opcode, bytes: &[u8]) -> Result<Self, WcError> {
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
    /// Carries out the current request: an atomic operation, an atomic write or a flush.
    #[inline(never)]
    pub(crate) fn execute_atomic<N: NodeTable>(&mut self, nodes: &mut N) -> Outcome {
        let destination = self.request.destination.node;
        if nodes.node(destination).is_none() {
            return self.send_request(nodes, destination);
        }
        let request = &self.request;
        let operand = Operand::read(request.opcode, self.wqe.operand(request.opcode));
        let operand = match operand {
            Ok(operand) => operand,
            Err(error) => return Outcome::Failed(error),
        };
        let slices = self.slices_done(nodes);
        let Some((node, platform)) = nodes.node_mut(destination) else {
            return Outcome::Later;
        };
        let served = node.serve_atomic(platform, &self.request, &operand, slices);
        match served {
            Ok(Served::Found(old)) => match self.put_word(nodes, old) {
                Ok(()) => Outcome::Done,
                Err(error) => Outcome::Failed(error),
            },
            Ok(Served::Done(moved)) => {
                self.moved = moved;
                self.set_done(nodes, 0);
                Outcome::Done
            }
            Ok(Served::InPart) => {
                self.moved = SLICE;
                self.set_done(nodes, slices.saturating_add(1));
                Outcome::Turn
            }
            Err(nak) => nak.outcome(destination),
        }
    }

    /// Slices of the current request that are done.
    fn slices_done<N: NodeTable>(&self, nodes: &N) -> u32 {
        let source = self.request.source;
        let qp = nodes
            .node(source.node)
            .and_then(|(node, _)| node.qps.get(source.qpn));
        qp.map_or(0, |qp| qp.send.done)
    }

    /// Puts what an atomic operation found into the requester's memory.
    pub(crate) fn put_word<N: NodeTable>(&self, nodes: &N, old: u64) -> Result<(), WcError> {
        let here = self.sender(nodes);
        match here.map(|here| scatter(&old.to_le_bytes(), &here)) {
            Some(Ok(())) => Ok(()),
            _ => Err(WcError::new(WcStatus::LocalProtection, Check::LocalMemory)),
        }
    }
}

impl<S: Storage> Node<S> {
    /// Carries an operation out here, or the next slice of a flush.
    pub(crate) fn serve_atomic(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        operand: &Operand,
        slices: u32,
    ) -> Result<Served, Nak> {
        self.check_peer(platform, request)?;
        let qpn = request.destination.qpn;
        let served = match operand {
            Operand::Flush(segment) => {
                self.flush_memory(platform.memory(), request, segment, slices)
            }
            Operand::Word(operation) => self.change_word(platform, request, *operation),
        };
        match served {
            Ok(Served::InPart) => Ok(Served::InPart),
            Ok(served) => {
                platform.fence();
                self.count_served(qpn, request);
                let atomic = u32::from(request.opcode != Opcode::Flush);
                self.counters.rx_atomics.add(atomic);
                Ok(served)
            }
            Err(error) => Err(self.deny(platform, qpn, error)),
        }
    }

    /// Whether the owner of this queue pair lets the other side have requests of this kind outstanding at all.
    pub(crate) fn check_rd_atomic(&self, qpn: u32) -> Result<(), WcError> {
        match self.qps.get(qpn).map(|qp| qp.max_dest_rd_atomic) {
            Some(0) | None => Err(WcError::new(
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
    ) -> Result<Served, WcError> {
        let qpn = request.destination.qpn;
        self.check_rd_atomic(qpn)?;
        let misaligned = WcError::new(WcStatus::RemoteInvalidRequest, Check::Alignment);
        if !is_aligned(request.remote_addr) {
            return Err(misaligned);
        }
        let right = match request.opcode {
            Opcode::AtomicWrite => ACCESS_REMOTE_WRITE,
            _ => ACCESS_REMOTE_ATOMIC,
        };
        let missing = WcError::new(WcStatus::RetryExceeded, Check::Peer);
        let qp = self.qps.get(qpn).ok_or(missing)?;
        let (key, addr) = (request.remote_key, request.remote_addr);
        let span = remote_span::<S>(&self.mrs, qpn, qp, key, addr, ATOMIC_SIZE, right)?;
        let unreachable = WcError::new(WcStatus::RemoteOperation, Check::RemoteMemory);
        let addr = span.locate::<S>(&self.mrs).ok_or(unreachable)?;
        if !is_aligned(addr) {
            return Err(misaligned);
        }
        let done = platform.memory().atomic(addr, operation);
        let old = done.map_err(|_| unreachable)?;
        Ok(match operation {
            Atomic::Store(_) => Served::Done(0),
            _ => Served::Found(old),
        })
    }

    /// Checks a flush, and writes back the slice of what it is about behind so many. Device memory is registered in one piece; what is in pages is the host's
    /// own memory, for which the fence behind this is enough.
    fn flush_memory(
        &self,
        memory: &impl Memory,
        request: &Request,
        segment: &FlushSegment,
        slices: u32,
    ) -> Result<Served, WcError> {
        let qpn = request.destination.qpn;
        self.check_rd_atomic(qpn)?;
        let missing = WcError::new(WcStatus::RetryExceeded, Check::Peer);
        let qp = self.qps.get(qpn).ok_or(missing)?;
        let (key, right) = (request.remote_key, flush_rights(segment));
        let unreachable = WcError::new(WcStatus::RemoteOperation, Check::RemoteMemory);
        let (piece, len) = if segment.level == FLUSH_MR {
            let mr = remote_mr::<S>(&self.mrs, qpn, qp, key, right)?;
            (self.start_of(mr), mr.len)
        } else {
            let (addr, len) = (request.remote_addr, segment.len.get());
            let span = remote_span::<S>(&self.mrs, qpn, qp, key, addr, len, right)?;
            (span.contiguous::<S>(&self.mrs), u64::from(len))
        };
        let (addr, contiguous) = piece.ok_or(unreachable)?;
        if contiguous < len || !memory.needs_write_back(addr) {
            return Ok(Served::Done(0));
        }
        let start = u64::from(slices).saturating_mul(u64::from(SLICE)).min(len);
        let left = len.saturating_sub(start);
        let slice = u32::try_from(left).unwrap_or(SLICE).min(SLICE);
        let written = memory.write_back(addr.wrapping_add(start), slice as usize);
        written.map_err(|_| unreachable)?;
        Ok(match left <= u64::from(SLICE) {
            true => Served::Done(slice),
            false => Served::InPart,
        })
    }

    /// DMA address of a region's or window's first byte, and how many bytes are contiguous from there.
    fn start_of(&self, mr: &Mr<S::Pages>) -> Option<(u64, u64)> {
        match &mr.backing {
            Backing::Mr { number, offset, .. } => self.mrs.get(*number)?.locate(*offset),
            Backing::Own(_) | Backing::None => mr.locate(0),
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
