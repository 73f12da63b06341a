// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The connection to one peer: made, used, lost when the peer is killed, and made anew.

use std::time::Duration;

use nupa_proto::admin::{
    AdminOpcode, ById, ModifyQp, QpState, QpStateCode, ACCESS_ALL, QP_MASK_ACCESS,
    QP_MASK_RD_ATOMIC, QP_MASK_REMOTE, QP_MASK_RNR_RETRY, QP_MASK_SQ_PSN, QP_MASK_STATE,
    RNR_RETRY_FOREVER,
};
use nupa_proto::cqe::Cqe;
use nupa_proto::pool::DEAD_AFTER_US;
use nupa_proto::status::WcStatus;

use crate::board::{now_us, NodeWord, Phase, Way};
use crate::host::{Host, TestQp};
use crate::requester::Requester;
use crate::responder::{Responder, RECEIVED};

/// How long a connection may last after its peer was killed: as long as a node may be silent, and as much as it may take until a process that
/// shares its processor with many others looks.
const LOST_US: u64 = DEAD_AFTER_US + 4_000_000;
/// How long requests may be under way. A peer that does not react is unreachable after 20 s (`Documentation/pool.md`).
const STUCK: Duration = Duration::from_secs(25);
/// Code of the time until a sender that found no receive buffer tries again: 0.64 ms.
const RNR_TIMER: u8 = 12;
const RD_ATOMIC: u8 = 16;

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The peer is to offer its queue pair.
    Offered,
    /// This end receives; the other one does not yet.
    Receives,
    /// Both do.
    Connected,
    /// What was posted comes back.
    Failed,
}

/// A connection with one epoch of a peer.
struct Connection {
    /// From this node to the peer.
    way: Way,
    stage: Stage,
    qp: TestQp,
    /// Requests that the queue pair did for connections before.
    before: u64,
    requester: Requester,
    responder: Responder,
}

/// Another node.
pub(crate) struct Peer {
    id: u16,
    /// The last epoch that there was a connection with: there is none with it again.
    last: u32,
    connection: Option<Connection>,
    /// The queue pair of the last one.
    unused: Option<TestQp>,
    /// What earlier processes of the peer have added to the counter of all, at least and at most.
    added: [u64; 2],
}

impl Peer {
    pub(crate) fn new(id: u16) -> Self {
        Self {
            id,
            last: 0,
            connection: None,
            unused: None,
            added: [0; 2],
        }
    }

    /// Does what can be done; whether that was something.
    pub(crate) fn step(&mut self, host: &Host, phase: Phase) -> bool {
        let Some(connection) = &mut self.connection else {
            return phase == Phase::Run && self.offer(host);
        };
        let busy = connection.step(host, phase);
        if connection.is_over(host) {
            if connection.stage == Stage::Failed {
                let [least, most] = connection.lost(host);
                self.added = [self.added[0] + least, self.added[1] + most];
            }
            let connection = self.connection.take();
            self.unused = connection.map(|connection| connection.reset(host));
            return true;
        }
        busy
    }

    /// Offers a queue pair if the peer has come.
    fn offer(&mut self, host: &Host) -> bool {
        let epoch = host.board.get(self.id, NodeWord::Epoch) as u32;
        if epoch == 0 || epoch == self.last || host.fabric.epoch_of(self.id) != Some(epoch) {
            return false;
        }
        self.last = epoch;
        let way = Way {
            from: host.id,
            to: self.id,
            from_epoch: host.epoch,
            to_epoch: epoch,
        };
        let unused = self.unused.take();
        let qp = unused.unwrap_or_else(|| host.guest.rc(host.pd, host.eqn));
        self.connection = Some(Connection::offer(host, way, qp));
        true
    }

