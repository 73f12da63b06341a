// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One node's controller: its objects and its state.

use crate::{
    hal::{NoMemory, Storage},
    state::{
        counters::{Counters, Volume},
        cq::CompletionQueue,
        deferred::Deferred,
        eq::EventQueue,
        filter::{Rss, RxFilter},
        gid::GidTable,
        limits::Limits,
        list::List,
        mr::Mrs,
        multicast::Groups,
        pd::Pd,
        process_ring::Rings,
        qp::{Polled, QueuePair, Waiting},
        resources::Resources,
        round_robin::RoundRobin,
        slots::DoorbellSlots,
        srq::Srq,
        table::{Objects, TableOf},
        timer::TimerWheel,
    },
};
use nupa_pool::PerClass;
use nupa_proto::{admin::PortCounters, ident::GSI_QPN, pool::Class, regs::FAULT_NONE};

/// The queue pairs of a node.
pub(crate) type QueuePairs<S> = TableOf<S, QueuePair<<S as Storage>::Pages>>;

/// Queue pair numbers below [`GSI_QPN`] do not exist, and that one is only for who asks for it.
const RESERVED_QPNS: usize = 1;

/// Epoch of a node that was not reset yet.
pub const FIRST_EPOCH: u32 = 1;

/// Event queue of everything but completions.
pub(crate) const ASYNC_EQN: u32 = 0;

/// What a node is made with.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeConfig {
    /// Its id in the fabric.
    pub id: u16,
    /// What it may use.
    pub limits: Limits,
    /// Ids of nodes of other hosts are below this; 0 if there are none.
    pub remote_nodes: u16,
}

/// Queue pairs that wait for one node of another host.
pub(crate) struct RemoteWaiters<S: Storage> {
    /// For room in the rings to it.
    ring_waiters: PerClass<RoundRobin<S>>,
    /// Refused by it for want of receive buffers or of a connection.
    pub(crate) refused: List<Waiting>,
}

impl<S: Storage> Default for RemoteWaiters<S> {
    fn default() -> Self {
        Self {
            ring_waiters: PerClass::new(|_| RoundRobin::default()),
            refused: List::default(),
        }
    }
}

impl<S: Storage> RemoteWaiters<S> {
    /// Makes room for queue pairs with this doorbell page. May allocate.
    pub(crate) fn prepare(&mut self, page: u32) -> Result<(), NoMemory> {
        let used = [Class::ShortRequest, Class::Frame, Class::Request];
        used.into_iter()
            .try_for_each(|class| self.ring_waiters.of(class).prepare(page))
    }

    /// Whether any waits for room.
    #[inline]
    pub(crate) fn await_room(&self) -> bool {
        let rings = &self.ring_waiters;
        [&rings.short_request, &rings.request, &rings.frame]
            .iter()
            .any(|waiters| !waiters.is_empty())
    }

