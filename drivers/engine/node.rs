// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One node's controller: its objects and its state.

use crate::{
    hal::{Clock, Platform},
    path::events::RETRY_US,
    state::{
        counters::{Counters, Volume},
        cq::{CompletionQueue, Notice},
        eq::{EventQueue, NotWritten},
        filter::{RxFilter, Spread},
        gid::GidTable,
        limits::Limits,
        list::List,
        mr::Region,
        qp::{QueuePair, Wait},
        slots::Slots,
        srq::SharedQueue,
        table::Objects,
    },
    storage::Storage,
};
use nupa_proto::{
    admin::{PortCounters, QpStateCode},
    cqe::Cqe,
    eqe::{Eqe, EventType},
    ident::GSI_QPN,
    regs::{FAULT_EVENT_QUEUE, FAULT_NONE},
};
use zerocopy::little_endian::{U16, U32};

/// Objects of one kind in the containers that a node's host lends.
pub(crate) type Kind<S, T> = Objects<T, <S as Storage>::Table<T>, <S as Storage>::Table<u64>>;
/// Regions of a node.
pub(crate) type Regions<S> = Kind<S, Region<<S as Storage>::Pages>>;

/// Queue pair numbers below [`GSI_QPN`] do not exist, and that one is only for who asks for it.
const RESERVED_QPNS: usize = 1;

/// Epoch of a node that was not reset yet.
pub const FIRST_EPOCH: u32 = 1;

/// Event queue of everything but completions.
const ASYNC_EQN: u32 = 0;

/// What a node is made with.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeConfig {
    /// Its id in the fabric.
    pub id: u16,
    /// What it may use.
    pub limits: Limits,
}

/// A protection domain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Domain {
    /// Regions and queue pairs in it.
    pub(crate) users: u32,
}

/// One node's controller, as far as queues go: objects, link and epoch, counters.
///
/// A new one is not enabled, its link is up, its epoch is 1.
pub struct Node<S: Storage> {
    pub(crate) config: NodeConfig,
    pub(crate) epoch: u32,
    pub(crate) enabled: bool,
    pub(crate) link: bool,
    pub(crate) fault: u32,
    /// The host looks at doorbells by itself, no kicks are wanted.
    pub(crate) polled: bool,
    pub(crate) events: Kind<S, EventQueue<S::Pages>>,
    pub(crate) completions: Kind<S, CompletionQueue<S::Pages>>,
    pub(crate) pairs: Kind<S, QueuePair<S::Pages>>,
    pub(crate) shared: Kind<S, SharedQueue<S::Pages>>,
    pub(crate) regions: Regions<S>,
    /// Page addresses that regions store.
    pub(crate) stored_pages: u64,
    pub(crate) domains: Kind<S, Domain>,
    pub(crate) slots: Slots<S>,
    pub(crate) filter: RxFilter<S>,
    pub(crate) gids: GidTable<S>,
    pub(crate) spread: Spread<S>,
    pub(crate) counters: Counters,
    /// Queue pairs whose send queue stands still, see [`Wait`].
    pub(crate) waiting: List,
    /// Completion queues that hold an event back.
    pub(crate) moderated: List,
    /// When events that found no room are tried again, see [`crate::held`].
    pub(crate) retry_at: Option<u64>,
    /// Some of those were about the function itself.
    pub(crate) events_lost: bool,
    /// Grants to write directly may be such that would not be given any more, see [`crate::lending`].
    pub(crate) lends_anew: bool,
}

impl<S: Storage> Node<S> {
    /// A node without objects.
    pub fn new(config: NodeConfig) -> Self {
        let limits = &config.limits;
        Self {
            epoch: FIRST_EPOCH,
            enabled: false,
            link: true,
            fault: FAULT_NONE,
            polled: false,
            events: Objects::new(ASYNC_EQN, limits.max_eq),
            completions: Objects::new(0, limits.max_cq),
            pairs: Objects::with_reserved(GSI_QPN, limits.max_qp, RESERVED_QPNS).spread(),
            shared: Objects::new(0, limits.max_srq),
            regions: Objects::new(0, limits.max_mr),
            stored_pages: 0,
            domains: Objects::new(0, limits.max_pd),
            slots: Slots::default(),
            filter: RxFilter::default(),
            gids: GidTable::default(),
            spread: Spread::default(),
            counters: Counters::default(),
            waiting: List::default(),
            moderated: List::default(),
            retry_at: None,
            events_lost: false,
            lends_anew: false,
            config,
        }
    }

