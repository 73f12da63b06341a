// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The sender's end of one direction of a connection: posts what the plan says, and compares what comes back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nupa_engine::rings::{Data, Operation, PostError, SendRequest};
use nupa_proto::cqe::{Cqe, CqeOpcode};
use nupa_proto::regs::DEVICE_MEMORY_BASE;
use nupa_proto::status::WcStatus;
use nupa_proto::wqe::{MAX_INLINE, WQE_FENCE, WQE_SIGNALED};

use crate::board::{NodeWord, Way, WayWord};
use crate::host::{Host, TestQp};
use crate::memory::{buffer_of, counter_of, counter_of_all, target_of, BUFFER, GUARD};
use crate::plan::{source, Counter, Kind, Place, Plan, Request};

/// Requests under way.
const WINDOW: usize = 16;
/// Requests that are posted before others have their turn.
const BATCH: u32 = 8;

/// A request that was posted.
struct Posted {
    /// Number of it among all that were posted, those that do nothing too.
    id: u64,
    /// None: it does nothing but complete.
    request: Option<Request>,
    signaled: bool,
    /// Where in the buffer.
    at: usize,
    /// Index of the send queue behind it.
    index: u32,
}

pub(crate) struct Requester {
    way: Way,
    plan: Plan,
    /// Drawn and not posted yet.
    next: Option<Request>,
    posted: VecDeque<Posted>,
    ids: u64,
    /// Where the next request begins in the buffer.
    free: usize,
    /// WRITEs to each place.
    writes: [u64; 2],
    /// What the own counters are after all that was done, and the least that the one of all can be.
    counters: [u64; 2],
    shared: u64,
    failed: bool,
    /// When something completed last, or was posted after a pause.
    moved: Instant,
}

impl Requester {
    pub(crate) fn new(seed: u64, way: Way) -> Self {
        Self {
            way,
            plan: Plan::new(seed, way),
            next: None,
            posted: VecDeque::new(),
            ids: 0,
            free: 0,
            writes: [0; 2],
            counters: [0; 2],
            shared: 0,
            failed: false,
            moved: Instant::now(),
        }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.posted.is_empty()
    }

    /// How long nothing has completed although something is under way, and what.
    pub(crate) fn waits(&self) -> Option<(Duration, String)> {
        let first = self.posted.front()?;
        Some((self.moved.elapsed(), self.name(first)))
    }

    fn name(&self, posted: &Posted) -> String {
        let id = posted.id;
        match posted.request {
            Some(request) => format!("{request:?}, posted as number {id}"),
            None => format!("NOP, posted as number {id}"),
        }
    }

    fn fail(&self, host: &Host, qp: &TestQp, what: &str) -> ! {
        host.fail(self.way, &format!("send queue of {:#x}", qp.qpn), what)
    }

    /// Posts what may be posted; whether that was something. `more`: new requests, and not only what tells that all is done.
    pub(crate) fn post(&mut self, host: &Host, qp: &mut TestQp, more: bool) -> bool {
        let mut count = 0;
        while more && count < BATCH && self.posted.len() < WINDOW && self.post_next(host, qp) {
            count += 1;
        }
        // Of requests at the end that do not say when they are done, nobody would learn.
        if count == 0 && self.posted.back().is_some_and(|last| !last.signaled) {
            count += u32::from(self.post_nop(host, qp));
        }
        if count > 0 {
            // The receiver, which reads this, must not find that more was done than was posted.
            let posted = self.plan.number() - u64::from(self.next.is_some());
            host.board.set_progress(self.way, WayWord::Posted, posted);
            qp.send.ring();
        }
        count > 0
    }

    fn post_next(&mut self, host: &Host, qp: &mut TestQp) -> bool {
        let request = *self.next.get_or_insert_with(|| self.plan.next());
        if request.alone && !self.posted.is_empty() || !self.may_write(host, &request) {
            return false;
        }
        let taken = (request.len as usize + GUARD).next_multiple_of(64);
        let Some(at) = self.place(taken) else {
            return false;
        };
        let Some(index) = self.hand_over(host, qp, &request, at) else {
            return false;
        };
        if let Kind::Write { place, .. } = request.kind {
            self.writes[place as usize] += 1;
        }
        self.next = None;
        self.free = at + taken;
        self.add(Some(request), request.signaled, at, index);
        true
    }

