// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The responder's half: the engine that owns the memory checks each access, and reports what arrived.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    state::{
        access::remote_span,
        check::{Check, WcError},
        copy::{CopyError, Spans, MAX_SPANS},
        nak::{Nak, RnrPolicy},
        qp::QueuePair,
        request::{Accepted, Part, Received, Request},
        rq::{Fill, RqError},
    },
};
use nupa_proto::{
    admin::{QpStateCode, QpType, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE},
    cqe::{Cqe, CqeOpcode, CQE_IMM, CQE_INVALIDATED, CQE_SOLICITED},
    eqe::EventType,
    frame::FrameMeta,
    ident::key_index,
    status::WcStatus,
    wqe::Opcode,
};
use zerocopy::little_endian::{U16, U32};

const fn gone(check: Check) -> Nak {
    Nak::Failed(WcError::new(WcStatus::RetryExceeded, check))
}

/// What a WRITE says lies before it in a process ring is not there.
pub(crate) const MISSING: WcError = WcError::new(WcStatus::RemoteInvalidRequest, Check::Bypassed);
/// The receive queue's owner did something wrong.
const BLAMED: Nak = Nak::Failed(WcError::new(
    WcStatus::RemoteOperation,
    Check::BufferDescriptor,
));

impl<S: Storage> Node<S> {
    /// Checks a request of a connected queue pair and prepares the memory that it reads or writes here.
    #[inline(always)]
    pub(crate) fn accept(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        part: Part,
        spans: &mut Spans,
    ) -> Result<Accepted, Nak> {
        self.check_peer(platform, request)?;
        let qpn = request.destination.qpn;
        spans.clear();
        let received = match request.opcode {
            Opcode::Write | Opcode::Read => None,
            // It takes an entry when all of it is there.
            Opcode::WriteImm if !part.last => None,
            Opcode::WriteImm => {
                let wait = RnrPolicy::Wait;
                Some(self.receive(platform, request, qpn, Fill::Unused, wait, spans)?)
            }
            _ => {
                let fill = if part.last { Fill::One } else { Fill::Part };
                let wait = RnrPolicy::Wait;
                Some(self.receive(platform, request, qpn, fill, wait, spans)?)
            }
        };
        if request.opcode == Opcode::SendInv {
            self.check_remote_invalidate(platform, request)?;
        }
        match request.opcode {
            // There are no rings within a host, and what lies in others was taken before this.
            Opcode::Write if request.bypassed != 0 => {
                return Err(self.deny(platform, qpn, MISSING));
            }
            Opcode::Write | Opcode::WriteImm => {
                self.expose(platform, request, ACCESS_REMOTE_WRITE, spans)?;
            }
            Opcode::Read => {
                let allowed = self.check_rd_atomic(qpn);
                allowed.map_err(|error| self.deny(platform, qpn, error))?;
                self.expose(platform, request, ACCESS_REMOTE_READ, spans)?;
            }
            _ if spans.total() < request.len => {
                let error = WcError::new(WcStatus::LocalLength, Check::BufferLength);
                if let Some(received) = received {
                    self.fail_receive(platform, qpn, received, error);
                }
                let error = WcError::new(WcStatus::RemoteInvalidRequest, Check::BufferLength);
                return Err(Nak::Failed(error));
            }
            _ => {}
        }
        Ok(Accepted { qpn, received })
    }

    /// Whether a request comes from the queue pair that the one it is for is connected to, and that one receives.
    #[inline(always)]
    pub(crate) fn check_peer(
        &mut self,
        platform: &impl Platform,
        request: &Request,
    ) -> Result<(), Nak> {
        let qpn = request.destination.qpn;
        if !self.is_up() || self.epoch != request.destination.epoch {
            return Err(gone(Check::Node));
        }
        let absent = Nak::NotReady { qpn };
        match self.qps.get(qpn).ok_or(absent)? {
            qp if qp.kind != QpType::Rc => Err(gone(Check::Peer)),
            qp if qp.is_to_come() => Err(absent),
            qp if qp.remote != Some(request.source) => Err(gone(Check::Peer)),
            qp if qp.state == QpStateCode::Rts => Ok(()),
            qp if !qp.receives() => Err(absent),
            _ => {
                self.establish(platform, qpn);
                Ok(())
            }
        }
    }

