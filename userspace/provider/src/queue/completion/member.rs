// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The queue pairs whose completions come to a queue.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use nupa_proto::cqe::{Cqe, CqeOpcode};
use nupa_proto::status::WcStatus;

use super::RECEIVE;
use crate::ffi::{Called, Lock};
use crate::queue::bypass::{BypassState, Maker, Sent};
use crate::queue::done::Done;
use crate::queue::{RecvQueue, SendQueue};

/// A queue pair whose completions come here.
#[derive(Debug)]
pub(crate) struct Member {
    /// Where they say how far the send queue is.
    pub(crate) send: Arc<Done>,
    /// The same for the receive queue, or the shared one.
    pub(crate) recv: Arc<Done>,
    /// The shared receive queue, if it uses one.
    pub(crate) shared: Option<Arc<SharedReceives>>,
    /// The send queue, if its completions come here.
    pub(crate) sends: Option<Arc<Lock<SendQueue>>>,
    /// How that is kicked, if not by itself.
    pub(crate) called: Option<Called>,
    /// The receive queue, if it is the queue pair's own and its completions come here.
    pub(crate) recvs: Option<Arc<Lock<RecvQueue>>>,
    /// What it may receive with past the engine, if its completions come here.
    pub(crate) maker: Option<Arc<Maker>>,
    /// What it may do past the engine.
    pub(crate) bypass_state: Option<Arc<BypassState>>,
}

/// What a queue pair receives of the entries that it shares with others.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    pub(crate) queue: Arc<Lock<RecvQueue>>,
    /// Messages that came through the engine since the queue pair was reset.
    pub(super) received: AtomicU32,
}

impl SharedReceives {
    /// For a queue pair that has received nothing yet.
    pub(crate) fn new(queue: Arc<Lock<RecvQueue>>) -> Self {
        Self {
            queue,
            received: AtomicU32::new(0),
        }
    }

    /// Notes which entries a message has taken.
    pub(super) fn account(&self, cqe: &Cqe) {
        let (behind, buffers) = (cqe.queue_index.get(), cqe.buffers.get());
        self.queue.lock().finish(behind, buffers);
        self.received.fetch_add(1, Ordering::Relaxed);
    }
}

impl Member {
    /// How many messages the queue pair has received through the engine by this completion, if it is one of a message.
    pub(super) fn received(&self, cqe: &Cqe) -> Option<u32> {
        let is_receive = cqe.opcode & RECEIVE != 0;
        is_receive.then(|| match &self.shared {
            None => cqe.queue_index.get(),
            Some(shared) => shared.received.load(Ordering::Relaxed),
        })
    }

    /// The completion of the oldest request that the device has not processed, if there is one. A queue that is locked is
    /// passed over: a batch may be under way on it, by the very thread that polls.
    pub(super) fn flush(&self, qpn: u32) -> Option<Cqe> {
        let sends = self.sends.as_ref().and_then(|queue| queue.try_lock());
        let recvs = || self.recvs.as_ref().and_then(|queue| queue.try_lock());
        let (opcode, wr_id) = sends
            .and_then(|mut queue| Some((CqeOpcode::Send, queue.give_up()?)))
            .or_else(|| Some((CqeOpcode::Recv, recvs()?.give_up()?)))?;
        Some(Cqe {
            wr_id: wr_id.into(),
            qpn: qpn.into(),
            opcode: opcode.to_wire(),
            status: WcStatus::WrFlush.to_wire(),
            ..Cqe::default()
        })
    }

    /// Has the engine take the WRITEs that nobody has taken out of the ring, unless the send queue is locked.
    #[cold]
    pub(super) fn drain(&self) {
        self.with_sends(SendQueue::drain);
    }

    /// As [`Member::drain`], and so that there is an event when the last WRITE is complete whose completion is asked for. Waits for the thread that has the
    /// send queue locked. In the middle of a batch that may be this one, or one that waits for the completion queue: then the end of the batch does it.
    #[cold]
    pub(super) fn drain_for_event(&self, sent: &Sent) {
        while !self.with_sends(SendQueue::drain_for_event) && !sent.owe_drain() {
            std::thread::yield_now();
        }
    }

    /// Does something with the send queue, and kicks that if need be. False, and it does nothing, if that is locked.
    fn with_sends(&self, change: impl FnOnce(&mut SendQueue)) -> bool {
        let Some(sends) = &self.sends else {
            return true;
        };
        try_with_send_queue(sends, self.called.as_ref(), change).is_some()
    }

    /// A queue pair that has failed sends nothing past the engine any more.
    #[cold]
    #[inline(never)]
    pub(super) fn fail(&self) {
        if let Some(bypass_state) = &self.bypass_state {
            bypass_state.stop();
        }
    }

    /// Notes how far the controller has come.
    pub(super) fn account(&self, cqe: &Cqe) {
        let index = cqe.queue_index.get();
        if cqe.opcode & RECEIVE == 0 {
            self.send.set(index);
        } else if let Some(shared) = &self.shared {
            shared.account(cqe);
        } else {
            self.recv.advance(index);
        }
    }
}

/// Does something with a send queue, and kicks it if need be. `None`, and it does nothing, if that is locked.
pub(in crate::queue) fn try_with_send_queue<T>(
    queue: &Lock<SendQueue>,
    called: Option<&Called>,
    change: impl FnOnce(&mut SendQueue) -> T,
) -> Option<T> {
    let change = || queue.try_lock().map(|mut queue| change(&mut queue));
    match called {
        Some(called) => called.around(change),
        None => change(),
    }
}