    fn post_nop(&mut self, host: &Host, qp: &mut TestQp) -> bool {
        let request = SendRequest {
            wr_id: self.ids,
            flags: WQE_SIGNALED,
            operation: Operation::Nop,
            data: Data::Sges(&[]),
        };
        match qp.send.post(&request) {
            Ok(index) => self.add(None, true, self.free, index),
            Err(PostError::Full) => return false,
            Err(error) => self.fail(host, qp, &format!("{error:?} of a NOP")),
        }
        true
    }

    fn add(&mut self, request: Option<Request>, signaled: bool, at: usize, index: u32) {
        if self.posted.is_empty() {
            self.moved = Instant::now();
        }
        let id = self.ids;
        self.ids += 1;
        self.posted.push_back(Posted {
            id,
            request,
            signaled,
            at,
            index,
        });
    }

    /// Whether what the WRITE before it has left was compared.
    fn may_write(&self, host: &Host, request: &Request) -> bool {
        let Kind::Write { place, .. } = request.kind else {
            return true;
        };
        let word = match place {
            Place::Private => WayWord::ComparedPrivate,
            Place::Pool => WayWord::ComparedPool,
        };
        host.board.progress(self.way, word) == self.writes[place as usize]
    }

    /// A free place of so many bytes in the buffer. Requests give theirs back in order.
    fn place(&self, len: usize) -> Option<usize> {
        let Some(oldest) = self.posted.front().map(|posted| posted.at) else {
            return Some(0);
        };
        if self.free < oldest {
            return (self.free + len < oldest).then_some(self.free);
        }
        if self.free + len <= BUFFER {
            return Some(self.free);
        }
        (len < oldest).then_some(0)
    }

    /// Puts a request into the send queue; the index behind it, if there is room.
    fn hand_over(&self, host: &Host, qp: &mut TestQp, request: &Request, at: usize) -> Option<u32> {
        let (buffers, offset) = (&host.buffers, buffer_of(self.way.to) + at);
        let len = request.len as usize;
        let bytes = match request.kind {
            Kind::Send { .. } | Kind::Write { .. } => self.plan.bytes(request),
            Kind::Read { .. } | Kind::FetchAdd { .. } => Vec::new(),
        };
        let sges = buffers.sges(offset, len, request.pieces);
        let inline = request.inline && !bytes.is_empty() && len <= MAX_INLINE;
        buffers.clear(offset, len + GUARD);
        if !bytes.is_empty() && !inline {
            buffers.write(offset, &bytes);
        }
        let signaled = u8::from(request.signaled) * WQE_SIGNALED;
        let fence = u8::from(request.fence) * WQE_FENCE;
        let posted = qp.send.post(&SendRequest {
            wr_id: self.ids,
            flags: signaled | fence,
            operation: self.operation(host, request.kind),
            data: match inline {
                true => Data::Inline(&bytes),
                false => Data::Sges(&sges),
            },
        });
        match posted {
            Ok(index) => Some(index),
            Err(PostError::Full) => None,
            Err(error) => self.fail(host, qp, &format!("{error:?} of {request:?}")),
        }
    }

    fn operation(&self, host: &Host, kind: Kind) -> Operation {
        let (own, peer) = (self.way.from, self.way.to);
        // Of the peer's memory: address and key.
        let remote = |place, offset: usize| {
            let (base, key) = match place {
                Place::Private => (
                    host.board.get(peer, NodeWord::PrivateAddress),
                    NodeWord::PrivateKey,
                ),
                Place::Pool => (DEVICE_MEMORY_BASE, NodeWord::PoolKey),
            };
            (base + offset as u64, host.board.get(peer, key) as u32)
        };
        match kind {
            Kind::Send { imm } => Operation::Send { imm },
            Kind::Write { place, shift, imm } => {
                let (addr, rkey) = remote(place, target_of(own) + shift as usize);
                Operation::Write { addr, rkey, imm }
            }
            Kind::Read { place, from } => {
                let (addr, rkey) = remote(place, from as usize);
                Operation::Read { addr, rkey }
            }
            Kind::FetchAdd { counter, add } => {
                let (addr, rkey) = match counter {
                    Counter::Own(place) => remote(place, counter_of(own)),
                    Counter::Shared => remote(Place::Private, counter_of_all()),
                };
                Operation::FetchAdd { addr, rkey, add }
            }
        }
    }

