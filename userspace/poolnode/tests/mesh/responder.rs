// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The receiver's end of one direction of a connection: compares what arrives with what the plan says.

use nupa_proto::cqe::{Cqe, CqeOpcode, CQE_IMM};
use nupa_proto::status::WcStatus;

use crate::board::{Way, WayWord};
use crate::host::{Host, TestQp};
use crate::memory::{counter_of, receive_of, target_of, GUARD, RECEIVES};
use crate::plan::{Counter, Kind, Place, Plan, Request, LONGEST};

/// In the `wr_id` of receive buffers: what is undefined in a completion with an error does not say of which queue it is.
pub(crate) const RECEIVED: u64 = 1 << 63;

/// What the counters are after some requests of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    own: [u64; 2],
    shared: u64,
}

impl Sums {
    fn add(&mut self, request: &Request) {
        match request.kind {
            Kind::FetchAdd {
                counter: Counter::Own(place),
                add,
            } => self.own[place as usize] += add,
            Kind::FetchAdd {
                counter: Counter::Shared,
                add,
            } => self.shared += add,
            Kind::Send { .. } | Kind::Write { .. } | Kind::Read { .. } => {}
        }
    }
}

pub(crate) struct Responder {
    way: Way,
    plan: Plan,
    random: fastrand::Rng,
    /// Buffers that were posted, that were used, and that came back unused.
    posted: u64,
    used: u64,
    flushed: u64,
    compared: [u64; 2],
    sums: Sums,
}

impl Responder {
    pub(crate) fn new(seed: u64, way: Way) -> Self {
        Self {
            way,
            plan: Plan::new(seed, way),
            random: fastrand::Rng::with_seed(way.number()),
            posted: 0,
            used: 0,
            flushed: 0,
            compared: [0; 2],
            sums: Sums::default(),
        }
    }

    fn fail(&self, host: &Host, qp: &TestQp, what: &str) -> ! {
        host.fail(self.way, &format!("receive queue of {:#x}", qp.qpn), what)
    }

    /// Whether no receive buffer is posted.
    pub(crate) fn is_idle(&self) -> bool {
        self.posted == self.used + self.flushed
    }

    /// Posts all receive buffers of a new connection.
    pub(crate) fn start(&mut self, host: &Host, qp: &mut TestQp) {
        for number in 0..RECEIVES {
            let at = receive_of(self.way.from, number);
            host.buffers.clear(at, LONGEST as usize + GUARD);
        }
        while self.posted < RECEIVES {
            self.post_one(host, qp);
        }
        qp.recv.ring();
    }

    /// Posts a buffer that was used, now or later: senders have to wait for some.
    pub(crate) fn post(&mut self, host: &Host, qp: &mut TestQp) -> bool {
        if self.posted - self.used >= RECEIVES || self.random.u32(..4) == 0 {
            return false;
        }
        self.post_one(host, qp);
        qp.recv.ring();
        true
    }

    fn post_one(&mut self, host: &Host, qp: &mut TestQp) {
        let at = receive_of(self.way.from, self.posted);
        let pieces = self.random.u32(1..=3);
        let sges = host.buffers.sges(at, LONGEST as usize, pieces);
        if let Err(error) = qp.recv.post(RECEIVED | self.posted, &sges) {
            self.fail(host, qp, &format!("{error:?}"));
        }
        self.posted += 1;
    }

    /// Takes a completion: buffers are used in order, by the messages of the plan in order.
    pub(crate) fn completed(&mut self, host: &Host, qp: &mut TestQp, cqe: &Cqe) {
        let number = self.used + self.flushed;
        if cqe.wr_id.get() != RECEIVED | number || number >= self.posted {
            self.fail(
                host,
                qp,
                &format!("{cqe:?} in place of that of buffer {number}"),
            );
        }
        if cqe.status != WcStatus::Success.to_wire() {
            self.flushed += 1;
            return;
        }
        if self.flushed > 0 {
            self.fail(
                host,
                qp,
                &format!("{cqe:?} after buffers that were not used"),
            );
        }
        if qp.recv.completed(cqe.queue_index.get()).is_err() || cqe.qpn.get() != qp.qpn {
            self.fail(host, qp, &format!("{cqe:?} of buffer {number}"));
        }
        let (written, message) = self.next_message();
        if let Some(written) = written {
            self.compare_write(host, qp, &written);
        }
        self.compare_message(host, qp, &message, cqe, receive_of(self.way.from, number));
        self.used += 1;
    }

