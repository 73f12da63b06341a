// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Atomic operations, atomic writes and flushes of connected queue pairs, both halves.
//!
//! Each is carried out at the target while it is fetched, so it comes after everything that was posted before it.

use crate::{
    check::{Check, Refusal},
    descriptor::Descriptor,
    engine::Engine,
    fabric::Fabric,
    hal::{Atomic, Memory, Platform},
    node::Node,
    request::{Outcome, Request},
    span::scatter,
    storage::Storage,
    target::Declined,
};
use nupa_proto::{
    admin::{
        ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_WRITE,
    },
    status::WcStatus,
    wqe::{FlushSegment, Opcode, FLUSH_GLOBAL, FLUSH_PERSISTENT, FLUSH_REGION},
};

/// Bytes that an atomic operation is about.
pub(crate) const ATOMIC_SIZE: u32 = 8;

impl Engine {
    /// Carries out the request at hand: an atomic operation, an atomic write or a flush.
    #[inline(never)]
    pub(crate) fn execute_atomic<F: Fabric>(&mut self, fabric: &mut F) -> Outcome {
        let target = self.request.target.node;
        let Some((node, platform)) = fabric.node_mut(target) else {
            return Outcome::Refused(Refusal::new(WcStatus::RetryExceeded, Check::Node));
        };
        match node.serve_atomic(platform, &self.request, &self.descriptor) {
            Ok(Some(old)) => self.hand_back(fabric, old),
            Ok(None) => Outcome::Done,
            Err(declined) => declined.outcome(target),
        }
    }

    /// Puts what an atomic operation found into the initiator's memory.
    fn hand_back<F: Fabric>(&self, fabric: &F, old: u64) -> Outcome {
        let here = self.sender(fabric);
        match here.map(|here| scatter(&old.to_le_bytes(), &here)) {
            Some(Ok(())) => Outcome::Done,
            _ => Outcome::Refused(Refusal::new(WcStatus::LocalProtection, Check::LocalMemory)),
        }
    }
}

impl<S: Storage> Node<S> {
    /// Carries an operation out here. Returns what an atomic one found.
    fn serve_atomic(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        descriptor: &Descriptor,
    ) -> Result<Option<u64>, Declined> {
        self.check_peer(platform, request)?;
        let qpn = request.target.qpn;
        let served = match request.opcode {
            Opcode::Flush => self.flush_memory(request, descriptor).map(|()| None),
            _ => self.change_word(platform, request, descriptor),
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
        descriptor: &Descriptor,
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
        let span = self.remote_span(qpn, pair, key, addr, ATOMIC_SIZE, right)?;
        let unreachable = Refusal::new(WcStatus::RemoteOperation, Check::RemoteMemory);
        let addr = span.locate::<S>(&self.regions).ok_or(unreachable)?;
        if !is_aligned(addr) {
            return Err(misaligned);
        }
        let operation = descriptor.atomic(request.opcode)?;
        let done = platform.memory().atomic(addr, operation);
        let old = done.map_err(|_| unreachable)?;
        Ok((!matches!(operation, Atomic::Store(_))).then_some(old))
    }

    /// Checks a flush. Memory is coherent and as persistent as it ever gets, so a fence is all there is to do.
    fn flush_memory(&self, request: &Request, descriptor: &Descriptor) -> Result<(), Refusal> {
        let segment = descriptor.flush()?;
        let qpn = request.target.qpn;
        self.check_rd_atomic(qpn)?;
        let missing = Refusal::new(WcStatus::RetryExceeded, Check::Peer);
        let pair = self.pairs.get(qpn).ok_or(missing)?;
        let (key, right) = (request.remote_key, flush_rights(segment));
        if segment.level == FLUSH_REGION {
            return self.remote_region(qpn, pair, key, right).map(|_| ());
        }
        let (addr, len) = (request.remote_addr, segment.len.get());
        let span = self.remote_span(qpn, pair, key, addr, len, right);
        span.map(|_| ())
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
