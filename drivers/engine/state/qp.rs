// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queue pairs and their state machine.

use crate::state::{
    access::KeyHolder,
    bypassed::PeerRing,
    deferred::{Deferred, DeferredEvents, HasEvents},
    inflight::Inflight,
    kept::KeptWqe,
    latency::Sampler,
    list::{Linked, Links},
    process_ring::{HasRing, ProcessRing, RingHeld},
    ring::Ring,
    rq::RecvQueue,
    seats::Seats,
    slice::Slice,
    stall::Stall,
    timer::{HasTimer, Timed, Timer},
    traffic::Traffic,
};
use nupa_proto::{
    admin::{rnr_timer_us, QpStateCode, QpType, RNR_FOREVER, RNR_RETRY_FOREVER},
    doorbell::SLOT_NONE,
    pool::Class,
};

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair<P> {
    pub(crate) kind: QpType,
    pub(crate) state: QpStateCode,
    pub(crate) flags: u8,
    pub(crate) pd: u32,
    pub(crate) send: SendSide<P>,
    pub(crate) recv: RecvSide<P>,
    /// Doorbell page pair of both sides.
    pub(crate) page: u32,
    /// Peer (RC).
    pub(crate) remote: Option<Remote>,
    /// Packet sequence number that this end's requests begin with (RC).
    pub(crate) psn: u32,
    /// A message arrived since it was connected.
    pub(crate) established: bool,
    /// It has process rings: messages may have gone past the engine.
    pub(crate) has_rings: bool,
    /// Rights that remote requests may use at most.
    pub(crate) access: u32,
    /// Queue key (UD).
    pub(crate) qkey: u32,
    /// Longest wait for a receive buffer at the responder, ...
    pub(crate) rnr_timeout_us: u32,
    /// ... unless it is for so many retries (RC).
    pub(crate) rnr_retry: Option<u8>,
    /// How long its peer waits before each of them; see [`rnr_timer_us`] (RC).
    pub(crate) min_rnr_timer: u8,
    /// READs, atomics and flushes that may be in flight, as requester and as responder. The first limits those to other hosts; within a
    /// host one at a time is carried out. The second only says whether any are allowed.
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    /// Memory windows that are bound to it.
    pub(crate) windows: u32,
    /// Its place in the list that its wait puts it into.
    pub(crate) links: Links,
    /// Set while its wait ends by itself.
    pub(crate) timer: Timer,
    pub(crate) timer_links: Links,
    /// Its place among those whose doorbells are polled, and how often that found nothing, one time after the other.
    pub(crate) poll_links: Links,
    pub(crate) idle_polls: u16,
    /// Events that found no room.
    pub(crate) deferred: DeferredEvents,
    pub(crate) traffic: Traffic,
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct SendSide<P> {
    pub(crate) ring: Option<Ring<P>>,
    pub(crate) cqn: u32,
    pub(crate) slot: u16,
    /// Block that is taken next.
    pub(crate) index: u32,
    /// Producer index as last seen.
    pub(crate) posted: u32,
    pub(crate) wait: Wait,
    /// Requests that another host's engine has.
    pub(crate) inflight: Inflight,
    /// Progress of the request at the head of the queue, if it takes several turns: bytes copied, or slices of a flush written back.
    pub(crate) done: u32,
    /// When the descriptor at the head is given up for want of a receive buffer, once it has had to wait.
    pub(crate) rnr_deadline: Option<u64>,
    /// When it is given up because its destination is not connected yet, once it has had to wait for that.
    pub(crate) peer_deadline: Option<u64>,
    /// Bytes of payload that it needs room for in a ring.
    pub(crate) ring_need: u32,
    /// What is left of its last share of that room, since there was none, or how much more it had.
    pub(crate) rest: Slice,
    pub(crate) sampler: Sampler,
    /// The process ring that its process puts messages into.
    pub(crate) peer_ring: PeerRing,
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct RecvSide<P> {
    /// Its own entries, ...
    pub(crate) queue: Option<RecvQueue<P>>,
    /// ... or the shared receive queue that they come from.
    pub(crate) srqn: Option<u32>,
    pub(crate) cqn: u32,
    /// Whether frames wait for entries of this queue.
    pub(crate) stall: Stall,
    /// Its copy of an entry of the shared receive queue that has left that, and which a message is being put into.
    pub(crate) kept: Option<KeptWqe<P>>,
    /// Which messages that went past the engines have entries of the shared receive queue.
    pub(crate) seats: Seats,
    /// The process ring that messages may lie in.
    pub(crate) ring: ProcessRing,
    /// Number that the next request from another host must have; `None`: it must be one that starts anew.
    pub(crate) expected: Option<u32>,
    /// Bytes of that one that were taken already.
    pub(crate) taken: u32,
    /// What the requester on another host knows of entries here.
    pub(crate) credits: CreditsTold,
    /// Node and queue pair that were refused for want of entries, or because this end was not ready, and are to be told.
    pub(crate) waiter: Option<(u16, u32)>,
    /// Its place among those of a shared receive queue that have a waiter.
    pub(crate) links: Links,
}

/// How many receive entries the requester of a connected queue pair, on another host, was told of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CreditsTold {
    /// Those that it has not used.
    left: u16,
    /// How many there were when it was told.
    of: u16,
}

impl CreditsTold {
    /// It was told that there are so many.
    pub(crate) fn tell(&mut self, count: u16) {
        (self.left, self.of) = (count, count);
    }

    /// It has used one.
    pub(crate) fn spend(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Whether it is to be told anew, if there are more: it has used half of them.
    pub(crate) fn are_few(&self) -> bool {
        self.left <= self.of / 2
    }

    /// Whether it knows of more than twice as many as there are.
    pub(crate) fn are_too_many(&self, count: u16) -> bool {
        count < self.left / 2
    }

    /// Whether it does not know of so many.
    pub(crate) fn are_more(&self, count: u16) -> bool {
        count > self.left
    }
}

impl<P> RecvSide<P> {
    /// Whether it keeps an entry of the shared receive queue.
    pub(crate) fn keeps_entry(&self) -> bool {
        self.kept.as_ref().is_some_and(KeptWqe::is_held)
    }

    /// Doorbell slot of its own entries.
    pub(crate) fn slot(&self) -> u16 {
        self.queue.as_ref().map_or(SLOT_NONE, |queue| queue.slot)
    }
}

/// The peer of a connected queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) node: u16,
    pub(crate) qpn: u32,
    pub(crate) epoch: u32,
    /// Packet sequence number that the connection begins with on its side. It tells this connection from others between the same
    /// two queue pairs.
    pub(crate) psn: u32,
}

/// Why a send queue stands still. [`Node::park`](crate::node::Node) says in which list it is meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It does not.
    No,
    /// It goes on as soon as others had their turn.
    Turn,
    /// It waits for receive entries of this node's queue pair.
    Rnr { node: u16, qpn: u32 },
    /// It waits for this node's queue pair to be connected.
    Peer { node: u16, qpn: u32 },
    /// It waits for answers to requests that are under way.
    Responses,
    /// It waits for room in the ring of this class to this node of another host.
    RingSpace { node: u16, class: Class },
}