    /// The next message of the plan, and the WRITE before it that nothing was told of.
    fn next_message(&mut self) -> (Option<Request>, Request) {
        let mut written = None;
        loop {
            let request = self.plan.next();
            self.sums.add(&request);
            if request.is_message() {
                return (written, request);
            }
            if matches!(request.kind, Kind::Write { .. }) {
                written = Some(request);
            }
        }
    }

    fn compare_message(
        &mut self,
        host: &Host,
        qp: &TestQp,
        message: &Request,
        cqe: &Cqe,
        at: usize,
    ) {
        let (opcode, imm) = match message.kind {
            Kind::Write { imm, .. } => (CqeOpcode::RecvWriteImm, imm),
            Kind::Send { imm } => (CqeOpcode::Recv, imm),
            Kind::Read { .. } | Kind::FetchAdd { .. } => unreachable!("no message"),
        };
        let found_imm = (cqe.flags & CQE_IMM != 0).then_some(cqe.imm_or_key.get());
        let found = (cqe.opcode, cqe.byte_len.get(), found_imm);
        if found != (opcode.to_wire(), message.len, imm) {
            self.fail(host, qp, &format!("{cqe:?} of {message:?}"));
        }
        if opcode == CqeOpcode::RecvWriteImm {
            return self.compare_write(host, qp, message);
        }
        let bytes = self.plan.bytes(message);
        if let Err(what) = host.buffers.compare(at, &bytes, [0, GUARD]) {
            self.fail(host, qp, &format!("{message:?}: {what}"));
        }
        host.buffers.clear(at, bytes.len());
    }

    /// Compares what a WRITE has left, and lets the sender write there again.
    fn compare_write(&mut self, host: &Host, qp: &TestQp, write: &Request) {
        let Kind::Write { place, shift, .. } = write.kind else {
            return;
        };
        let at = target_of(self.way.from) + shift as usize;
        let bytes = self.plan.bytes(write);
        let memory = host.exposed.at(place);
        if let Err(what) = memory.compare(at, &bytes, [GUARD, GUARD]) {
            self.fail(host, qp, &format!("{write:?}: {what}"));
        }
        memory.clear(at, bytes.len());
        self.compared[place as usize] += 1;
        let word = match place {
            Place::Private => WayWord::ComparedPrivate,
            Place::Pool => WayWord::ComparedPool,
        };
        host.board
            .set_progress(self.way, word, self.compared[place as usize]);
    }

    /// Nothing comes any more: all that the sender saw done has come, each once, and nothing that it did not post. Returns what the sender has
    /// added to the counter of all, at least and at most. `all`: all that was posted was done.
    pub(crate) fn finish(&mut self, host: &Host, qp: &TestQp, all: bool) -> [u64; 2] {
        let done = host.board.progress(self.way, WayWord::Done);
        let posted = host.board.progress(self.way, WayWord::Posted);
        if self.plan.number() > posted || done > posted || all && done != posted {
            let number = self.plan.number();
            self.fail(
                host,
                qp,
                &format!("{number} requests came, {done} were done, {posted} posted"),
            );
        }
        while self.plan.number() < done {
            let request = self.plan.next();
            self.sums.add(&request);
            if request.is_message() {
                self.fail(host, qp, &format!("{request:?} was done, and never came"));
            }
            if all {
                self.compare_write(host, qp, &request);
            }
        }
        for memory in Place::ALL
            .map(|place| host.exposed.at(place))
            .iter()
            .filter(|_| all)
        {
            if let Err(what) = memory.is_clear(self.way.from) {
                self.fail(host, qp, &format!("something else was written: {what}"));
            }
        }
        let least = self.sums;
        let found = Place::ALL.map(|place| host.exposed.at(place).load(counter_of(self.way.from)));
        let mut fits = found == self.sums.own;
        // Of what was under way when the sender died, any number of requests was carried out, in order.
        while self.plan.number() < posted {
            let request = self.plan.next();
            self.sums.add(&request);
            fits |= found == self.sums.own;
        }
        if !fits {
            let most = self.sums;
            self.fail(
                host,
                qp,
                &format!("the counters are {found:?}, must be from {least:?} to {most:?}"),
            );
        }
        [least.shared, self.sums.shared]
    }
}