    /// Those that wait for room in the ring of a class.
    #[inline]
    pub(crate) fn ring_waiters(&mut self, class: Class) -> &mut RoundRobin<S> {
        self.ring_waiters.of(class)
    }
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
    /// The host polls doorbells: those of `polled_qps`, from which no kicks are wanted then.
    pub(crate) polled: bool,
    pub(crate) polled_qps: List<Polled>,
    pub(crate) eqs: TableOf<S, EventQueue<S::Pages>>,
    pub(crate) cqs: TableOf<S, CompletionQueue<S::Pages>>,
    pub(crate) qps: QueuePairs<S>,
    pub(crate) srqs: TableOf<S, Srq<S::Pages>>,
    pub(crate) mrs: Mrs<S>,
    /// Of the admin command that is executed.
    pub(crate) resources: Resources<S>,
    /// Page addresses that regions store.
    pub(crate) stored_pages: u64,
    pub(crate) pds: TableOf<S, Pd>,
    pub(crate) slots: DoorbellSlots<S>,
    pub(crate) filter: RxFilter<S>,
    pub(crate) gids: GidTable<S>,
    pub(crate) groups: Groups<S>,
    pub(crate) rss: Rss<S>,
    pub(crate) counters: Counters,
    /// Queue pairs whose send queue is to be served.
    pub(crate) ready: RoundRobin<S>,
    /// Queue pairs that wait for other hosts' nodes, by node id.
    pub(crate) remote_waiters: S::Table<RemoteWaiters<S>>,
    /// Raw queue pairs that wait for receive buffers of nodes of this host.
    pub(crate) frame_waiters: List<Waiting>,
    /// Timers of queue pairs whose wait ends by itself.
    pub(crate) timers: TimerWheel<S>,
    /// Queue pair that is looked at next, and how many are, see [`crate::path::sweep`].
    pub(crate) sweep_at: u32,
    pub(crate) sweep_left: u32,
    /// Timers of completion queues that hold an event back.
    pub(crate) moderated: TimerWheel<S>,
    /// Timers of shared receive queues with entries that others than those who were given a turn wait for.
    pub(crate) srq_timers: TimerWheel<S>,
    /// Queue pairs that have process rings.
    pub(crate) rings: Rings,
    /// Objects with events that found no room.
    pub(crate) deferred_cqs: List<Deferred>,
    pub(crate) deferred_qps: List<Deferred>,
    pub(crate) deferred_srqs: List<Deferred>,
    /// When events that found no room are tried again, see [`crate::path::events`].
    pub(crate) retry_at: Option<u64>,
    /// Some of those were about the function itself.
    pub(crate) events_lost: bool,
    /// Grants to write directly may be such that would not be given any more, see [`crate::pool::grant`].
    pub(crate) grants_stale: bool,
    /// A driver waits for peers that may be writing with grants that ended by then: in the clock's microseconds.
    pub(crate) awaits_since: Option<u64>,
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
            polled_qps: List::default(),
            eqs: Objects::new(ASYNC_EQN, limits.max_eq),
            cqs: Objects::new(0, limits.max_cq),
            qps: Objects::with_reserved(GSI_QPN, limits.max_qp, RESERVED_QPNS).in_turn(),
            srqs: Objects::new(0, limits.max_srq),
            mrs: Objects::new(0, limits.max_mr),
            resources: Resources::default(),
            stored_pages: 0,
            pds: Objects::new(0, limits.max_pd),
            slots: DoorbellSlots::default(),
            filter: RxFilter::default(),
            gids: GidTable::default(),
            groups: Groups::default(),
            rss: Rss::default(),
            counters: Counters::default(),
            ready: RoundRobin::default(),
            remote_waiters: S::Table::default(),
            frame_waiters: List::default(),
            timers: TimerWheel::default(),
            sweep_at: 0,
            sweep_left: 0,
            moderated: TimerWheel::default(),
            srq_timers: TimerWheel::default(),
            rings: Rings::default(),
            deferred_cqs: List::default(),
            deferred_qps: List::default(),
            deferred_srqs: List::default(),
            retry_at: None,
            events_lost: false,
            grants_stale: false,
            awaits_since: None,
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

    /// Page addresses that regions may store yet.
    pub fn pages_left(&self) -> u64 {
        self.limits().max_pages.saturating_sub(self.stored_pages)
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

    /// What came and what went since the last reset, wrapping around; as far as was counted.
    pub fn moved(&self) -> [Volume; 2] {
        self.counters.moved()
    }

    /// Counters since the last reset, as far as was counted: see [`Node::count_bypassed`].
    pub fn counters(&self) -> PortCounters {
        self.counters.to_wire()
    }

    /// Numbers of objects that exist: event queues, completion queues, queue pairs, shared receive queues, memory keys,
    /// domains.
    pub fn object_counts(&self) -> [usize; 6] {
        [
            self.eqs.iter().count(),
            self.cqs.iter().count(),
            self.qps.iter().count(),
            self.srqs.iter().count(),
            self.mrs.iter().count(),
            self.pds.iter().count(),
        ]
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
}