    /// Id of the node.
    #[inline(always)]
    pub fn id(&self) -> u16 {
        self.config.id
    }

    /// Limits of the node.
    pub fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// Epoch of the node: goes up with each reset.
    #[inline(always)]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Gives the node, which must have no objects, another epoch than the one that it has: where epochs are given out by somebody
    /// else.
    pub fn set_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// Whether the node takes part: it is enabled and its link is up.
    #[inline(always)]
    pub fn is_up(&self) -> bool {
        self.enabled && self.link
    }

    /// Whether the node's link to the switch is up.
    pub fn link(&self) -> bool {
        self.link
    }

    /// A `FAULT_*` of [`nupa_proto::regs`] if the node can only be reset.
    pub fn fault(&self) -> u32 {
        self.fault
    }

    /// What came and what went since the last reset, wrapping around.
    pub fn moved(&self) -> [Volume; 2] {
        self.counters.moved()
    }

    /// Counters since the last reset.
    pub fn counters(&self) -> PortCounters {
        self.counters.to_wire()
    }

    /// Numbers of objects that exist: event queues, completion queues, queue pairs, shared receive queues, memory keys,
    /// domains.
    pub fn object_counts(&self) -> [usize; 6] {
        [
            self.events.iter().count(),
            self.completions.iter().count(),
            self.pairs.iter().count(),
            self.shared.iter().count(),
            self.regions.iter().count(),
            self.domains.iter().count(),
        ]
    }

    /// Slots in the table of queue pairs: what it takes to look at all of them.
    pub fn pair_slots(&self) -> u32 {
        self.pairs.end().saturating_sub(GSI_QPN)
    }

    /// Forgets every object; the epoch goes up. Link and configuration stay.
    ///
    /// By itself because of the space that it takes on the stack.
    #[inline(never)]
    pub(crate) fn reset(&mut self) {
        let (epoch, link) = (self.epoch.wrapping_add(1), self.link);
        *self = Self::new(self.config);
        (self.epoch, self.link) = (epoch, link);
    }

    /// Tells the driver that admin completions were written.
    pub fn admin_event(&mut self, platform: &impl Platform) {
        self.report(platform, EventType::Admin, 0, 0);
    }

    /// Writes an event to event queue 0, if there is one.
    pub(crate) fn report(
        &mut self,
        platform: &impl Platform,
        event: EventType,
        node: u16,
        object: u32,
    ) {
        self.raise(platform, ASYNC_EQN, event, node, object);
    }

    /// Writes an event to an event queue, later if there is no room.
    pub(crate) fn raise(
        &mut self,
        platform: &impl Platform,
        eqn: u32,
        event: EventType,
        node: u16,
        object: u32,
    ) {
        let Some(queue) = self.events.get_mut(eqn) else {
            return;
        };
        let entry = Eqe {
            event_type: event.to_wire(),
            node: U16::new(node),
            object: U32::new(object),
            ..Eqe::default()
        };
        match queue.post(platform, &entry) {
            Ok(raised) => self.counters.interrupts.add(u32::from(raised)),
            Err(NotWritten::Full) => self.hold(platform, event, object),
            // An event that is lost would leave the driver waiting for ever.
            Err(NotWritten::Unreachable) => self.fault = FAULT_EVENT_QUEUE,
        }
    }

    /// Writes a completion. `urgent`: it counts for a queue armed for solicited completions only. A queue that cannot
    /// take it dies, and the queue pairs on it go to the error state.
    #[inline(always)]
    pub(crate) fn complete(
        &mut self,
        platform: &impl Platform,
        cqn: u32,
        entry: &Cqe,
        urgent: bool,
    ) {
        let Some(queue) = self.completions.get_mut(cqn) else {
            return;
        };
        match queue.post(platform, entry, urgent) {
            Ok(Notice::None) => {}
            Ok(Notice::Fire) => self.fire(platform, cqn),
            Ok(Notice::Wait) => {
                let wait = u64::from(queue.moderation.usecs);
                self.fire_later(platform, cqn, wait);
            }
            Err(_) => self.overflow(platform, cqn),
        }
    }