    /// Whether nothing of this node's is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|connection| connection.requester.is_idle())
    }

    /// After all that was posted is done: compares what came with what was sent. What the peer has added to the counter of all, at least
    /// and at most.
    pub(crate) fn check(&mut self, host: &Host) -> [u64; 2] {
        let Some(connection) = &mut self.connection else {
            panic!("node {} is not connected to node {}", host.id, self.id);
        };
        connection.take_completions(host);
        connection.check_state(host, QpStateCode::Rts);
        let found = connection.responder.finish(host, &connection.qp, true);
        [self.added[0] + found[0], self.added[1] + found[1]]
    }
}

/// What the node says of a queue pair.
fn state_of(host: &Host, qp: &TestQp) -> QpState {
    let by_id = ById {
        id: qp.qpn.into(),
        ..ById::default()
    };
    host.guest.command(AdminOpcode::QueryQp, &by_id).unwrap()
}

impl Connection {
    /// Tells the peer of the queue pair.
    fn offer(host: &Host, way: Way, qp: TestQp) -> Self {
        host.board.offer(way, qp.qpn);
        Self {
            way,
            stage: Stage::Offered,
            before: state_of(host, &qp).traffic.requests.get(),
            qp,
            requester: Requester::new(host.seed, way),
            responder: Responder::new(host.seed, way.back()),
        }
    }

    fn step(&mut self, host: &Host, phase: Phase) -> bool {
        let mut busy = self.take_completions(host);
        match self.stage {
            Stage::Offered => busy |= self.connect(host),
            Stage::Receives if host.board.receives(self.way.back()) => {
                self.stage = Stage::Connected;
                busy = true;
            }
            Stage::Connected => {
                busy |= self.responder.post(host, &mut self.qp);
                let more = phase == Phase::Run;
                busy |= self.requester.post(host, &mut self.qp, more);
            }
            Stage::Receives | Stage::Failed => {}
        }
        self.check_time(host);
        busy
    }

    /// Makes the queue pair ready if the peer has offered one.
    fn connect(&mut self, host: &Host) -> bool {
        let Some(qpn) = host.board.offered(self.way.back()) else {
            return false;
        };
        self.responder.start(host, &mut self.qp);
        let mask = QP_MASK_STATE
            | QP_MASK_REMOTE
            | QP_MASK_ACCESS
            | QP_MASK_RNR_RETRY
            | QP_MASK_RD_ATOMIC
            | QP_MASK_SQ_PSN;
        let command = ModifyQp {
            qpn: self.qp.qpn.into(),
            mask: mask.into(),
            state: QpStateCode::Rtr.to_wire(),
            remote_node: self.way.to.into(),
            remote_qpn: qpn.into(),
            remote_epoch: self.way.to_epoch.into(),
            access: ACCESS_ALL.into(),
            rnr_retry: RNR_RETRY_FOREVER,
            min_rnr_timer: RNR_TIMER,
            max_rd_atomic: RD_ATOMIC,
            max_dest_rd_atomic: RD_ATOMIC,
            rq_psn: self.way.back().psn().into(),
            sq_psn: self.way.psn().into(),
            ..ModifyQp::default()
        };
        // The peer may have gone meanwhile: then the connection is given up.
        let made = host.guest.modify(&command);
        if made
            .and_then(|()| host.guest.set_state(self.qp.qpn, QpStateCode::Rts))
            .is_ok()
        {
            self.stage = Stage::Receives;
            host.board.set_receives(self.way);
        }
        true
    }

    /// Takes what has completed; whether there was something.
    fn take_completions(&mut self, host: &Host) -> bool {
        let mut found = false;
        while let Some(cqe) = self.qp.cq.ring.poll() {
            found = true;
            match WcStatus::try_from(cqe.status) {
                Ok(WcStatus::Success) => {}
                // What the end of a peer explains.
                Ok(WcStatus::RetryExceeded | WcStatus::WrFlush) => self.notice(host, &cqe),
                _ => self.fail(host, &format!("{cqe:?}")),
            }
            match cqe.wr_id.get() & RECEIVED {
                0 => self.requester.completed(host, &mut self.qp, &cqe),
                _ => self.responder.completed(host, &mut self.qp, &cqe),
            }
        }
        if found {
            self.qp.cq.ring.publish();
        }
        found
    }