    /// Takes a completion: requests are done in order, and each that has asked for it says so.
    pub(crate) fn completed(&mut self, host: &Host, qp: &mut TestQp, cqe: &Cqe) {
        let success = cqe.status == WcStatus::Success.to_wire();
        if self.failed && success {
            self.fail(host, qp, &format!("{cqe:?} is done after one that failed"));
        }
        if success {
            let silence = self.moved.elapsed().as_micros();
            host.board.raise(host.id, NodeWord::Silence, silence as u64);
        }
        self.moved = Instant::now();
        loop {
            let Some(posted) = self.posted.pop_front() else {
                self.fail(
                    host,
                    qp,
                    &format!("{cqe:?} of a request that was not posted, or was done before"),
                );
            };
            let is_last = posted.id == cqe.wr_id.get();
            if !is_last && (posted.signaled || self.failed) {
                let name = self.name(&posted);
                self.fail(
                    host,
                    qp,
                    &format!("{cqe:?} comes before the completion of {name}"),
                );
            }
            if success || !is_last {
                self.done(host, qp, &posted, is_last.then_some(cqe));
            }
            if is_last {
                break;
            }
        }
        self.failed |= !success;
    }

    /// A request is done; its completion, if it has one.
    fn done(&mut self, host: &Host, qp: &mut TestQp, posted: &Posted, cqe: Option<&Cqe>) {
        if let Some(cqe) = cqe {
            let index = cqe.queue_index.get();
            if index != posted.index || qp.send.completed(index).is_err() {
                let name = self.name(posted);
                self.fail(
                    host,
                    qp,
                    &format!("{cqe:?} of {name}, which ends at {}", posted.index),
                );
            }
        }
        let opcode = match posted.request.map(|request| request.kind) {
            None => CqeOpcode::Frame,
            Some(Kind::Send { .. }) => CqeOpcode::Send,
            Some(Kind::Write { .. }) => CqeOpcode::Write,
            Some(Kind::Read { .. }) => CqeOpcode::Read,
            Some(Kind::FetchAdd { .. }) => CqeOpcode::FetchAdd,
        };
        if cqe.is_some_and(|cqe| cqe.opcode != opcode.to_wire() || cqe.qpn.get() != qp.qpn) {
            self.fail(host, qp, &format!("{cqe:?} of {}", self.name(posted)));
        }
        let Some(request) = posted.request else {
            return;
        };
        if let Err(what) = self.compare(host, &request, posted.at) {
            self.fail(host, qp, &format!("{}: {what}", self.name(posted)));
        }
        host.board
            .set_progress(self.way, WayWord::Done, request.number + 1);
        host.board.add(self.way.from, NodeWord::Requests, 1);
        host.board
            .add(self.way.from, NodeWord::Bytes, request.len.into());
    }

    /// Compares what a request has brought.
    fn compare(&mut self, host: &Host, request: &Request, at: usize) -> Result<(), String> {
        let offset = buffer_of(self.way.to) + at;
        match request.kind {
            Kind::Send { .. } | Kind::Write { .. } => Ok(()),
            Kind::Read { from, .. } => {
                let range = from as usize..(from + request.len) as usize;
                let expected = source(host.seed, self.way.to, self.way.to_epoch, range);
                host.buffers.compare(offset, &expected, [0, GUARD])
            }
            Kind::FetchAdd { counter, add } => {
                let found = host.buffers.load(offset);
                let before = match counter {
                    Counter::Own(place) => &mut self.counters[place as usize],
                    Counter::Shared => &mut self.shared,
                };
                let expected = std::mem::replace(before, found + add);
                // To the one of all nodes, others have added.
                let is_right = found == expected || counter == Counter::Shared && found > expected;
                match is_right {
                    true => Ok(()),
                    false => Err(format!("{found} was found in place of {expected}")),
                }
            }
        }
    }

    /// Requests that were posted, but for those that do nothing.
    pub(crate) fn requests(&self) -> u64 {
        self.plan.number() - u64::from(self.next.is_some())
    }
}