/// Marks lists of queue pairs whose send queue waits.
#[derive(Debug)]
pub(crate) enum Waiting {}

/// Marks the list of queue pairs whose doorbells are polled.
#[derive(Debug)]
pub(crate) enum Polled {}

/// Marks the list of a shared receive queue.
#[derive(Debug)]
pub(crate) enum OfSrq {}

impl<P> Linked<Waiting> for QueuePair<P> {
    fn place_in_list(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl<P> Linked<Polled> for QueuePair<P> {
    fn place_in_list(&mut self) -> &mut Links {
        &mut self.poll_links
    }
}

impl<P> Linked<OfSrq> for QueuePair<P> {
    fn place_in_list(&mut self) -> &mut Links {
        &mut self.recv.links
    }
}

impl<P> Linked<HasRing> for QueuePair<P> {
    fn place_in_list(&mut self) -> &mut Links {
        &mut self.recv.ring.links
    }
}

impl<P> Linked<RingHeld> for QueuePair<P> {
    fn place_in_list(&mut self) -> &mut Links {
        &mut self.recv.ring.held_links
    }
}

impl<P> Linked<Deferred> for QueuePair<P> {
    fn place_in_list(&mut self) -> &mut Links {
        self.deferred.place_in_list()
    }
}

impl<P> HasEvents for QueuePair<P> {
    fn deferred(&mut self) -> &mut DeferredEvents {
        &mut self.deferred
    }
}

impl<P> Linked<Timed> for QueuePair<P> {
    fn place_in_list(&mut self) -> &mut Links {
        &mut self.timer_links
    }
}

impl<P> HasTimer for QueuePair<P> {
    fn timer(&self) -> &Timer {
        &self.timer
    }

    fn timer_mut(&mut self) -> &mut Timer {
        &mut self.timer
    }
}

impl<P> QueuePair<P> {
    /// Whose keys the descriptors use.
    #[inline(always)]
    pub(crate) fn holder(&self) -> KeyHolder {
        KeyHolder::new(self.pd, self.flags)
    }

    /// Completion queues of the sides that exist.
    pub(crate) fn cqns(&self) -> [Option<u32>; 2] {
        [
            self.send.ring.is_some().then_some(self.send.cqn),
            self.has_recv().then_some(self.recv.cqn),
        ]
    }

    /// Page addresses that its rings keep.
    pub(crate) fn stored_pages(&self) -> u64
    where
        P: AsRef<[u64]> + AsMut<[u64]>,
    {
        let send = self
            .send
            .ring
            .as_ref()
            .map_or(0, |ring| ring.stored_pages());
        let recv = self.recv.queue.as_ref();
        send.saturating_add(recv.map_or(0, |queue| queue.stored_pages()))
    }

    /// Whether it can receive at all.
    #[inline]
    pub(crate) fn has_recv(&self) -> bool {
        self.recv.queue.is_some() || self.recv.srqn.is_some()
    }

    /// Whether messages and frames are received in this state.
    #[inline]
    pub(crate) fn receives(&self) -> bool {
        matches!(
            self.state,
            QpStateCode::Rtr | QpStateCode::Rts | QpStateCode::Sqd | QpStateCode::Sqe
        )
    }

    /// Whether a change to `to` is in the state diagram (InfiniBand volume 1, 10.3.1). Only the engine puts a queue pair into `Sqe`.
    pub(crate) fn may_go_to(&self, to: QpStateCode) -> bool {
        use QpStateCode::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
        matches!(
            (self.state, to),
            (_, Reset | Err)
                | (Reset | Init, Init)
                | (Init, Rtr)
                | (Rtr | Rts | Sqd, Rts)
                | (Rts | Sqd, Sqd)
                | (Sqe, Rts)
        )
    }

    /// Whether its owner has yet to make it ready to receive.
    #[inline]
    pub(crate) fn is_to_come(&self) -> bool {
        matches!(self.state, QpStateCode::Reset | QpStateCode::Init)
    }

    /// When a wait for a receive buffer that begins now is over. `min_rnr_timer` is the responder's.
    pub(crate) fn rnr_deadline(&self, now: u64, min_rnr_timer: u8) -> u64 {
        let timeout_us = match self.rnr_retry {
            None => self.rnr_timeout_us,
            Some(RNR_RETRY_FOREVER..) => RNR_FOREVER,
            Some(count) => {
                let timer_us = rnr_timer_us(min_rnr_timer).unwrap_or(0);
                timer_us.saturating_mul(u32::from(count))
            }
        };
        after(now, timeout_us)
    }

    /// Forgets all work, as a change to the reset state does.
    pub(crate) fn clear(&mut self) {
        self.rewind();
        (self.send.index, self.send.posted) = (0, 0);
        (self.send.rnr_deadline, self.send.peer_deadline) = (None, None);
        self.send.sampler.clear();
        self.send.rest = Slice::NONE;
        if let Some(queue) = &mut self.recv.queue {
            queue.clear();
        }
        (self.recv.stall, self.recv.expected, self.recv.taken) = (Stall::default(), None, 0);
        self.recv.seats = Seats::default();
        (self.remote, self.psn, self.established) = (None, 0, false);
        self.has_rings = false;
    }

    /// Doorbell slots of the sides that exist.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u16> {
        [self.send.slot, self.recv.slot()]
            .into_iter()
            .filter(|slot| *slot != SLOT_NONE)
    }
}

/// When a wait for receive buffers that begins now is over.
pub(crate) fn after(now: u64, rnr_timeout_us: u32) -> u64 {
    match rnr_timeout_us {
        RNR_FOREVER => u64::MAX,
        timeout => now.saturating_add(u64::from(timeout)),
    }
}