    /// Reports the first request to a connected queue pair that is not ready to send yet: whoever waits to be told that
    /// its peer is ready knows now (InfiniBand volume 1, 11.6.3.2).
    #[cold]
    fn establish(&mut self, platform: &impl Platform, qpn: u32) {
        let qp = self.qps.get_mut(qpn);
        let Some(qp) = qp.filter(|qp| qp.state == QpStateCode::Rtr) else {
            return;
        };
        if !core::mem::replace(&mut qp.established, true) {
            self.report(platform, EventType::CommEstablished, 0, qpn);
        }
    }

    /// Checks a frame against the receive filter and prepares buffers for it.
    #[inline(always)]
    pub(crate) fn accept_frame(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        address: &[u8; 6],
        policy: RnrPolicy,
        spans: &mut Spans,
    ) -> Result<Accepted, Nak> {
        if !self.is_up() {
            return Err(gone(Check::Node));
        }
        let picked = self.rss.pick(request.meta.hash.get());
        let Some(qpn) = picked.filter(|_| self.filter.takes(address)) else {
            self.counters.rx_filtered.add(1);
            return Err(Nak::Filtered);
        };
        if !self.qps.get(qpn).is_some_and(QueuePair::receives) {
            return Err(gone(Check::PeerState));
        }
        spans.clear();
        let entry = self.receive(platform, request, qpn, Fill::Many, policy, spans)?;
        Ok(Accepted {
            qpn,
            received: Some(entry),
        })
    }

    /// Prepares receive entries. Only if the owner was asked for more, and has posted none meanwhile, there are none.
    #[inline(always)]
    pub(crate) fn receive(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        qpn: u32,
        fill: Fill,
        policy: RnrPolicy,
        spans: &mut Spans,
    ) -> Result<Received, Nak> {
        // An honest owner has posted one more entry each time.
        for _ in 0..=MAX_SPANS {
            match self.prepare_receive(platform, request, qpn, fill, spans) {
                Ok(received) => return Ok(received),
                Err(RqError::Empty) => {}
                Err(RqError::Doorbell) => return Err(self.fail_queue(platform, qpn)),
                Err(RqError::Overtaken) => return Err(self.overtaken(platform, qpn)),
                Err(RqError::Bypassed) => {
                    let error = WcError::new(WcStatus::RemoteInvalidRequest, Check::Bypassed);
                    return Err(self.deny(platform, qpn, error));
                }
                Err(RqError::Entry { wr_id, error }) => {
                    let queue = self.recv_queue(qpn);
                    let first = queue.map_or(0, |queue| queue.entry_behind(request.bypassed));
                    self.fail_receive(platform, qpn, Received::one(wr_id, first), error);
                    return Err(BLAMED);
                }
            }
            spans.clear();
            let queue = self.recv_queue(qpn).ok_or(gone(Check::PeerState))?;
            if policy == RnrPolicy::Drop {
                return Err(Nak::Rnr { qpn });
            }
            if !queue.want_entries(platform) {
                return Err(self.too_few_entries(platform, qpn, request.bypassed));
            }
        }
        let queue = self.recv_queue(qpn);
        match queue.is_some_and(|queue| queue.is_shared_with_owner()) {
            // It may have taken each of them by then.
            true => Err(self.overtaken(platform, qpn)),
            false => Err(self.fail_queue(platform, qpn)),
        }
    }

    /// The owner's producer index of the queue that a queue pair takes entries from is out of bounds.
    #[cold]
    fn fail_queue(&mut self, platform: &impl Platform, qpn: u32) -> Nak {
        if let Some(srqn) = self.qps.get(qpn).and_then(|qp| qp.recv.srqn) {
            self.fail_srq(platform, srqn);
        }
        self.fail(platform, qpn);
        BLAMED
    }

    /// Checks access to the region that the request names.
    #[inline(always)]
    fn expose(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        right: u32,
        spans: &mut Spans,
    ) -> Result<(), Nak> {
        let qpn = request.destination.qpn;
        let qp = self.qps.get(qpn).ok_or(gone(Check::Peer))?;
        let (key, addr) = (request.remote_key, request.remote_addr);
        match remote_span::<S>(&self.mrs, qpn, qp, key, addr, request.len, right) {
            Ok(span) => spans.push(span).map_err(|_| gone(Check::Length)),
            Err(error) => Err(self.deny(platform, qpn, error)),
        }
    }

