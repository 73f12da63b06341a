// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs: a send queue, a receive queue if there is one of its own, and where completions go.

use std::sync::{Arc, OnceLock};

use nupa_engine::hal::SlotWord;
use nupa_engine::rings::Doorbell;

use super::bypass::{BypassState, Connection, Maker, Sender, Sent};
use super::completion::try_with_send_queue;
use super::regions::Regions;
use super::{CompletionQueue, Member, RecvQueue, SendQueue, SharedReceives};
use crate::ffi::{Calls, Lock, Slot};

/// A completion queue that several queue pairs and the program share.
pub(crate) type SharedCompletions = Arc<Lock<CompletionQueue>>;

/// The queues of a queue pair. Locks are taken one at a time, but for two cases: with that of a completion queue held, that of a receive queue may
/// be taken; and after the loss of the device those of queue pairs are tried.
#[derive(Debug)]
pub(crate) struct QueuePair {
    number: u32,
    /// Whether it sends datagrams.
    pub(crate) datagrams: bool,
    /// Requests that the program is told there is room for in its send queue.
    pub(crate) requests: u32,
    /// Send queue.
    pub(crate) send: Arc<Lock<SendQueue>>,
    /// Receive queue; none with a shared one.
    pub(crate) recv: Option<Arc<Lock<RecvQueue>>>,
    /// The shared one.
    shared: Option<Arc<Lock<RecvQueue>>>,
    /// How its queues are kicked if not by themselves.
    pub(crate) calls: Calls,
    /// If it may have process rings: what it may do with them.
    rings: OnceLock<Rings>,
    send_cq: SharedCompletions,
    recv_cq: SharedCompletions,
}

/// What a queue pair has that may have process rings.
#[derive(Debug)]
struct Rings {
    bypass_state: Arc<BypassState>,
    /// The doorbell slot whose arm word says how far they are.
    slot: Slot,
    /// The memory that is written to.
    regions: Arc<Regions>,
}

impl QueuePair {
    /// Puts the queues of a new queue pair together.
    ///
    /// The number must not be given to another queue pair of this context between its creation and this call.
    pub(crate) fn new(
        number: u32,
        datagrams: bool,
        send: SendQueue,
        recv: Received,
        completions: [SharedCompletions; 2],
        calls: Calls,
    ) -> Self {
        let [send_cq, recv_cq] = completions;
        let (recv, shared) = match recv {
            Received::Own(queue) => (Some(queue), None),
            Received::Shared(queue) => (None, Some(queue)),
        };
        let entries = recv.as_ref().or(shared.as_ref());
        let done_of = |queue: &Arc<Lock<RecvQueue>>| Arc::clone(queue.lock().done());
        let recv_done = entries.map_or_else(Arc::default, done_of);
        let send_done = Arc::clone(send.done());
        let requests = send.requests();
        let send = Arc::new(Lock::new(send));
        let one = Arc::ptr_eq(&send_cq, &recv_cq);
        let receives = shared
            .as_ref()
            .map(|queue| Arc::new(SharedReceives::new(Arc::clone(queue))));
        for (cq, sends, recvs) in [(&send_cq, true, one), (&recv_cq, one, true)] {
            let member = Member {
                send: Arc::clone(&send_done),
                recv: Arc::clone(&recv_done),
                shared: receives.clone(),
                sends: sends.then(|| Arc::clone(&send)),
                called: calls.queue.clone(),
                recvs: recv.clone().filter(|_| recvs),
                maker: None,
                bypass_state: None,
            };
            cq.lock().join(number, member);
        }
        Self {
            number,
            datagrams,
            requests,
            send,
            recv,
            shared,
            calls,
            rings: OnceLock::new(),
            send_cq,
            recv_cq,
        }
    }