    fn fail(&self, host: &Host, what: &str) -> ! {
        host.fail(self.way, &format!("queue pair {:#x}", self.qp.qpn), what)
    }

    /// When the process of the peer was killed that this is a connection with.
    fn killed_us(&self, host: &Host) -> Option<u64> {
        let peer = self.way.to;
        let is_killed = host.board.get(peer, NodeWord::KilledEpoch) as u32 >= self.way.to_epoch;
        is_killed.then(|| host.board.get(peer, NodeWord::KilledAt))
    }

    /// The connection has failed, which it may only if the peer was killed.
    fn notice(&mut self, host: &Host, cqe: &Cqe) {
        if self.stage == Stage::Failed {
            return;
        }
        self.stage = Stage::Failed;
        let Some(killed) = self.killed_us(host) else {
            self.fail(
                host,
                &format!("the connection failed, and the peer lives: {cqe:?}"),
            );
        };
        host.board.add(host.id, NodeWord::Failures, 1);
        host.board
            .raise(host.id, NodeWord::Noticed, now_us().saturating_sub(killed));
    }

    /// Fails if something takes longer than it may.
    fn check_time(&self, host: &Host) {
        if let Some((time, what)) = self.requester.waits() {
            if time > STUCK * host.patience {
                let stage = self.stage;
                self.fail(
                    host,
                    &format!("nothing has completed for {time:?} in stage {stage:?}; first {what}"),
                );
            }
        }
        let lasts = self.stage != Stage::Failed && self.stage != Stage::Offered;
        let killed = self.killed_us(host).filter(|_| lasts);
        if let Some(time) = killed.map(|killed| now_us().saturating_sub(killed)) {
            if time > LOST_US * u64::from(host.patience) {
                self.fail(
                    host,
                    &format!(
                        "the peer was killed {time} us ago, and the connection has not failed"
                    ),
                );
            }
        }
    }

    /// Whether there is nothing to wait for any more: it failed and all has come back, or the peer went before it was made.
    fn is_over(&self, host: &Host) -> bool {
        match self.stage {
            Stage::Failed => self.requester.is_idle() && self.responder.is_idle(),
            Stage::Offered => host.fabric.epoch_of(self.way.to) != Some(self.way.to_epoch),
            Stage::Receives | Stage::Connected => false,
        }
    }

    /// The peer was killed, and all that was posted has come back.
    fn lost(&mut self, host: &Host) -> [u64; 2] {
        self.check_state(host, QpStateCode::Err);
        self.responder.finish(host, &self.qp, false)
    }

    fn check_state(&self, host: &Host, expected: QpStateCode) {
        let found = state_of(host, &self.qp);
        let (requests, posted) = (found.traffic.requests.get(), self.requester.requests());
        // Of those that failed, the port has done fewer.
        let is_same = requests == self.before + posted || expected == QpStateCode::Err;
        if found.state != expected.to_wire() || !is_same {
            let before = self.before;
            self.fail(
                host,
                &format!("{found:?} in place of {expected:?} with {before} and {posted} requests"),
            );
        }
    }

    /// The queue pair, ready for another connection.
    fn reset(mut self, host: &Host) -> TestQp {
        let mut changed = host.guest.set_state(self.qp.qpn, QpStateCode::Reset);
        host.guest.renew(&mut self.qp);
        changed = changed.and_then(|()| host.guest.set_state(self.qp.qpn, QpStateCode::Init));
        if let Err(status) = changed {
            self.fail(host, &format!("it cannot be reset: {status:?}"));
        }
        for memory in [&host.exposed.private, &host.exposed.pool] {
            memory.clear_share(self.way.to);
        }
        host.board.withdraw(self.way);
        self.qp
    }
}