    /// Checks that the sender may invalidate the key that it names.
    fn check_remote_invalidate(
        &mut self,
        platform: &impl Platform,
        request: &Request,
    ) -> Result<(), Nak> {
        let qpn = request.destination.qpn;
        match self.check_invalidate(qpn, request.imm) {
            Ok(()) => Ok(()),
            Err(_) => {
                let error = WcError::new(WcStatus::RemoteAccess, Check::RemoteKey);
                Err(self.deny(platform, qpn, error))
            }
        }
    }

    /// Refuses a remote access: the queue pair that it came to goes to the error state.
    #[cold]
    pub(crate) fn deny(&mut self, platform: &impl Platform, qpn: u32, error: WcError) -> Nak {
        self.counters.remote_access_errors.add(1);
        self.fail_with(platform, qpn, EventType::QpAccess);
        Nak::Failed(error)
    }

    /// Reports a request whose data is in place.
    #[inline(always)]
    pub(crate) fn arrived(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        accepted: &Accepted,
    ) {
        let counters = &mut self.counters;
        if request.opcode == Opcode::Frame {
            counters.rx_frames.add(1);
            counters.rx_bytes.add(request.len);
        } else {
            self.count_served(accepted.qpn, request);
        }
        if request.opcode == Opcode::Read {
            self.counters.rx_reads.add(1);
            self.counters.rx_read_bytes.add(request.len);
        }
        if request.opcode == Opcode::SendInv {
            self.unbind(key_index(request.imm));
        }
        if let Some(received) = accepted.received {
            let entry = request.arrival();
            self.received(platform, accepted.qpn, received, entry, request.solicited);
        }
    }

    /// Counts a message whose data is in place, or that was carried out here.
    #[inline(always)]
    pub(crate) fn count_served(&mut self, qpn: u32, request: &Request) {
        self.counters.rx_messages.add(1);
        self.counters.rx_message_bytes.add(request.len);
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.traffic.served(request.opcode, request.len);
        }
    }

    /// Deals with a transfer that failed; returns what the requester is told.
    #[cold]
    pub(crate) fn transfer_failed(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        accepted: &Accepted,
        fault: CopyError,
    ) -> WcError {
        let ours = if request.opcode == Opcode::Read {
            CopyError::Source
        } else {
            CopyError::Destination
        };
        if fault != ours {
            return WcError::new(WcStatus::LocalProtection, Check::LocalMemory);
        }
        match accepted.received {
            Some(received) => {
                let error = WcError::new(WcStatus::LocalProtection, Check::LocalMemory);
                self.fail_receive(platform, accepted.qpn, received, error);
            }
            None => self.fail(platform, accepted.qpn),
        }
        WcError::new(WcStatus::RemoteOperation, Check::RemoteMemory)
    }
}

impl Request {
    /// The receive completion, but for what the receive queue adds.
    #[inline(always)]
    pub(crate) fn arrival(&self) -> Cqe {
        let (opcode, carries) = match self.opcode {
            Opcode::Frame => (CqeOpcode::RecvFrame, 0),
            Opcode::WriteImm => (CqeOpcode::RecvWriteImm, CQE_IMM),
            Opcode::SendImm => (CqeOpcode::Recv, CQE_IMM),
            Opcode::SendInv => (CqeOpcode::Recv, CQE_INVALIDATED),
            _ => (CqeOpcode::Recv, 0),
        };
        let solicited = if self.solicited { CQE_SOLICITED } else { 0 };
        let frame = self.opcode == Opcode::Frame;
        Cqe {
            byte_len: U32::new(self.len),
            opcode: opcode.to_wire(),
            flags: solicited | carries,
            imm_or_key: U32::new(if carries != 0 { self.imm } else { 0 }),
            src_qpn: U32::new(self.source.qpn),
            src_node: U16::new(self.source.node),
            frame: if frame {
                self.meta
            } else {
                FrameMeta::default()
            },
            ..Cqe::default()
        }
    }
}