    /// Lets short messages go past the engines, if both completion queues allow it. To be called once, before anything is posted.
    pub(crate) fn bypass(&self, connection: Connection) {
        let Some(recv) = self.recv.as_ref().or(self.shared.as_ref()) else {
            return;
        };
        let queues = [&self.send_cq, &self.recv_cq];
        let may = |cq: &SharedCompletions| {
            let cq = cq.lock();
            cq.may_bypass() && (connection.with_events || !cq.has_events())
        };
        if !queues.into_iter().all(may) {
            return;
        }
        if connection.shared {
            recv.lock().begin_claims(connection.recv_lookup.another());
        }
        for cq in queues {
            cq.lock()
                .set_bypass_state(self.number, &connection.bypass_state);
        }
        let watched = self.send_cq.lock().has_events();
        let completions = Arc::downgrade(&self.send_cq);
        let mut send = self.send.lock();
        let sent = Sent::new(connection.requests, Arc::clone(send.done()), watched);
        let sender = Sender::new(self.number, &connection, completions, Arc::new(sent));
        send.attach(sender);
        drop(send);
        let _ = self.rings.set(Rings {
            bypass_state: Arc::clone(&connection.bypass_state),
            slot: connection.slot.clone(),
            regions: Arc::clone(connection.lookup.regions()),
        });
        let maker = Maker::new(connection, Arc::clone(recv));
        self.recv_cq.lock().set_maker(self.number, maker);
    }

    /// The state was changed: whether the queue pair sends, and whether it has failed. Takes no lock: the program may have the queues locked. If it has failed
    /// the kernel has closed its ring.
    pub(crate) fn changed(&self, sends: bool, failed: bool) {
        let Some(rings) = self.rings.get() else {
            return;
        };
        match failed {
            true => {
                rings.bypass_state.stop();
                rings.regions.wait();
            }
            false => rings.bypass_state.set_ready(sends),
        }
    }

    /// The queue pair is about to go to the SQD state: nothing goes into a ring from now on. Whether it could; then [`QueuePair::drain`] is to be called.
    pub(crate) fn begin_drain(&self) -> bool {
        let rings = self.rings.get();
        rings.is_some_and(|rings| rings.bypass_state.begin_drain())
    }

    /// Has the peer's engine take the WRITEs that are in the ring. Whether there are none; else this is to be called again. `None` if the send queue is locked,
    /// perhaps by this very thread.
    pub(crate) fn drain(&self) -> Option<bool> {
        let drain = |queue: &mut SendQueue| {
            queue.drain();
            !queue.has_untaken()
        };
        try_with_send_queue(&self.send, self.calls.queue.as_ref(), drain)
    }

    /// It did not go to the SQD state.
    pub(crate) fn end_drain(&self) {
        if let Some(rings) = self.rings.get() {
            rings.bypass_state.end_drain();
        }
    }

    /// Its attributes were changed: whether its peer may write to memory. Takes no lock.
    pub(crate) fn allow_writes(&self, allow: bool) {
        if let Some(rings) = self.rings.get() {
            rings.bypass_state.allow_writes(allow);
            if !allow {
                // What a thread that polls is just writing is there when this returns.
                rings.regions.wait();
            }
        }
    }

    /// Empties the queues; to be called when the queue pair has gone to the reset state.
    pub(crate) fn reset(&self) {
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.lock().forget(self.number);
        }
        self.send.lock().reset();
        if let Some(recv) = &self.recv {
            recv.lock().reset();
        }
        if let Some(rings) = self.rings.get() {
            // Another thread may have received a message after the kernel had cleared it.
            rings.slot.store(SlotWord::Arm, 0);
            rings.bypass_state.reset();
        }
    }

    /// Takes the queue pair out of its completion queues; to be called when it was destroyed and before its number can
    /// be given to another queue pair of this context.
    pub(crate) fn leave(&self) {
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.lock().leave(self.number);
        }
    }
}

/// What a queue pair receives with.
#[derive(Debug)]
pub(crate) enum Received {
    /// A receive queue of its own.
    Own(Arc<Lock<RecvQueue>>),
    /// A shared receive queue.
    Shared(Arc<Lock<RecvQueue>>),
}

impl Received {
    /// A new receive queue, for this queue pair alone.
    pub(crate) fn own(queue: RecvQueue) -> Self {
        Self::Own(Arc::new(Lock::new(queue)))
    }
}