    /// Holds the event of a completion queue back for so many microseconds.
    fn fire_later(&mut self, clock: &impl Clock, cqn: u32, wait: u64) {
        if let Some(queue) = self.completions.get_mut(cqn) {
            queue.moderation.deadline = Some(clock.now_us().saturating_add(wait));
            self.moderated.push(&mut self.completions, cqn);
        }
    }

    /// Raises the event of a completion queue if it is armed and not empty; while its event queue has no room, the queue
    /// stays armed.
    pub(crate) fn fire(&mut self, platform: &impl Platform, cqn: u32) {
        self.moderated.remove(&mut self.completions, cqn);
        let Some(queue) = self.completions.get_mut(cqn) else {
            return;
        };
        let eqn = queue.eqn;
        let events = self.events.get_mut(eqn);
        if events.is_some_and(|events| !events.has_room(platform)) {
            self.fire_later(platform, cqn, RETRY_US);
        } else if queue.take_event(platform) {
            self.raise(platform, eqn, EventType::Completion, 0, cqn);
        }
    }

    #[cold]
    fn overflow(&mut self, platform: &impl Platform, cqn: u32) {
        let eqn = match self.completions.get_mut(cqn) {
            Some(queue) if !queue.dead => {
                queue.dead = true;
                queue.eqn
            }
            _ => return,
        };
        self.counters.cq_overflows.add(1);
        self.raise(platform, eqn, EventType::CqError, 0, cqn);
        for qpn in 0..self.pairs.end() {
            let uses = |pair: &QueuePair<_>| pair.send.cqn == cqn || pair.recv.cqn == cqn;
            if self.pairs.get(qpn).is_some_and(uses) {
                self.fail(platform, qpn);
            }
        }
    }

    /// Puts a queue pair into the error state on the device's own account; its work is flushed at its next turn.
    pub(crate) fn fail(&mut self, platform: &impl Platform, qpn: u32) {
        self.fail_with(platform, qpn, EventType::QpFatal);
    }

    /// As [`Node::fail`], with another event.
    #[cold]
    pub(crate) fn fail_with(&mut self, platform: &impl Platform, qpn: u32, event: EventType) {
        let Some(pair) = self.pairs.get_mut(qpn) else {
            return;
        };
        if matches!(pair.state, QpStateCode::Err | QpStateCode::Reset) {
            return;
        }
        pair.state = QpStateCode::Err;
        self.lends_anew = true;
        self.schedule(qpn);
        self.report(platform, event, 0, qpn);
        self.left_shared(platform, qpn);
    }

    /// A UD queue pair got a request wrong: it sends no more, but receives (InfiniBand volume 1, 10.3.1).
    #[cold]
    pub(crate) fn stop_sending(&mut self, qpn: u32) {
        let pair = self.pairs.get_mut(qpn);
        if let Some(pair) = pair.filter(|pair| pair.state == QpStateCode::Rts) {
            pair.state = QpStateCode::Sqe;
            self.schedule(qpn);
        }
    }

    /// Gives a queue pair's send queue a turn soon.
    pub(crate) fn schedule(&mut self, qpn: u32) {
        self.park(qpn, Wait::Turn);
    }

    /// Makes a queue pair's send queue wait.
    pub(crate) fn park(&mut self, qpn: u32, wait: Wait) {
        if let Some(pair) = self.pairs.get_mut(qpn) {
            pair.send.wait = wait;
            self.waiting.push(&mut self.pairs, qpn);
        }
    }

    /// Ends a queue pair's wait.
    #[inline(always)]
    pub(crate) fn unpark(&mut self, qpn: u32) {
        if let Some(pair) = self.pairs.get_mut(qpn) {
            if pair.send.wait != Wait::No {
                pair.send.wait = Wait::No;
                self.waiting.remove(&mut self.pairs, qpn);
            }
        }
    }
}
